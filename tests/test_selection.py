"""The rules against slow versions of themselves, against recordings, and against their promises."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import margins, profiles, seeds
from torch import Tensor

from fastdllm import (
    Entropy,
    Exact,
    Factor,
    Frechet,
    Full,
    InputError,
    Profile,
    Selector,
    Threshold,
    TopK,
    parse,
)
from fastdllm.calibration import Calibration
from fastdllm.selection import Credit, Dilated, Hierarchy, Klass, Local, LocalLeap, Stable, Wino

GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden" / "selection.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize(
    "row", GOLDEN, ids=lambda row: f"{row['profile']}-{len(row['confidence'])}"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden(row: dict, dtype: torch.dtype) -> None:
    confidence = torch.tensor(row["confidence"], dtype=dtype)
    for name, expected in row["committed"].items():
        committed = parse(name).commit(confidence, torch.ones(len(confidence), dtype=torch.bool))
        assert committed.nonzero()[:, 0].tolist() == expected, name


# --- A slow version of every rule: python numbers, one row, loops -------------------------------


def slow(
    rule: Selector,
    d: list[float],
    p2: list[float],
    h: list[float],
    masked: list[bool],
    place: list[int] | None = None,
    signal: list[float] | None = None,
) -> set:
    here = [i for i in range(len(d)) if masked[i]]
    if not here:
        return set()
    at = place or list(range(len(d)))
    order = sorted(here, key=lambda i: (h[i] if isinstance(rule, Entropy) else d[i], i))
    match rule:
        case Full():
            n = 1
        case TopK(k):
            n = min(k, len(order))
        case Threshold(tau):
            n = sum(d[i] <= 1 - tau for i in order)
        case Factor(f):
            n = max(
                (n for n in range(1, len(order) + 1) if (n + 1) * d[order[n - 1]] < f), default=1
            )
        case Frechet(margin, eta):
            low = [max(0.0, 1 - d[i] - eta) for i in order]
            scores = [sum(low[:n]) - (n - 1) - (1 - low[n - 1]) for n in range(1, len(order) + 1)]
            n = max((n for n, g in enumerate(scores, 1) if g > margin), default=1)
        case Entropy(gamma):
            sums = [sum(h[i] for i in order[: n - 1]) for n in range(1, len(order) + 1)]
            n = max(n for n, s in enumerate(sums, 1) if s <= gamma)
        case Exact(margin):
            return slow_exact(margin, d, p2, here)
        case Wino(tau, _):
            cap = min(max(0.7 * len(here), 5), 20)
            n = min(sum(d[i] < 1 - tau for i in order), int(cap))
        case Stable(margin, caution):
            n = len(slow(Frechet(margin), d, p2, h, masked))
            for size in range(n + 1, len(order) + 1):
                chosen = order[:size]
                gap = math.prod(1 - d[i] for i in chosen)
                gap *= 1 - max(p2[i] / (1 - d[i]) if d[i] < 1 else math.inf for i in chosen)
                hangs = [
                    min(1, sum(_hangs(abs(at[i] - at[j])) for j in chosen[:k]))
                    for k, i in enumerate(chosen)
                ]
                residual = sum(d[i] * w for i, w in zip(chosen, hangs, strict=True))
                if gap - 2 * caution * residual > margin:
                    n = size
        case Local(margin, radius):
            chosen = set()
            for k, i in enumerate(order):
                around = [d[j] for j in order[: k + 1] if abs(at[i] - at[j]) <= radius]
                if 1 - sum(around) - d[i] > margin:
                    chosen.add(i)
            return chosen or {order[0]}
        case Klass(tau, _, history):
            held = signal or []
            return {i for i in here if d[i] < 1 - tau and held[i] >= history} or {order[0]}
        case Credit(tau):
            n = sum(d[i] <= 1 - tau for i in order)
        case LocalLeap(tau, relaxed, radius):
            anchors = {i for i in here if d[i] <= 1 - tau}
            leaps = {
                i
                for i in here
                if d[i] <= 1 - relaxed and any(abs(at[i] - at[j]) <= radius for j in anchors)
            }
            return anchors | leaps or {order[0]}
        case Hierarchy(tau, low):
            chosen = {i for i in here if d[i] <= 1 - tau}
            for i in here:
                run = [j for j in here if _same_run(at, here, i, j)]
                best = min(run, key=lambda j: (d[j], j))
                if d[best] < 1 - low:
                    chosen.add(best)
            return chosen or {order[0]}
        case Dilated(spacing, over):
            inner = slow(over, d, p2, h, masked, place, signal)
            first = order.index
            return {
                i
                for i in inner
                if not any(abs(at[i] - at[j]) < spacing and first(j) < first(i) for j in inner)
            }
    return set(order[: max(n, 1)])


REACHES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
FLAT = Calibration(
    "cal.json", "", "", "", "", "", 0.05, (1,) * 15, (0,) * 15, (0.0,) * 15, 1.0, REACHES,
)  # fmt: skip


def _hangs(apart: int) -> float:
    """By hand: 1, 2, 3-4, 5-8, 9-16, more."""
    ends = zip((1, 2, 4, 8, 16, math.inf), REACHES, strict=True)
    return next(share for end, share in ends if apart <= end)


def _same_run(at: list[int], here: list[int], i: int, j: int) -> bool:
    low, high = sorted((at[i], at[j]))
    return {at[k] for k in here} >= set(range(low, high + 1))


def slow_exact(margin: float, d: list[float], p2: list[float], here: list[int]) -> set:
    best = None
    for size in range(1, len(here) + 1):
        for chosen in itertools.combinations(here, size):
            spent = sum(sorted(d[i] for i in chosen))
            if 1 - spent - max(p2[i] for i in chosen) > margin:
                key = (-size, spent, chosen)
                best = key if best is None else min(best, key)
    return set(best[2]) if best else {min(here, key=lambda i: (d[i], i))}


rules = st.one_of(
    st.just(Full()),
    st.integers(1, 9).map(TopK),
    st.floats(0, 1).map(Threshold),
    st.floats(0.01, 3).map(Factor),
    margins.map(Frechet),
    st.builds(Frechet, margins, st.floats(0, 0.2)),
    margins.map(Exact),
    st.floats(0, 3).map(Entropy),
    st.builds(LocalLeap, st.floats(0.5, 1), st.floats(0, 0.9), st.integers(0, 5)),
    st.builds(Hierarchy, st.floats(0, 1), st.floats(0, 1)),
    st.builds(Dilated, st.integers(1, 6), st.sampled_from([Frechet(0.1), Threshold(0.5)])),
    st.builds(Klass, st.floats(0, 1), history=st.integers(1, 3)),
    st.floats(0, 1).map(Credit),
    st.floats(0, 1).map(Wino),
    st.builds(Local, margins, st.integers(0, 6)),
    st.builds(Stable, margins, st.floats(0, 2), calibration=st.just(FLAT)),
)


def random_profile(seed: int, batch: int = 1, positions: int = 8) -> Profile:
    """Rows of every temper; a third of the values are rounded, so that there are many ties."""
    g = torch.Generator().manual_seed(seed)
    shape = (batch, positions)
    power = 1 + 6 * torch.rand(batch, 1, generator=g)
    doubt = torch.rand(shape, generator=g) ** power
    doubt = torch.where(torch.rand(shape, generator=g) < 0.3, (doubt * 8).round() / 8, doubt)
    return Profile(
        token=torch.randint(0, 100, shape, generator=g),
        doubt=doubt,
        runner_up=torch.minimum(doubt, 1 - doubt) * torch.rand(shape, generator=g),
        entropy=doubt * (1 + torch.rand(shape, generator=g)),
        masked=torch.rand(shape, generator=g) < 0.8,
        position=torch.randint(1, 4, shape, generator=g).cumsum(dim=-1),
        signal=(torch.rand(shape, generator=g) * 4 - 1).clamp(min=0) ** 2,
    )


def close_call(rule: Selector, profile: Profile) -> bool:
    """Whether the decision hangs on the last digits, where two right versions may differ."""
    nudged = [
        replace(profile, doubt=profile.doubt + shift, entropy=profile.entropy + shift)
        for shift in (-2e-7, 2e-7)
    ]
    return not torch.equal(rule(nudged[0]), rule(nudged[1]))


@settings(max_examples=2000)
@given(rules, seeds)
def test_against_the_slow_version(rule: Selector, seed: int) -> None:
    profile = random_profile(seed)
    assume(not close_call(rule, profile))
    columns = [x[0].double().tolist() for x in (profile.doubt, profile.runner_up, profile.entropy)]
    rest = (x[0].tolist() for x in (profile.masked, profile.position, profile.signal))
    expected = slow(rule, *columns, *rest)
    assert set(rule(profile)[0].nonzero()[:, 0].tolist()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "dilated:2,over=frechet:0.25;eta=0.02", "dilated:3,over=entropy:0.5",
        "dilated:2,over=klass:0.9", "dilated:2,over=credit:0.9",
        "dilated:2,over=local:0.1;radius=2",
    ],
)  # fmt: skip
def test_a_filter_over_any_rule_reads_back(text: str) -> None:
    rule = parse(text)
    assert parse(str(rule)) == rule
    assert rule.needs_entropy == rule.over.needs_entropy
    assert rule.remembers == rule.over.remembers


def test_a_filter_takes_nothing_back() -> None:
    with pytest.raises(InputError, match="takes tokens back"):
        parse("dilated:2,over=wino:0.9")


@settings(max_examples=1000)
@given(st.sampled_from([0.0, 0.125, 0.25, 0.5]), seeds)
def test_exact_with_ties_everywhere(margin: float, seed: int) -> None:
    """Doubts and runners-up on a coarse grid, where every sum is exact and ties abound."""
    g = torch.Generator().manual_seed(seed)
    doubt = torch.randint(0, 17, (1, 6), generator=g) / 16
    runner_up = torch.minimum(torch.randint(0, 17, (1, 6), generator=g) / 16, doubt)
    everywhere = torch.ones(1, 6, dtype=torch.bool)
    profile = Profile(torch.zeros(1, 6).long(), doubt, runner_up, None, everywhere)
    expected = slow_exact(margin, doubt[0].tolist(), runner_up[0].tolist(), list(range(6)))
    assert set(Exact(margin)(profile)[0].nonzero()[:, 0].tolist()) == expected


@pytest.mark.parametrize("rule", ["full", "topk:2", "threshold:0", "factor:9", "frechet:0",
                                  "exact:0", "entropy:9"])  # fmt: skip
def test_a_nan_cannot_stall_a_row(rule: str) -> None:
    nan = torch.tensor([[math.nan, 0.5, math.nan]])
    masked = torch.tensor([[True, False, True]])
    profile = Profile(torch.zeros(1, 3).long(), nan, nan, nan, masked)
    committed = parse(rule)(profile)
    assert committed.any()
    assert not (committed & ~masked).any()


@pytest.mark.parametrize("rule", ["full", "topk:2", "threshold", "factor", "frechet", "exact",
                                  "entropy"])  # fmt: skip
def test_no_host_sync(rule: str) -> None:
    """On the meta device there are no values: anything that asked for one would fail."""
    values = torch.empty(4, 32, device="meta")
    profile = Profile(values.long(), values, values, values, values.bool())
    assert parse(rule)(profile).shape == (4, 32)


@settings(max_examples=500)
@given(rules, seeds, st.integers(0, 5), st.integers(0, 20))
def test_promises_in_a_batch(rule: Selector, seed: int, batch: int, positions: int) -> None:
    profile = random_profile(seed, batch, positions)
    committed = rule(profile)
    assert committed.shape == profile.masked.shape
    assert not (committed & ~profile.masked).any()
    assert torch.equal(committed.any(dim=-1), profile.masked.any(dim=-1))
    for i in range(batch):  # a row does not depend on its neighbours
        row = Profile(*(getattr(profile, f)[i] for f in Profile.__dataclass_fields__))
        assert torch.equal(rule(row), committed[i])


@given(rules, seeds)
def test_permutation_equivariance(rule: Selector, seed: int) -> None:
    profile = random_profile(seed)
    keys = profile.entropy if isinstance(rule, Entropy) else profile.doubt
    assume(len(set(keys[0].tolist())) == keys.shape[-1])  # ties go by position, on purpose
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))[None]
    shuffled = Profile(
        *(getattr(profile, f).gather(-1, order) for f in Profile.__dataclass_fields__)
    )
    assert torch.equal(rule(shuffled), rule(profile).gather(-1, order))


@given(seeds, margins, margins, st.floats(0, 0.2), st.floats(0, 0.2))
def test_monotone_in_margin_and_eta(seed: int, a: float, b: float, e: float, f: float) -> None:
    profile = random_profile(seed)
    loose, strict = sorted((a, b))
    assert (Frechet(strict)(profile) <= Frechet(loose)(profile)).all()
    assert Exact(strict)(profile).sum() <= Exact(loose)(profile).sum()
    low, high = sorted((e, f))
    assert (Frechet(loose, high)(profile) <= Frechet(loose, low)(profile)).all()


@given(st.sampled_from(["frechet:0.25", "frechet:0", "factor:0.75", "threshold:0.9", "exact:0.1"]),
       seeds, st.integers(0, 7), st.floats(0, 1))  # fmt: skip
def test_monotone_in_every_confidence(name: str, seed: int, at: int, share: float) -> None:
    profile, rule = random_profile(seed), parse(name)
    surer = profile.doubt.clone()
    surer[0, at] *= share
    raised = replace(profile, doubt=surer)
    assert rule(raised).sum() >= rule(profile).sum()


@given(seeds, margins)
def test_exact_commits_at_least_what_frechet_does(seed: int, margin: float) -> None:
    profile = random_profile(seed)
    assert Exact(margin)(profile).sum() >= Frechet(margin)(profile).sum()


def test_exact_need_not_be_a_prefix() -> None:
    confidence = torch.tensor([0.7, 0.69, 0.68])
    runner_up = torch.tensor([0.3, 0.02, 0.02])
    every = torch.ones(3, dtype=torch.bool)
    chosen = Exact(0.25).commit(confidence, every, runner_up=runner_up)
    assert chosen.tolist() == [False, True, True]


def test_ties_go_to_the_lower_position() -> None:
    flat, every = torch.full((6,), 0.8), torch.ones(6, dtype=torch.bool)
    assert TopK(2).commit(flat, every).tolist() == [True] * 2 + [False] * 4
    assert Full().commit(flat, every).tolist() == [True] + [False] * 5
    assert Frechet(0.25).commit(flat, every).tolist() == [True] * 2 + [False] * 4
    p2 = torch.full((6,), 0.1)
    assert Exact(0.25).commit(flat, every, runner_up=p2).tolist() == [True] * 3 + [False] * 3


def test_doubts_keep_the_digits_that_confidences_lose() -> None:
    """At 1 - 1e-9 and 1 - 2e-9 float32 confidences are both 1; their doubts still differ."""
    doubt = torch.tensor([[2e-9, 1e-9]])
    profile = Profile(
        torch.zeros(1, 2, dtype=torch.long), doubt, None, None, torch.ones(1, 2, dtype=torch.bool)
    )
    assert torch.equal(profile.confidence, torch.ones(1, 2))
    assert Full()(profile).tolist() == [[False, True]]


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_accepts_equality(tau: float, dtype: torch.dtype) -> None:
    confidence = torch.tensor([1.0, tau, tau - 1e-5], dtype=dtype)
    committed = Threshold(tau).commit(confidence, torch.ones(3, dtype=torch.bool))
    assert committed.tolist() == [True, True, False]


def test_factor_does_not_take_the_last_failing_token() -> None:
    every = torch.ones(2, dtype=torch.bool)
    assert Factor(1.0).commit(torch.tensor([0.9, 0.1]), every).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_confidences(dtype: torch.dtype) -> None:
    confidence = torch.tensor([0.99, 0.95, 0.3], dtype=dtype)
    committed = Frechet(0.25).commit(confidence, torch.ones(3, dtype=torch.bool))
    assert committed.tolist() == [True, True, False]


def test_unmasked_positions_may_hold_anything() -> None:
    confidence = torch.tensor([-math.inf, 0.9, math.nan])
    committed = Frechet().commit(confidence, torch.tensor([False, True, False]))
    assert committed.tolist() == [False, True, False]


# --- Names ---------------------------------------------------------------------------------------


@given(rules)
def test_a_rule_reads_back_from_its_text(rule: Selector) -> None:
    rule = replace(rule, calibration=None)  # its file is not there
    assert parse(str(rule)) == rule
    assert hash(parse(str(rule))) == hash(rule)
    assert eval(repr(rule)) == rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("full", Full()),
        ("topk:4", TopK(4)),
        ("threshold:0.9", Threshold(0.9)),
        ("factor:0.75", Factor(0.75)),
        ("frechet", Frechet(0.25)),
        ("frechet:0.25,eta=0.02", Frechet(0.25, eta=0.02)),
        ("frechet:margin=0.1".replace(":", ","), Frechet(0.1)),
        ("exact:0.25", Exact(0.25)),
        ("entropy:0.1", Entropy(0.1)),
    ],
)
def test_parse(text: str, rule: Selector) -> None:
    assert parse(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frechett:0.25", "unknown rule 'frechett'; did you mean 'frechet'"),
        ("", "unknown rule ''; choose from full, topk"),
        ("frechet:1", r"margin is '1'; wanted a number in \[0, 1\), try 0.99"),
        ("frechet:-0.1", r"margin is '-0.1'; wanted a number in \[0, 1\), try 0$"),
        ("frechet:nan", "try 0$"),
        ("frechet:lots", "margin is 'lots'; wanted a number"),
        ("frechet:", "margin is ''; wanted a number"),
        ("frechet:0.2,eta=2", r"eta is '2'; wanted a number in \[0, 1\], try 1$"),
        ("frechet:0.2,et=0", "unknown setting 'et'; did you mean 'eta'"),
        ("frechet:0.2,margin=0.3", "margin is given twice"),
        ("threshold:1.2", r"tau is '1.2'; wanted a number in \[0, 1\], try 1$"),
        ("factor:0", r"wanted a number in \(0, inf\), try 0.01"),
        ("factor:inf", r"wanted a number in \(0, inf\), try 1e\+06"),
        ("entropy:-1", "try 0$"),
        ("topk", "k is missing; try 'topk:4'"),
        ("topk:0", r"k is '0'; wanted a whole number in \[1, 1e9\], try 1"),
        ("topk:2.5", "wanted a whole number .* try 2"),
        ("full:3", "'full' takes none"),
    ],
)
def test_bad_text_gets_a_way_out(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "make",
    [lambda: Frechet(1.0), lambda: Frechet(-1), lambda: Threshold(2), lambda: TopK(True),
     lambda: TopK(1.5), lambda: Entropy(math.nan), lambda: Frechet("0.25x"), lambda: Factor(None)],
)  # fmt: skip
def test_bad_values(make) -> None:
    with pytest.raises(InputError, match="wanted"):
        make()


@pytest.mark.usefixtures("unchecked")
def test_bad_tensors() -> None:
    ok, mask = torch.tensor([0.5, 0.9]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(InputError, match=r"masked has shape \(3,\); wanted \(2,\)"):
        Frechet().commit(ok, torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match=r"masked is torch.int64; wanted torch.bool"):
        Frechet().commit(ok, torch.ones(2).long())
    with pytest.raises(InputError, match=r"runner-up at \(0,\) is -7"):
        Exact().commit(ok, mask, runner_up=torch.tensor([-7.0, 0.1]))
    with pytest.raises(InputError, match="entropy is negative or NaN"):
        Entropy().commit(ok, mask, entropy=torch.tensor([math.nan, 0.1]))
    with pytest.raises(TypeError, match="abstract"):
        Selector()
    with pytest.raises(InputError, match=r"confidence at \(1,\) is 1.2"):
        Frechet().commit(torch.tensor([0.5, 1.2]), mask)
    with pytest.raises(InputError, match="give runner_up="):
        Exact().commit(ok, mask)
    with pytest.raises(InputError, match="give entropy="):
        Entropy().commit(ok, mask)


@given(profiles(2, 8), margins)
def test_commit_agrees_with_the_certificate(confidence: Tensor, margin: float) -> None:
    """`selection` decides by risks, `certificate` by the paper's definitions: one answer."""
    from fastdllm import certificate

    scores = certificate.score(certificate.doubts(confidence))
    assume(((scores - margin).abs() > 1e-6).all())
    n = int((scores > margin).nonzero()[-1]) + 1 if (scores > margin).any() else 1
    committed = Frechet(margin).commit(confidence, torch.ones(len(confidence), dtype=torch.bool))
    assert int(committed.sum()) == n
