"""A rule's parameter over a grid: where accuracy is traded for forward passes, and for time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdllm.errors import InputError, did_you_mean
from fastdllm.eval.run import Sheet
from fastdllm.eval.summary import Summary

GRIDS = {
    "threshold": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
    "factor": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5),
    "frechet": (0.05, 0.1, 0.25, 0.5, 0.75, 0.9),
    "exact": (0.05, 0.1, 0.25, 0.5, 0.75, 0.9),
    "entropy": (0.01, 0.05, 0.1, 0.5, 1.0, 2.0),
    "topk": (1, 2, 4, 8),
}
"""Values to try, from bold to careful or the other way."""

Point = tuple[float, float]
"""Cost and accuracy."""


def grid(rules: Sequence[str]) -> list[str]:
    """The settings of some rules; `threshold:0.7/0.9` names its own values.

    >>> grid(["topk", "threshold:0.7/0.9"])
    ['topk:1', 'topk:2', 'topk:4', 'topk:8', 'threshold:0.7', 'threshold:0.9']
    """
    found = []
    for rule in rules:
        name, _, values = rule.partition(":")
        if name not in GRIDS:
            raise InputError(f"no grid is known for '{name}'; {did_you_mean(name, GRIDS)}")
        wanted = values.split("/") if values else [str(value) for value in GRIDS[name]]
        found += [f"{name}:{value}" for value in wanted]
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
    """What each setting costs and gets right."""
    found = []
    for sheet in sheets:
        s = Summary.of(sheet.lines.values())
        found.append(
            {
                "select": str(sheet.settings.rule),
                "rule": sheet.settings.rule.name,
                "cache": sheet.settings.cache,
                "accuracy": s.accuracy,
                "interval": s.interval,
                "nfe": s.mean_nfe,
                "tokens_per_second": s.tokens_per_second,
                "count": s.count,
            }
        )
    return found


def areas(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The area of each rule under the budget of one token a pass: that of the dearest point."""
    full = max(p["nfe"] for p in found)
    rules = dict.fromkeys(p["rule"] for p in found)
    return {
        rule: area([(p["nfe"], p["accuracy"]) for p in found if p["rule"] == rule], full)
        for rule in rules
    }


def draw(found: Sequence[dict[str, Any]], title: str, folder: Path) -> list[Path]:
    """frontier.svg and .png: accuracy against passes, and against speed, with intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    for axis, key, label in (
        (axes[0], "nfe", "forward passes a problem"),
        (axes[1], "tokens_per_second", "tokens/s"),
    ):
        for rule in dict.fromkeys(p["rule"] for p in found):
            mine = sorted((p for p in found if p["rule"] == rule), key=lambda p: float(p["nfe"]))
            high = [100 * (p["interval"][1] - p["accuracy"]) for p in mine]
            low = [100 * (p["accuracy"] - p["interval"][0]) for p in mine]
            axis.errorbar(
                [p[key] for p in mine], [100 * p["accuracy"] for p in mine], yerr=(low, high),
                marker="o", markersize=4, linewidth=1.2, elinewidth=0.6, capsize=2, label=rule,
            )  # fmt: skip
        axis.set(xlabel=label)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="accuracy, %")
    axes[0].legend(frameon=False)
    figure.suptitle(title)
    paths = [folder / f"frontier.{kind}" for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    (folder / "frontier.json").write_text(json.dumps(list(found), indent=2) + "\n")
    return paths
