"""Rules of other projects, with their published settings where they have any."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.errors import InputError
from fastdllm.selection.paper import Frechet
from fastdllm.selection.profile import Mask, PerPosition, Profile, Selector, ranks, setting, wide


@dataclass(frozen=True)
class Entropy(Selector):
    """By rising entropy, while the sum of the entropies less the largest is at most gamma.

    EB-Sampler (arXiv 2505.24857): that sum bounds the dependence the commit ignores.

    >>> Entropy(0.1).commit(
    ...     torch.tensor([0.9, 0.99, 0.5]),
    ...     torch.tensor([True, True, True]),
    ...     entropy=torch.tensor([0.3, 0.05, 1.0]),
    ... )
    tensor([ True,  True, False])
    """

    gamma: float = setting("[0, inf)", 0.1)
    name = "entropy"
    needs_entropy = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibration is not None:
            raise InputError("entropy reads no doubts, so a calibration would change nothing")

    def _key(self, profile: Profile) -> PerPosition:
        if profile.entropy is None:
            raise InputError("entropy: no entropies; give entropy=, or predict(..., entropy=True)")
        return profile.entropy

    def _accept(self, ranked: Profile) -> Mask:
        h = wide(self._key(ranked))
        before = torch.cat((torch.zeros_like(h[..., :1]), h[..., :-1].cumsum(dim=-1)), dim=-1)
        return before <= self.gamma


def near(ranked: Profile, radius: int) -> Bool[Tensor, "*batch positions positions"]:
    """Which pairs of masked positions stand within a radius of each other; none with itself."""
    place = ranked.place
    apart = (place.unsqueeze(-1) - place.unsqueeze(-2)).abs()
    both = ranked.masked.unsqueeze(-1) & ranked.masked.unsqueeze(-2)
    return (apart <= radius) & (apart > 0) & both


@dataclass(frozen=True)
class LocalLeap(Selector):
    """Threshold tau, and a lower one within a radius of a token that passes (LocalLeap).

    >>> LocalLeap().commit(torch.tensor([0.95, 0.8, 0.6]), torch.tensor([True, True, True]))
    tensor([ True,  True, False])
    """

    tau: float = setting("[0, 1]", 0.9)
    relaxed: float = setting("[0, 1]", 0.75)
    radius: int = setting("[0, 1e9]", 4, int)
    name = "localleap"

    def _accept(self, ranked: Profile) -> Mask:
        anchor = ranked.doubt <= 1 - self.tau
        leap = (near(ranked, self.radius) & anchor.unsqueeze(-2)).any(dim=-1)
        return anchor | (leap & (ranked.doubt <= 1 - self.relaxed))


@dataclass(frozen=True)
class Hierarchy(Selector):
    """Threshold tau, and of every unbroken run of masks the surest if it passes `low` (dInfer).

    dInfer prints no settings; 0.6 is ours.

    >>> Hierarchy().commit(
    ...     torch.tensor([0.7, 0.8, 0.5, 0.65]), torch.tensor([True, True, False, True])
    ... )
    tensor([False,  True, False,  True])
    """

    tau: float = setting("[0, 1]", 0.9)
    low: float = setting("[0, 1]", 0.6)
    name = "hierarchy"

    def _accept(self, ranked: Profile) -> Mask:
        place, order = torch.where(ranked.masked, ranked.place, -2).sort(dim=-1, stable=True)
        starts = torch.diff(place, dim=-1, prepend=torch.full_like(place[..., :1], -9)) > 1
        run = torch.zeros_like(order).scatter(-1, order, starts.cumsum(dim=-1))
        same = (run.unsqueeze(-1) == run.unsqueeze(-2)) & ranked.masked.unsqueeze(-2)
        # Ranked by doubt: the surest of a run is the one with no rank of it before its own.
        first = ~(same & torch.ones_like(same).tril(-1)).any(dim=-1)
        return (ranked.doubt <= 1 - self.tau) | (first & (ranked.doubt < 1 - self.low))


def inner_rule(name: str, value: object) -> Selector:
    """A rule from its string, with semicolons inside."""
    from fastdllm.selection import parse

    rule = parse(value.replace(";", ",")) if isinstance(value, str) else value
    if not isinstance(rule, Selector):
        raise InputError(f"{name} is {value!r}; wanted a rule, such as 'frechet:0.25'")
    if rule.takes_back or rule.calibration:
        kind = "takes tokens back" if rule.takes_back else "is calibrated; calibrate the outer one"
        raise InputError(f"{name} is '{rule}', which {kind}; wanted another rule")
    return rule


@dataclass(frozen=True)
class Dilated(Selector):
    """What another rule commits, but of two closer than `spacing` only the surer.

    Dilated unmasking (arXiv 2506.19037), as a filter.

    >>> from fastdllm import parse
    >>> rule = parse("dilated:2,over=threshold:0.9")
    >>> rule.commit(torch.tensor([0.95, 0.99, 0.92]), torch.tensor([True, True, True]))
    tensor([False,  True, False])
    """

    spacing: int = setting("[1, 1e9]", 2, int)
    over: Selector = field(default_factory=Frechet, metadata={"read": inner_rule})
    name = "dilated"

    @property
    def needs_entropy(self) -> bool:  # type: ignore[override]
        """As the other rule does."""
        return self.over.needs_entropy

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """As the other rule does."""
        return self.over.remembers

    def recall(
        self, past: Any, spots: Int[Tensor, " spots"], logits: Float[Tensor, "spots vocab"]
    ) -> tuple[Tensor, Tensor, Any]:
        """As the other rule does."""
        return self.over.recall(past, spots, logits)

    def _key(self, profile: Profile) -> PerPosition:
        return self.over._key(profile)

    def _accept(self, ranked: Profile) -> Mask:
        over = self.over
        if self.calibration is not None:
            over = replace(over, calibration=self.calibration)
        accepted = over._accept(ranked) & ranked.masked
        surer = torch.ones_like(near(ranked, 0)).tril(-1) & accepted.unsqueeze(-2)
        return accepted & ~(near(ranked, self.spacing - 1) & surer).any(dim=-1)


# --- With a memory -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Past:
    """What a rule kept of a row's last step: a row of values for each spot, and its signal."""

    spots: Int[Tensor, " spots"]
    values: Float[Tensor, "spots vocab"]
    signal: Float[Tensor, " spots"]

    def at(self, spots: Int[Tensor, " now"]) -> tuple[Int[Tensor, " now"], Bool[Tensor, " now"]]:
        """Where each spot stood then, and whether it did; spots rise."""
        index = torch.searchsorted(self.spots, spots).clamp(max=len(self.spots) - 1)
        return index, self.spots[index] == spots


def shares(
    logits: Float[Tensor, "spots vocab"],
) -> Float[Tensor, "spots vocab"]:
    """Log-probabilities, float32; what is forbidden is at a finite -1e30, so differences exist."""
    return logits.float().log_softmax(dim=-1).clamp(min=-1e30)


@dataclass(frozen=True)
class Klass(Selector):
    """Confident, and unmoved: c > tau and KL(now, last step) < limit for some steps (KLASS).

    arXiv 2511.05664. It keeps a row of the vocabulary for each masked position of the block.

    >>> str(Klass())
    'klass:0.9'
    """

    tau: float = setting("[0, 1]", 0.9)
    limit: float = setting("[0, inf)", 0.01)
    history: int = setting("[1, 1e9]", 2, int)
    name = "klass"
    remembers = True

    def recall(
        self, past: Past | None, spots: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor, Past]:
        """The signal: for how many steps it has been calm."""
        now = shares(logits)
        calm = torch.zeros(spots.shape, device=logits.device)
        if past is not None:
            index, seen = past.at(spots)
            moved = (now.exp() * (now - past.values[index])).sum(dim=-1)
            calm = torch.where(seen & (moved < self.limit), past.signal[index] + 1, 0.0)
        return logits, calm, Past(spots, now, calm)

    def _accept(self, ranked: Profile) -> Mask:
        return (ranked.doubt < 1 - self.tau) & (signal(self, ranked) >= self.history)


@dataclass(frozen=True)
class Credit(Selector):
    """Threshold on logits raised where a token was the best before (arXiv 2510.06133).

    C <- beta C + [v is the best] p_max^gamma, then logits + alpha log(1 + C).

    >>> str(Credit(0.8))
    'credit:0.8'
    """

    tau: float = setting("[0, 1]", 0.9)
    alpha: float = setting("[0, inf)", 0.7)
    gamma: float = setting("[0, inf)", 0.2)
    beta: float = setting("[0, 1]", 0.8)
    name = "credit"
    remembers = True

    def recall(
        self, past: Past | None, spots: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor, Past]:
        """The logits with the credit in them; the signal is the credit of the best."""
        best, token = shares(logits).max(dim=-1, keepdim=True)
        credit = torch.zeros_like(logits, dtype=torch.float32)
        if past is not None:
            index, seen = past.at(spots)
            credit = self.beta * past.values[index] * seen[:, None]
        credit = credit.scatter_add(-1, token, (self.gamma * best).exp())
        raised = logits.float() + self.alpha * credit.log1p()
        own = credit.gather(-1, token)[:, 0]
        return raised, own, Past(spots, credit, own)

    def _accept(self, ranked: Profile) -> Mask:
        return ranked.doubt <= 1 - self.tau


def signal(rule: Selector, ranked: Profile) -> PerPosition:
    """What the rule's memory says; an error where a caller has none."""
    if ranked.signal is None:
        raise InputError(f"{rule.name} looks back at earlier steps; use it with LLM.generate")
    return ranked.signal


@dataclass(frozen=True)
class Wino(Selector):
    """A wide draft, c > tau; what the next pass, not seeing it, finds below `keep` is taken back.

    WINO (arXiv 2507.18578). A draft is at most 0.7 of the masks left, but 5 .. 20; every pass also
    reads a hidden twin of each token of the block. So that a block ends, a step takes back fewer
    than it commits.

    >>> Wino().commit(torch.tensor([0.7, 0.5]), torch.tensor([True, True]))
    tensor([ True, False])
    """

    tau: float = setting("[0, 1]", 0.6)
    keep: float = setting("[0, 1]", 0.9)
    name = "wino"
    takes_back = True

    def _accept(self, ranked: Profile) -> Mask:
        left = ranked.masked.sum(dim=-1, keepdim=True)
        return (ranked.doubt < 1 - self.tau) & (ranks(ranked) <= (0.7 * left).clamp(5, 20))

    def disowned(self, confidence: Float[Tensor, " tokens"], most: int) -> Bool[Tensor, " tokens"]:
        """The weakest first.

        >>> Wino().disowned(torch.tensor([0.95, 0.2, 0.5]), 1)
        tensor([False,  True, False])
        """
        rank = confidence.argsort(stable=True).argsort()
        return (confidence < self.keep) & (rank < most)
