"""Caches: a policy is the range of positions to recompute, a cache a slot for each position.

    none     [0, T)                     every step reads the whole canvas
    prefix   [block.start, T)           what comes before the block is kept
    dual     [block.start, block.stop)  what comes after it is kept too

All of them recompute [0, T) in the step that opens a block; `prefix:32` and `dual:32` do so again
after every 32 steps in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.errors import InputError, did_you_mean
from fastdllm.models.config import ModelConfig

New = Float[Tensor, "rows kv_heads window head_dim"]
"""A window's keys or values."""
All = Float[Tensor, "rows kv_heads keys head_dim"]
"""All there are."""


@dataclass(frozen=True)
class Range:
    """Positions start .. stop - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


KINDS: dict[str, Callable[[Range, int], Range]] = {
    "none": lambda block, length: Range(0, length),
    "prefix": lambda block, length: Range(block.start, length),
    "dual": lambda block, length: block,
}


@dataclass(frozen=True)
class Policy:
    """What a step recomputes, and how many steps what it leaves alone may be trusted."""

    kind: str
    refresh: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """From its short string, or an error that suggests one.

        >>> Policy.parse("prefix:32")
        Policy(kind='prefix', refresh=32)
        """
        kind, colon, steps = text.partition(":")
        if kind not in KINDS:
            raise InputError(f"unknown cache '{text}'; {did_you_mean(kind, KINDS)}")
        if colon and (kind == "none" or not steps.isdecimal() or int(steps) < 1):
            raise InputError(f"unknown cache '{text}'; wanted prefix:32 or dual:32, of any steps")
        return cls(kind, int(steps) if colon else None)

    def window(self, block: Range, length: int, age: int | None) -> Range:
        """What to recompute; `age` is how many steps ago all was, None if never in this block."""
        stale = age is None or (self.refresh is not None and age >= self.refresh)
        return KINDS["none" if stale else self.kind](block, length)


class Fresh:
    """The memory of a pass over whole canvases: nothing is kept."""

    def __init__(self, mask: Bool[Tensor, "rows 1 queries keys"] | None) -> None:
        self.mask = mask

    def update(self, layer: int, k: New, v: New) -> tuple[All, All]:
        """Only the window itself."""
        return k, v


class KVCache:
    """Keys and values of every layer: a slot per position in a lane per row.

    Lanes are taken and given back as rows come and go. One slot more than there are positions
    takes what the padding of a window writes; nothing ever reads it.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        self.free: list[int] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._reserve(0, 0)

    @property
    def lanes(self) -> int:
        """How many rows there is room for."""
        return self.keys[0].shape[0]

    @property
    def length(self) -> int:
        """How many positions a lane has, without the one for padding."""
        return self.keys[0].shape[2] - 1

    def take(self, count: int, length: int) -> list[int]:
        """As many free lanes, each with at least `length` positions."""
        if count > len(self.free) or length > self.length:
            more = max(0, count - len(self.free))
            self._reserve(self.lanes + more, max(length, self.length))
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give_back(self, lane: int) -> None:
        """The row is done."""
        self.free.append(lane)

    def _reserve(self, lanes: int, length: int) -> None:
        """Grow the buffers, keeping what they hold; the slot for padding stays the last."""
        c = self.config
        old = self.lanes if self.keys else 0
        for name in ("keys", "values"):
            grown = []
            for layer in range(c.layers):
                buffer = torch.zeros(
                    lanes, c.kv_heads, length + 1, c.head_dim, device=self.device, dtype=self.dtype
                )
                if old:
                    before = getattr(self, name)[layer][:, :, :-1]
                    buffer[:old, :, : before.shape[2]] = before
                grown.append(buffer)
            setattr(self, name, grown)
        self.free += range(old, lanes)

    def view(
        self,
        lanes: Sequence[int],
        slots: Int[Tensor, "rows window"],
        seen: int,
        mask: Bool[Tensor, "rows 1 1 keys"] | None,
    ) -> "CacheView":
        """These rows' part of the cache, for one pass that rewrites `slots` (-1 is padding)."""
        whole = list(lanes) == list(range(self.lanes))
        index = torch.tensor(lanes, device=self.device)
        return CacheView(self, index, torch.where(slots < 0, self.length, slots), seen, mask, whole)


@dataclass(frozen=True, eq=False)
class CacheView:
    """The memory of a pass over windows: the window is rewritten, all else is as it was left."""

    cache: KVCache
    lanes: Int[Tensor, " rows"]
    slots: Int[Tensor, "rows window"]
    seen: int
    """How many slots are read: as many as the longest row has positions."""
    mask: Bool[Tensor, "rows 1 1 keys"] | None
    whole: bool
    """The rows are all the lanes there are, in order: nothing needs to be picked out."""

    def update(self, layer: int, k: New, v: New) -> tuple[All, All]:
        """Write the window into its slots and read every slot of these lanes."""
        return self._put(self.cache.keys[layer], k), self._put(self.cache.values[layer], v)

    def _put(self, buffer: Tensor, new: New) -> All:
        buffer[self.lanes[:, None], :, self.slots] = new.transpose(1, 2)
        return (buffer if self.whole else buffer[self.lanes])[:, :, : self.seen]
