"""Rules of our own, which look at how a token depends on its neighbours."""

from dataclasses import dataclass

import torch

from fastdllm.selection.field import near
from fastdllm.selection.paper import Frechet
from fastdllm.selection.profile import Mask, Profile, Selector, setting, wide


@dataclass(frozen=True)
class Local(Selector):
    """The Fréchet rule for every token together with its surer neighbours, not with all.

    The sum of the doubts within a radius, up to a token's own and that once more, is less than
    1 - delta: then it and its surer neighbours are their most probable combination, however they
    depend on each other. Tokens farther apart are not charged for one another. A radius as large
    as the block is `frechet`, a radius of 0 a threshold of (1 + delta) / 2.

    >>> confidence, masked = torch.tensor([0.8, 0.7, 0.9, 0.75]), torch.ones(4, dtype=torch.bool)
    >>> [Local(0.25, radius).commit(confidence, masked).tolist() for radius in (1, 4)]
    [[True, False, True, True], [True, False, True, False]]
    """

    margin: float = setting("[0, 1)", 0.25)
    radius: int = setting("[0, 1e9]", 4, int)
    name = "local"

    def _accept(self, ranked: Profile) -> Mask:
        d = wide(ranked.doubt)
        surer = near(ranked, self.radius).tril()
        return torch.where(surer, d.unsqueeze(-2), 0).sum(dim=-1) + 2 * d < 1 - self.margin


@dataclass(frozen=True)
class Stable(Selector):
    """The largest n whose product-mode gap outweighs twice its residual dependence.

    The product of the marginals has its mode at the best tokens, ahead of every other tuple by
    prod c (1 - max p2 / c). If the joint is within e of the product in total variation, the mode
    is the same while that gap is more than 2 e (the paper's lemma on mode stability). A chain of
    conditionals bounds e by how far each marginal moves when the others are committed. That is
    measured by `fastdllm calibrate`, by distance: k(r) of its doubt if the nearest is r away. So
    e_n = sum d_j min(1, sum k(|i - j|)), over the surer i. Without a calibration, and where this
    allows less, the Fréchet rule of the same margin decides.

    >>> str(Stable(0.1))
    'stable:0.1'
    """

    margin: float = setting("[0, 1)", 0.25)
    caution: float = setting("[0, inf)", 1.0)
    """The estimate is multiplied by this."""
    name = "stable"

    def _accept(self, ranked: Profile) -> Mask:
        safe = Frechet(self.margin)._accept(ranked)
        if self.calibration is None:
            return safe
        d = wide(ranked.doubt).clamp(max=1)
        rival = wide(ranked.doubt if ranked.runner_up is None else ranked.runner_up) / (1 - d)
        gap = (1 - d).cumprod(dim=-1) * (1 - rival.cummax(dim=-1).values)
        apart = (ranked.place.unsqueeze(-1) - ranked.place.unsqueeze(-2)).abs()
        hangs = self.calibration.dependence(apart).tril(-1).sum(dim=-1).clamp(max=1)
        residual = (d * wide(hangs)).cumsum(dim=-1)
        # A prefix by nature: the gap falls with n and the dependence rises.
        return safe | (gap - 2 * self.caution * residual > self.margin)
