"""Logits to profile, against float64 arithmetic on the whole vocabulary."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from fastdllm import InputError, LogitsError, Profile
from fastdllm.bench.memory import peak_bytes
from fastdllm.predict import Sampling, predict

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def naive(logits: Tensor, forbidden: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """The usual way, in float64; 1 - c from the terms that are not the maximum's."""
    z = logits.double().clone()
    z[..., list(forbidden)] = -math.inf
    p = z.softmax(-1)
    token = z.argmax(-1, keepdim=True)
    return {"token": token[..., 0], **rest_of(p, token)}


def rest_of(p: Tensor, token: Tensor) -> dict[str, Tensor]:
    rest = p.scatter(-1, token, 0)
    doubt = rest.sum(-1)
    own = -(1 - doubt) * torch.log1p(-doubt)
    entropy = own.nan_to_num() + torch.special.entr(rest).sum(-1)
    return {"doubt": doubt, "runner_up": rest.amax(-1), "entropy": entropy}


def assert_same(profile: Profile, expected: dict[str, Tensor], rtol: float = 1e-5) -> None:
    assert torch.equal(profile.token, expected["token"])
    for name in ("doubt", "runner_up", "entropy"):
        got = getattr(profile, name)
        if got is not None:
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), expected[name], rtol=rtol, atol=1e-37)


@settings(max_examples=400)
@given(
    seeds,
    st.sampled_from(DTYPES),
    st.integers(1, 700),
    st.sampled_from([(), (0,), (1, 3), (0, 17, 200)]),
    st.floats(0, 3),
)
def test_any_dtype_and_vocabulary(
    seed: int, dtype: torch.dtype, vocab: int, forbidden: tuple[int, ...], scale: float
) -> None:
    forbidden = tuple(t for t in forbidden if t < vocab - 1)
    g = torch.Generator().manual_seed(seed)
    logits = (10**scale / 10 * torch.randn(2, 3, vocab, generator=g)).to(dtype)
    profile = predict(logits, forbidden=forbidden, entropy=True)
    assert_same(profile, naive(logits, forbidden))
    assert not torch.isin(profile.token, torch.tensor(forbidden, dtype=torch.long)).any()
    assert profile.masked.all()


@pytest.mark.parametrize("vocab", [2, 33, 512, 50_257, 126_464])
@pytest.mark.parametrize("doubt", [1e-3, 1e-6, 1e-9, 1e-12, 1e-30])
def test_near_certainty_the_doubt_keeps_its_digits(vocab: int, doubt: float) -> None:
    """The top at 30, the others equal: 1 - c is the others' share, whatever 1 - float32(c) is."""
    logits = torch.full((1, 3, vocab), 30 + math.log(doubt / (vocab - 1)))
    logits[0, torch.arange(3), torch.tensor([0, vocab // 2, vocab - 1])] = 30
    assert_same(predict(logits, entropy=True), naive(logits))


def test_two_confidences_near_one_are_ordered() -> None:
    logits = torch.zeros(1, 2, 1000)
    logits[0, 0, 7], logits[0, 1, 7] = 23.0, 23.1  # both are 1.0 in float32
    doubt = predict(logits).doubt[0]
    assert doubt[1] < doubt[0] < 1e-6


def test_ties_take_the_lower_id() -> None:
    logits = torch.zeros(2, 400)
    logits[1, [90, 310]] = 5.0
    profile = predict(logits, entropy=True)
    assert profile.token.tolist() == [0, 90]
    assert profile.runner_up[1] == pytest.approx(float(profile.confidence[1]))
    assert_same(profile, naive(logits))


def test_a_single_candidate_is_certain() -> None:
    logits = torch.full((1, 40), -math.inf)
    logits[0, 5], logits[0, 9] = 1.0, 3.0
    profile = predict(logits, forbidden=(9,), entropy=True)
    assert (profile.token, profile.doubt, profile.runner_up, profile.entropy) == (5, 0, 0, 0)


def test_slices_and_transposes_are_read_in_place() -> None:
    whole = torch.randn(3, 10, 600)
    for view in (
        whole[:, 2:7],
        whole[:, ::2],
        whole.transpose(0, 1),
        whole[..., :599],
        whole[0],
    ):
        assert_same(predict(view), naive(view))


@pytest.mark.parametrize("shape", [(0, 9), (2, 0, 9)])
def test_nothing_to_read(shape: tuple[int, ...]) -> None:
    profile = predict(torch.zeros(shape), entropy=True)
    assert profile.token.shape == profile.doubt.shape == shape[:-1]


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(2, 5, 333)
    before = logits.clone()
    predict(logits, forbidden=(3,), entropy=True)
    predict(logits, forbidden=(3,), sampling=Sampling(1.0, torch.Generator()))
    assert torch.equal(logits, before)


# --- Drawing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drawn_tokens_follow_the_tempered_distribution(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
    generator = torch.Generator().manual_seed(0)
    count = 40_000
    drawn = predict(
        logits.expand(count, -1), forbidden=(4,), sampling=Sampling(temperature, generator)
    )
    expected = (logits[:4].double() / temperature).softmax(-1)
    share = drawn.token.bincount(minlength=5).double() / count
    sigma = (expected * (1 - expected) / count).sqrt()
    assert share[4] == 0
    assert ((share[:4] - expected).abs() < 5 * sigma).all()


@given(seeds)
def test_a_drawn_token_has_its_own_doubt_and_rival(seed: int) -> None:
    logits = 2 * torch.randn(4, 37, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(3.0, torch.Generator().manual_seed(seed))
    profile = predict(logits, forbidden=(5,), entropy=True, sampling=sampling)
    z = logits.double()
    z[:, 5] = -math.inf
    p = z.softmax(-1)
    assert_same(profile, {"token": profile.token, **rest_of(p, profile.token[:, None])})


def test_the_same_generator_draws_the_same() -> None:
    logits = torch.randn(3, 8, 999)
    first, second = (
        predict(logits, sampling=Sampling(1.0, torch.Generator().manual_seed(4))) for _ in range(2)
    )
    assert torch.equal(first.token, second.token)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 3, "top_p": 0.5}])
def test_a_cut_leaves_only_the_best(dtype, cut) -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 50, generator=g, dtype=torch.float64).to(dtype)
    logits[:, 0] = 9.0
    drawn = predict(logits, forbidden=(0,), sampling=Sampling(1.0, g, **cut)).token
    best = logits[:, 1:].double().topk(3).indices + 1
    assert (drawn[:, None] == best).any(-1).all()
    if len(cut) == 1:
        top = logits.gather(1, best[:, :1])
        assert torch.equal(logits.gather(1, drawn[:, None]), top)


def test_an_extreme_temperature_never_draws_what_is_forbidden() -> None:
    logits = torch.full((3, 9), -5.0, dtype=torch.float64)
    sampling = Sampling(1e-308, torch.Generator())
    assert (predict(logits, forbidden=(0,), sampling=sampling).token > 0).all()


# --- Memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 126_464), (1, 32, 126_464), (4, 32, 50_257), (4, 256, 4096), (16, 256, 512)],
)
@pytest.mark.parametrize("forbidden", [(7,), range(0, 500, 5)], ids=["one", "hundred"])
@pytest.mark.usefixtures("unchecked")
def test_peak_memory_is_a_quarter_of_the_logits(shape, dtype, forbidden) -> None:
    if len(forbidden) > 1 and shape[1] == 1:
        pytest.skip("a hundred segments of a single row are copied at once")
    logits = torch.zeros(shape, dtype=dtype)
    stride = max(1, shape[-1] // 500)
    forbidden = tuple(stride * t for t in forbidden)  # spread over the whole vocabulary
    room = max(logits.numel() * logits.element_size() / 4, 200_000)
    generator = torch.Generator()
    for call in (
        lambda: predict(logits, forbidden=forbidden),
        lambda: predict(logits, forbidden=forbidden, entropy=True),
        lambda: predict(logits, forbidden=forbidden, sampling=Sampling(1.0, generator)),
    ):
        assert 0 < peak_bytes(call) <= room


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 5, 299])
def test_a_bad_logit_names_its_row(value: float, column: int) -> None:
    logits = torch.randn(2, 4, 300)
    logits[1, 2, column] = value
    with pytest.raises(LogitsError, match=r"row \(1, 2\)"):
        predict(logits)
    masked = torch.ones(2, 4, dtype=torch.bool)
    masked[1, 2] = False  # nobody will commit it
    assert predict(logits, masked).masked.sum() == 7
    assert predict(logits, check=False).doubt.isnan().nonzero().tolist() == [[1, 2]]


def test_a_nan_at_a_forbidden_id_is_still_a_nan() -> None:
    logits = torch.randn(1, 300)
    logits[0, 7] = math.nan
    with pytest.raises(LogitsError, match=r"row \(0,\)"):
        predict(logits, forbidden=(7,))


def test_a_row_without_a_candidate_names_its_row() -> None:
    logits = torch.randn(3, 20)
    logits[1] = -math.inf
    with pytest.raises(LogitsError, match=r"row \(1,\).*nothing but -inf"):
        predict(logits)
    with pytest.raises(LogitsError, match=r"row \(0,\)"):
        predict(torch.zeros(1, 2), forbidden=(0, 1))


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"logits are torch.int64; wanted a float dtype"):
        predict(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(InputError, match=r"logits have shape \(2, 0\); wanted"):
        predict(torch.zeros(2, 0))
    with pytest.raises(InputError, match=r"logits have shape \(9,\); wanted"):
        predict(torch.zeros(9))
    with pytest.raises(InputError, match=r"masked has shape \(3,\); wanted \(2,\)"):
        predict(torch.zeros(2, 9), torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match=r"forbidden id 9 .* wanted 0 <= id < 9"):
        predict(torch.zeros(2, 9), forbidden=(9,))
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="temperature"):
            Sampling(temperature, torch.Generator())
    for cut in ({"top_p": 0.0}, {"top_p": 1.5}, {"top_p": math.nan}, {"top_k": -1}):
        with pytest.raises(InputError, match="top_"):
            Sampling(1.0, torch.Generator(), **cut)
    with pytest.raises(InputError, match=r"masked is torch.int64; wanted torch.bool"):
        predict(torch.zeros(2, 9), torch.ones(2).long())
