"""Lay training runs beside the logs of the models that ship.

    make train-tiny && python benchmarks/retrace.py

For each log in docs/logs of which `runs` holds a run, whether at its end or still on its way: until
which step every loss is the logged one to the last bit, and how the last loss and the last
accuracies compare that both have. On another processor losses part after some steps, by rounding
alone.
"""

import argparse
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fastdllm.training.run import read_metrics

LOGS = Path(__file__).parent.parent / "docs" / "logs"
Lines = dict[tuple[int, str], dict[str, Any]]
"""What was logged at a step: of the loss under "", of the accuracy under its task."""


def read(path: Path) -> Lines:
    return {(line["step"], line.get("task", "")): line for line in read_metrics(path)}


def compare(logged: Lines, here: Lines) -> tuple[str, ...]:
    both = sorted(logged.keys() & here.keys())
    steps = [step for step, task in both if not task]
    asked = [(step, task) for step, task in both if task]
    if not steps:
        return "0", "", "", ""

    def beside(at: tuple[int, str], key: str, form: str) -> str:
        return " / ".join(format(lines[at][key], form) for lines in (logged, here))

    alike = takewhile(lambda s: logged[s, ""]["loss"] == here[s, ""]["loss"], steps)
    accuracies = [
        f"{at[0]:,}: {at[1]} {beside(at, 'accuracy', '.1%')}"
        for at in asked
        if at[0] == asked[-1][0]
    ]
    return (
        f"{steps[-1]:,}",
        f"{max(alike, default=0):,}",
        beside((steps[-1], ""), "loss", ".4f"),
        "\n".join(accuracies),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    runs = parser.parse_args().runs
    found = [log for log in sorted(LOGS.glob("*.jsonl")) if (runs / log.stem).is_dir()]
    if not found:
        parser.error(f"{runs} holds no run of {LOGS}; make one with: make train-tiny")
    table = Table("run", "steps", "same until", "loss, logged / here", "accuracy, logged / here")
    for log in found:
        table.add_row(log.stem, *compare(read(log), read(runs / log.stem / "metrics.jsonl")))
    Console().print(table)


if __name__ == "__main__":
    main()
