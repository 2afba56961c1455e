"""Problems through the engine, a line of JSON for each; every figure is a fold over the lines.

    OUTPUT/run.json              model, task and data of this folder
    OUTPUT/RULE-CACHE-HASH.jsonl a line per problem under one setting, written as it happens

A run is resumed by running it again: problems that have a line are not asked again. A setting that
differs in anything has another hash, so another file. With several processes each takes its share
of the problems and writes its own files; the fold reads them all.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import fastdllm
from fastdllm.errors import InputError
from fastdllm.eval.task import Problem, Task
from fastdllm.generation import Completion, Generation
from fastdllm.llm import LLM, Prompt
from fastdllm.team import Team

Line = dict[str, Any]


def ask(llm: LLM, problem: Problem, chat: bool = True) -> Prompt:
    """The problem as the model wants to be asked: a chat turn if it chats and the task does.

    An instruct model is always asked so, worked examples and all, as the public scripts do.
    """
    chat = chat or "instruct" in llm.name.lower()
    if chat and llm.tokenizer is not None and llm.tokenizer.template:
        return [{"role": "user", "content": problem.prompt}]
    return problem.prompt


@dataclass(frozen=True)
class Result:
    """One problem under one setting."""

    problem: Problem
    settings: Generation
    completion: Completion
    right: bool
    seconds: float
    """Its share of the time its batch took."""


def solve(llm: LLM, task: Task, problems: Sequence[Problem], settings: Generation) -> list[Result]:
    """One batch, decoded together."""
    prompts = [ask(llm, problem, task.chat) for problem in problems]
    start = time.perf_counter()
    completions = llm.generate(prompts, settings, images=pictures(problems))
    seconds = (time.perf_counter() - start) / len(problems)
    return [
        Result(problem, settings, done, task.score(problem, done.text), seconds)
        for problem, done in zip(problems, completions, strict=True)
    ]


def pictures(problems: Sequence[Problem]) -> list[list[Any]]:
    """Of each, if any has one."""
    return [list(p.images) for p in problems] if any(p.images for p in problems) else []


# --- Files -------------------------------------------------------------------------------------


def dtype(llm: LLM) -> str:
    """What the model computes in."""
    if not isinstance(llm.model, torch.nn.Module):
        return ""
    return str(next(llm.model.parameters()).dtype).removeprefix("torch.")


def describe(settings: Generation) -> dict[str, Any]:
    """Everything of a setting that can change an answer."""
    values = {k: v for k, v in vars(settings).items() if k != "select"}
    found = {"select": str(settings.rule), **values, "stop": list(settings.stops)}
    if settings.rule.calibration is not None:  # the file of that name may be another one day
        found["calibration"] = settings.rule.calibration.fingerprint
    return found


class Sheet:
    """The lines of one setting, in a file that only ever grows; or nowhere, without a folder."""

    def __init__(
        self,
        folder: Path | None,
        settings: Generation,
        rank: int = 0,
        problems: Sequence[Problem] | None = None,
    ) -> None:
        """With `problems`, what the file says of others is left out of the fold."""
        self.settings, self.described = settings, describe(settings)
        self.prompts = {p.fingerprint: p.prompt for p in problems or ()}
        self.lines: dict[str, Line] = {}
        self.path: Path | None = None
        if folder is None:
            return
        label = f"{settings.rule}-{settings.cache}".replace(":", "").replace(",", "-")
        label = "".join(c for c in label if c.isalnum() or c in ".-=")[:80]
        mark = hashlib.sha256(json.dumps(self.described, sort_keys=True).encode()).hexdigest()[:8]
        stem = f"{label}-{mark}"
        self.path = folder / (f"{stem}.{rank}.jsonl" if rank else f"{stem}.jsonl")
        for path in sorted(folder.glob(f"{stem}*.jsonl")):
            self.lines |= {x["prompt"]: x for x in read_lines(path, mend=path == self.path)}
        if problems is not None:
            self.lines = {i: line for i, line in self.lines.items() if i in self.prompts}

    def add(self, results: Sequence[Result], version: int) -> None:
        """Write the results of a batch, all of them down to the disk."""
        new = [self._line(result, version) for result in results]
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in new))
                file.flush()
                os.fsync(file.fileno())
        self.lines |= {line["prompt"]: line for line in new}

    def _line(self, result: Result, version: int) -> Line:
        done = result.completion
        return {
            "id": result.problem.id,
            "prompt": result.problem.fingerprint,
            "right": result.right,
            "text": done.text,
            "tokens": done.usage.tokens,
            "nfe": done.usage.nfe,
            "commits": list(done.usage.commits),
            "seconds": result.seconds,
            "finish": done.finish_reason,
            "settings": self.described,
            "versions": {
                "fastdllm": fastdllm.__version__,
                "torch": torch.__version__,
                "task": version,
            },
        }


LINE = ("id", "prompt", "right", "text", "tokens", "nfe", "seconds", "settings")
"""What every line of ours holds."""


def read_lines(path: Path, mend: bool = False, wanted: Sequence[str] = LINE) -> list[Line]:
    """The whole lines of a file; one cut short at its end is dropped, with `mend` from disk too."""
    raw = path.read_bytes() if path.exists() else b""
    whole, _, rest = raw.rpartition(b"\n")
    found = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            found.append(json.loads(line))
            [found[-1][key] for key in wanted]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise InputError(
                f"{path}, line {number} is not one of ours; move the file away to start it anew"
            ) from None
    if rest and mend:
        with path.open("r+b") as file:
            file.truncate(len(raw) - len(rest))
    return found


def claim(folder: Path, about: Mapping[str, Any]) -> None:
    """Make the folder of a run, or see that it is this run's."""
    path = folder / "run.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if any(file.name != "run.new" for file in folder.iterdir()):
                raise InputError(
                    f"{folder} holds other files and no run.json; name an empty folder"
                )
            new = path.with_suffix(".new")
            new.write_text(json.dumps(about, indent=2) + "\n")
            os.replace(new, path)
            return
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}") from None
    try:
        old = json.loads(path.read_text())
        if not isinstance(old, dict):
            raise ValueError
    except ValueError:  # not JSON, not UTF-8, or no object
        raise InputError(f"{path} is damaged; move the folder away to start anew") from None
    for key in about:
        if key != "date" and old.get(key) != about[key]:
            raise InputError(
                f"{folder} is a run with {key} {old.get(key)!r}, not {about[key]!r}; name another "
                "--output"
            )


def about(
    llm: LLM, task: Task, problems: Sequence[Problem], shots: int | None, batch: int
) -> dict[str, Any]:
    """What a folder holds, and where it was measured; `problems` are all of the task's.

    All of it but the date must be the same for a run to go on: times of another machine, or of
    other batches, would blend into one figure.
    """
    usual = getattr(task, "shots", None)  # None: it knows no worked examples
    told = json.dumps([[p.fingerprint, p.answer, p.check] for p in problems], default=str)
    known = hashlib.sha256(told.encode())
    return {
        "model": llm.name,
        "weights": llm.fingerprint,
        "dtype": dtype(llm),
        "task": task.name,
        "version": task.version,
        "shots": usual if shots is None or usual is None else shots,
        "data": known.hexdigest()[:16],
        "batch": batch,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def machine() -> str:
    """Where a figure comes from, in a few words."""
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' if count > 1 else ''}"
    return f"{place}, {threads}, torch {torch.__version__}"


def processor() -> str:
    """What the CPU calls itself, where the system tells; else its kind."""
    try:
        told = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        told = ""
    found = re.search(r"^model name\s*: *(.+)$", told, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


# --- Running -----------------------------------------------------------------------------------


def run(
    llm: LLM, task: Task, problems: Sequence[Problem], sheets: Sequence[Sheet], batch: int
) -> Iterator[Sheet]:
    """Ask what no sheet has yet; yields a sheet whenever a batch was added to it.

    The settings take turns, batch by batch (with a batch of one, problem by problem), so that a
    noisy machine cannot favour one. Each runs a block before the first, so that nobody pays for
    warming up, and a rule this model or cache cannot take complains before anything is written.
    """
    team = Team.here()
    mine = list(problems)[team.rank :: team.size]
    for sheet in sheets:
        first = [p for p in mine if p.fingerprint not in sheet.lines][:1]
        if first:
            short = replace(sheet.settings, max_tokens=sheet.settings.block_size)
            llm.generate([ask(llm, p, task.chat) for p in first], short, images=pictures(first))
    for start in range(0, len(mine), batch):
        part = mine[start : start + batch]
        for sheet in sheets:
            missing = [p for p in part if p.fingerprint not in sheet.lines]
            if missing:
                sheet.add(solve(llm, task, missing, sheet.settings), task.version)
                yield sheet
