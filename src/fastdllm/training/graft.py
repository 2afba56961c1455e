"""A new model that begins with what another family's model of the same width has learned.

Dream began with the weights of Qwen2.5; tiny-dream begins with those of tiny-llada.
"""

import torch
from torch import Tensor

from fastdllm.errors import InputError
from fastdllm.models.transformer import Transformer
from fastdllm.tokenizer import Tokenizer


@torch.no_grad()
def graft(
    model: Transformer, tokenizer: Tokenizer, donor: Transformer, donor_tokenizer: Tokenizer
) -> None:
    """Take over every weight that fits; what the donor lacks stays as it was drawn.

    Embeddings go by token, so that the vocabularies may differ. Where the model has fewer key
    heads than the donor, each is the mean of those it stands for.
    """
    ours, theirs = model.config, donor.config
    for size in ("width", "head_dim", "mlp", "layers", "heads"):
        if getattr(ours, size) != getattr(theirs, size):
            raise InputError(
                f"graft: the model's {size} is {getattr(ours, size)}, the donor's "
                f"{getattr(theirs, size)}; wanted the same"
            )
    given = dict(donor.named_parameters())
    pairs = same_tokens(tokenizer, donor_tokenizer)
    for name, parameter in model.named_parameters():
        if name not in given:
            continue
        weight = given[name]
        if name in ("embed.weight", "head.weight"):
            parameter[pairs[0]] = weight[pairs[1]]
        elif name.endswith((".k.weight", ".v.weight")):
            parameter.copy_(pooled(weight, ours.kv_heads, ours.head_dim))
        else:
            parameter.copy_(weight)


def pooled(weight: Tensor, heads: int, head_dim: int) -> Tensor:
    """The rows of several heads as the means of fewer.

    >>> pooled(torch.tensor([[1.0], [3.0], [5.0], [6.0]]), 2, 1).flatten().tolist()
    [2.0, 5.5]
    """
    return weight.reshape(heads, -1, head_dim, weight.shape[1]).mean(dim=1).flatten(0, 1)


def same_tokens(mine: Tokenizer, other: Tokenizer) -> tuple[Tensor, Tensor]:
    """Ids of one and of the other of all tokens that both have; a mask is a mask by any name."""
    known = other.core.get_vocab()
    pairs = [(i, known[token]) for token, i in mine.core.get_vocab().items() if token in known]
    if mine.mask_id is not None and other.mask_id is not None:
        pairs.append((mine.mask_id, other.mask_id))
    left, right = torch.tensor(sorted(set(pairs)), dtype=torch.long).reshape(-1, 2).unbind(1)
    return left, right
