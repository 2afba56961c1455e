"""The masked-diffusion objective: which positions are hidden, and what guessing them costs.

Each position has its own probability p of being masked. The paper's loss is the case of one
p = t ~ U(0, 1) for all positions of an answer; its weight 1/t is then 1/p. The other patterns are
states that decoding passes through:

    random   every answer position with probability t
    block    one block with probability t, none of those before it, all of those after it: a step
             of block-wise decoding
    prefix   known up to a cut, masked after it
    all      everything that may be masked is
    digits   every digit with probability t, and no other: the sums of drills, in sentences
    numbers  every number with probability t / 2 wherever it stands in the answer, so that it cannot
             be copied from there: it is to be computed, or read off the prompt
    sums     of one block every token without a letter with probability t, none before it, and all
             after it, which are not to be guessed: the words of a sentence stand, its sum does not
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.cache import Fresh
from fastdllm.models.config import ModelConfig
from fastdllm.models.transformer import Memory, Transformer
from fastdllm.vision.tiles import Pixels, Size

Ids = Int[Tensor, "rows length"]
Flags = Bool[Tensor, "rows length"]
Chances = Float[Tensor, "rows length"]

Seen = tuple[tuple[Pixels, Size], Sequence[int]]
"""A picture and where it stands."""
Opening = tuple[Ids, Flags]
"""The canvas as its block was opened, and which positions a cache has kept since."""

PATTERNS = ("random", "block", "prefix", "all", "digits", "sums", "numbers")
GOLDEN = 0.6180339887
"""Its multiples, shifted by a row's `at`, are as good as a draw for each number of the row."""
LEAST = 0.01
"""The smallest t: below it a row weighs a hundred times, and almost never hides anything."""


def chances(
    pattern: Int[Tensor, " rows"],
    maskable: Flags,
    digit: Int[Tensor, "rows length"],
    letterless: Flags,
    block_size: int,
    t: Float[Tensor, " rows"],
    at: Float[Tensor, " rows"],
) -> Chances:
    """The probability of each position to be masked.

    `pattern` indexes `PATTERNS`; `at`, in [0, 1), says where in the answer the block or cut lies;
    `digit` is the value of a token of digits, and -1 of others.
    """
    place = maskable.cumsum(dim=1) - 1  # in the answer
    size, where = maskable.sum(dim=1, keepdim=True), at[:, None]
    block = place // block_size
    chosen = (where * (size / block_size).ceil()).long()
    every = t[:, None].expand(maskable.shape)
    later = (block > chosen).float()
    inside = torch.where(block == chosen, every, later)
    after = (place >= where * size).float()
    sums = torch.where(block == chosen, every * letterless, later)
    hidden = (where + GOLDEN * numbers(digit)) % 1 < every / 2
    options = torch.stack(
        (every, inside, after, torch.ones_like(every), every * (digit >= 0), sums,
         (hidden & (digit >= 0)).float())
    )  # fmt: skip
    return torch.where(maskable, options[pattern, torch.arange(len(maskable))], 0.0)


def numbers(digit: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
    """The number that a digit is part of, by its first three; -1 elsewhere.

    >>> numbers(torch.tensor([[3, 4, -1, 7, -1]]))
    tensor([[34, 34, -1,  7, -1]])
    """
    is_one, value = digit >= 0, digit
    begins = is_one & ~F.pad(is_one, (1, -1))
    more = is_one
    for ahead in (1, 2):
        following = F.pad(digit, (0, ahead), value=-1)[:, ahead:]
        more = more & (following >= 0)
        value = torch.where(more, value * 10 + following, value)
    places = torch.arange(digit.shape[1], device=digit.device)
    first = torch.where(begins, places, 0).cummax(dim=1).values
    return torch.where(is_one, value.gather(1, first), -1)


def guessed(pattern: Int[Tensor, " rows"], chance: Chances) -> Flags:
    """Where a masked position is to be guessed: of `sums`, not after the block.

    What comes there is mostly anyone's guess, and so much of it would drown the sums.
    """
    sums = pattern[:, None] == PATTERNS.index("sums")
    return ~(sums & (chance == 1))


def strata(rows: int, generator: torch.Generator) -> Float[Tensor, " rows"]:
    """One t in each of so many equal shares of (0, 1), shuffled: less noise than free draws."""
    places = torch.randperm(rows, generator=generator) + torch.rand(rows, generator=generator)
    return LEAST + (1 - LEAST) * places / rows


def opening(
    ids: Ids, maskable: Flags, chance: Chances, cached: Bool[Tensor, " rows"], config: ModelConfig
) -> Opening:
    """Rows as the prefix cache has them, where `cached`: the block begins with the first position
    that may be masked here, and when it was opened, nothing of the answer stood from there on."""
    assert config.mask_id is not None
    inside = (chance > 0).cumsum(dim=1) > 0
    shift = int(config.shift)  # the window begins where its first position is read
    fresh = inside | F.pad(inside[:, shift:], (0, shift))
    return torch.where(maskable & inside, config.mask_id, ids), ~fresh & cached[:, None]


class Kept:
    """The memory of two passes: the second finds, where `at` says, what the first left."""

    mask: Tensor | None = None

    def __init__(self, at: Flags) -> None:
        self.at = at[:, None, :, None]
        self.first: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take the window's keys and values, give them with those that are kept."""
        if layer not in self.first:
            self.first[layer] = k, v
            return k, v
        old_k, old_v = self.first[layer]
        return torch.where(self.at, old_k, k), torch.where(self.at, old_v, v)


def read(
    model: Transformer,
    noisy: Ids,
    masked: Flags,
    seen: Sequence[Seen | None] = (),
    opened: Opening | None = None,
) -> Float[Tensor, "masked vocab"]:
    """The logits of the masked positions, row after row; `seen` is the picture of each row."""
    positions = torch.arange(noisy.shape[1], device=noisy.device).expand(noisy.shape)
    memory: Memory = Fresh(None)
    if opened is not None:
        memory = Kept(opened[1])
        with torch.no_grad():  # no gradient goes through a cache
            model.blocks_over(embed(model, opened[0], seen), positions, memory)
    hidden = model.blocks_over(embed(model, noisy, seen), positions, memory)
    if model.config.shift:  # position i is read at i - 1; the first is never masked
        hidden, masked = hidden[:, :-1], masked[:, 1:]
    logits: Tensor = model.head(hidden[masked])
    return logits


def embed(
    model: Transformer, ids: Ids, seen: Sequence[Seen | None]
) -> Float[Tensor, "rows length width"]:
    """Tokens, and pictures where they stand."""
    x: Tensor = model.embed(ids)
    shown = [(i, one) for i, one in enumerate(seen) if one is not None]
    if shown:
        assert model.eyes is not None
        parts = model.eyes.embed([picture for _, (picture, _) in shown])
        rows = torch.cat([torch.full((len(at),), i) for i, (_, at) in shown]).to(x.device)
        places = torch.tensor([p for _, (_, at) in shown for p in at], device=x.device)
        x = x.index_put((rows, places), torch.cat(parts))
    return x


def weights(masked: Flags, chance: Chances) -> Chances:
    """1/p for each masked position, over what its row may mask at most."""
    size = (chance > 0).sum(dim=1, keepdim=True)
    return torch.where(masked, 1 / (chance * size), 0.0)


def loss(
    model: Transformer,
    ids: Ids,
    noisy: Ids,
    masked: Flags,
    weight: Chances,
    seen: Sequence[Seen | None] = (),
    opened: Opening | None = None,
) -> Float[Tensor, ""]:
    """The weighted cross-entropy of the masked positions."""
    logits = read(model, noisy, masked, seen, opened)
    return (F.cross_entropy(logits.float(), ids[masked], reduction="none") * weight[masked]).sum()
