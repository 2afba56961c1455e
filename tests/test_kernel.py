"""The Triton kernel, on the CPU through Triton's interpreter, against the torch path."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from fastdllm import kernel
from fastdllm.predict import _profile, _statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 5, 64, 65, 300])
@pytest.mark.parametrize("forbidden", [(), (2,), (0, 64, 299)])
def test_both_paths_agree(monkeypatch, dtype, vocab, forbidden) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 64)
    forbidden = tuple(t for t in forbidden if t < vocab - 1)
    logits = (5 * torch.randn(9, vocab, generator=torch.Generator().manual_seed(vocab))).to(dtype)
    logits[1] = logits[1, 0]  # one long tie
    logits[2, : vocab // 2] = -math.inf  # whole blocks of nothing
    logits[3, vocab // 2 + 1 :] = -math.inf
    logits[4, vocab // 2] = 60.0  # near certainty
    masked = torch.ones(9, dtype=torch.bool)
    ours = _profile([kernel.read_logits(logits, forbidden, entropy=True)], masked)
    torch_path = _profile([_statistics(logits, forbidden, True, None, 1 << 20)], masked)
    assert torch.equal(ours.token, torch_path.token)
    for name in ("doubt", "runner_up", "entropy"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(torch_path, name), rtol=1e-5, atol=1e-30
        )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the NaNs we feed it
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_unusable_rows(monkeypatch, value: float) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 64)
    logits = torch.randn(3, 200)
    logits[1] = value
    read = kernel.read_logits(logits, (3,), entropy=False)
    assert _profile([read], torch.ones(3, dtype=torch.bool)).doubt.isnan().tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinity_at_a_forbidden_id_is_an_error_on_both_paths() -> None:
    logits = torch.zeros(2, 70)
    logits[0, 3] = math.inf
    for read in (
        kernel.read_logits(logits, (3,), False),
        _statistics(logits, (3,), False, None, 999),
    ):
        assert read.others.isnan().tolist()[0] or read.own.isnan().tolist()[0]
        assert not read.others.isnan().tolist()[1]
