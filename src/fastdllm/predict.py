"""Logits to profile: token, doubt, runner-up and entropy of every row.

The usual way (a float64 soft-max, a gather, an arg-max) copies the vocabulary twice in double
width, and at LLaDA's 126,464 tokens that costs more than a small model's forward pass. Here the
vocabulary is read in place for its maxima, and then block by block through one small buffer for
the sums. The doubt is summed *without* the chosen token's own term, so it keeps its digits where
`1 - c` would have none.

On CUDA, with Triton installed, `kernel.py` does the same in a single read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.certificate import check_like
from fastdllm.errors import InputError, LogitsError
from fastdllm.selection import Profile

Rows = Float[Tensor, "rows vocab"]
PerRow = Float[Tensor, " rows"]

SMALL, LARGE = 1 << 15, 1 << 22  # bytes of temporary tensors, whatever the logits' size
OUTPUT = 80  # bytes a row of the profile takes while it is put together


@dataclass(frozen=True)
class Sampling:
    """Draw the token instead of taking the best: from softmax(logits / temperature).

    The doubt and the runner-up stay those of the model's own distribution, as in LLaDA's decoder.
    """

    temperature: float
    generator: torch.Generator
    top_p: float = 1.0
    """Draw only from the smallest set of tokens that holds this much of the probability."""
    top_k: int = 0
    """Draw only from this many of the best; 0 for all."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"temperature is {self.temperature!r}; wanted a number in (0, inf), "
                "or no Sampling at all for the best token"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p!r}; wanted a number in (0, 1], try 0.95")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"top_k is {self.top_k!r}; wanted a whole number, 0 for all")


@dataclass(frozen=True)
class Statistics:
    """What both paths read off a matrix of logits; `finish` makes probabilities of it.

    All are float32 and relative to the top, the largest logit that may be proposed; NaN where a
    row cannot be used. The sums run over every token that may be proposed but the chosen one.
    """

    token: Int[Tensor, " rows"]
    own: PerRow
    """z[token] - top: zero unless the token was drawn."""
    rival: PerRow
    """z - top of the best token but the chosen one."""
    others: PerRow
    """sum exp(z - top)"""
    moment: PerRow | None
    """sum exp(z - top) (z - top), for the entropy"""


def predict(
    logits: Float[Tensor, "*batch positions vocab"],
    masked: Bool[Tensor, "*batch positions"] | None = None,
    *,
    forbidden: Sequence[int] = (),
    entropy: bool = False,
    sampling: Sampling | None = None,
    check: bool = True,
) -> Profile:
    """The profile of every position, from logits of any float dtype.

    `forbidden` ids, the mask token first of all, are never proposed and carry no probability.
    A NaN, or a row with nothing to propose, is a `LogitsError` that names the row; `check=False`
    leaves such a row's doubt NaN instead and saves the caller with an accelerator the sync.

    >>> logits = torch.tensor([[[0.0, 2.0, 1.0, 9.0]]])
    >>> profile = predict(logits, forbidden=(3,))
    >>> profile.token, profile.confidence, profile.runner_up
    (tensor([[1]]), tensor([[0.6652]]), tensor([[0.2447]]))
    """
    _check_arguments(logits, masked, forbidden)
    if masked is None:
        masked = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    banned = tuple(sorted(set(forbidden)))
    read: list[Statistics] = []
    for z in _matrices(logits.detach()):
        drawn = None if sampling is None else _draw(z, banned, sampling)
        for rows in _chunks(z, banned, entropy):
            token = None if drawn is None else drawn[rows]
            read.append(_statistics(z[rows], banned, entropy, token, _room(z)))
    profile = _profile(read, masked)
    if check:
        check_rows(profile)
    return profile


def _profile(read: list[Statistics], masked: Bool[Tensor, "*batch positions"]) -> Profile:
    """Probabilities from the sums."""
    own = torch.cat([s.own for s in read])
    others = torch.cat([s.others for s in read])
    rival = torch.cat([s.rival for s in read])
    total = own.exp() + others
    nats = None
    if read[0].moment is not None:
        moment = torch.cat([s.moment for s in read if s.moment is not None])
        nats = (torch.log1p(own.expm1() + others) - (moment + own.exp() * own) / total).clamp(min=0)
    return Profile(
        token=torch.cat([s.token for s in read]).view(masked.shape),
        doubt=(others / total).view(masked.shape),
        runner_up=(rival.exp() / total).view(masked.shape),
        entropy=None if nats is None else nats.view(masked.shape),
        masked=masked,
    )


# --- Checks --------------------------------------------------------------------------------------


def _check_arguments(logits: Tensor, masked: Tensor | None, forbidden: Sequence[int]) -> None:
    vocab = logits.shape[-1] if logits.ndim else 0
    if not logits.is_floating_point():
        raise InputError(f"logits are {logits.dtype}; wanted a float dtype, try logits.float()")
    if vocab == 0 or logits.ndim < 2:
        raise InputError(
            f"logits have shape {tuple(logits.shape)}; wanted (..., positions, vocabulary >= 1)"
        )
    if masked is not None:
        check_like("masked", masked, logits.shape[:-1], torch.bool)
    for token in forbidden:
        if not 0 <= token < vocab:
            raise InputError(f"forbidden id {token} is not a token; wanted 0 <= id < {vocab}")


def check_rows(profile: Profile) -> None:
    """Raise if the logits of a masked position could not be read. Costs a host sync."""
    bad = profile.doubt.isnan() & profile.masked
    if bad.any():
        row = tuple(bad.nonzero()[0].tolist())
        raise LogitsError(
            f"the logits of row {row} hold a NaN or +inf, or nothing but -inf: no token can be "
            "read from them; look at the model's dtype and at its input"
        )


# --- The torch path ------------------------------------------------------------------------------


def _matrices(logits: Float[Tensor, "*batch vocab"]) -> Iterator[Rows]:
    """The logits as matrices without a copy: one, or one per leading index of a slice."""
    if logits.numel() == 0 or logits.is_contiguous() or logits.ndim <= 2:
        yield logits.reshape(-1, logits.shape[-1])
    else:
        for part in logits:
            yield from _matrices(part)


def _room(z: Rows) -> int:
    """The bytes that temporary tensors may take: with the output, a quarter of the logits."""
    quarter = z.numel() * z.element_size() // 4 - len(z) * OUTPUT
    return min(max(int(0.88 * quarter), SMALL), LARGE)


def _chunks(z: Rows, banned: tuple[int, ...], entropy: bool) -> Iterator[slice]:
    """Rows whose segments, copied, fit the room."""
    width, item, wide = _segment_width(z.shape[-1]), z.element_size(), _wide(z).itemsize
    copies = 1 + len({token // width for token in banned})
    each = width * (9 + copies * (2 * item + wide * (1 + 3 * entropy + (item < wide))))
    each += -(-z.shape[-1] // width) * (item + wide * (4 + 3 * entropy))
    height = max(1, _room(z) // each)
    for start in range(0, max(1, len(z)), height):
        yield slice(start, start + height)


def _statistics(
    z: Rows,
    banned: tuple[int, ...],
    entropy: bool,
    drawn: Int[Tensor, "rows 1"] | None,
    room: int,
) -> Statistics:
    fits = z.is_cuda and z.dtype != torch.float64  # the kernel computes in float32
    if drawn is None and fits and _has_triton():
        from fastdllm.kernel import read_logits  # Triton is an extra

        return read_logits(z, banned, entropy)
    width = _segment_width(z.shape[-1])
    maxima = _by_segment(_largest, z, width)
    spread = _spread(z, entropy, width, room)
    segments, parts = _banned_segments(z, banned, width)
    if banned:
        maxima[:, segments] = parts.amax(dim=-1)
    top, home = maxima.max(dim=-1, keepdim=True)
    if drawn is not None:
        home = drawn // width
    column, part = _look_into(z, home, banned, width)
    if drawn is not None:
        token = drawn
    else:
        token = column.gather(-1, part.argmax(dim=-1, keepdim=True)).clamp(max=z.shape[-1] - 1)
    part.masked_fill_(column == token, -math.inf)  # from here on: every token but the chosen one
    maxima.scatter_(-1, home, part.amax(dim=-1, keepdim=True))
    rest = _inside(torch.cat((parts, part[:, None]), dim=1), entropy)
    if banned:
        spread[..., segments] = rest[..., :-1]
    spread.scatter_(-1, home.expand(len(spread), -1, 1), rest[..., -1:])
    return _relative(top, maxima, spread, token, z.gather(-1, token))


def _relative(
    top: Float[Tensor, "rows 1"],
    maxima: Float[Tensor, "rows segments"],
    spread: Float[Tensor, "sums rows segments"],
    token: Int[Tensor, "rows 1"],
    own: Float[Tensor, "rows 1"],
) -> Statistics:
    """The sums of a row from those inside its segments. A top that is not finite makes them NaN."""
    spread = spread.nan_to_num(nan=1.0)  # an empty segment; its height below is zero
    shifted = maxima.to(spread.dtype) - top
    weight = shifted.exp() / spread[0]
    moment = None
    if len(spread) == 2:
        moment = (torch.xlogy(weight, weight) - weight * spread[1]).sum(dim=-1).float()
    return Statistics(
        token=token[:, 0],
        own=(own.to(spread.dtype) - top)[:, 0].float(),
        rival=shifted.amax(dim=-1).float(),
        others=weight.sum(dim=-1).float(),
        moment=moment,
    )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


# A row is cut into segments of about the root of its length. Whatever must leave out a token (the
# chosen one, a forbidden one) is done over all segments first, vectorised and in place, and then
# again for the one segment concerned: an arg-max over the whole row takes ten times as long as
# the maxima of its segments.


def _segment_width(vocab: int) -> int:
    return max(16, 1 << (int(math.log2(vocab)) + 2) // 2)


def _by_segment(
    reduce: Callable[[Float[Tensor, "rows segments width"]], Tensor], z: Rows, width: int
) -> Float[Tensor, "*sums rows segments"]:
    """`reduce` over each segment; the last one may be shorter."""
    whole = z.shape[-1] // width * width
    parts = [reduce(z[:, :whole].view(len(z), whole // width, width))] if whole else []
    if whole < z.shape[-1]:
        parts.append(reduce(z[:, None, whole:]))
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def _largest(x: Float[Tensor, "rows segments width"]) -> Float[Tensor, "rows segments"]:
    return x.amax(dim=-1)


def _inside(
    x: Float[Tensor, "rows segments width"], entropy: bool, buffer: Tensor | None = None
) -> Float[Tensor, "sums rows segments"]:
    """1 / sum exp(x - max x) of a segment, from one fused soft-max, and if asked its entropy."""
    if buffer is None:
        q = x.softmax(dim=-1, dtype=_wide(x))
    else:
        q = torch.softmax(x, dim=-1, dtype=_wide(x), out=buffer[: x.numel()].view(x.shape))
    share = q.amax(dim=-1)  # of the maximum, whose own term is 1
    if not entropy:
        return share[None]
    # q is zero below -200; without the floor, 0 * -inf would be NaN
    below = (x.to(q.dtype) - x.amax(dim=-1, keepdim=True)).clamp_(min=-200)
    return torch.stack((share, -share.log() - torch.linalg.vecdot(q, below)))


def _wide(z: Tensor) -> torch.dtype:
    """Half precision is too coarse to subtract in."""
    return torch.promote_types(z.dtype, torch.float32)


def _spread(z: Rows, entropy: bool, width: int, room: int) -> Float[Tensor, "sums rows segments"]:
    """What `_inside` says of every segment, through a small buffer."""
    wide = _wide(z)
    rows, vocab = z.shape
    spread = torch.empty(1 + entropy, rows, -(-vocab // width), dtype=wide, device=z.device)
    copied = z.dtype != wide or not z.is_contiguous() or vocab % width != 0
    bytes_each = wide.itemsize * (1 + 2 * entropy + copied)
    buffer = None
    for block, columns in _blocks(z, room // bytes_each, width):
        part = z[block, columns]
        if buffer is None:  # the first block is the largest
            buffer = torch.empty(part.numel(), dtype=wide, device=z.device)
        segments = slice(columns.start // width, -(-columns.stop // width))
        spread[:, block, segments] = _by_segment(
            partial(_inside, entropy=entropy, buffer=buffer), part, width
        )
    return spread


def _banned_segments(
    z: Rows, banned: tuple[int, ...], width: int
) -> tuple[list[int], Float[Tensor, "rows count width"]]:
    """The segments with forbidden tokens, copied, those at -inf; a NaN stays a NaN."""
    segments = sorted({token // width for token in banned})
    parts = z.new_full((len(z), len(segments), width), -math.inf)
    for i, segment in enumerate(segments):
        part = z[:, segment * width : (segment + 1) * width]
        parts[:, i, : part.shape[-1]] = part
    for token in banned:
        parts[:, segments.index(token // width), token % width] -= math.inf
    return segments, parts


def _look_into(
    z: Rows, home: Int[Tensor, "rows 1"], banned: tuple[int, ...], width: int
) -> tuple[Int[Tensor, "rows width"], Float[Tensor, "rows width"]]:
    """A segment of each row, a copy, as token ids and logits; what is forbidden at -inf."""
    column = home * width + torch.arange(width, device=z.device)
    vocab = z.shape[-1]
    part = z.gather(-1, column.clamp(max=vocab - 1) if vocab % width else column)
    if vocab % width:
        part.masked_fill_(column >= vocab, -math.inf)
    for token in banned:
        part.masked_fill_(column == token, -math.inf)
    return column, part


def _blocks(z: Rows, elements: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Row and column ranges that cover z in blocks of so many elements, segments left whole."""
    rows, vocab = z.shape
    height, length = max(1, elements // vocab), min(vocab, max(1, elements // width) * width)
    for i in range(0, rows, height):
        for j in range(0, vocab, length):
            yield slice(i, min(i + height, rows)), slice(j, min(j + length, vocab))


def _draw(z: Rows, banned: tuple[int, ...], sampling: Sampling) -> Int[Tensor, "rows 1"]:
    """The arg-max of z / temperature + Gumbel noise, in float64, over blocks of the vocabulary."""
    wide = torch.float32 if z.device.type == "mps" else torch.float64
    floor = _floor(z, banned, sampling) if sampling.top_p < 1 or sampling.top_k else None
    best = torch.full((len(z),), -math.inf, dtype=wide, device=z.device)
    allowed = next((i for i in range(z.shape[-1]) if i not in banned), 0)
    token = torch.full((len(z),), allowed, device=z.device)
    for rows, columns in _blocks(z, _room(z) // 24, width=1):
        noisy = z[rows, columns].to(wide, copy=True).div_(sampling.temperature)
        if floor is not None:
            noisy.masked_fill_(z[rows, columns] < floor[rows], -math.inf)
        noisy -= torch.empty_like(noisy).exponential_(generator=sampling.generator).log_()
        if gone := [t - columns.start for t in banned if columns.start <= t < columns.stop]:
            noisy[:, gone] = -math.inf
        value, index = noisy.max(dim=-1)
        better = value > best[rows]
        best[rows] = torch.where(better, value, best[rows])
        token[rows] = torch.where(better, index + columns.start, token[rows])
    return token[:, None]


def _floor(z: Rows, banned: tuple[int, ...], sampling: Sampling) -> Float[Tensor, "rows 1"]:
    """The least logit of each row that top-k and top-p leave in. A row at a time is sorted."""
    floors = []
    for row in z:
        row = row.clone()
        row[list(banned)] = -math.inf
        ordered = row.sort(descending=True).values
        if 0 < sampling.top_k < len(ordered):
            ordered = ordered[: sampling.top_k]
        p = (ordered.to(_wide(z)) / sampling.temperature).softmax(dim=-1)
        kept = p.cumsum(dim=-1) - p < sampling.top_p
        kept[0] = True
        floors.append(torch.where(kept, ordered, math.inf).amin())
    return torch.stack(floors)[:, None]
