"""The comparison as a person reads it, and as a program does."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fastdllm.eval.run import Result, Summary, compare
from fastdllm.eval.task import Problem, Task
from fastdllm.generation import Generation
from fastdllm.llm import LLM

COLUMNS = ("accuracy", "95 % interval", "NFE", "tokens/NFE", "tokens/s", "speed-up")


def run_with_progress(
    llm: LLM, task: Task, problems: Sequence[Problem], settings: Sequence[Generation], batch: int
) -> list[Summary]:
    """A summary for each setting, with a bar that shows accuracy and speed on the way."""
    done: dict[int, list[Result]] = {i: [] for i in range(len(settings))}
    batches = -(-len(problems) // batch) * len(settings)
    console = Console(stderr=True)
    with Progress(
        TextColumn(task.name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        ticket = bar.add_task("", total=batches)
        for number, results in enumerate(compare(llm, task, problems, settings, batch)):
            mine = done[number % len(settings)]
            mine += results
            so_far = Summary.of(mine)
            rule = settings[number % len(settings)].rule
            text = f"{rule}: {so_far.accuracy:.1%}, {so_far.tokens_per_second:,.0f} tokens/s"
            bar.update(ticket, advance=1, description=text)
    return [Summary.of(results) for results in done.values()]


def table(title: str, settings: Sequence[Generation], summaries: Sequence[Summary]) -> Table:
    """One row a setting; the speed-up is against the first."""
    grid = Table(title=title, title_justify="left")
    grid.add_column("rule", no_wrap=True)
    grid.add_column("cache")
    for name in COLUMNS:
        grid.add_column(name, justify="right")
    base = summaries[0].tokens_per_second
    last = settings[0].rule
    for one, s in zip(settings, summaries, strict=True):
        if one.rule != last:
            grid.add_section()
        last = one.rule
        low, high = s.interval
        grid.add_row(
            str(one.rule), one.cache, f"{s.accuracy:.1%}", f"{low:.1%} .. {high:.1%}",
            f"{s.nfe / s.count:.1f}", f"{s.tokens_per_nfe:.2f}", f"{s.tokens_per_second:,.0f}",
            f"{s.tokens_per_second / base:.2f}x",
        )  # fmt: skip
    return grid


def as_json(settings: Sequence[Generation], summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The same, for the last line of stdout."""
    return [
        {
            "select": str(one.rule),
            "cache": one.cache,
            "count": s.count,
            "accuracy": s.accuracy,
            "interval": [round(x, 4) for x in s.interval],
            "nfe": s.nfe / s.count,
            "tokens_per_nfe": round(s.tokens_per_nfe, 4),
            "tokens_per_second": round(s.tokens_per_second, 1),
        }
        for one, s in zip(settings, summaries, strict=True)
    ]
