"""Fast-dLLM's own function shape."""

import pytest
import torch

from fastdllm import Frechet, InputError
from fastdllm.compat import transfer_function
from fastdllm.predict import predict


@pytest.mark.parametrize("rule", ["frechet:0.25", "exact:0.1", "entropy:0.5", "threshold:0.6"])
def test_the_same_decision_as_on_the_whole_canvas(rule: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 50, (3, 12), generator=g)
    x[torch.rand(x.shape, generator=g) < 0.6] = 50
    x[2] = 1  # a row that is done
    logits = 4 * torch.randn(3, 12, 51, generator=g)
    mask_index = x == 50
    mask_index[:, 8:] = False  # beyond the block, as Fast-dLLM does it
    x0, transfer_index = transfer_function(rule, mask_id=50)(logits, mask_index, x)

    from fastdllm import parse

    whole = predict(logits, mask_index, forbidden=(50,), entropy=True)
    assert torch.equal(x0, torch.where(mask_index, whole.token, x))
    assert torch.equal(transfer_index, parse(rule)(whole))
    assert not transfer_index[2].any()


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_match() -> None:
    transfer = transfer_function(Frechet(), mask_id=3)
    with pytest.raises(InputError, match=r"mask_index has shape \(1, 3\); wanted \(1, 2\)"):
        transfer(torch.zeros(1, 2, 4), torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2).long())
