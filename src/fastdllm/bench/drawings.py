"""The figures of `fastdllm reproduce`: SVG and PNG from measured rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from fastdllm.calibration import EDGES, Calibration
from fastdllm.errors import InputError

Rows = Sequence[Mapping[str, Any]]
MARKERS = {"none": "o", "prefix": "s", "dual": "^"}
COLOURS = {"full": "#666666", "threshold": "#d95f02", "factor": "#7570b3", "frechet": "#1b9e77",
           "local": "#000000"}  # fmt: skip
MANY = (
    "#e7298a", "#a6761d", "#1f78b4", "#e6ab02", "#66a61e", "#17becf", "#8c564b", "#b2182b",
    "#bcbd22", "#6a3d9a", "#fb9a99", "#2ca02c", "#9467bd",
)  # fmt: skip


def _rule(row: Mapping[str, Any]) -> str:
    name = str(row["select"])
    return name.split(":")[0] + ("*" if "calibration=" in name else "")


def _value(row: Mapping[str, Any]) -> float:
    return float(str(row["select"]).partition(":")[2].partition(",")[0] or 0)


def _accuracy(axis: Any, mine: Rows, x: Sequence[float], **style: Any) -> None:
    """Accuracy against something, with its intervals."""
    y = [r["accuracy"] for r in mine]
    low = [r["accuracy"] - r["low"] for r in mine]
    high = [r["high"] - r["accuracy"] for r in mine]
    _, _, bars = axis.errorbar(x, y, yerr=(low, high), markersize=4, elinewidth=0.8, **style)
    for bar in bars:
        bar.set_alpha(0.35)  # there, but not what one looks at


def frontier(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Accuracy against passes, and against speed; a line a rule."""
    for axis, key, label in (
        (axes[0], "nfe", "forward passes a problem"),
        (axes[1], "tokens_per_second", "tokens/s"),
    ):
        for rule in dict.fromkeys(map(_rule, rows)):
            mine = sorted((r for r in rows if _rule(r) == rule), key=lambda r: float(r["nfe"]))
            style = {"marker": "o", "label": rule, "color": COLOURS.get(rule)}
            _accuracy(axis, mine, [r[key] for r in mine], **style)
        axis.set(xlabel=label, ylabel="accuracy, %")
    axes[0].legend(frameon=False)


def rules(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Accuracy against passes, a line a rule; a plot for each of two tasks."""
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    names = [rule for rule in dict.fromkeys(map(_rule, rows)) if rule != "full"]
    for axis, task in zip(axes, tasks, strict=False):
        here = [r for r in rows if r["task"] == task]
        for rule, colour, marker in zip(names, cycle(MANY), cycle("ovs^D<P>Xph*d"), strict=False):
            mine = sorted((r for r in here if _rule(r) == rule), key=lambda r: float(r["nfe"]))
            ours = rule.rstrip("*") in ("frechet", "local", "stable")
            _accuracy(axis, mine, [r["nfe"] for r in mine], label=rule, marker=marker,
                      color=COLOURS.get(rule, colour), linewidth=2.2 if ours else 0.8)  # fmt: skip
        for row in (r for r in here if _rule(r) == "full"):
            axis.axhline(row["accuracy"], color=COLOURS["full"], linestyle=":", label="full")
        axis.set(xlabel="forward passes a problem", ylabel="accuracy, %", title=task)
        axis.set_xscale("log")
        axis.set_xticks(ticks := [6, 8, 10, 15, 20, 30, 50], [str(tick) for tick in ticks])
        axis.minorticks_off()
    known = axes[0].get_legend_handles_labels()
    axes[1].legend(*known, frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def blocks(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Speed and accuracy against the size of a block."""
    for rule in dict.fromkeys(map(_rule, rows)):
        mine = sorted((r for r in rows if _rule(r) == rule), key=lambda r: int(r["block_size"]))
        sizes = [r["block_size"] for r in mine]
        style = {"marker": "o", "label": rule, "color": COLOURS.get(rule)}
        axes[0].plot(sizes, [r["tokens_per_second"] for r in mine], **style)
        _accuracy(axes[1], mine, sizes, **style)
    axes[0].set(xlabel="tokens in a block", ylabel="tokens/s")
    axes[1].set(xlabel="tokens in a block", ylabel="accuracy, %")
    axes[0].legend(frameon=False)


def steps(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Tokens committed by each pass of an answer, while half of the answers still run; how often
    how many."""
    for i, (select, told) in enumerate(more["steps"].items()):
        style = {"label": select, "color": COLOURS.get(select.split(":")[0])}
        half = told["running"][0] / 2
        means = [m for m, n in zip(told["mean"], told["running"], strict=True) if n >= half]
        axes[0].plot(range(1, len(means) + 1), means, marker=".", **style)
        total = sum(told["counts"].values())
        sizes = [int(n) for n in told["counts"]]
        shares = [100 * n / total for n in told["counts"].values()]
        axes[1].bar([s + 0.27 * (i - 1) for s in sizes], shares, width=0.27, **style)
    axes[0].set(xlabel="forward pass", ylabel="tokens committed, mean", ylim=(0, None))
    axes[1].set(xlabel="tokens committed by a pass", ylabel="passes, %")
    axes[0].legend(frameon=False)


def margin(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Passes and accuracy against Fréchet's margin; `full` as a line."""
    mine = [r for r in rows if _rule(r) == "frechet"]
    values = [_value(r) for r in mine]
    axes[0].plot(values, [r["tokens_per_nfe"] for r in mine], marker="o", color=COLOURS["frechet"])
    _accuracy(axes[1], mine, values, marker="o", color=COLOURS["frechet"])
    for row in (r for r in rows if _rule(r) == "full"):
        axes[0].axhline(row["tokens_per_nfe"], color=COLOURS["full"], linestyle="--", label="full")
        axes[1].axhline(row["accuracy"], color=COLOURS["full"], linestyle="--", label="full")
    axes[0].set(xlabel="margin", ylabel="tokens/NFE")
    axes[1].set(xlabel="margin", ylabel="accuracy, %")
    axes[1].legend(frameon=False)


def scatter(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """Accuracy against speed: shape by cache, colour by rule, size by tokens/NFE."""
    for axis, key, label in (
        (axes[0], "tokens_per_second", "tokens/s"),
        (axes[1], "nfe", "forward passes a problem"),
    ):
        for row in rows:
            axis.scatter(
                row[key], row["accuracy"], s=30 * row["tokens_per_nfe"], alpha=0.8,
                marker=MARKERS[row["cache"]], color=COLOURS.get(_rule(row)),
                label=f"{_rule(row)}, {row['cache']}",
            )  # fmt: skip
        axis.set(xlabel=label, ylabel="accuracy, %")
    axes[0].legend(frameon=False, fontsize=7)


def bars(axes: Any, rows: Rows, more: Mapping[str, Any]) -> None:
    """A table at a glance: accuracy, and tokens for each pass, of every row."""
    names = [f"{r['task']} {r['max_tokens']} {r['cache']}" for r in rows]
    places = list(dict.fromkeys(names))
    rules = list(dict.fromkeys(str(r["select"]) for r in rows))
    width = 0.8 / len(rules)
    for axis, key, label in (
        (axes[0], "accuracy", "accuracy, %"),
        (axes[1], "tokens_per_nfe", "tokens/NFE"),
    ):
        for k, rule in enumerate(rules):
            mine = [(places.index(n), r) for n, r in zip(names, rows, strict=True)
                    if r["select"] == rule]  # fmt: skip
            axis.barh(
                [i + width * (k - (len(rules) - 1) / 2) for i, _ in mine],
                [r[key] for _, r in mine], height=width, label=rule,
                color=COLOURS.get(rule.split(":")[0]),
            )  # fmt: skip
        axis.set(xlabel=label, yticks=range(len(places)), yticklabels=places)
        axis.invert_yaxis()
        axis.tick_params(axis="y", labelsize=7)
    axes[0].legend(frameon=False, fontsize=7)


DRAWINGS: dict[str, Callable[[Any, Rows, Mapping[str, Any]], None]] = {
    "fig-frontier": frontier,
    "fig-steps": steps,
    "fig-blocks": blocks,
    "fig-margin": margin,
    "fig-cache-scatter": scatter,
    "fig-rules": rules,
}


def check() -> None:
    """Complain before anything is measured if nothing could be drawn of it."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("figures want matplotlib; try: pip install 'fastdllm[plots]'") from None


def reliability(made: Calibration, title: str, beside: Path) -> list[Path]:
    """How often a token was wrong against how doubtful it was said to be, and the upper end."""
    figure, axes = _open()
    middles = [math.sqrt(max(a, b / 3) * b) for a, b in pairwise(EDGES)]
    shown = [i for i, n in enumerate(made.counts) if n]
    rate = [max(made.wrong[i] / made.counts[i], 1e-6) for i in shown]
    axes[0].plot([1e-5, 1], [1e-5, 1], color="#999999", linestyle="--", label="as it says")
    x = [middles[i] for i in shown]
    axes[0].plot(x, rate, marker="o", color="#d95f02", label="measured")
    upper = [made.upper[i] for i in shown]
    label = f"upper end, level {made.level:g}"
    axes[0].plot(x, upper, marker="_", color="#1b9e77", label=label)
    axes[0].set(xscale="log", yscale="log", xlabel="reported doubt", ylabel="share wrong")
    axes[0].legend(frameon=False)
    axes[1].bar(range(len(shown)), [made.counts[i] for i in shown], color="#7570b3")
    axes[1].set(yscale="log", xlabel="reported doubt, up to", ylabel="tokens")
    axes[1].set_xticks(range(len(shown)), [f"{EDGES[i + 1]:g}" for i in shown], fontsize=7)
    return _save(figure, title, beside.parent, beside.stem)


def draw(
    name: str, rows: Rows, title: str, folder: Path, more: Mapping[str, Any] | None = None
) -> list[Path]:
    """The figure of an experiment, if it has one; `more` is what it tells besides its rows."""
    figure, axes = _open()
    DRAWINGS.get(name, bars)(axes, rows, more or {})
    return _save(figure, title, folder, name)


def _open() -> tuple[Any, Any]:
    """A figure of two plots."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")


def _save(figure: Any, title: str, folder: Path, name: str) -> list[Path]:
    import matplotlib.pyplot as plt

    for axis in figure.axes:
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    return paths
