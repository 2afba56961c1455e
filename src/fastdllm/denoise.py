"""Algorithm 1: rows of masks to rows of tokens, as a stream of frozen steps.

Text, streaming, NFE, traces, plots, benchmarks and the server are all readers of that stream.
The number of forward passes a row took is the number of its steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.cache import Fresh, KVCache, Policy, Range
from fastdllm.errors import InputError, LogitsError
from fastdllm.models.transformer import Transformer
from fastdllm.predict import Sampling, predict
from fastdllm.selection import Profile, Selector


@dataclass(frozen=True)
class Step:
    """What one forward pass did to one row. Positions count from the start of the canvas."""

    row: int
    """The row's own number, as its maker gave it."""
    block: Range
    window: Range
    """The positions that were recomputed."""
    positions: tuple[int, ...]
    """The masked positions of the block, before the step."""
    tokens: tuple[int, ...]
    """What was proposed for each."""
    doubts: tuple[float, ...]
    committed: tuple[bool, ...]
    raised: tuple[float, ...] = ()
    """The doubts as a calibration left them; empty without one."""
    taken_back: tuple[int, ...] = ()
    """Positions that were known and are masked again."""

    @property
    def commits(self) -> dict[int, int]:
        """Position to token, of what was committed."""
        both = zip(self.positions, self.tokens, self.committed, strict=True)
        return {position: token for position, token, yes in both if yes}


@dataclass(frozen=True, eq=False)
class Picture:
    """What stands at some positions of a prompt instead of the embedding of a token."""

    at: Int[Tensor, " tokens"]
    embedding: Float[Tensor, "tokens width"]


@dataclass(eq=False)
class Row:
    """One canvas on its way from masks to tokens. It lives on the host; the engine moves it."""

    number: int
    ids: Int[Tensor, " length"]
    masked: Bool[Tensor, " length"]
    """What is still to be filled in; a mask token elsewhere is evidence and stays."""
    select: Selector
    block_size: int
    end_ids: tuple[int, ...] = ()
    """Stop as soon as all before the first of these is committed; none: fill the canvas."""
    cuts: tuple[tuple[int, ...], ...] = ()
    """Sequences that, once committed anywhere, end the canvas before them: LLaDA-V's stops."""
    picture: "Picture | None" = None
    sampling: Sampling | None = None
    memory: Any = field(default=None, repr=False)
    """What the rule keeps from step to step; see `Selector.recall`."""
    finish: str | None = None
    """Why it ended: "stop" or "length"; None while it has not."""
    opened: int | None = field(default=None, repr=False)
    """Where the block starts whose opening pass has been made."""
    age: int = field(default=0, repr=False)
    """How many steps ago the whole canvas was read."""

    def __post_init__(self) -> None:
        spots = self.masked.nonzero()[:, 0]
        if len(spots) == 0:
            self.finish, self.origin, self.end = "length", len(self.ids), len(self.ids)
        else:
            self.origin, self.end = int(spots[0]), int(spots[-1]) + 1
        self.whole = self.end
        self.mask_id = int(self.ids[self.origin]) if len(spots) else -1

    @property
    def block(self) -> Range:
        """The first block that holds a mask."""
        first = int(self.masked.int().argmax())
        start = first - (first - self.origin) % self.block_size
        return Range(start, min(start + self.block_size, self.end))

    def apply(self, step: Step) -> None:
        """Write what was committed; see whether that is the end."""
        for position, token in step.commits.items():
            self.ids[position] = token
            self.masked[position] = False
        if step.taken_back:
            again = torch.tensor(step.taken_back)
            self.ids[again], self.masked[again] = self.mask_id, True
        self.opened = step.block.start
        self.age = 1 if len(step.window) == len(self.ids) else self.age + 1
        if self.cuts and (cut := self._cut()) is not None:
            self.end = min(cut, self.end)
            self.masked[self.end :] = False
        left = self.masked.nonzero()
        known = int(left[0]) if len(left) else self.end
        if torch.isin(self.ids[self.origin : known], torch.tensor(self.end_ids)).any():
            self.finish = "stop"
        elif not len(left):
            self.finish = "length" if self.end == self.whole else "stop"

    def _cut(self) -> int | None:
        """Where the first of the sequences that occurs does so first."""
        made = self.ids[self.origin : self.whole]
        for wanted in self.cuts:
            if len(wanted) <= len(made):
                same = (made.unfold(0, len(wanted), 1) == torch.tensor(wanted)).all(dim=1)
                if same.any():
                    return self.origin + int(same.int().argmax())
        return None


@runtime_checkable
class Reader(Protocol):
    """A model as the engine sees it: logits at chosen positions of some rows."""

    def windows(self, rows: Sequence[Row]) -> list[Range]:
        """Which positions of each row the next pass recomputes."""

    def read(
        self, rows: Sequence[Row], windows: Sequence[Range], spots: Sequence[Tensor]
    ) -> Float[Tensor, "wanted vocab"]:
        """The logits of each row's spots, row after row."""

    def keep_only(self, rows: Sequence[Row]) -> None:
        """Forget every other row."""


def denoise(reader: Reader, rows: list[Row], forbidden: Sequence[int]) -> Iterator[Step]:
    """Algorithm 1 over rows that each stand in their own block. Lines of the paper on the right.

    The list is the caller's: rows may be added to it and taken from it between steps. A row that
    is done costs nothing more.
    """
    while active := [row for row in rows if row.finish is None]:  # 2, 4: a block, a mask is left
        reader.keep_only(active)
        for group, windows in _passes(active, reader.windows(active)):  # 3: refresh, or a window
            blocks = [row.block for row in group]
            spots = [
                row.masked[block.start : block.stop].nonzero()[:, 0] + block.start
                for row, block in zip(group, blocks, strict=True)
            ]
            logits, twins = _read(reader, group, windows, blocks, spots)  # 5
            profile = _profile(logits, group, spots, forbidden)  # 6-9
            committed = _select(profile, group)  # 10-19
            told = _tell(profile, committed, group, spots)
            for row, twin, what in zip(group, twins, told, strict=True):
                what["taken_back"] = _taken_back(row, twin, sum(what["committed"]))
            for row, block, window, what in zip(group, blocks, windows, told, strict=True):
                if row not in rows:  # taken away since the round began
                    continue
                step = Step(row.number, block, window, **what)
                row.apply(step)  # 20: reveal
                yield step


def _passes(rows: list[Row], windows: list[Range]) -> list[tuple[list[Row], list[Range]]]:
    """Rows that read their whole canvas take a pass of their own, or all would be as wide."""
    both = list(zip(rows, windows, strict=True))
    whole = [(row, window) for row, window in both if len(window) == len(row.ids)]
    part = [(row, window) for row, window in both if len(window) < len(row.ids)]
    return [([r for r, _ in group], [w for _, w in group]) for group in (whole, part) if group]


Twins = tuple[Int[Tensor, " tokens"], Float[Tensor, "tokens vocab"]] | None
"""Known positions of a block, and what the model says of them without seeing them."""


def _read(
    reader: Reader,
    rows: Sequence[Row],
    windows: Sequence[Range],
    blocks: Sequence[Range],
    spots: Sequence[Tensor],
) -> tuple[Float[Tensor, "wanted vocab"], list[Twins]]:
    """One pass; for a rule that takes back, with a hidden twin of what the block already has."""
    if not any(row.select.takes_back for row in rows):
        return reader.read(rows, windows, spots), [None] * len(rows)
    if not isinstance(reader, CachedReader):
        raise InputError("a rule that takes back hides tokens; wanted a checkpoint of ours")
    known = []
    for row, block in zip(rows, blocks, strict=True):
        fixed = ~row.masked[block.start : block.stop]
        mine = fixed if row.select.takes_back else torch.zeros_like(fixed)
        known.append(mine.nonzero()[:, 0] + block.start)
    logits = reader.read(rows, windows, spots, known)
    sizes = [len(part) for pair in zip(spots, known, strict=True) for part in pair]
    parts = torch.split(logits, sizes)
    return torch.cat(parts[::2]), list(zip(known, parts[1::2], strict=True))


def _taken_back(row: Row, twins: Twins, committed: int) -> tuple[int, ...]:
    """What the rule disowns; always fewer than were committed, or a block could go on for ever."""
    if twins is None or not len(twins[0]):
        return ()
    where, logits = twins
    token = row.ids[where].to(logits.device)
    confidence = logits.float().softmax(dim=-1).gather(-1, token[:, None])[:, 0].cpu()
    return tuple(where[row.select.disowned(confidence, committed - 1)].tolist())


def _profile(
    logits: Float[Tensor, "wanted vocab"],
    rows: Sequence[Row],
    spots: Sequence[Tensor],
    forbidden: Sequence[int],
) -> Profile:
    """One row of the profile per row of the batch, padded on the right with unmasked positions."""
    counts = [len(s) for s in spots]
    entropy = any(row.select.needs_entropy for row in rows)
    draws = [row.sampling for row in rows]
    signals: list[Tensor] = []
    # A row's noise and its memory must not depend on its neighbours: one after the other.
    if any(draws) or any(row.select.remembers for row in rows):
        parts = []
        for row, where, part in zip(rows, spots, torch.split(logits, counts), strict=True):
            signal = torch.zeros(len(where), device=part.device)
            if row.select.remembers:
                never = torch.tensor(forbidden, device=part.device)
                part, signal, row.memory = row.select.recall(
                    row.memory, where.to(part.device), part.index_fill(-1, never, -math.inf)
                )
            parts.append((part, row.sampling))
            signals.append(signal)
    else:
        parts = [(logits, None)]
    read = [
        predict(part, forbidden=forbidden, entropy=entropy, sampling=draw, check=False)
        for part, draw in parts
    ]
    masked = (torch.arange(max(counts)) < torch.tensor(counts)[:, None]).to(logits.device)

    def padded(values: list[Tensor]) -> Tensor:
        flat = torch.cat(values)
        return flat.new_zeros(masked.shape).masked_scatter(masked, flat)

    return Profile(
        token=padded([p.token for p in read]),
        doubt=padded([p.doubt for p in read]),
        runner_up=padded([p.runner_up for p in read if p.runner_up is not None]),
        entropy=padded([p.entropy for p in read if p.entropy is not None]) if entropy else None,
        masked=masked,
        position=padded([where.to(logits.device) for where in spots]),
        signal=padded(signals) if signals else None,
    )


def _select(profile: Profile, rows: Sequence[Row]) -> Bool[Tensor, "rows positions"]:
    """Each row by its own rule; one call if they share it."""
    rules = {row.select for row in rows}
    committed = torch.zeros_like(profile.masked)
    for rule in rules:
        mine = torch.tensor([row.select == rule for row in rows], device=committed.device)
        committed = torch.where(mine[:, None], rule(profile), committed)
    return committed


def _tell(
    profile: Profile, committed: Tensor, rows: Sequence[Row], spots: Sequence[Tensor]
) -> list[dict[str, Any]]:
    """Bring the decision to the host, in the step's one transfer."""
    doubt_bits = profile.doubt.view(torch.int32)
    packed = torch.stack((profile.token, committed.long(), doubt_bits.long())).cpu()
    doubts = packed[2].int().view(torch.float32)
    told: list[dict[str, Any]] = []
    for i, (row, where) in enumerate(zip(rows, spots, strict=True)):
        n = len(where)
        bad = doubts[i, :n].isnan()
        if bad.any():
            raise LogitsError(
                f"row {row.number}: the logits at position {int(where[bad][0])} hold a NaN or "
                "+inf, or nothing but -inf; try dtype float32, or look at the checkpoint"
            )
        told.append(
            {
                "positions": tuple(where.tolist()),
                "tokens": tuple(packed[0, i, :n].tolist()),
                "doubts": tuple(doubts[i, :n].tolist()),
                "committed": tuple(packed[1, i, :n].bool().tolist()),
                "raised": _raised(profile, row.select, i, n),
            }
        )
    return told


def _raised(profile: Profile, rule: Selector, row: int, count: int) -> tuple[float, ...]:
    """The doubts the rule saw, if it is calibrated."""
    if rule.calibration is None:
        return ()
    return tuple(rule.calibrated(profile).doubt[row, :count].tolist())


# --- Models ------------------------------------------------------------------------------------


class CachedReader:
    """Our transformer under a cache policy."""

    def __init__(self, model: Transformer, cache: str) -> None:
        self.model, self.policy, self.shift = model, Policy.parse(cache), int(model.config.shift)
        weight = model.embed.weight
        self.device = weight.device
        keeps = self.policy.kind != "none"
        self.cache = KVCache(model.config, weight.device, weight.dtype) if keeps else None
        self.lanes: dict[Row, int] = {}

    def keep_only(self, rows: Sequence[Row]) -> None:
        """Give back the lanes of the others."""
        for row in [row for row in self.lanes if row not in rows]:
            lane = self.lanes.pop(row)
            if self.cache:
                self.cache.give_back(lane)

    def windows(self, rows: Sequence[Row]) -> list[Range]:
        """The policy's range, one position earlier if the head is shifted."""
        found = []
        for row in rows:
            block, length = row.block, len(row.ids)
            # A row that was away has lost its lane, and must read its canvas anew.
            opening = row.opened != block.start or (self.cache and row not in self.lanes)
            window = self.policy.window(block, length, None if opening else row.age)
            found.append(Range(max(0, window.start - self.shift), window.stop))
        return found

    @torch.inference_mode()
    def read(
        self,
        rows: Sequence[Row],
        windows: Sequence[Range],
        spots: Sequence[Tensor],
        twins: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "wanted vocab"]:
        """One forward pass; the head only where it is wanted.

        A twin is a mask in the place of a known token, which sees all but that token and is seen
        by none. Its logits follow those of its row's spots.
        """
        widest = max(len(window) for window in windows)
        if twins is not None:
            return self._read_twins(rows, spots, twins, widest)
        ids = torch.zeros(len(rows), widest, dtype=torch.long)
        positions = torch.full((len(rows), widest), -1)
        for i, (row, window) in enumerate(zip(rows, windows, strict=True)):
            ids[i, : len(window)] = row.ids[window.start : window.stop]
            positions[i, : len(window)] = torch.arange(window.start, window.stop)
        positions = positions.to(self.device)
        memory = self._memory(rows, positions)
        # Where each row's spots stand in its window, padded with its first place.
        wanted = torch.zeros(len(rows), max(map(len, spots)), dtype=torch.long)
        real = torch.zeros(wanted.shape, dtype=torch.bool)
        for i, (spot, window) in enumerate(zip(spots, windows, strict=True)):
            wanted[i, : len(spot)] = spot - self.shift - window.start
            real[i, : len(spot)] = True
        at = wanted.to(self.device)
        x = self._see(rows, windows, self.model.embed(ids.to(self.device)))
        hidden = self.model.blocks_over(x, positions.clamp(min=0), memory, at)
        flat = hidden.flatten(0, 1)[real.flatten().nonzero()[:, 0].to(self.device)]
        logits: Tensor = self.model.head(flat)
        return logits

    def _read_twins(
        self, rows: Sequence[Row], spots: Sequence[Tensor], twins: Sequence[Tensor], length: int
    ) -> Float[Tensor, "wanted vocab"]:
        """The whole canvas with the twins behind it."""
        if self.cache is not None or self.shift or any(row.picture for row in rows):
            raise InputError(
                "a rule that takes back wants cache none, a head that is not shifted, and no "
                "picture; try another rule"
            )
        total = length + max(map(len, twins))
        ids = torch.zeros(len(rows), total, dtype=torch.long)
        positions = torch.zeros(len(rows), total, dtype=torch.long)
        sees = torch.eye(total, dtype=torch.bool).repeat(len(rows), 1, 1)
        wanted = []
        for i, (row, spot, twin) in enumerate(zip(rows, spots, twins, strict=True)):
            own, behind = len(row.ids), torch.arange(length, length + len(twin))
            ids[i, :own], ids[i, behind] = row.ids, row.mask_id
            positions[i, :own], positions[i, behind] = torch.arange(own), twin
            sees[i, :, :own] = True
            sees[i, behind, twin] = False
            wanted.append(torch.cat((spot, behind)) + i * total)
        memory = Fresh(sees[:, None].to(self.device))
        hidden = self.model(ids.to(self.device), positions.to(self.device), memory)
        logits: Tensor = self.model.head(hidden.flatten(0, 1)[torch.cat(wanted).to(self.device)])
        return logits

    def _see(
        self, rows: Sequence[Row], windows: Sequence[Range], x: Float[Tensor, "rows window width"]
    ) -> Float[Tensor, "rows window width"]:
        """Put the pictures where they stand."""
        for i, (row, window) in enumerate(zip(rows, windows, strict=True)):
            if row.picture is not None:
                place = row.picture.at - window.start
                inside = (place >= 0) & (place < len(window))
                x[i, place[inside].to(x.device)] = row.picture.embedding[inside].to(x)
        return x

    def _memory(self, rows: Sequence[Row], positions: Int[Tensor, "rows window"]) -> Any:
        lengths = [len(row.ids) for row in rows]
        longest = max(lengths)
        mask = None
        if min(lengths) < longest:
            keys = torch.arange(longest) < torch.tensor(lengths)[:, None]
            mask = keys[:, None, None].to(self.device)
        if self.cache is None:
            return Fresh(mask)
        new = [row for row in rows if row not in self.lanes]
        self.lanes |= zip(new, self.cache.take(len(new), longest), strict=True)
        return self.cache.view([self.lanes[row] for row in rows], positions, longest, mask)


class ForeignReader:
    """Anything called as `model(ids) -> logits`, or an object with `.logits`. No cache."""

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        *,
        device: torch.device | str = "cpu",
        shift: bool = False,
    ) -> None:
        self.model, self.device, self.shift = model, device, int(shift)

    def keep_only(self, rows: Sequence[Row]) -> None:
        """Nothing is kept anyway."""

    def windows(self, rows: Sequence[Row]) -> list[Range]:
        """Always the whole canvas."""
        return [Range(0, len(row.ids)) for row in rows]

    @torch.inference_mode()
    def read(
        self, rows: Sequence[Row], windows: Sequence[Range], spots: Sequence[Tensor]
    ) -> Float[Tensor, "wanted vocab"]:
        """A pass per length: nobody knows what a foreign model does with padding."""
        found: dict[Row, Tensor] = {}
        for length in sorted({len(row.ids) for row in rows}):
            same = [i for i, row in enumerate(rows) if len(row.ids) == length]
            ids = torch.stack([rows[i].ids for i in same]).to(self.device)
            out = self.model(ids)
            logits: Tensor = getattr(out, "logits", out)
            if logits.shape[:2] != ids.shape:
                raise InputError(
                    f"the model returned logits of shape {tuple(logits.shape)} for ids of shape "
                    f"{tuple(ids.shape)}; wanted (batch, length, vocabulary)"
                )
            for k, i in enumerate(same):
                found[rows[i]] = logits[k, spots[i].to(logits.device) - self.shift]
        return torch.cat([found[row] for row in rows])
