"""What one forward pass says of each position, and what a rule makes of it."""

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.calibration import Calibration
from fastdllm.certificate import check_like, check_probabilities
from fastdllm.errors import InputError

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
    position: Int[Tensor, "*batch positions"] | None = None
    """Where each stands in its row; None: side by side."""
    signal: PerPosition | None = None
    """What the rule's memory says of it; None for a rule without."""

    @property
    def confidence(self) -> PerPosition:
        """c = p(token). For people; rules read the doubt."""
        return 1 - self.doubt

    @property
    def place(self) -> Int[Tensor, "*batch positions"]:
        """Where each stands in its row."""
        if self.position is not None:
            return self.position
        return torch.arange(self.doubt.shape[-1], device=self.doubt.device).expand(self.doubt.shape)

    def take(self, order: Int[Tensor, "*batch positions"]) -> "Profile":
        """The same positions in another order. An unmasked position's doubt becomes infinite."""

        def moved(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.gather(-1, order)

        masked = self.masked.gather(-1, order)
        return Profile(
            token=self.token.gather(-1, order),
            doubt=torch.where(masked, self.doubt.gather(-1, order), math.inf),
            runner_up=moved(self.runner_up),
            entropy=moved(self.entropy),
            masked=masked,
            position=self.place.gather(-1, order),
            signal=moved(self.signal),
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
    valid = Interval(interval)
    return field(
        default=default,
        metadata={"interval": valid, "read": lambda name, value: valid.read(name, value, kind)},
    )


def _calibration(name: str, value: object) -> Calibration | None:
    """From its file."""
    if value is None or isinstance(value, Calibration):
        return value
    return Calibration.load(str(value))


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
    remembers: ClassVar[bool] = False
    """Whether it looks back: see `recall`."""
    takes_back: ClassVar[bool] = False
    """Whether it may mask again what it committed: see `disowned`."""
    calibration: Calibration | None = field(
        default=None, kw_only=True, repr=False, metadata={"read": _calibration}
    )
    """Raises every doubt to what was measured of this model, before the rule sees it."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = f.metadata["read"](f"{self.name}: {f.name}", getattr(self, f.name))
            object.__setattr__(self, f.name, value)  # 1 and 1.0 are one rule, printed alike

    @classmethod
    def settings(cls) -> "list[Field[Any]]":
        """Its fields, in the order its string gives them: its own, then those of every rule."""
        return sorted(fields(cls), key=lambda f: bool(f.kw_only))

    def recall(
        self, past: Any, spots: Int[Tensor, " spots"], logits: Float[Tensor, "spots vocab"]
    ) -> "tuple[Tensor, Tensor, Any]":
        """Of a rule that remembers, for one row: the logits to go on with, a signal for each
        spot, and what to give back at the row's next step as its past (None at the first)."""
        raise NotImplementedError

    def disowned(self, confidence: Float[Tensor, " tokens"], most: int) -> Bool[Tensor, " tokens"]:
        """Of a rule that takes back: which of the block's known tokens, at most so many.

        `confidence` is what the model gives each token without seeing it.
        """
        raise NotImplementedError

    def calibrated(self, profile: Profile) -> Profile:
        """The profile with calibrated doubts; what a doubt was raised by, a rival may hold."""
        if self.calibration is None:
            return profile
        doubt = self.calibration.raised(profile.doubt)
        rival = profile.runner_up
        if rival is not None:
            rival = torch.minimum(doubt, rival + (doubt - profile.doubt))
        return replace(profile, doubt=doubt, runner_up=rival)

    def __call__(self, profile: Profile) -> Mask:
        """Rank the masked positions, accept some ranks, put those back in place."""
        if profile.masked.shape[-1] == 0:
            return profile.masked.clone()
        profile = self.calibrated(profile)
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

        >>> from fastdllm import Frechet
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
        values = [(f.name, getattr(self, f.name), f.default) for f in self.settings()]
        first = f":{_number(values[0][1])}" if values[0][0] != "calibration" else ""
        rest = values[1:] if first else values
        return (
            self.name
            + first
            + "".join(
                f",{key}={_number(v).replace(',', ';')}" for key, v, default in rest if v != default
            )
        )


def _number(value: Any) -> str:
    """The shortest text that reads back as the same value."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def ranks(ranked: Profile) -> Int[Tensor, " positions"]:
    """n = 1 .. m."""
    return torch.arange(1, ranked.doubt.shape[-1] + 1, device=ranked.doubt.device)


def wide(values: PerPosition) -> PerPosition:
    """Sums are kept in float64, exact for equal doubts; Apple's GPUs have only float32."""
    return values if values.device.type == "mps" else values.double()
