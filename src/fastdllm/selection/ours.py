"""Rules of our own, which look at how a token depends on its neighbours."""

from dataclasses import dataclass

import torch  # noqa: F401  for the examples

from fastdllm.selection.field import near
from fastdllm.selection.paper import Frechet
from fastdllm.selection.profile import Mask, Profile, Selector, setting, wide


@dataclass(frozen=True)
class Near(Selector):
    """The Fréchet rule on doubts weighted by how much of their neighbourhood is still masked.

    A token whose neighbours are known depends on little that is committed with it: its doubt
    counts `known` times, rising to once where all neighbours within the radius are masked. The
    bound is then no longer one for every dependence, but for one that fades with distance.

    >>> confidence = torch.tensor([0.6, 0.9, 0.9, 0.9, 0.9, 0.6])
    >>> masked = torch.tensor([True, False, False, False, False, True])
    >>> [int(Near(0.25, known).commit(confidence, masked).sum()) for known in (0, 1)]
    [2, 1]
    """

    margin: float = setting("[0, 1)", 0.25)
    known: float = setting("[0, 1]", 0.0)
    radius: int = setting("[1, 1e9]", 4, int)
    name = "near"

    def _accept(self, ranked: Profile) -> Mask:
        share = near(ranked, self.radius).sum(dim=-1) / (2 * self.radius)
        d = wide(ranked.doubt)
        weight = self.known + (1 - self.known) * wide(share.clamp(max=1).float())
        return (d * weight).cumsum(dim=-1) + d * weight < 1 - self.margin


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
