"""Rules that look back or take back: against a loop over dictionaries, alone and in batches."""

import math

import pytest
import torch
from checkpoints import MASK, random_checkpoint, save
from test_denoise import canvas, make_row
from test_selection import slow

from fastdllm import InputError, parse
from fastdllm.cache import Fresh
from fastdllm.denoise import CachedReader, ForeignReader, denoise
from fastdllm.models.loading import load_model
from fastdllm.selection import Klass, Selector, Wino

RULES = ["klass:0.1,limit=0.5,history=1", "klass:0.05,limit=2", "credit:0.2"]


@pytest.fixture(scope="module", params=["llada", "Dream"])
def model(request, tmp_path_factory):
    config, state = random_checkpoint(request.param, 3)
    return load_model(save(tmp_path_factory.mktemp("m"), config, state), device="cpu")


def all_rows(rule: str):
    g = torch.Generator().manual_seed(5)
    for k, (prompt, new) in enumerate(((3, 17), (9, 12), (1, 20))):
        ids, holes = canvas(torch.randint(0, 40, (prompt,), generator=g).tolist(), new)
        yield make_row(ids, holes, parse(rule), 7, number=k)


def run(model, rows, cache="none"):
    steps: dict = {row.number: [] for row in rows}
    for step in denoise(CachedReader(model, cache), rows, (MASK,)):
        steps[step.row].append((step.commits, step.taken_back))
    return steps


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("rule", RULES)
def test_a_batch_is_as_each_row_alone(model, rule: str, cache: str) -> None:
    together = run(model, list(all_rows(rule)), cache)
    for row in all_rows(rule):
        assert run(model, [row], cache)[row.number] == together[row.number]


@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_was_away_goes_on_as_if_not(model, rule: str) -> None:
    """Its memory is its own: taken out after three steps, and put into another engine."""
    whole = run(model, [row := next(iter(all_rows(rule)))])[row.number]
    row = next(iter(all_rows(rule)))
    first = []
    for step in denoise(CachedReader(model, "none"), rows := [row], (MASK,)):
        first.append((step.commits, step.taken_back))
        if len(first) == 3:
            rows.clear()
    assert first + run(model, [row])[row.number] == whole


def log_shares(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.log(sum(math.exp(z - top) for z in logits))
    return [z - top - total for z in logits]


def by_hand(rule: Selector, past: dict, now: dict[int, list[float]]):
    """Of each position: its logits to go on with and its signal; the past is changed."""
    raised, signal = {}, {}
    for at, z in now.items():
        p = log_shares(z)
        before = past.get(at)
        raised[at], signal[at] = z, 0.0
        if isinstance(rule, Klass):
            calm = 0
            if before:
                kl = sum(math.exp(a) * (a - b) for a, b in zip(p, before[0], strict=True))
                calm = before[1] + 1 if kl < rule.limit else 0
            past[at], signal[at] = (p, calm), calm
        else:
            credit = [rule.beta * c for c in before[0]] if before else [0.0] * len(z)
            best = p.index(max(p))
            credit[best] += math.exp(p[best]) ** rule.gamma
            raised[at] = [a + rule.alpha * math.log(1 + c) for a, c in zip(z, credit, strict=True)]
            past[at] = (credit,)
    return raised, signal


@pytest.mark.parametrize("rule", RULES)
def test_against_a_decoder_of_lists(model, rule: str) -> None:
    reader = CachedReader(model, "none")
    for row in all_rows(rule):
        past: dict = {}
        ids = row.ids.clone()
        for step in denoise(reader, [row], (MASK,)):
            with torch.inference_mode():
                at = torch.arange(len(ids))[None]
                logits = model.head(model(ids[None], at, Fresh(None)))[0].double()
            shift = int(model.config.shift)
            # The mask token, which may not be said, is the last of the vocabulary or inside it.
            keep = [t for t in range(logits.shape[1]) if t != MASK]
            now = {p: [float(logits[p - shift, t]) for t in keep] for p in step.positions}
            raised, signal = by_hand(parse(rule), past, now)
            shares = [sorted(map(math.exp, log_shares(raised[p])))[::-1] for p in step.positions]
            doubt = [1 - s[0] for s in shares]
            chosen = slow(
                parse(rule), doubt, [s[1] for s in shares], [0.0] * len(doubt),
                [True] * len(doubt), list(step.positions), [signal[p] for p in step.positions],
            )  # fmt: skip
            assert set(step.commits) == {step.positions[i] for i in chosen}
            torch.testing.assert_close(
                torch.tensor(step.doubts), torch.tensor(doubt), rtol=0, atol=1e-4
            )
            for position, token in step.commits.items():
                ids[position] = token


# --- Taking back ---------------------------------------------------------------------------------


def test_a_twin_sees_all_but_its_token_and_is_not_seen(tmp_path) -> None:
    """With one layer a twin says what a mask in its place would; and the others say the same."""
    config, state = random_checkpoint("llada", 1, layers=1)
    model = load_model(save(tmp_path, config, state), device="cpu")
    ids, holes = canvas([3, 9, 20, 7], 6)
    row = make_row(ids, holes, Wino(), 6)
    row.ids[5], row.masked[5] = 11, False
    row.ids[8], row.masked[8] = 30, False
    reader, spots = CachedReader(model, "none"), row.masked.nonzero()[:, 0]
    known = torch.tensor([5, 8])
    windows = reader.windows([row])
    plain = reader.read([row], windows, [spots])
    both = reader.read([row], windows, [spots], [known])
    torch.testing.assert_close(both[: len(spots)], plain)
    for i, at in enumerate(known):
        hidden = row.ids.clone()
        hidden[at] = MASK
        alone = make_row(hidden.tolist(), [*holes], Wino(), 6)
        expected = reader.read([alone], windows, [at[None]])
        torch.testing.assert_close(both[len(spots) + i], expected[0])


@pytest.mark.parametrize("rule", ["wino:0.01,keep=1", "wino:0.02,keep=0.05"])
def test_what_is_taken_back_is_masked_again_and_every_row_ends(tmp_path, rule: str) -> None:
    config, state = random_checkpoint("llada", 3)
    model = load_model(save(tmp_path, config, state), device="cpu")
    rows = list(all_rows(rule))
    together = run(model, rows)
    assert any(back for steps in together.values() for _, back in steps)
    for row in rows:
        known: set[int] = set()
        for commits, back in together[row.number]:
            assert known.isdisjoint(commits)
            assert known.issuperset(back)
            assert len(back) < len(commits)
            known = (known | set(commits)) - set(back)
        assert known == set(range(row.origin, len(row.ids)))
        assert MASK not in row.ids[row.origin :]
    for row in all_rows(rule):
        assert run(model, [row])[row.number] == together[row.number]


def test_wino_says_what_it_cannot(model) -> None:
    row = next(iter(all_rows("wino")))
    with pytest.raises(InputError, match="takes back wants cache none"):
        list(denoise(CachedReader(model, "dual"), [row], (MASK,)))
    row = next(iter(all_rows("wino")))
    foreign = ForeignReader(lambda ids: torch.zeros(*ids.shape, 50))
    with pytest.raises(InputError, match="wanted a checkpoint of ours"):
        list(denoise(foreign, [row], (MASK,)))


def test_without_a_memory_they_say_so() -> None:
    with pytest.raises(InputError, match="klass looks back"):
        Klass().commit(torch.tensor([0.99]), torch.tensor([True]))
