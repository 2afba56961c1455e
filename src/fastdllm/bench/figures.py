"""The figures of the docs. Needs matplotlib, the extra `plots`."""

from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from fastdllm import certificate
from fastdllm.selection import Factor, Frechet, Selector, Threshold

COMMITTED, DEFERRED, WEAKEST, BONUS = "#2e8b57", "#c9ced6", "#c0392b", "#8fd6ac"

# Chosen so that the three rules, at the paper's settings, each stop at another token.
CONFIDENCE = torch.tensor([0.999, 0.996, 0.98, 0.94, 0.88, 0.85, 0.83, 0.6, 0.45, 0.3])


def profile_figure(folder: Path) -> list[Path]:
    """One sorted confidence profile under three rules, after the paper's Figure 1."""
    plt.rcParams["svg.hashsalt"] = "fastdllm"  # the same file from the same picture
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), width_ratios=(1, 1, 1, 1.25))
    for axis, rule in zip(axes, (Threshold(0.9), Factor(0.75), Frechet(0.25)), strict=False):
        _profile_panel(axis, rule)
    axes[0].set_ylabel("confidence")
    _score_panel(axes[3], margin=0.25)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "profile.svg", folder / "profile.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=150)
    plt.close(figure)
    return paths


def _profile_panel(axis: Axes, rule: Selector) -> None:
    committed = rule.commit(CONFIDENCE, torch.ones_like(CONFIDENCE, dtype=torch.bool))
    n = int(committed.sum())
    weakest = float(CONFIDENCE[n - 1])
    ranks = range(1, len(CONFIDENCE) + 1)
    colours = [COMMITTED if c else DEFERRED for c in committed]
    axis.bar(ranks, CONFIDENCE, color=colours, width=0.82)
    if isinstance(rule, Threshold):
        axis.axhline(rule.tau, color=WEAKEST, linestyle="--", linewidth=1.2)
        axis.text(len(CONFIDENCE) + 0.4, rule.tau + 0.015, "tau", color=WEAKEST, ha="right")
    else:
        axis.axhline(weakest, color=WEAKEST, linestyle="--", linewidth=1.2)
        axis.text(len(CONFIDENCE) + 0.4, weakest + 0.015, "weakest", color=WEAKEST, ha="right")
    if isinstance(rule, Frechet):
        extra = [float(c) - weakest for c in CONFIDENCE[:n]]
        axis.bar(ranks[:n], extra, bottom=weakest, color=BONUS, width=0.82, hatch="///", lw=0)
    axis.set(ylim=(0.2, 1.08), xlabel="rank n", title=f"{rule}: commits {n}", xticks=ranks)


def _score_panel(axis: Axes, margin: float) -> None:
    doubt = certificate.doubts(CONFIDENCE)
    core, bonus = certificate.factor_core(doubt), certificate.bonus(doubt)
    shown = slice(0, 8)
    ranks = range(1, 9)
    whole = (core + bonus)[shown]
    axis.fill_between(
        ranks, core[shown], whole, color=BONUS, hatch="///", lw=0, label="bonus $B_n$"
    )
    axis.plot(ranks, whole, "o-", color=COMMITTED, label="Fréchet $G_n = F_n + B_n$")
    axis.plot(ranks, core[shown], "s-", color="#6b7280", label="factor core $F_n$")
    axis.axhline(margin, color=WEAKEST, linestyle="--", linewidth=1.2, label="margin $\\delta$")
    axis.set(xlabel="rank n", title="accepted while above the margin", xticks=ranks)
    axis.set_ylim(-1.2, 1.05)
    axis.legend(fontsize=8, loc="lower left", frameon=False)
