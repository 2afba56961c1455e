"""The rules of the paper: its own, and those it compares with."""

import math
from dataclasses import dataclass

import torch

from fastdllm.errors import InputError
from fastdllm.selection.profile import Mask, Profile, Selector, ranks, setting, wide


@dataclass(frozen=True)
class Full(Selector):
    """One token a step, the most confident: the full-step baseline.

    >>> str(Full())
    'full'
    """

    name = "full"

    def _accept(self, ranked: Profile) -> Mask:
        return torch.zeros_like(ranked.masked)  # and the first rank always goes


@dataclass(frozen=True)
class TopK(Selector):
    """The K most confident tokens of every step: a fixed schedule.

    >>> TopK(2).commit(torch.tensor([0.1, 0.3, 0.2]), torch.tensor([True, True, True]))
    tensor([False,  True,  True])
    """

    k: int = setting("[1, 1e9]", kind=int)
    name = "topk"

    def _accept(self, ranked: Profile) -> Mask:
        return (ranks(ranked) <= self.k) & ranked.masked


@dataclass(frozen=True)
class Threshold(Selector):
    """Every token with confidence c >= tau (Fast-dLLM).

    >>> Threshold(0.9).commit(torch.tensor([0.9, 0.8, 0.95]), torch.tensor([True, True, True]))
    tensor([ True, False,  True])
    """

    tau: float = setting("[0, 1]", 0.9)
    name = "threshold"

    def _accept(self, ranked: Profile) -> Mask:
        # c and tau meet as float32, whichever of the two was rounded: c == tau is accepted.
        return ranked.doubt <= max(
            1 - self.tau, 1 - torch.tensor(self.tau, dtype=torch.float32).item()
        )


@dataclass(frozen=True)
class Factor(Selector):
    """The largest n with (n+1)(1 - c_(n)) < f (Fast-dLLM): the weakest token decides.

    As written in the paper; the public code also commits the last masked token when only that
    one fails.

    >>> Factor(1.0).commit(torch.tensor([0.99, 0.99, 0.05]), torch.tensor([True, True, True]))
    tensor([ True,  True, False])
    """

    factor: float = setting("(0, inf)", 0.75)
    name = "factor"

    def _accept(self, ranked: Profile) -> Mask:
        return (ranks(ranked) + 1) * wide(ranked.doubt) < self.factor


@dataclass(frozen=True)
class Frechet(Selector):
    """The largest n with G_n = L_n - U_n > delta: the whole profile decides (Algorithm 1).

    `eta` lowers every confidence first, for a model that is over-confident by at most that much.

    >>> str(Frechet(0.25, eta=0.02))
    'frechet:0.25,eta=0.02'
    """

    margin: float = setting("[0, 1)", 0.25)
    eta: float = setting("[0, 1]", 0.0)
    name = "frechet"

    def _accept(self, ranked: Profile) -> Mask:
        d = (wide(ranked.doubt) + self.eta).clamp(max=1)
        return d.cumsum(dim=-1) + d < 1 - self.margin


@dataclass(frozen=True)
class Exact(Selector):
    """The largest set S with L(S) - max p2 > delta: the exact certificate of the two best tokens.

    The set need not be a prefix by confidence: a doubtful position with a weak runner-up may stay
    where a surer one with a strong runner-up must go. Of sets of one size the larger L wins.

    >>> confidence, runner_up = torch.tensor([0.6, 0.55]), torch.tensor([0.4, 0.1])
    >>> Exact(0.25).commit(confidence, torch.tensor([True, True]), runner_up=runner_up)
    tensor([False,  True])
    """

    margin: float = setting("[0, 1)", 0.25)
    name = "exact"

    def _accept(self, ranked: Profile) -> Mask:
        """For every position's p2 as the cap, fill up by confidence; keep the best cap's set."""
        if ranked.runner_up is None:
            raise InputError("exact: no runner-up probabilities; give runner_up=, or use frechet")
        doubt = wide(ranked.doubt)
        cap = torch.where(ranked.masked, wide(ranked.runner_up), math.inf)

        # Dimension -2: the cap tried. Dimension -1: the position, by confidence.
        allowed = cap.unsqueeze(-2) <= cap.unsqueeze(-1)
        spent = torch.where(allowed, doubt.unsqueeze(-2), 0).cumsum(dim=-1)
        accepted = allowed & (spent + cap.unsqueeze(-1) < 1 - self.margin)

        size = accepted.sum(dim=-1)
        best = size == size.amax(dim=-1, keepdim=True)
        # Of equal sizes the widest cap chose among the most: the largest L, the lowest positions.
        winner = torch.where(best, cap, -math.inf).argmax(dim=-1, keepdim=True).unsqueeze(-1)
        return accepted.take_along_dim(winner, dim=-2).squeeze(-2)
