"""Fast-dLLM's own function shape."""

import json
from pathlib import Path

import pytest
import torch

from fastdllm import LLM, Frechet, Generation, InputError, LogitsError
from fastdllm.cache import Fresh
from fastdllm.compat import (
    Schedule,
    generate,
    generate_with_dual_cache,
    generate_with_prefix_cache,
    transfer_function,
)
from fastdllm.denoise import denoise
from fastdllm.models.loading import load_model
from fastdllm.predict import predict

GOLDEN = Path(__file__).parent / "golden"
CASES = [json.loads(line) for line in (GOLDEN / "generation.jsonl").read_text().splitlines()]


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


def test_a_nan_is_named_by_its_place() -> None:
    logits = torch.zeros(2, 4, 6)
    logits[1, 3] = float("nan")
    x = torch.tensor([[5, 5, 1, 1], [1, 1, 1, 5]])
    with pytest.raises(LogitsError, match=r"row \(1, 3\)"):
        transfer_function(Frechet(), mask_id=5)(logits, x == 5, x)


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_match() -> None:
    transfer = transfer_function(Frechet(), mask_id=3)
    with pytest.raises(InputError, match=r"mask_index has shape \(1, 3\); wanted \(1, 2\)"):
        transfer(torch.zeros(1, 2, 4), torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2).long())


# --- generate, and with either cache -------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return load_model(GOLDEN / "ckpt" / "llada_mha", dtype="float32", device="cpu")


FUNCTIONS = {
    "none": generate,
    "prefix": generate_with_prefix_cache,
    "dual": generate_with_dual_cache,
}
ARGUMENT = {"threshold": "threshold", "factor": "factor", "frechet": "frechet_margin"}


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c["ckpt"] == "llada_mha" and not c["fragile"] and c["block_size"] == 32],
    ids=lambda case: case["id"],
)
def test_the_recorded_runs_by_their_argument_names(model, case) -> None:
    name, _, value = case["select"].partition(":")
    rule = {ARGUMENT[name]: float(value)} if value else {}
    prompt = torch.tensor([case["prompt"]])
    x, nfe = FUNCTIONS[case["cache"]](
        model, prompt, steps=64, gen_length=64, block_length=32, mask_id=500, **rule
    )
    assert x.shape == (1, prompt.shape[1] + 64)
    assert x[0, prompt.shape[1] :].tolist() == case["tokens"]
    assert nfe == case["nfe"]


def test_what_may_come_first(model) -> None:
    """An LLM, its model, or a foreign model: the same run without a cache."""
    prompt = torch.arange(3, 12)[None].repeat(2, 1)

    def foreign(ids):
        at = torch.arange(ids.shape[1]).expand_as(ids)
        return model.head(model(ids, at, Fresh(None)))

    runs = [
        function(first, prompt, gen_length=16, block_length=8, mask_id=500, frechet_margin=0.25)
        for function, first in (
            (generate, model),
            (generate, LLM(model)),
            (generate, foreign),
            (generate_with_dual_cache, foreign),  # no cache to be had
        )
    ]
    for x, nfe in runs[1:]:
        assert torch.equal(x, runs[0][0])
        assert nfe == runs[0][1]
    assert torch.equal(runs[0][0][0], runs[0][0][1])


def test_the_fixed_schedule(model) -> None:
    """12 steps for 2 blocks of 16: shares of 3, 3, 3, 3, 2, 2 in each."""
    prompt = torch.arange(3, 12)[None]
    _, nfe = generate(model, prompt, steps=12, gen_length=32, block_length=16, mask_id=500)
    assert nfe == 12
    rows = LLM(model).row(prompt[0], Generation(max_tokens=16, block_size=16))
    rows.select = Schedule(16, 6)
    sizes = [len(s.commits) for s in denoise(LLM(model).reader("none"), [rows], (500,))]
    assert sizes == [3, 3, 3, 3, 2, 2]


def test_the_mask_is_the_models_own_and_draws_are_torchs(model) -> None:
    prompt = torch.arange(3, 12)[None].repeat(3, 1)
    named, _ = generate(model, prompt[:1], gen_length=16, block_length=8, mask_id=500, factor=1.0)
    own, _ = generate(model, prompt[0], gen_length=16, block_length=8, factor=1.0)
    assert torch.equal(named, own)
    options = {"gen_length": 16, "block_length": 8, "temperature": 2.0, "threshold": 0.6}
    torch.manual_seed(0)
    first, _ = generate(model, prompt, **options)
    torch.manual_seed(0)
    again, _ = generate(model, prompt, **options)
    assert torch.equal(first, again)
    assert len({tuple(row.tolist()) for row in first}) > 1


def test_bad_calls(model) -> None:
    prompt = torch.arange(3, 6)[None]
    with pytest.raises(InputError, match="exclude each other"):
        generate(model, prompt, threshold=0.9, factor=1.0, mask_id=500)
    with pytest.raises(InputError, match="a whole number of blocks"):
        generate(model, prompt, steps=10, gen_length=30, block_length=8, mask_id=500)
    with pytest.raises(InputError, match="remasking"):
        generate(model, prompt, remasking="random", mask_id=500)
