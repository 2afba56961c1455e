"""A rule's parameter over a grid: where accuracy is traded for forward passes, and for time."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdllm.errors import InputError, did_you_mean
from fastdllm.eval.run import Sheet
from fastdllm.eval.summary import Summary

GRIDS = {
    "threshold": (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5),
    "factor": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5),
    "frechet": (0.9, 0.75, 0.5, 0.25, 0.1, 0.05),
    "exact": (0.9, 0.75, 0.5, 0.25, 0.1, 0.05),
    "entropy": (0.01, 0.05, 0.1, 0.5, 1.0, 2.0),
    "topk": (1, 2, 4, 8),
    "localleap": (0.99, 0.95, 0.9, 0.8, 0.7),
    "hierarchy": (0.99, 0.95, 0.9, 0.8, 0.7),
    "dilated": (4, 3, 2, 1),
    "klass": (0.9, 0.8, 0.7, 0.6, 0.5),
    "credit": (0.99, 0.95, 0.9, 0.8, 0.7),
    "wino": (0.9, 0.8, 0.7, 0.6),
    "local": (0.9, 0.75, 0.5, 0.25, 0.1, 0.05),
    "stable": (0.9, 0.75, 0.5, 0.25, 0.1, 0.05),
}
"""Values to try, from careful to bold."""

Point = tuple[float, float]
"""Cost and accuracy."""


def grid(rules: Sequence[str]) -> list[str]:
    """The settings of some rules; `threshold:0.7/0.9` names its own values.

    >>> grid(["topk", "local:0.1/0.2,radius=2"])
    ['topk:1', 'topk:2', 'topk:4', 'topk:8', 'local:0.1,radius=2', 'local:0.2,radius=2']
    """
    found = []
    for rule in rules:
        head, comma, rest = rule.partition(",")
        name, _, values = head.partition(":")
        if name not in GRIDS:
            raise InputError(f"no grid is known for '{name}'; {did_you_mean(name, GRIDS)}")
        wanted = values.split("/") if values else [str(value) for value in GRIDS[name]]
        found += [f"{name}:{value}{comma}{rest}" for value in wanted]
    return found


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points no other one beats in both: cheaper and at least as accurate. By cost.

    >>> frontier([(1, 0.5), (2, 0.4), (3, 0.9)])
    [(1, 0.5), (3, 0.9)]
    """
    best: list[Point] = []
    for cost, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or accuracy > best[-1][1]:
            best.append((cost, accuracy))
    return best


def area(points: Sequence[Point], full: float) -> float:
    """The mean accuracy over every budget from nothing to `full`: 1 is right at once, always.

    A budget buys the best point that fits it; below the cheapest it buys nothing.

    >>> area([(5, 1.0)], full=10)
    0.5
    """
    steps = [(cost, accuracy) for cost, accuracy in frontier(points) if cost <= full]
    ends = [cost for cost, _ in steps[1:]] + [full]
    return sum(a * (end - cost) for (cost, a), end in zip(steps, ends, strict=True)) / full


def points(sheets: Sequence[Sheet]) -> list[dict[str, Any]]:
    """What each setting costs and gets right, in percent, as `drawings` wants it."""
    found = []
    for sheet in sheets:
        s = Summary.of(sheet.lines.values())
        found.append(
            {
                "select": str(sheet.settings.rule),
                "rule": sheet.settings.rule.name,
                "cache": sheet.settings.cache,
                "accuracy": 100 * s.accuracy,
                "low": 100 * s.interval[0],
                "high": 100 * s.interval[1],
                "nfe": s.mean_nfe,
                "tokens_per_second": s.tokens_per_second,
                "count": s.count,
            }
        )
    return found


def areas(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The area of each rule, over passes and over time: budgets up to that of the dearest point."""
    costs = {
        "nfe": [float(p["nfe"]) for p in found],
        "seconds": [1 / p["tokens_per_second"] if p["tokens_per_second"] else 0.0 for p in found],
    }
    result: dict[str, dict[str, float]] = {}
    for rule in dict.fromkeys(p["rule"] for p in found):
        result[rule] = {
            key: area(
                [(c, p["accuracy"] / 100) for c, p in zip(cost, found, strict=True)
                 if p["rule"] == rule],
                max(cost) or 1.0,
            )
            for key, cost in costs.items()
        }  # fmt: skip
    return result


def write(found: Sequence[dict[str, Any]], title: str, folder: Path) -> list[Path]:
    """The points as CSV, and with the areas as JSON."""
    paths = [folder / "sweep.csv", folder / "sweep.json"]
    with paths[0].open("w", newline="") as file:
        sheet = csv.DictWriter(file, list(found[0]))
        sheet.writeheader()
        sheet.writerows(found)
    told = {"title": title, "areas": areas(found), "points": list(found)}
    paths[1].write_text(json.dumps(told, indent=2) + "\n")
    return paths
