"""A training run as a person sees it: progress, metrics, evaluations, the loss curve."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fastdllm.eval.run import Sheet, solve
from fastdllm.eval.summary import Summary
from fastdllm.eval.task import Problem, generated
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.training.recipe import Recipe
from fastdllm.training.train import Trainer, start

EVERY = 20
"""Steps a logged line averages."""
BATCH = 64
"""Problems evaluated together."""


def run(
    recipe: Recipe, output: Path, *, device: torch.device, save_every: int, eval_every: int,
    eval_count: int, code: bool = False,
) -> None:  # fmt: skip
    """Train to the end, from wherever this folder's run stands."""
    tasks = _evaluated(recipe, eval_count, code) if eval_every else []
    trainer = start(recipe, output, device=device)
    log = Log(output / "metrics.jsonl", trainer.step, quiet=trainer.team.rank > 0)
    log.say(_opening(trainer))
    if eval_every and not recipe.tasks:
        log.say("nothing is evaluated on the way: a data file has no task to score by")
    for name in recipe.tasks if eval_every else ():
        if name not in tasks:
            log.say(f"{name} is not evaluated on the way without --allow-code-execution")

    def due(every: int) -> bool:
        return trainer.step == recipe.steps or trainer.step % every == 0

    with log.progress(recipe.steps, trainer.step) as tick:
        if trainer.step and due(eval_every or recipe.steps):  # killed in between, perhaps
            trainer.save()
            _evaluate(trainer, log, tasks, eval_count)
        begun, tokens, told = time.perf_counter(), trainer.tokens, ""
        while trainer.step < recipe.steps:
            measured = trainer.train_step()
            if due(EVERY):
                now = time.perf_counter()
                speed = (trainer.tokens - tokens) / (now - begun)
                mean = sum(trainer.losses) / len(trainer.losses)
                trainer.losses = []
                log.write(
                    step=trainer.step, loss=mean, **measured, tokens=trainer.tokens,
                    left_out=trainer.data.too_long, seconds=round(trainer.seconds, 1),
                    speed=round(speed),
                )  # fmt: skip
                told = f"loss {mean:.4f}  {speed:,.0f} tokens/s{_too_long(trainer)}"
                begun, tokens = now, trainer.tokens
            tick(trainer.step, told)
            if due(save_every):
                trainer.save()
            if tasks and due(eval_every):
                _evaluate(trainer, log, tasks, eval_count)
                begun, tokens = time.perf_counter(), trainer.tokens
    log.say(_closing(trainer))
    if trainer.team.rank == 0:
        plot(output)


def _opening(trainer: Trainer) -> str:
    c, r = trainer.model.config, trainer.recipe
    begun = f"resuming at step {trainer.step}" if trainer.step else "from the start"
    return (
        f"{r.name}: {c.family}, {c.parameters:,} parameters, vocabulary {c.vocab}, "
        f"{r.steps} steps of {r.batch} rows, {begun}"
    )


def _closing(trainer: Trainer) -> str:
    hours, told = trainer.seconds / 3600, _too_long(trainer)
    return f"done: {trainer.tokens:,} tokens in {hours:.2f} h, saved in {trainer.output}{told}"


def _too_long(trainer: Trainer) -> str:
    """What did not fit, if anything did not."""
    data = trainer.data
    if not data.too_long:
        return ""
    if data.pretrain:
        return f"; {data.too_long} of {data.seen} texts longer than {data.canvas}: a part is learnt"
    return (
        f"; {data.too_long} of {data.seen} answers left out, which do not fit the canvas of "
        f"{data.canvas} or with their prompt the context of {data.context}"
    )


def _evaluated(recipe: Recipe, count: int, code: bool) -> list[str]:
    """The tasks to evaluate: those that run what the model wrote only if that is allowed."""
    names = [name for name in recipe.tasks if code or not generated(name).runs_code]
    for name in names:
        generated(name).check_allowed(code)  # that the sandbox works, before the hours
        generated(name).held_out(count)  # that there are so many
    return names


@torch.no_grad()
def _evaluate(trainer: Trainer, log: "Log", tasks: Sequence[str], count: int) -> None:
    """Held-out problems of each task, by the engine, with the averaged weights; by one process.

    What the log has of this step already is not measured again.
    """
    if trainer.team.rank == 0:
        with trainer.averaged():
            llm, recipe = LLM(trainer.model, trainer.tokenizer), trainer.recipe
            known = {x.get("task") for x in read_metrics(log.path) if x["step"] == trainer.step}
            for name in tasks:
                if name in known:
                    continue
                task = generated(name)
                size = _room(trainer, task.held_out(count))
                problems = [p for p in task.held_out(count) if trainer.data.fits(p, size)]
                if len(problems) < count:
                    log.say(
                        f"{count - len(problems)} of {count} problems of {name} left out: "
                        f"with {size} new tokens they exceed the context of {trainer.data.context}"
                    )
                if not problems:
                    continue
                if recipe.mode == "pretrain":  # it has never seen a turn, but lines
                    task = replace(task, chat=False)
                    problems = [replace(p, prompt=f"{p.prompt}\n") for p in problems]
                settings = Generation(size, recipe.block_size, "threshold:0.9", "prefix")
                sheet = Sheet(None, settings)
                for at in range(0, len(problems), BATCH):
                    sheet.add(solve(llm, task, problems[at : at + BATCH], settings), task.version)
                done = Summary.of(sheet.lines.values())
                log.write(
                    step=trainer.step, task=name, accuracy=done.accuracy, count=done.count,
                    tokens_per_nfe=round(done.tokens_per_nfe, 3),
                )  # fmt: skip
                log.say(
                    f"step {trainer.step}: {name} {done.accuracy:.1%} of {done.count}, "
                    f"{done.tokens_per_nfe:.2f} tokens/NFE"
                )
    trainer.team.wait()


def _room(trainer: Trainer, problems: Sequence[Problem]) -> int:
    """Blocks for the longest answer and its end: what is longer is wrong, more would only cost."""
    longest = max(len(trainer.tokenizer.encode(problem.answer)) for problem in problems)
    size = trainer.recipe.block_size
    return min(trainer.recipe.canvas, -(-(longest + 1) // size) * size)


class Log:
    """metrics.jsonl and the terminal. Lines after the step we resume from are dropped."""

    def __init__(self, path: Path, step: int, *, quiet: bool) -> None:
        self.path, self.quiet = path, quiet
        self.console = Console(stderr=True, quiet=quiet)
        if not quiet:
            kept = [line for line in read_metrics(path) if line["step"] <= step]
            fresh = path.with_suffix(".new")
            fresh.write_text("".join(json.dumps(line) + "\n" for line in kept))
            os.replace(fresh, path)

    def write(self, **values: Any) -> None:
        """One line."""
        if not self.quiet:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")

    def say(self, text: str) -> None:
        """To the terminal."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def progress(self, total: int, done: int) -> "Ticker":
        """A bar with throughput and time left; without a terminal, a line now and then."""
        return Ticker(self.console, total, done)


class Ticker:
    """The bar."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console, self.said = console, time.perf_counter()
        self.bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.description}"), console=console, disable=not console.is_terminal,
            speed_estimate_period=600,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total, completed=done)
        self.total, self.begun, self.first = total, self.said, done

    def __enter__(self) -> "Ticker":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, step: int, text: str) -> None:
        """Show where we are."""
        self.bar.update(self.task, completed=step, description=text)
        now = time.perf_counter()
        if not self.console.is_terminal and now - self.said > 30:
            self.said = now
            left = (now - self.begun) / (step - self.first) * (self.total - step)
            told = f"step {step}/{self.total}  {text}  {left / 60:.0f} min left"
            self.console.print(told, highlight=False)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; one that was cut short is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            row = json.loads(line)
            wanted = ("accuracy", "count") if isinstance(row, dict) and "task" in row else ("loss",)
            if all(isinstance(row[key], int | float) for key in ("step", *wanted)):
                found.append(row)
    return found


def plot(output: Path) -> Path | None:
    """curve.svg: the loss, and the accuracies measured on the way; None without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no curve was drawn; try: pip install 'fastdllm[plots]'", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = read_metrics(output / "metrics.jsonl")
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    left.plot(*zip(*losses, strict=True), linewidth=0.8)
    left.set(xlabel="step", ylabel="loss", yscale="log", title="training loss")
    for task in dict.fromkeys(line["task"] for line in lines if "task" in line):
        points = [(x["step"], 100 * x["accuracy"]) for x in lines if x.get("task") == task]
        right.plot(*zip(*points, strict=True), marker=".", label=task)
    if right.lines:
        right.legend(frameon=False)
    right.set(xlabel="step", ylabel="accuracy, %", ylim=(0, 101), title="held out, threshold 0.9")
    path = output / "curve.svg"
    with plt.rc_context({"svg.hashsalt": "fastdllm"}):  # the same file from the same log
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
