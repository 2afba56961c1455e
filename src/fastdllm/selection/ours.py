"""Rules of our own, which look at how a token depends on its neighbours."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastdllm.selection.field import Past, near, shares, signal
from fastdllm.selection.paper import Frechet
from fastdllm.selection.profile import Mask, Profile, Selector, setting, wide


@dataclass(frozen=True)
class Near(Selector):
    """The Fréchet rule on doubts weighted by how much of their neighbourhood is still masked.

    A token whose neighbours are known depends on little that is committed with it: its doubt
    counts `known` times, rising to once where all neighbours within the radius are masked.

    >>> confidence = torch.tensor([0.8, 0.8, 0.8, 0.8])
    >>> Near(0.25).commit(confidence, torch.tensor([True, False, False, True]))
    tensor([ True, False, False,  True])
    """

    margin: float = setting("[0, 1)", 0.25)
    known: float = setting("[0, 1]", 0.5)
    radius: int = setting("[1, 1e9]", 2, int)
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
    is the same while that gap is more than 2 e (the paper's lemma on mode stability). e is
    estimated from what decoding shows for free: how far each marginal moved, in total variation,
    when the last tokens were committed, summed over the set. A calibration turns "moved last" into
    "moves next". Where the estimate is missing (a block's first step) or allows less, the Fréchet
    rule of the same margin decides.

    >>> str(Stable(0.1))
    'stable:0.1'
    """

    margin: float = setting("[0, 1)", 0.25)
    caution: float = setting("[0, inf)", 1.0)
    """The estimate is multiplied by this."""
    name = "stable"
    remembers = True

    def recall(
        self, past: Past | None, spots: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor, Past]:
        """The signal: how far the marginal moved; infinite where it was not seen before."""
        now = shares(logits)
        moved = torch.full(spots.shape, torch.inf, device=logits.device)
        if past is not None:
            index, seen = past.at(spots)
            far = (now.exp() - past.values[index].exp()).abs().sum(dim=-1) / 2
            moved = torch.where(seen, far, torch.inf)
        return logits, moved, Past(spots, now, moved)

    def _accept(self, ranked: Profile) -> Mask:
        moved = signal(self, ranked)
        if self.calibration is not None:
            expected = self.calibration.next_move(moved)
            moved = torch.where(moved.isinf(), moved, expected)
        c = 1 - wide(ranked.doubt)
        rival = wide(ranked.doubt if ranked.runner_up is None else ranked.runner_up) / c
        gap = c.cumprod(dim=-1) * (1 - rival.cummax(dim=-1).values)
        stable = gap - 2 * self.caution * wide(moved).cumsum(dim=-1) > self.margin
        # A prefix by nature: the gap falls with n and the dependence rises.
        return (stable & ranked.masked) | Frechet(self.margin)._accept(ranked)
