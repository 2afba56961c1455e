"""The oracles against enumeration, and the rules against the oracles."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import joints, seeds
from torch import Tensor

from fastdllm import Exact, Frechet, Full, InputError, TopK, parse
from fastdllm.predict import predict
from fastdllm.selection import Local
from fastdllm.testing import HiddenMarkov, JointTable, judge


def enumerate_markov(model: HiddenMarkov) -> Tensor:
    """The joint of a tiny model, by summing over every path of hidden states."""
    n, v, s = model.length, model.tokens, len(model.start)
    joint = torch.zeros((v,) * n, dtype=torch.float64)
    for states in itertools.product(range(s), repeat=n):
        path = float(model.start[states[0]])
        for a, b in itertools.pairwise(states):
            path *= float(model.transition[a, b])
        for tokens in itertools.product(range(v), repeat=n):
            chance = path
            for state, token in zip(states, tokens, strict=True):
                chance *= float(model.emission[state, token])
            joint[tokens] += chance
    return joint


def tiny_model(seed: int, length: int = 4) -> HiddenMarkov:
    g = torch.Generator().manual_seed(seed)
    sharp = 4 * float(torch.rand((), generator=g))
    start, transition, emission = (
        (sharp * torch.randn(shape, generator=g, dtype=torch.float64)).softmax(-1)
        for shape in ((2,), (2, 2), (2, 3))
    )
    return HiddenMarkov(start, transition, emission, length)


def evidence(oracle: HiddenMarkov | JointTable, seed: int, share: float) -> Tensor:
    """Some true tokens, the rest masked."""
    g = torch.Generator().manual_seed(seed)
    truth = oracle.sample(1, g)
    return torch.where(torch.rand(truth.shape, generator=g) < share, truth, oracle.mask_id)


@settings(max_examples=60)
@given(seeds, st.floats(0, 0.8))
def test_hidden_markov_by_enumeration(seed: int, share: float) -> None:
    model = tiny_model(seed)
    table = JointTable(enumerate_markov(model))
    ids = evidence(model, seed, share)
    torch.testing.assert_close(model.marginals(ids), table.marginals(ids))
    masked = (ids[0] == model.mask_id).nonzero()[:, 0]
    if not len(masked):
        return
    g = torch.Generator().manual_seed(seed)
    some = masked[torch.randperm(len(masked), generator=g)]  # any subset, in any order
    some = some[: 1 + seed % len(masked)]
    found = model.joint_mode(ids[0], some)
    best = table.probability(ids[0], some, table.joint_mode(ids[0], some))
    assert model.probability(ids[0], some, found) == pytest.approx(best, rel=1e-9)


@given(joints)
def test_table_marginals_and_mode(joint: Tensor) -> None:
    table = JointTable(joint)
    ids = table.blank()[0]
    logits = table(ids[None])
    assert logits.shape == (1, joint.ndim, joint.shape[0] + 1)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1, joint.ndim).double())
    every = torch.arange(joint.ndim)
    mode = table.joint_mode(ids, every)
    assert float(joint[tuple(mode.tolist())]) == float(joint.max())
    assert table.probability(ids, every, mode) == pytest.approx(float(joint.max()), rel=1e-9)


@settings(max_examples=1000)
@given(joints, st.sampled_from(["frechet:0", "exact:0", "frechet:0.1", "exact:0.1"]))
def test_a_certified_commit_is_the_joint_mode(joint: Tensor, name: str) -> None:
    """On every joint, whatever its dependence: more than one token only ever by certificate."""
    oracle, rule = JointTable(joint), parse(name)
    ids = oracle.blank()
    profile = predict(oracle(ids), forbidden=(oracle.mask_id,))
    committed = rule(profile)[0].nonzero()[:, 0]
    mode = oracle.joint_mode(ids[0], committed)
    chosen = profile.token[0, committed]
    if len(committed) > 1 and not torch.equal(mode, chosen):
        # Two tuples may tie to the last digit of float32 at margin 0.
        gap = oracle.probability(ids[0], committed, mode)
        assert gap - oracle.probability(ids[0], committed, chosen) < 1e-6


@settings(max_examples=300)
@given(joints, st.integers(0, 3), st.sampled_from([0.0, 0.1]))
def test_local_vouches_for_every_token_with_its_surer_neighbours(
    joint: Tensor, radius: int, margin: float
) -> None:
    oracle, rule = JointTable(joint), Local(margin, radius)
    ids = oracle.blank()
    profile = predict(oracle(ids), forbidden=(oracle.mask_id,))
    committed = rule(profile)[0].nonzero()[:, 0]
    doubt = profile.doubt[0]
    for spot in committed[committed.numel() == 1 :]:  # one alone may be for progress
        near = committed[(committed - spot).abs() <= radius]
        near = near[(doubt[near] < doubt[spot]) | (near <= spot) & (doubt[near] == doubt[spot])]
        mode, chosen = oracle.joint_mode(ids[0], near), profile.token[0, near]
        gap = oracle.probability(ids[0], near, mode) - oracle.probability(ids[0], near, chosen)
        assert gap < 1e-6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["frechet:0.25", "frechet:0", "exact:0.25", "exact:0", "full"])
def test_safe_rules_never_err_on_a_hidden_markov_model(name: str, seed: int) -> None:
    model = HiddenMarkov.random(24, seed=seed)
    ids = torch.cat([evidence(model, 10 * seed + k, 0.2) for k in range(4)])
    verdict = judge(model, parse(name), ids, block_size=8)
    assert verdict.errors == verdict.certified_errors == 0
    assert verdict.tokens == int((ids == model.mask_id).sum())


def test_a_careless_rule_is_caught() -> None:
    """Two coins that always fall alike, slightly biased at three sides: parallel commits err."""
    joint = torch.tensor([[0.0, 0.3, 0.3], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    table = JointTable(joint)  # position 0 prefers token 0, position 1 token 0: together never
    verdict = judge(table, TopK(2), table.blank())
    assert (verdict.steps, verdict.errors, verdict.certified_errors) == (1, 1, 0)
    for rule in (Full(), Frechet(0.0), Exact(0.0)):
        assert judge(table, rule, table.blank()).errors == 0


def test_fewer_steps_in_the_order_the_paper_says() -> None:
    model = HiddenMarkov.random(48, seed=0)
    ids = torch.cat([evidence(model, k, 0.2) for k in range(6)])
    steps = [
        judge(model, parse(name), ids).steps
        for name in ("full", "factor:0.75", "frechet:0.25", "exact:0.25")
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[1] > steps[2]


def test_samples_follow_the_model() -> None:
    model = tiny_model(3)
    drawn = model.sample(4000, torch.Generator().manual_seed(0))
    share = torch.stack([(drawn == t).double().mean(0) for t in range(3)], dim=-1)
    torch.testing.assert_close(share, model.marginals(model.blank())[0], rtol=0, atol=0.05)


def test_a_table_must_be_square() -> None:
    with pytest.raises(InputError, match="equal dimensions"):
        JointTable(torch.ones(2, 3))
