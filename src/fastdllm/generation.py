"""Settings and results: frozen values."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fastdllm.cache import Policy
from fastdllm.errors import InputError
from fastdllm.predict import Sampling
from fastdllm.selection import Frechet, Selector, parse

if TYPE_CHECKING:
    from fastdllm.tracing import Trace


@dataclass(frozen=True)
class Generation:
    """How to generate. A change is a copy: `replace(settings, cache="dual")`.

    >>> Generation(select="threshold:0.9", cache="dual").select
    Threshold(tau=0.9)
    """

    max_tokens: int = 256
    block_size: int = 32
    select: Selector | str = field(default_factory=Frechet)
    """The rule, or its short string."""
    cache: str = "prefix"
    """none, prefix or dual; prefix:32 reads all anew after every 32 steps in a block."""
    temperature: float = 0.0
    """0 takes the best token; above 0 draws."""
    top_p: float = 1.0
    top_k: int = 0
    """0 for all."""
    seed: int = 0
    stop: str | tuple[str, ...] = ()
    """Text that ends the completion, and is not part of it."""
    early_stop: bool = True
    """Stop at the end of text; off for the fixed-length setting of the paper."""
    think: bool | None = None
    """Ask a LLaDA-V model to reason first, or not to; None says nothing of it."""

    def __post_init__(self) -> None:
        if isinstance(self.select, str):
            object.__setattr__(self, "select", parse(self.select))
        if not isinstance(self.select, Selector):
            raise InputError(f"select is {self.select!r}; wanted a rule, such as 'frechet:0.25'")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        Policy.parse(self.cache)
        for name in ("max_tokens", "block_size"):
            _whole(name, getattr(self, name), 1)
        _whole("top_k", self.top_k, 0)
        _whole("seed", self.seed, 0)
        if self.seed >= 2**63:
            raise InputError(f"seed is {self.seed}; wanted one below 2**63")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature!r}; wanted a number in [0, inf)")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p!r}; wanted a number in (0, 1], try 0.95")
        if not all(stop):
            raise InputError("a stop string is empty; leave it out")

    @property
    def rule(self) -> Selector:
        """The rule, as a value."""
        assert isinstance(self.select, Selector)
        return self.select

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, as a tuple."""
        assert not isinstance(self.stop, str)
        return self.stop

    def sampling(self, device: torch.device) -> Sampling | None:
        """A fresh generator for one row, so that its draws do not depend on its neighbours."""
        if self.temperature == 0:
            return None
        generator = torch.Generator(device).manual_seed(self.seed)
        return Sampling(self.temperature, generator, self.top_p, self.top_k)


def _whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}; wanted a whole number of at least {least}")


@dataclass(frozen=True)
class Usage:
    """What it took."""

    commits: tuple[int, ...]
    """How many tokens each forward pass of this row committed, the opening ones included."""
    prompt_tokens: int
    tokens: int
    """Generated tokens up to the end of text."""
    seconds: float
    """From the start of the call until this row was done."""

    @property
    def nfe(self) -> int:
        """Forward passes."""
        return len(self.commits)

    @property
    def tokens_per_nfe(self) -> float:
        """The parallelism that was won."""
        return self.tokens / self.nfe if self.nfe else 0.0

    @property
    def tokens_per_second(self) -> float:
        """As the caller saw it."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Completion:
    """What came out."""

    text: str
    """Never holds the mask token. Empty if the checkpoint has no tokenizer."""
    tokens: tuple[int, ...]
    """The generated tokens up to the end of text; of an infilling, those of the holes."""
    finish_reason: str
    """"stop" at the end of text or a stop string, else "length"."""
    usage: Usage
    trace: "Trace | None" = None
