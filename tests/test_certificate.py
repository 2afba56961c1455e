"""Every statement of the paper, on random and on hostile joints; docs/theory.md lists them."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from strategies import joints, marginals, margins, profiles, seeds, top_two
from torch import Tensor

from fastdllm import InputError
from fastdllm import certificate as cert
from fastdllm.selection import Factor, Frechet

TINY = 1e-9  # float64 sums of a handful of probabilities


def competitors(joint: Tensor, greedy: tuple[int, ...]) -> float:
    """The largest probability of any other tuple, by enumeration."""
    tuples = itertools.product(range(joint.shape[0]), repeat=joint.ndim)
    return max(float(joint[z]) for z in tuples if z != greedy)


def naive(confidence: list[float]) -> list[dict[str, float]]:
    """The definitions of Section 3, letter by letter."""
    c = sorted(confidence, reverse=True)
    rows = []
    for n in range(1, len(c) + 1):
        low = max(0.0, sum(c[:n]) - (n - 1))
        up = 1 - c[n - 1]
        core = (n + 1) * c[n - 1] - n
        bonus = sum(c[j] - c[n - 1] for j in range(n - 1))
        rows.append({"L": low, "U": up, "G": low - up, "F": core, "B": bonus})
    return rows


@given(profiles())
def test_definitions(confidence: Tensor) -> None:
    doubt = cert.doubts(confidence)
    expected = naive(confidence.tolist())
    for name, values in {
        "L": cert.lower_bound(doubt),
        "U": cert.competitor_bound(doubt),
        "G": cert.score(doubt),
        "F": cert.factor_core(doubt),
        "B": cert.bonus(doubt),
    }.items():
        assert values.tolist() == pytest.approx([row[name] for row in expected], abs=1e-9), name


@given(joints)
def test_lemma_a1_frechet_bonferroni(joint: Tensor) -> None:
    doubt, _, greedy = top_two(joint)
    assert float(joint[greedy]) >= float(cert.lower_bound(doubt)[-1]) - TINY


@settings(max_examples=2000)
@given(joints)
def test_theorem_4_1_greedy_equivalence(joint: Tensor) -> None:
    doubt, _, greedy = top_two(joint)
    assert competitors(joint, greedy) <= float(cert.competitor_bound(doubt)[-1]) + TINY
    if float(cert.score(doubt)[-1]) > TINY:
        assert float(joint[greedy]) > competitors(joint, greedy)


@given(st.floats(0, 1), st.integers(1, 40), margins)
def test_corollary_4_2_equal_confidence(c: float, n: int, margin: float) -> None:
    confidence = torch.full((n,), c, dtype=torch.float64)
    by_score = cert.score(cert.doubts(confidence)) > margin
    threshold = [c > 1 - (1 - margin) / (k + 1) for k in range(1, n + 1)]
    edge = [abs(c - 1 + (1 - margin) / (k + 1)) < TINY for k in range(1, n + 1)]
    agree = [a == b or e for a, b, e in zip(by_score.tolist(), threshold, edge, strict=True)]
    assert all(agree)


@given(st.floats(0, 1, width=32), st.integers(1, 40), margins)
def test_corollary_4_2_same_decision(c: float, n: int, margin: float) -> None:
    confidence, masked = torch.full((n,), c), torch.ones(n, dtype=torch.bool)
    frechet = Frechet(margin).commit(confidence, masked)
    assert torch.equal(frechet, Factor(1 - margin).commit(confidence, masked))


@given(profiles())
def test_proposition_4_3_heterogeneity_bonus(confidence: Tensor) -> None:
    doubt = cert.doubts(confidence)
    bonus, active = cert.bonus(doubt), cert.lower_bound(doubt) > 0
    total = cert.factor_core(doubt) + bonus
    torch.testing.assert_close(cert.score(doubt)[active], total[active], rtol=0, atol=TINY)
    assert (bonus >= 0).all()
    flat = [len(set(doubt.sort().values[: n + 1].tolist())) == 1 for n in range(len(doubt))]
    assert (bonus == 0).tolist() == flat


@given(profiles(), margins)
def test_corollary_4_4_matched_factor_dominance(confidence: Tensor, margin: float) -> None:
    doubt, masked = cert.doubts(confidence), torch.ones(len(confidence), dtype=torch.bool)
    factor = Factor(1 - margin).commit(confidence, masked)
    frechet = Frechet(margin).commit(confidence, masked)
    assert (factor <= frechet).all()
    core, bonus = cert.factor_core(doubt), cert.bonus(doubt)
    strict = (core <= margin - TINY) & (margin + TINY < core + bonus)
    n = int(strict.nonzero()[-1]) + 1 if strict.any() else 0
    assert int(frechet.sum()) >= n


def test_corollary_4_4_strict_case() -> None:
    confidence, masked = torch.tensor([0.999, 0.99, 0.8, 0.78]), torch.ones(4, dtype=torch.bool)
    factor = Factor(0.75).commit(confidence, masked)
    frechet = Frechet(0.25).commit(confidence, masked)
    assert factor.tolist() == [True, True, False, False]  # 3 + 1 tokens at 0.8 spend 0.8
    assert frechet.tolist() == [True, True, True, True]  # 0.001 + 0.01 + 0.2 + 0.22 + 0.22


@given(profiles(), margins)
def test_remark_4_5_effective_factor(confidence: Tensor, margin: float) -> None:
    doubt = cert.doubts(confidence)
    ranks = torch.arange(1, len(doubt) + 1)
    factor_risk = (ranks + 1) * doubt.sort().values
    adaptive = factor_risk < cert.effective_factor(doubt, margin)
    frechet = cert.factor_core(doubt) + cert.bonus(doubt) > margin
    edge = (cert.factor_core(doubt) + cert.bonus(doubt) - margin).abs() < TINY
    assert ((adaptive == frechet) | edge).all()


@settings(max_examples=2000)
@given(joints)
def test_lemma_4_6_tv_stability(joint: Tensor) -> None:
    doubt, runner_up, greedy = top_two(joint)
    gap = cert.mode_gap(doubt, runner_up)
    tv = cert.total_variation(joint, cert.product_of_marginals(joint))
    if cert.tv_stable(tv + TINY, gap):
        assert float(joint[greedy]) > competitors(joint, greedy)


@given(joints, st.floats(0.01, 0.99))
def test_lemma_4_6_is_sharp(joint: Tensor, share: float) -> None:
    """Any P and Q: moving just over half of the gap from the mode to its rival overturns it."""
    flat = joint.flatten()
    top = flat.topk(2)
    gap = top.values[0] - top.values[1]
    assume(float(gap) > 1e-3)
    for moved, stable in ((share * gap / 2, True), ((1.001 + share) * gap / 2, False)):
        other = flat.clone()
        other[top.indices[0]] -= moved
        other[top.indices[1]] += moved
        tv = cert.total_variation(flat, other)
        assert bool(cert.tv_stable(tv, gap)) == stable
        assert (int(other.argmax()) == int(top.indices[0])) == stable


def test_corollary_4_7_needs_a_gap() -> None:
    """Without a gap there is no mode to be stable, however small the divergence."""
    assert not cert.kl_stable(torch.tensor(-1e-9), torch.tensor(0.0))
    assert not cert.kl_stable(torch.tensor(0.01), torch.tensor(-0.5))
    assert cert.kl_stable(torch.tensor(0.124), torch.tensor(0.5))
    assert not cert.kl_stable(torch.tensor(0.126), torch.tensor(0.5))


@settings(max_examples=2000)
@given(joints)
def test_corollary_4_7_kl_stability(joint: Tensor) -> None:
    doubt, runner_up, greedy = top_two(joint)
    kl, gap = cert.total_correlation(joint), cert.mode_gap(doubt, runner_up)
    if cert.kl_stable(kl + TINY, gap):
        assert float(joint[greedy]) > competitors(joint, greedy)
        tv = cert.total_variation(joint, cert.product_of_marginals(joint))
        assert cert.tv_stable(tv, gap)  # Pinsker


@given(joints)
def test_product_mode_gap_by_enumeration(joint: Tensor) -> None:
    doubt, runner_up, greedy = top_two(joint)
    p = marginals(joint)
    product = torch.ones_like(joint)
    for z in itertools.product(range(joint.shape[0]), repeat=joint.ndim):
        product[z] = math.prod(float(p[k, token]) for k, token in enumerate(z))
    torch.testing.assert_close(cert.product_of_marginals(joint), product)
    gap = float(product[greedy]) - competitors(product, greedy)
    assert float(cert.mode_gap(doubt, runner_up)) == pytest.approx(gap, abs=TINY)


@given(joints)
def test_total_correlation(joint: Tensor) -> None:
    entropies = torch.special.entr(marginals(joint)).sum() - torch.special.entr(joint).sum()
    assert float(cert.total_correlation(joint)) == pytest.approx(float(entropies), abs=1e-8)
    independent = cert.product_of_marginals(joint)
    assert float(cert.total_correlation(independent)) == pytest.approx(0, abs=1e-8)


@settings(max_examples=1000)
@given(joints, st.floats(0, 0.5), seeds)
def test_proposition_c1_robust_certificate(joint: Tensor, allowance: float, seed: int) -> None:
    """A model that reports up to eta too much: the robust score still never errs."""
    doubt, _, greedy = top_two(joint)
    g = torch.Generator().manual_seed(seed)
    eta = allowance * torch.rand(len(doubt), generator=g, dtype=torch.float64)
    reported = (doubt - eta).clamp(min=0)  # over-confident
    low = cert.lower_bound(reported, eta)[-1]
    assert float(joint[greedy]) >= float(low) - TINY
    if float(cert.score(reported, eta)[-1]) > TINY:
        assert float(joint[greedy]) > competitors(joint, greedy)


@given(profiles(), st.floats(0, 0.2))
def test_robust_bounds_by_definition(confidence: Tensor, eta: float) -> None:
    lowered = [max(0.0, c - eta) for c in confidence.tolist()]
    expected = naive(lowered)
    doubt = cert.doubts(confidence)
    approx = [pytest.approx([r[k] for r in expected], abs=TINY) for k in "LUG"]
    assert cert.lower_bound(doubt, eta).tolist() == approx[0]
    assert cert.competitor_bound(doubt, eta).tolist() == approx[1]
    assert cert.score(doubt, eta).tolist() == approx[2]
    each = torch.full_like(doubt, eta)
    assert torch.equal(cert.score(doubt, each), cert.score(doubt, eta))


@given(profiles(), st.floats(0, 0.1))
def test_corollary_c2_calibration_penalty(confidence: Tensor, eta: float) -> None:
    doubt = cert.doubts(confidence)
    robust, plain = cert.score(doubt, eta), cert.score(doubt)
    for n in range(1, len(doubt) + 1):
        clipped = bool((confidence.sort(descending=True).values[:n] < eta).any())
        active = float(cert.lower_bound(doubt, eta)[n - 1]) > 0
        if active and not clipped:
            penalty = cert.calibration_penalty(n, eta)
            assert float(robust[n - 1]) == pytest.approx(float(plain[n - 1]) - penalty, abs=TINY)


# --- Sharpness, by linear programming: the worst joint with the given marginals ------------------


def worst_case(p: Tensor, objective: Tensor) -> float:
    """The least value of <objective, P> over every joint P with marginals p."""
    n, v = p.shape
    tuples = list(itertools.product(range(v), repeat=n))
    rows = [[float(z[k] == t) for z in tuples] for k in range(n) for t in range(v)]
    found = linprog(
        objective.flatten().tolist(), A_eq=rows, b_eq=p.flatten().tolist(), method="highs"
    )
    assert found.success, found.message
    return float(found.fun)


def random_marginals(seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    n, v = (int(torch.randint(2, 4, (), generator=g)) for _ in range(2))
    sharp = 0.5 + 4 * torch.rand(n, 1, generator=g, dtype=torch.float64)
    p = (sharp * torch.randn(n, v, generator=g, dtype=torch.float64)).softmax(-1)
    return p.sort(dim=-1, descending=True).values  # token 0 is the greedy one


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] if s >= 100 else []) for s in range(300)]
)
def test_bounds_are_sharp(seed: int) -> None:
    p = random_marginals(seed)
    n, v = p.shape
    doubt, runner_up = 1 - p[:, 0], p[:, 1]
    low = float(cert.lower_bound(doubt)[-1])
    greedy = torch.zeros((v,) * n, dtype=torch.float64)
    greedy.view(-1)[0] = 1
    assert worst_case(p, greedy) == pytest.approx(low, abs=1e-7)  # Lemma A.1 is attained

    gaps = []
    for z in range(1, v**n):
        rival = torch.zeros_like(greedy)
        rival.view(-1)[z] = 1
        gaps.append(worst_case(p, greedy - rival))
    exact = float(cert.top2_score(doubt, runner_up)[-1])
    if low > 0:
        assert min(gaps) == pytest.approx(exact, abs=1e-7)
    assert (min(gaps) > 1e-9) == (exact > 1e-9)  # the greedy tuple is always the mode, or is not


@given(joints)
def test_top2_accepts_a_superset(joint: Tensor) -> None:
    doubt, runner_up, greedy = top_two(joint)
    exact = cert.top2_score(doubt, runner_up)
    assert (exact >= cert.score(doubt) - TINY).all()
    if float(exact[-1]) > TINY:
        assert float(joint[greedy]) > competitors(joint, greedy)


@given(profiles(), st.data())
def test_certified_is_the_score_of_the_set(confidence: Tensor, data: st.DataObject) -> None:
    doubt = cert.doubts(confidence)
    n = len(doubt)
    committed = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assume(committed.any())
    score = float(cert.score(doubt[committed])[-1])
    assume(abs(score) > TINY)
    assert bool(cert.certified(doubt, committed)) == (score > 0)
    half = doubt / 2
    exact = float(cert.top2_score(doubt[committed], half[committed])[-1])
    assume(abs(exact) > TINY)
    assert bool(cert.certified(doubt, committed, half)) == (exact > 0)


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_confidence_that_is_no_probability_is_named(bad: float) -> None:
    with pytest.raises(InputError, match=r"confidence at \(1,\) is .*wanted 0 <= confidence <= 1"):
        cert.doubts(torch.tensor([0.5, bad]))
    with pytest.raises(InputError, match="doubt"):
        cert.score(torch.tensor([0.5, bad]))
    with pytest.raises(InputError, match="eta"):
        cert.score(torch.tensor([0.5, 0.2]), eta=bad)
    with pytest.raises(InputError, match="runner-up"):
        cert.top2_score(torch.tensor([0.5, 0.2]), torch.tensor([0.5, bad]))


@pytest.mark.usefixtures("unchecked")
def test_shapes_and_values_that_do_not_fit() -> None:
    two, three, yes = torch.tensor([0.1, 0.2]), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([True])
    for call in (
        lambda: cert.top2_score(two, three),
        lambda: cert.mode_gap(two, three),
        lambda: cert.certified(two, yes),
        lambda: cert.certified(two, torch.tensor([1, 1])),
        lambda: cert.certified(torch.tensor([-5.0, 0.3]), torch.tensor([True, True])),
        lambda: cert.total_variation(two, three),
        lambda: cert.total_correlation(torch.ones(2, 2)),
        lambda: cert.effective_factor(two, margin=7.0),
        lambda: cert.calibration_penalty(-3, 0.1),
        lambda: cert.calibration_penalty(3, 9.0),
    ):
        with pytest.raises(InputError, match="wanted"):
            call()
    assert cert.certified(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.bool)).all()
    assert float(cert.mode_gap(torch.tensor([1.0, 0.2]), torch.tensor([0.0, 0.2]))) == 0.0
