"""The prediction kernel for CUDA: each row of logits is read once.

Behind `predict`, never called by hand. Needs Triton (the extra `triton`). Tested on the CPU
through Triton's interpreter against the torch path; not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fastdllm.predict import Statistics

BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _read_row(  # type: ignore[no-untyped-def]
    logits, stride, vocab, banned, tokens, numbers, rows, count, size: tl.constexpr
):
    """One program, one row. Carried from block to block, all relative to the top so far:

    the sum `others` over all but the top, so that near certainty it keeps its digits, and
    `moment`, the same sum with each term times its distance from the top.
    """
    row = tl.program_id(0).to(tl.int64)
    minus_inf = float("-inf")
    top = minus_inf
    second = minus_inf
    token = 0
    others = 0.0
    moment = 0.0
    broken = 0
    for start in range(0, vocab, size):
        column = start + tl.arange(0, size)
        z = tl.load(logits + row * stride + column, mask=column < vocab, other=minus_inf)
        z = z.to(tl.float32)
        broken = broken | tl.max(((z != z) | (z == float("inf"))).to(tl.int32), axis=0)
        for i in range(count):
            z = tl.where(column == tl.load(banned + i), minus_inf, z)

        best = tl.max(z, axis=0)
        index = tl.min(tl.where(z == best, column, vocab), axis=0)
        rest = tl.where(column == index, minus_inf, z)
        rival = tl.max(rest, axis=0)
        # A block of nothing but -inf has no distances: call its top 0 and every weight is 0.
        shifted = tl.maximum(rest - tl.where(best == minus_inf, 0.0, best), -200.0)
        weight = tl.where(rest == minus_inf, 0.0, tl.exp(shifted))
        block_others = tl.sum(weight, axis=0)
        block_moment = tl.sum(weight * shifted, axis=0)

        # Merge: the lower of the two tops becomes one of the others of the higher.
        wins = best > top
        high = tl.where(wins, best, top)
        low = tl.where(wins, top, best)
        fall = tl.where(low == minus_inf, 0.0, low) - tl.where(high == minus_inf, 0.0, high)
        fall = tl.where(low == minus_inf, -200.0, tl.maximum(fall, -200.0))
        scale = tl.where(low == minus_inf, 0.0, tl.exp(fall))
        low_others = tl.where(wins, others, block_others)
        low_moment = tl.where(wins, moment, block_moment)
        others = tl.where(wins, block_others, others) + scale * (1.0 + low_others)
        moment = tl.where(wins, block_moment, moment) + scale * (
            low_moment + fall * (1.0 + low_others)
        )
        second = tl.maximum(low, tl.where(wins, rival, second))
        token = tl.where(wins, index, token)
        top = high

    unusable = (broken != 0) | (top == minus_inf) | (top == float("inf"))
    tl.store(tokens + row, token)
    tl.store(numbers + row, tl.where(unusable, float("nan"), second - tl.where(unusable, 0.0, top)))
    tl.store(numbers + rows + row, tl.where(unusable, float("nan"), others))
    tl.store(numbers + 2 * rows + row, moment)


def read_logits(
    z: Float[Tensor, "rows vocab"], banned: tuple[int, ...], entropy: bool
) -> Statistics:
    """The statistics of every row, as `predict` wants them."""
    rows, vocab = z.shape
    z = z if z.stride(-1) == 1 else z.contiguous()
    tokens = torch.empty(rows, dtype=torch.long, device=z.device)
    numbers = torch.empty(3, rows, dtype=torch.float32, device=z.device)
    ids = torch.tensor(banned or (-1,), dtype=torch.long, device=z.device)
    if rows:
        _read_row[(rows,)](
            z, z.stride(0), vocab, ids, tokens, numbers, rows, len(banned), size=BLOCK
        )
    rival, others, moment = numbers
    return Statistics(tokens, torch.zeros_like(rival), rival, others, moment if entropy else None)
