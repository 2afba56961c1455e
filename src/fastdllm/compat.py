"""Fast-dLLM's own shapes, for code that was written around them."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.errors import InputError
from fastdllm.predict import predict
from fastdllm.selection import Profile, Selector, parse

TransferFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def transfer_function(select: Selector | str, *, mask_id: int) -> TransferFunction:
    """A `(logits, mask_index, x) -> (x0, transfer_index)` that decides by any rule.

    As Fast-dLLM's `get_transfer_index`: `x0` is x with every masked position proposed, and
    `transfer_index` says which of the proposals to keep. The mask token is never proposed, and
    only the masked positions' logits are read.

    >>> get_transfer_index = transfer_function("frechet:0.25", mask_id=3)
    >>> x = torch.tensor([[0, 3, 3]])
    >>> logits = torch.tensor([[[9.0, 0, 0, 0], [9.0, 0, 0, 0], [0.0, 1, 0, 5]]])
    >>> get_transfer_index(logits, x == 3, x)
    (tensor([[0, 0, 1]]), tensor([[False,  True, False]]))
    """
    rule = parse(select) if isinstance(select, str) else select

    def transfer(
        logits: Float[Tensor, "batch length vocab"],
        mask_index: Bool[Tensor, "batch length"],
        x: Int[Tensor, "batch length"],
    ) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
        for name, values in (("mask_index", mask_index), ("x", x)):
            if values.shape != logits.shape[:-1]:
                raise InputError(
                    f"{name} has shape {tuple(values.shape)}; wanted {tuple(logits.shape[:-1])}"
                )
        read = predict(logits[mask_index], forbidden=(mask_id,), entropy=rule.needs_entropy)

        def spread(values: Tensor, fill: Tensor) -> Tensor:
            return fill.masked_scatter(mask_index, values)

        nothing = torch.zeros(x.shape, device=logits.device)
        x0 = spread(read.token.to(x.dtype), x)
        profile = Profile(
            token=x0,
            doubt=spread(read.doubt, nothing),
            runner_up=None if read.runner_up is None else spread(read.runner_up, nothing),
            entropy=None if read.entropy is None else spread(read.entropy, nothing),
            masked=mask_index,
        )
        return x0, rule(profile)

    return transfer
