"""The command line, with the rules we tried and did not keep: the figures of docs/rules.md.

    python benchmarks/ideas.py eval --task word-problems --skip 500 --limit 150 --batch-size 50 \
        --select frechet:0.25,near:0.25,budget:2,fade:0.25,norm:0.25,rival:0.25
"""

from dataclasses import dataclass

import torch

from fastdllm.cli import main
from fastdllm.selection import RULES, Mask, Profile, Selector
from fastdllm.selection.field import near
from fastdllm.selection.profile import setting, wide


@dataclass(frozen=True)
class Near(Selector):
    """Fréchet on doubts weighted by the share of the neighbourhood that is still masked."""

    margin: float = setting("[0, 1)", 0.25)
    known: float = setting("[0, 1]", 0.0)
    radius: int = setting("[1, 1e9]", 4, int)
    name = "near"

    def _accept(self, ranked: Profile) -> Mask:
        share = near(ranked, self.radius).sum(dim=-1) / (2 * self.radius)
        weight = self.known + (1 - self.known) * wide(share.clamp(max=1).float())
        d = wide(ranked.doubt) * weight
        return d.cumsum(dim=-1) + d < 1 - self.margin


@dataclass(frozen=True)
class Budget(Selector):
    """So many wrong tokens expected at most, each of at least some confidence."""

    budget: float = setting("[0, inf)", 1.0)
    least: float = setting("[0, 1]", 0.7)
    name = "budget"

    def _accept(self, ranked: Profile) -> Mask:
        d = wide(ranked.doubt)
        return (d.cumsum(dim=-1) < self.budget) & (d <= 1 - self.least)


@dataclass(frozen=True)
class Fade(Selector):
    """As `local`, but a surer doubt counts exp(-(r - 1) / scale) at distance r, with no edge."""

    margin: float = setting("[0, 1)", 0.25)
    scale: float = setting("(0, inf)", 4.0)
    name = "fade"

    def _accept(self, ranked: Profile) -> Mask:
        d, place = wide(ranked.doubt), ranked.place
        apart = (place.unsqueeze(-1) - place.unsqueeze(-2)).abs()
        weight = torch.exp((1 - apart) / self.scale).tril(-1)
        surer = torch.where(ranked.masked.unsqueeze(-2), d.unsqueeze(-2), 0)
        return (weight * surer).sum(dim=-1) + 2 * d < 1 - self.margin


@dataclass(frozen=True)
class Norm(Selector):
    """The doubts' Euclidean length instead of their sum: many small ones weigh little."""

    margin: float = setting("[0, 1)", 0.25)
    name = "norm"

    def _accept(self, ranked: Profile) -> Mask:
        d = wide(ranked.doubt)
        return d.square().cumsum(dim=-1).sqrt() + d < 1 - self.margin


@dataclass(frozen=True)
class Rival(Selector):
    """As `local`, but the token itself is charged with its runner-up, as in `exact`."""

    margin: float = setting("[0, 1)", 0.25)
    radius: int = setting("[0, 1e9]", 4, int)
    name = "rival"

    def _accept(self, ranked: Profile) -> Mask:
        d = wide(ranked.doubt)
        surer = near(ranked, self.radius).tril()
        spent = torch.where(surer, d.unsqueeze(-2), 0).sum(dim=-1) + d
        rival = d if ranked.runner_up is None else wide(ranked.runner_up)
        return spent + rival < 1 - self.margin


RULES.update({rule.name: rule for rule in (Near, Budget, Fade, Norm, Rival)})

if __name__ == "__main__":
    main()
