"""The rules: which masked positions to commit in this step.

A rule is a frozen value, made by name (`Frechet(0.25)`) or from a short string
(`parse("frechet:0.25")`), and called on a `Profile`. Once the doubts are sorted a rule is one
line: the risk of committing the first n never falls with n, so the accepted ranks are a prefix
by themselves.

    full            one token a step                               the slow, careful baseline
    topk:K          K tokens a step                                a fixed schedule
    threshold:0.9   c >= tau                                       Fast-dLLM
    factor:0.75     (n+1) d_(n) < f                                Fast-dLLM
    frechet:0.25    d_(1) + ... + d_(n) + d_(n) < 1 - delta        the paper, Algorithm 1
    exact:0.25      the largest set with L - max p2 > delta        the exact top-2 certificate
    entropy:0.1     H_(1) + ... + H_(n-1) <= gamma                 EB-Sampler
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.certificate import check_like, check_probabilities
from fastdllm.errors import InputError, did_you_mean

Mask = Bool[Tensor, "*batch positions"]
PerPosition = Float[Tensor, "*batch positions"]


@dataclass(frozen=True, eq=False)
class Profile:
    """What one forward pass says of each position: the input of every rule.

    The doubt `1 - c` is stored, not the confidence: near certainty only it keeps its digits.
    """

    token: Int[Tensor, "*batch positions"]
    """The proposed token; -1 where a caller gave confidences alone."""
    doubt: PerPosition
    """1 - p(token), float32."""
    runner_up: PerPosition | None
    """The largest probability of any other token."""
    entropy: PerPosition | None
    """In nats; None unless it was asked for."""
    masked: Mask
    """Which positions may be committed."""

    @property
    def confidence(self) -> PerPosition:
        """c = p(token). For people; rules read the doubt."""
        return 1 - self.doubt

    def take(self, order: Int[Tensor, "*batch positions"]) -> "Profile":
        """The same positions in another order. An unmasked position's doubt becomes infinite."""
        masked = self.masked.gather(-1, order)
        return Profile(
            token=self.token.gather(-1, order),
            doubt=torch.where(masked, self.doubt.gather(-1, order), math.inf),
            runner_up=None if self.runner_up is None else self.runner_up.gather(-1, order),
            entropy=None if self.entropy is None else self.entropy.gather(-1, order),
            masked=masked,
        )


@dataclass(frozen=True)
class Interval:
    """The valid values of a setting, written as mathematics writes them: `[0, 1)`.

    >>> Interval("[0, 1)").nearest(3.0)
    0.99
    """

    text: str

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end, each a value or just outside of them."""
        low, high = self.text[1:-1].split(",")
        return float(low), float(high)

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        above = value >= low if self.text[0] == "[" else value > low
        return above and (value <= high if self.text[-1] == "]" else value < high)

    def nearest(self, value: float) -> float:
        """The valid value nearest to `value`; a hundredth inside an end that is excluded."""
        low, high = self.ends
        low = low if self.text[0] == "[" else low + 0.01
        high = high if self.text[-1] == "]" else min(high - 0.01, 1e6)
        return max(low, min(value, high))  # a NaN ends at the lower end

    def read(self, name: str, value: object, kind: type) -> Any:
        """`value` as a number of this kind, or an error that names the range and a way out."""
        try:
            number = float(value) if isinstance(value, str | Real) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if number in self and kind(number) == number and not isinstance(value, bool):
            return kind(number)
        wanted = "a whole number" if kind is int else "a number"
        best = kind(self.nearest(number))
        raise InputError(
            f"{name} is {value!r}; wanted {wanted} in {self.text}, try {_number(best)}"
        )


def setting(interval: str, default: Any = MISSING, kind: type = float) -> Any:
    """A field of a rule, with its valid values."""
    return field(default=default, metadata={"interval": Interval(interval), "kind": kind})


@dataclass(frozen=True)
class Selector(ABC):
    """A rule: `rule(profile)` says which positions to commit.

    In every row: at least one position if any is masked, none if none is, never an unmasked one;
    ties go to the lower position. There is no loop over rows or positions and no host sync.
    """

    name: ClassVar[str]
    """The word that `parse` knows it by."""
    needs_entropy: ClassVar[bool] = False
    """Whether the profile must hold entropies, which cost a second sum over the vocabulary."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            value = f.metadata["interval"].read(f"{self.name}: {f.name}", value, f.metadata["kind"])
            object.__setattr__(self, f.name, value)  # 1 and 1.0 are one rule, printed alike

    def __call__(self, profile: Profile) -> Mask:
        """Rank the masked positions, accept some ranks, put those back in place."""
        if profile.masked.shape[-1] == 0:
            return profile.masked.clone()
        # Unmasked positions come last, and just before them a NaN, which says nothing.
        key = self._key(profile).nan_to_num(nan=torch.finfo(torch.float32).max)
        key = torch.where(profile.masked, key, math.inf)
        order = key.argsort(dim=-1, stable=True)
        ranked = profile.take(order)
        accepted = self._accept(ranked)
        accepted[..., :1] |= ~accepted.any(dim=-1, keepdim=True)  # progress, or a block could stall
        accepted &= ranked.masked
        return torch.zeros_like(accepted).scatter(-1, order, accepted)

    def _key(self, profile: Profile) -> PerPosition:
        """What to rank by, ascending."""
        return profile.doubt

    @abstractmethod
    def _accept(self, ranked: Profile) -> Mask:
        """Which ranks to accept. Most rules are this one line."""

    def commit(
        self,
        confidence: PerPosition,
        masked: Mask,
        *,
        runner_up: PerPosition | None = None,
        entropy: PerPosition | None = None,
    ) -> Mask:
        """The decision for confidences from any decoder, checked first (which costs a host sync).

        >>> Frechet(0.25).commit(torch.tensor([0.99, 0.6, 0.95]), torch.tensor([True, True, True]))
        tensor([ True, False,  True])
        """
        check_like("masked", masked, confidence.shape, torch.bool)
        if runner_up is not None:
            check_like("runner-up", runner_up, confidence.shape)
            check_probabilities("runner-up", torch.where(masked, runner_up, 0))
        if entropy is not None:
            check_like("entropy", entropy, confidence.shape)
            if not bool((torch.where(masked, entropy, 0) >= 0).all()):
                raise InputError("an entropy is negative or NaN; wanted nats, 0 or more")
        # Only masked positions carry a probability; decoders often fill the others with -inf.
        used = torch.where(masked, confidence, 1)
        wide = used if used.dtype == torch.float64 else used.float()
        token = torch.full_like(masked, -1, dtype=torch.long)
        doubt = (1 - check_probabilities("confidence", wide)).float()
        return self(Profile(token, doubt, runner_up, entropy, masked))

    def __str__(self) -> str:
        """As `parse` reads it: the first setting bare, others only where not the default."""
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        first = "".join(f":{_number(value)}" for _, value, _ in values[:1])
        rest = "".join(f",{key}={_number(v)}" for key, v, default in values[1:] if v != default)
        return self.name + first + rest


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _ranks(ranked: Profile) -> Int[Tensor, " positions"]:
    """n = 1 .. m."""
    return torch.arange(1, ranked.doubt.shape[-1] + 1, device=ranked.doubt.device)


def _wide(values: PerPosition) -> PerPosition:
    """Sums are kept in float64, exact for equal doubts; Apple's GPUs have only float32."""
    return values if values.device.type == "mps" else values.double()


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
        return (_ranks(ranked) <= self.k) & ranked.masked


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
        return (_ranks(ranked) + 1) * _wide(ranked.doubt) < self.factor


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
        d = (_wide(ranked.doubt) + self.eta).clamp(max=1)
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
        doubt = _wide(ranked.doubt)
        cap = torch.where(ranked.masked, _wide(ranked.runner_up), math.inf)

        # Dimension -2: the cap tried. Dimension -1: the position, by confidence.
        allowed = cap.unsqueeze(-2) <= cap.unsqueeze(-1)
        spent = torch.where(allowed, doubt.unsqueeze(-2), 0).cumsum(dim=-1)
        accepted = allowed & (spent + cap.unsqueeze(-1) < 1 - self.margin)

        size = accepted.sum(dim=-1)
        best = size == size.amax(dim=-1, keepdim=True)
        # Of equal sizes the widest cap chose among the most: the largest L, the lowest positions.
        winner = torch.where(best, cap, -math.inf).argmax(dim=-1, keepdim=True).unsqueeze(-1)
        return accepted.take_along_dim(winner, dim=-2).squeeze(-2)


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

    def _key(self, profile: Profile) -> PerPosition:
        if profile.entropy is None:
            raise InputError("entropy: no entropies; give entropy=, or predict(..., entropy=True)")
        return profile.entropy

    def _accept(self, ranked: Profile) -> Mask:
        h = _wide(self._key(ranked))
        before = torch.cat((torch.zeros_like(h[..., :1]), h[..., :-1].cumsum(dim=-1)), dim=-1)
        return before <= self.gamma


RULES: dict[str, type[Selector]] = {
    rule.name: rule for rule in (Full, TopK, Threshold, Factor, Frechet, Exact, Entropy)
}


def parse_many(text: str) -> list[Selector]:
    """Rules with commas between; `key=value` belongs to the rule before it.

    >>> parse_many("full,frechet:0.25,eta=0.02,topk:4")
    [Full(), Frechet(margin=0.25, eta=0.02), TopK(k=4)]
    """
    parts = re.split(r",(?!\s*\w+=)", text)
    return [parse(part) for part in parts]


def parse(text: str) -> Selector:
    """The rule that `text` names: `name`, `name:value` or `name:value,key=value`.

    >>> parse("frechet:0.25,eta=0.02")
    Frechet(margin=0.25, eta=0.02)
    >>> parse("threshold")
    Threshold(tau=0.9)
    """
    head, *pairs = text.strip().split(",")
    name, colon, value = head.partition(":")
    if name not in RULES:
        raise InputError(f"unknown rule '{name}'; {did_you_mean(name, RULES)}")
    known = {f.name: f for f in fields(RULES[name])}
    given = [(next(iter(known), "value"), value)] if colon else []
    given += [(key.strip(), value) for key, _, value in (pair.partition("=") for pair in pairs)]

    settings: dict[str, Any] = {}
    for key, value in given:
        if key not in known:
            hint = did_you_mean(key, known) if known else f"'{name}' takes none"
            raise InputError(f"'{text}': unknown setting '{key}'; {hint}")
        if key in settings:
            raise InputError(f"'{text}': {key} is given twice; keep one")
        meta = known[key].metadata
        settings[key] = meta["interval"].read(f"'{text}': {key}", value.strip(), meta["kind"])
    for key, f in known.items():
        if key not in settings and f.default is MISSING:
            raise InputError(f"'{text}': {key} is missing; try '{name}:4'")
    return RULES[name](**settings)
