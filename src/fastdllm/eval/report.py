"""A run as a person sees it: progress, the table; and as a program does: JSON."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fastdllm.errors import InputError
from fastdllm.eval.run import Sheet, about, claim, run
from fastdllm.eval.summary import Summary, mcnemar
from fastdllm.eval.task import Problem, Task
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.team import Team

COLUMNS = ("accuracy", "95 %", "p", "NFE", "less", "tok/NFE", "tok/s", "speed-up")


def run_with_progress(
    llm: LLM, task: Task, problems: Sequence[Problem], sheets: Sequence[Sheet], batch: int
) -> None:
    """Fill the sheets, with a bar that shows accuracy, NFE and speed on the way."""
    console = Console(stderr=True)
    total = len(problems) * len(sheets)
    with Progress(
        TextColumn(task.name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"), console=console, transient=True,
        disable=not console.is_terminal or Team.here().rank > 0,
    ) as bar:  # fmt: skip
        ticket = bar.add_task("", total=total, completed=sum(len(s.lines) for s in sheets))
        for sheet in run(llm, task, problems, sheets, batch):
            s = Summary.of(sheet.lines.values())
            text = (
                f"{sheet.settings.rule}, {sheet.settings.cache}: {s.accuracy:.1%}, "
                f"NFE {s.mean_nfe:.1f}, {s.tokens_per_second:,.0f} tokens/s"
            )
            done = sum(len(one.lines) for one in sheets)
            bar.update(ticket, completed=done, description=text)


def measure(
    llm: LLM,
    task: Task,
    every: Sequence[Problem],
    problems: Sequence[Problem],
    settings: Sequence[Generation],
    batch: int,
    output: Path | None = None,
    shots: int | None = None,
) -> list[Sheet]:
    """Run the settings on the problems, in a folder that remembers, or in none.

    Of several processes each takes its share; all get the sheets of the whole.
    """
    team = Team.join(llm.device)
    if output is None and team.size > 1:
        raise InputError(
            "several processes bring their answers together in a folder; give --output"
        )
    for turn in range(team.size):
        if output is not None and turn == team.rank:
            claim(output, about(llm, task, every, shots, batch))
        team.wait()
    settings = list(dict.fromkeys(settings))  # the same twice is asked once
    sheets = [Sheet(output, one, team.rank, problems) for one in settings]
    team.wait()  # nobody writes while another still reads
    run_with_progress(llm, task, problems, sheets, batch)
    team.wait()
    return sheets if team.size == 1 else [Sheet(output, one, 0, problems) for one in settings]


def table(title: str, sheets: Sequence[Sheet]) -> Table:
    """One row a setting, against the first; p is McNemar's exact test on the same problems."""
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    grid.add_column("rule", no_wrap=True)
    grid.add_column("cache")
    for name in COLUMNS:
        grid.add_column(name, justify="right")
    base, last = Summary.of(sheets[0].lines.values()), sheets[0].settings.rule
    caches = {sheet.settings.cache for sheet in sheets}
    for sheet in sheets:
        if sheet.settings.rule != last and len(caches) > 1:
            grid.add_section()  # a rule's rows stand together
        last = sheet.settings.rule
        s = Summary.of(sheet.lines.values())
        low, high = s.interval
        p = mcnemar(sheets[0].lines, sheet.lines)[2]
        faster = s.tokens_per_second / (base.tokens_per_second or math.inf)
        grid.add_row(
            str(sheet.settings.rule), sheet.settings.cache, f"{s.accuracy:.1%}",
            f"{100 * low:.0f}-{100 * high:.0f}", "" if sheet is sheets[0] else f"{p:.2f}",
            f"{s.mean_nfe:.1f}", f"{1 - s.mean_nfe / base.mean_nfe:.0%}" if base.nfe else "",
            f"{s.tokens_per_nfe:.2f}", f"{s.tokens_per_second:,.0f}",
            f"{faster:.2f}x" if faster else "",
        )  # fmt: skip
    return grid


def as_json(sheets: Sequence[Sheet]) -> list[dict[str, Any]]:
    """The same, for the last line of stdout."""
    found = []
    base = Summary.of(sheets[0].lines.values())
    for sheet in sheets:
        s = Summary.of(sheet.lines.values())
        lost, won, p = mcnemar(sheets[0].lines, sheet.lines)
        found.append(
            {
                "select": str(sheet.settings.rule),
                "cache": sheet.settings.cache,
                "count": s.count,
                "accuracy": s.accuracy,
                "interval": [round(x, 4) for x in s.interval],
                "nfe": s.mean_nfe,
                "tokens_per_nfe": round(s.tokens_per_nfe, 4),
                "tokens_per_second": round(s.tokens_per_second, 1),
                "speed_up": round(s.tokens_per_second / (base.tokens_per_second or math.inf), 4),
                "nfe_less": round(1 - s.mean_nfe / (base.mean_nfe or math.inf), 4),
                "only_baseline_right": lost,
                "only_this_right": won,
                "p": p,
            }
        )
    return found


def by_group(
    problems: Sequence[Problem],
    sheets: Sequence[Sheet],
    verdicts: Sequence[Mapping[str, bool | None]] = (),
) -> list[dict[str, Any]]:
    """The share of right answers in each group a task's problems fall into.

    With a judge's verdicts on each sheet, by those.
    """
    found = []
    for i, sheet in enumerate(sheets):
        right_of = verdicts[i] if verdicts else {k: x["right"] for k, x in sheet.lines.items()}
        members: dict[tuple[str, str], list[bool]] = {}
        for problem in problems:
            for name, value in problem.check.get("groups", {}).items():
                right = bool(right_of[problem.fingerprint])
                members.setdefault((name, str(value)), []).append(right)
        found += [
            {
                "select": str(sheet.settings.rule), "cache": sheet.settings.cache, "group": name,
                "value": value, "count": len(mine), "accuracy": sum(mine) / len(mine),
            }
            for (name, value), mine in sorted(members.items())
        ]  # fmt: skip
    return found


def group_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row a group, one column a setting."""
    grid = Table(box=SIMPLE_HEAD, padding=0)
    settings = list(dict.fromkeys((row["select"], row["cache"]) for row in found))
    for heading in ("group", "", "problems"):
        grid.add_column(heading, justify="right" if heading == "problems" else "left")
    for rule, cache in settings:
        grid.add_column(f"{rule}, {cache}", justify="right")
    groups: dict[tuple[str, str, int], list[str]] = {}
    for row in found:
        key = (row["group"], row["value"], row["count"])
        groups.setdefault(key, []).append(f"{row['accuracy']:.1%}")
    for (name, value, count), cells in groups.items():
        grid.add_row(name, value, str(count), *cells)
    return grid
