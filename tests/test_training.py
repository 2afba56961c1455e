"""The trainer: its objective against the formula, its runs against being killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checkpoints import random_checkpoint, save
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from fastdllm import LLM, CheckpointError, Generation, InputError
from fastdllm.denoise import CachedReader, Row
from fastdllm.errors import DivergedError
from fastdllm.eval.run import ask
from fastdllm.eval.task import generated
from fastdllm.models.loading import load_model
from fastdllm.models.saving import save_model
from fastdllm.selection import Full
from fastdllm.team import Team
from fastdllm.tokenizer import Tokenizer
from fastdllm.training import objective, recipe, vocabulary
from fastdllm.training import run as run_module
from fastdllm.training import train as trainer_module
from fastdllm.training.data import Data, read_jsonl, source, stack, sum_drill
from fastdllm.training.muon import orthogonal
from fastdllm.training.run import plot, read_metrics, run
from fastdllm.training.train import deal, start

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary from few problems is learnt sooner."""
    monkeypatch.setattr(trainer_module, "TEXTS", 1000)


SMALL = recipe.Recipe(
    layers=1, width=16, heads=2, kv_heads=1, mlp=16, vocab=400, context=512, steps=8, batch=4,
    tasks={"lists": 1.0, "functions": 1.0}, tails=0.0625,
)  # fmt: skip


# --- The objective -----------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.sampled_from(objective.PATTERNS), st.integers(1, 9))
def test_chances_are_those_of_the_pattern(seed: int, pattern: str, block: int) -> None:
    g = torch.Generator().manual_seed(seed)
    maskable = torch.rand(5, 20, generator=g) < 0.7
    kind = torch.full((5,), objective.PATTERNS.index(pattern))
    t, at = objective.strata(5, g), torch.rand(5, generator=g)
    digit = torch.randint(-5, 10, (5, 20), generator=g).clamp(min=-1)
    letterless = torch.rand(5, 20, generator=g) < 0.5
    chance = objective.chances(kind, maskable, digit, letterless, block, t, at)
    asked = objective.guessed(kind, chance)
    assert (chance[~maskable] == 0).all(), "a prompt is never masked"
    for number, (row, where) in enumerate(zip(chance, maskable, strict=True)):
        p = row[where].tolist()
        assert asked[number, where].tolist() == [pattern != "sums" or x < 1 for x in p]
        if pattern == "all":
            assert set(p) <= {1.0}
        elif pattern == "random":
            assert set(p) <= {float(t[number])}
        elif pattern == "digits":
            assert p == [float(t[number]) * (d >= 0) for d in digit[number, where].tolist()]
        elif pattern == "numbers":
            hidden: dict[int, set[float]] = {}
            for value, x in zip(objective.numbers(digit)[number, where].tolist(), p, strict=True):
                hidden.setdefault(value, set()).add(x)
            assert hidden.pop(-1, {0.0}) == {0.0}, "nothing else is"
            assert all(len(found) == 1 for found in hidden.values()), "everywhere or nowhere"
        elif pattern == "prefix":
            assert p == sorted(p)
            assert set(p) <= {0.0, 1.0}
        elif pattern == "sums":
            chosen = int(at[number] * -(-len(p) // block))
            bare = letterless[number, where].tolist()
            for i, x in enumerate(p):
                in_block = float(t[number]) * bare[i] if i // block == chosen else 0.0
                assert x == (1.0 if i // block > chosen else in_block)
        else:  # known blocks, one with one probability, masked blocks
            blocks = [set(p[i : i + block]) for i in range(0, len(p), block)]
            assert all(len(b) == 1 for b in blocks)
            flat = [b.pop() for b in blocks]
            assert flat == sorted(flat)
            assert sum(0 < x < 1 for x in flat) <= 1


@given(st.lists(st.text("0123456789 =", min_size=12, max_size=12), min_size=1, max_size=4))
def test_numbers_are_read_as_a_person_would(rows: list[str]) -> None:
    digit = torch.tensor([[int(c) if c.isdigit() else -1 for c in row] for row in rows])
    for row, found in zip(rows, objective.numbers(digit).tolist(), strict=True):
        expected = [-1] * len(row)
        for one in re.finditer(r"\d+", row):
            for i in range(*one.span()):
                expected[i] = int(one[0][:3])
        assert found == expected


def test_tokens_of_several_digits_are_numbers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the vocabularies of checkpoints to go on from; ours have one digit each."""
    trainer = start(SMALL, tmp_path, device=CPU)
    pieces = ["12", " 7", "a1", "+", "12345"]
    monkeypatch.setattr(Tokenizer, "piece", lambda _, i: pieces[i] if i < 5 else "x")
    assert trainer.digit[:6].tolist() == [12, 7, -1, -1, 123, -1]


def test_half_of_t_is_the_share_of_numbers_hidden() -> None:
    g = torch.Generator().manual_seed(0)
    rows, kind = 4000, objective.PATTERNS.index("numbers")
    digit = torch.tensor([[3, 4, -1, 7, -1, 3, 4, 1]]).expand(rows, -1)
    chance = objective.chances(
        torch.full((rows,), kind), torch.ones(digit.shape, dtype=torch.bool), digit,
        digit < 0, 4, torch.full((rows,), 0.6), torch.rand(rows, generator=g),
    )  # fmt: skip
    wanted = torch.tensor([0.3, 0.3, 0, 0.3, 0, 0.3, 0.3, 0.3])
    assert torch.allclose(chance.mean(dim=0), wanted, atol=0.03)


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_one_t_lies_in_each_share(seed: int, rows: int) -> None:
    t = objective.strata(rows, torch.Generator().manual_seed(seed))
    share = ((t - objective.LEAST) / (1 - objective.LEAST) * rows).floor().clamp(max=rows - 1)
    assert sorted(share.int().tolist()) == list(range(rows))


def test_the_weight_makes_every_position_count_alike() -> None:
    """The mean of mask times weight is 1 / positions, whatever the chance."""
    g = torch.Generator().manual_seed(0)
    chance = torch.tensor([[0.0, 0.1, 0.1, 0.5], [0.9, 1.0, 0.0, 0.3]])
    draws = 200_000
    many = chance.repeat(draws, 1)
    masked = torch.rand(many.shape, generator=g) < many
    mean = objective.weights(masked, many).view(draws, 2, 4).mean(dim=0)
    assert torch.allclose(mean, (chance > 0) / 3, atol=0.01)


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_the_loss_is_the_formula_read_through_the_engine(family: str, tmp_path: Path) -> None:
    """Cross-entropy over t, from logits the decoder would see (Dream's are read at i - 1)."""
    save(tmp_path, *random_checkpoint(family, 3))
    model = load_model(tmp_path, device="cpu")
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 40, (3, 12), generator=g)
    t = torch.tensor([0.2, 0.5, 0.9])
    chance = t[:, None].expand(3, 12).clone()
    chance[:, :4] = 0
    masked = torch.rand(ids.shape, generator=g) < chance
    noisy = torch.where(masked, 40, ids)
    got = objective.loss(model, ids, noisy, masked, objective.weights(masked, chance))
    expected = 0.0
    for row in range(3):
        reader = CachedReader(model, "none")
        one = Row(0, noisy[row], masked[row], Full(), 12)
        if not masked[row].any():
            continue
        spots = masked[row].nonzero()[:, 0]
        logits = reader.read([one], reader.windows([one]), [spots])
        cost = F.cross_entropy(logits, ids[row, spots], reduction="sum")
        expected += float(cost) / float(t[row]) / 8
    assert float(got) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_a_cached_row_is_read_as_the_prefix_cache_reads_it(family: str, tmp_path: Path) -> None:
    """Its block is opened, then partly filled: the engine's logits, and the plain row's not."""
    save(tmp_path, *random_checkpoint(family, 3))
    model = load_model(tmp_path, device="cpu")
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 40, (2, 12), generator=g)
    maskable = (torch.arange(12) >= 4).expand(2, 12)
    chance = torch.tensor([[0.0] * 4 + [0.5] * 8, [0.0] * 8 + [0.5] * 4])  # from 4, and from 8 on
    masked = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 1]] * 2, dtype=torch.bool)
    masked &= chance > 0
    noisy = torch.where(masked, 40, ids)
    for cached in (True, False):
        flags = torch.tensor([cached, cached])
        opened = objective.opening(ids, maskable, chance, flags, model.config)
        got = objective.read(model, noisy, masked, (), opened)
        expected = []
        for row, begin in enumerate((4, 8)):
            reader = CachedReader(model, "prefix" if cached else "none")
            one = Row(
                0, torch.where(torch.arange(12) >= begin, 40, ids[row]), maskable[row], Full(), 12
            )
            one.origin, one.masked = begin, one.ids == 40
            reader.read([one], reader.windows([one]), [one.masked.nonzero()[:, 0]])
            one.ids, one.masked, one.opened = noisy[row], masked[row], begin
            spots = masked[row].nonzero()[:, 0]
            expected.append(reader.read([one], reader.windows([one]), [spots]))
        torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-5)
        plain = objective.read(model, noisy, masked)
        assert torch.allclose(got, plain) != cached


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.sampled_from([(4, 4), (3, 7), (8, 2)]))
def test_muon_makes_matrices_orthogonal(seed: int, shape: tuple[int, int]) -> None:
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed))
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    made = orthogonal(x)
    values = torch.linalg.svdvals(made)
    assert values.max() < 1.3
    assert ((made * (u @ v)).sum((1, 2)) > 0).all()  # towards the nearest orthogonal matrix


# --- Data --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("run")
    return start(SMALL, folder, device=CPU).tokenizer


def make_data(tokenizer: Tokenizer, **changes: object) -> Data:
    values = {"end_id": tokenizer.end_ids[0], "batch": 4, "canvas": 128, "context": 512, "seed": 0}
    return Data(source(SMALL.tasks, None), tokenizer, **(values | changes))  # type: ignore[arg-type]


def test_a_batch_depends_on_seed_and_step_alone(tokenizer: Tokenizer) -> None:
    one, other = make_data(tokenizer), make_data(tokenizer)
    late = other.at(11, 0.5)
    assert [one.at(step, 0.5) for step in range(12)][-1] == late
    assert make_data(tokenizer, seed=1).at(11, 0.5) != late


def test_only_the_answer_and_its_end_can_be_masked(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer)
    for step in range(8):
        examples = data.at(step)
        for example, ids, maskable in zip(examples, *stack(examples, data.end_id), strict=True):
            first = int(maskable.int().argmax())
            assert maskable[first:].all()
            prompt = tokenizer.decode(ids[:first].tolist(), special=True)
            assert prompt.endswith("assistant<|end_header_id|>\n\n")
            assert example.ids[-1] == data.end_id
            assert (ids[len(example) :] == data.end_id).all()


def test_pretraining_masks_everything(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer, pretrain=True)
    ids, maskable = stack(data.at(0), data.end_id)
    assert maskable.all()
    assert "assistant" not in tokenizer.decode(ids[0].tolist(), special=True)


def test_a_text_longer_than_the_canvas_is_learnt_in_parts(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer, pretrain=True, canvas=24)
    parts = [e for step in range(4) for e in data.at(step)]
    assert {len(e) for e in parts} == {24}
    assert data.too_long == data.seen == len(parts), "counted, every one"
    assert len({e.ids for e in parts}) == len(parts)


def test_only_results_of_drills_can_be_masked(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer)
    for ids, maskable in zip(*stack(data.at(0, 1.0), data.end_id), strict=True):
        assert set(tokenizer.decode(ids[maskable].tolist())) <= set("0123456789")
        assert tokenizer.decode(ids[~maskable].tolist()).count("= .") == 12


def test_short_problems_are_short_and_have_no_tail(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer)
    for example in (e for step in range(8) for e in data.at(step, 0.0, 150)):
        assert len(example) <= 150
        assert example.ids[-2:] != (data.end_id, data.end_id)
    with pytest.raises(InputError, match="none has at most 9 tokens"):
        data.at(0, 0.0, 9)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 4))
def test_every_row_is_dealt_once_and_the_shares_are_fair(lengths: list[int], team: int) -> None:
    shares = [deal(lengths, 64, Team(rank, team)) for rank in range(team)]
    assert sorted(i for share in shares for piece in share for i in piece) == [*range(len(lengths))]
    sizes = [[len(p) * max(lengths[i] for i in p) for p in share] for share in shares]
    assert max(map(max, filter(None, sizes))) <= 64
    loads = [sum(share) for share in sizes]
    assert max(loads) - min(loads) <= 64  # no more than one piece


@given(st.integers(0, 10**6))
def test_drills_are_true(seed: int) -> None:
    asked, result = sum_drill(random.Random(seed))
    assert eval(asked.rstrip("= ")) == int(result)


def test_an_answer_too_long_is_counted_not_cut(tokenizer: Tokenizer) -> None:
    data = make_data(tokenizer, canvas=55)
    for step in range(8):
        data.at(step)
    assert 0 < data.too_long < data.seen
    counts = data.seen, data.too_long
    data.at(3)  # made again, as after resuming
    assert (data.seen, data.too_long) == counts
    with pytest.raises(InputError, match="none fits a canvas of 5 in a context of 512"):
        make_data(tokenizer, canvas=5).at(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "line 2: not JSON"),
        ('{"prompt": "a"}', 'line 2: no text under "answer"'),
        ("[1]", 'line 2: no text under "prompt"'),
        ('{"prompt": 1, "answer": "b"}', 'line 2: no text under "prompt"'),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read_jsonl(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_jsonl(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="holds no line"):
        read_jsonl(tmp_path / "empty")
    (tmp_path / "bytes").write_bytes(b'{"prompt": "a", "answer": "b"}\n\xff\xfe\xff')
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        read_jsonl(tmp_path / "bytes")


# --- Recipes -----------------------------------------------------------------------------------


def test_a_recipe_is_the_same_after_json() -> None:
    assert recipe.from_json(SMALL.to_json()) == SMALL


def test_the_rate_rises_stays_and_falls() -> None:
    r = recipe.Recipe(steps=100, warmup=0.1, decay=0.2)
    rates = [r.rate(s) for s in range(100)]
    assert rates[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert set(rates[10:80]) == {1.0}
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert rates[-1] == pytest.approx(0.05)


def test_phases_follow_each_other() -> None:
    early, late = recipe.Phase(0.3, {"all": 1.0}), recipe.Phase(1.0, {"random": 1.0})
    r = recipe.Recipe(steps=10, phases=(early, late))
    assert [r.phase(s) for s in range(10)] == [early] * 3 + [late] * 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepps": 3}, "unknown key 'stepps'; did you mean 'steps'"),
        ({"steps": 0}, "steps is 0; wanted a whole number"),
        ({"mode": "superwised"}, "did you mean 'supervised'"),
        ({"lr": -1}, "wanted a number above 0"),
        ({"ema": 2}, r"wanted a number in \[0, 1\]"),
        ({"phases": []}, "phases is empty"),
        ({"phases": [{"until": 1, "masks": {"randon": 1}}]}, "did you mean 'random'"),
        ({"phases": [{"till": 1}]}, "did you mean 'until'"),
        ({"phases": [{"until": 1}]}, "no 'masks'"),
        ({"phases": 3}, "wanted a list of objects"),
        ({"tasks": {"listz": 1}}, "did you mean 'lists'"),
        ({"seed": "abc"}, "seed is 'abc'; wanted a whole number"),
        ({"lr": float("nan")}, "lr is nan; wanted a number"),
        ({"tied": "maybe"}, "wanted true or false"),
        ({"init": 3}, "init is 3; wanted a text"),
        ({"eyes": 3}, "eyes is 3; wanted names with numbers"),
        ({"phases": [{"until": "end", "masks": {"random": 1}}]}, "until is 'end'"),
        ({"phases": [{"until": 1, "masks": {}}]}, "masks are empty"),
        ({"phases": [{"until": 1, "masks": {"random": 1e39}}]}, "wanted names with weights"),
        ({"phases": [{"until": 1, "masks": {"random": 1}, "drills": 7}]}, "drills is 7"),
        ({"phases": [{"until": 1, "masks": {"random": 1}, "cached": 2}]}, "cached is 2"),
        ({"phases": [{"until": 1, "masks": {"random": 1}, "longest": -1}]}, "longest is -1"),
        ({"phases": [{"until": 1, "masks": {"random": 1}, "canvas": -1}]}, "canvas is -1"),
        ({"phases": [{"until": u, "masks": {"all": 1}} for u in (0.5, 0.4)]}, "shares .* rise"),
        ({"seed": 2**40}, "at most 31 bits"),
        ({"weight_decay": -3}, "weight_decay is -3"),
        ({"kept": 2, "init": "a"}, r"kept is 2; wanted a number in \[0, 1\]"),
        ({"tasks": {"lists/": 1}}, "unknown kind ''"),
        ({"data": "d.jsonl"}, "data is d.jsonl and tasks are named too"),
        ({"tasks": {"lists/sort,copy": 1}}, "unknown kind 'sort,copy'; did you mean 'sort'"),
        ({"tasks": {"word-problems/": 1}}, "unknown kind ''; word-problems has none"),
    ],
)
def test_bad_recipes(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe.change(SMALL, values)


def test_what_the_command_line_names_is_all_that_is_learnt(tmp_path: Path) -> None:
    """Whatever the phases of the recipe say."""
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "Say hi.", "answer": "hi"}\n')
    for tasks, file in ((["lists"], None), ([], data)):
        r = recipe.choose("tiny-llada", init="", tasks=tasks, data=file, values=[])
        assert not any(phase.tasks for phase in r.phases)
        assert (dict(r.tasks), r.data) == (dict.fromkeys(tasks, 1.0), str(file or ""))
    with pytest.raises(InputError, match="--task and --data were both given"):
        recipe.choose("", init="", tasks=["lists"], data=data, values=[])
    with pytest.raises(InputError, match="unknown task 'listz'; did you mean 'lists'"):
        recipe.choose("", init="", tasks=["listz"], data=None, values=[])
    with pytest.raises(InputError, match="'much' is no weight; try lists=2"):
        recipe.choose("", init="", tasks=["lists=much"], data=None, values=[])


# --- Runs --------------------------------------------------------------------------------------


def train(output: Path, r: recipe.Recipe = SMALL, **changes: int) -> Path:
    values = {"save_every": 3, "eval_every": 0, "eval_count": 2} | changes
    run(r, output, device=CPU, **values)
    return output


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    one, two = train(tmp_path / "a"), train(tmp_path / "b")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


@pytest.mark.parametrize(
    ("family", "optimizer", "code"), [("llada", "muon", True), ("Dream", "adamw", False)]
)
def test_a_run_is_a_checkpoint_that_loads(
    family: str, optimizer: str, code: bool, tmp_path: Path
) -> None:
    changed = recipe.change(SMALL, {"family": family, "optimizer": optimizer})
    train(tmp_path, changed, eval_every=8, code=code)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    evaluated = [line["task"] for line in lines if "task" in line]
    assert evaluated == (["lists", "functions"] if code else ["lists"])
    assert (tmp_path / "curve.svg").exists()
    llm = LLM.load(tmp_path, device="cpu")
    assert llm.shift == (family == "Dream")
    done = llm.generate([{"role": "user", "content": "Copy this list: ant."}], Generation(32))
    assert done.usage.tokens <= 32
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["model_type"] == family


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_model_hears_its_words_and_has_no_opinion(tied: bool, tmp_path: Path) -> None:
    """Small embeddings drown in what the first blocks add: nothing is then copied for long."""
    model = start(recipe.change(SMALL, {"tied": tied}), tmp_path, device=torch.device("cpu")).model
    assert float(model.embed.weight.detach().std()) == pytest.approx(1, abs=0.05)
    ids = torch.randint(model.config.vocab, (8, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = objective.read(model, ids, torch.ones_like(ids, dtype=torch.bool))
    cost = F.cross_entropy(logits, torch.randint(model.config.vocab, (len(logits),)))
    assert cost < torch.tensor(model.config.vocab).log() + 1.5


def test_it_learns(tmp_path: Path) -> None:
    train(tmp_path, recipe.change(SMALL, {"steps": 100, "lr": 0.01}), save_every=100)
    losses = [line["loss"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert losses[-1] < 0.8 * losses[0]  # each the mean of 20 steps


def test_it_goes_on_from_a_checkpoint_of_another_tokenizer(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "Say hi.", "answer": "hi"}\n' * 3)
    first = train(tmp_path / "a")
    changed = recipe.change(
        SMALL, {"init": str(first), "data": str(data), "tasks": {}, "steps": 4, "mode": "pretrain"}
    )
    second = train(tmp_path / "b", changed)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    before, after = (load_model(folder, device="cpu") for folder in (first, second))
    assert before.config == after.config
    moved = (before.embed.weight - after.embed.weight).abs().max()
    assert 0 < moved < 0.1


def test_every_file_that_a_tokenizer_is_read_from_is_copied(tmp_path: Path) -> None:
    """Without added_tokens.json the mask would be read as letters."""
    folder, to = tmp_path / "from", tmp_path / "to"
    folder.mkdir()
    to.mkdir()
    names = {"vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
             "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"}  # fmt: skip
    for name in names:
        (folder / name).write_text(name)
    vocabulary.copy(folder, to)
    assert {path.name for path in to.iterdir()} == names


def test_part_of_what_a_run_began_with_is_kept(tmp_path: Path) -> None:
    """In what is saved, not in what is trained; and a run that stopped half-way keeps as much."""
    first = train(tmp_path / "a", recipe.change(SMALL, {"steps": 2}))
    going_on = recipe.change(SMALL, {"init": str(first), "steps": 4, "seed": 1})
    free = train(tmp_path / "free", going_on)
    half = recipe.change(going_on, {"kept": 0.25})
    trainer = start(half, tmp_path / "half", device=CPU)
    trainer.train_step()
    trainer.save()
    train(tmp_path / "half", half)
    weights = [
        load_model(folder, device="cpu").state_dict() for folder in (first, free, tmp_path / "half")
    ]
    for name, began in weights[0].items():
        wanted = 0.25 * began + 0.75 * weights[1][name]
        torch.testing.assert_close(weights[2][name], wanted, atol=1e-6, rtol=1e-5)
    with pytest.raises(InputError, match="kept is a share of the model that init names"):
        recipe.change(SMALL, {"kept": 0.5})


def test_a_model_that_goes_on_keeps_its_context_unless_told(tmp_path: Path) -> None:
    first = train(tmp_path / "a", recipe.change(SMALL, {"steps": 2}))
    for asked, wanted in ((0, 512), (2048, 2048)):
        changed = recipe.change(SMALL, {"init": str(first), "context": asked})
        trainer = start(changed, tmp_path / str(asked), device=CPU)
        trainer.save()
        assert load_model(tmp_path / str(asked), device="cpu").config.context == wanted
    with pytest.raises(InputError, match="context is -1; wanted a whole number, 0 for"):
        recipe.change(SMALL, {"context": -1})


def command(output: Path, *more: str) -> list[str]:
    values = {
        "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 16, "vocab": 400, "batch": 16,
        "steps": 80,
    }  # fmt: skip
    sets = [word for k, v in values.items() for word in ("--set", f"{k}={v}")]
    return ["-m", "fastdllm", "train", "--output", str(output), "--task", "lists", *sets,
            "--save-every", "7", "--threads", "1", *more]  # fmt: skip


def curve(output: Path) -> list[tuple[int, float, float]]:
    return [(x["step"], x["loss"], x["norm"]) for x in read_metrics(output / "metrics.jsonl")]


def test_a_killed_run_resumes_to_the_same_curve(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([sys.executable, *command(whole)], check=True, capture_output=True)
    process = subprocess.Popen([sys.executable, *command(broken)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while len(read_metrics(broken / "metrics.jsonl")) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < torch.load(broken / "state.pt", weights_only=True)["step"] < 80
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')  # cut in the middle of a line
    done = subprocess.run(
        [sys.executable, *command(broken)], check=True, capture_output=True, text=True
    )
    assert "resuming at step" in done.stderr
    assert curve(broken) == curve(whole)
    assert len(curve(whole)) == 4
    for name in ("model.safetensors", "config.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()


def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [sys.executable, *command(one, "--set", "steps=40")], check=True, capture_output=True
    )
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
         *command(two, "--set", "steps=40")],
        check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for (s, a, _), (t, b, _) in zip(curve(one), curve(two), strict=True):
        assert s == t
        assert a == pytest.approx(b, rel=1e-3)


def test_a_run_killed_between_its_two_files_goes_on(tmp_path: Path) -> None:
    """The model is written before the state: of a run that stopped between, the state is older."""
    r = recipe.change(SMALL, {"steps": 4})
    trainer = start(r, tmp_path / "a", device=CPU)
    for _ in range(4):
        trainer.train_step()
    trainer.save()
    whole = (tmp_path / "a" / "model.safetensors").read_bytes()
    broken = start(r, tmp_path / "b", device=CPU)
    for step in range(4):
        broken.train_step()
        if step == 1:
            broken.save()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", _fail)
        with pytest.raises(OSError, match="no space"):
            broken.save()
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole
    again = start(r, tmp_path / "b", device=CPU)
    assert again.step == 2


def _fail(*_: object) -> None:
    raise OSError("no space left")


def test_before_its_first_save_a_folder_takes_another_recipe(tmp_path: Path) -> None:
    start(recipe.change(SMALL, {"vocab": 300}), tmp_path, device=CPU)
    trainer = start(recipe.change(SMALL, {"vocab": 420}), tmp_path, device=CPU)
    assert len(trainer.tokenizer) > 300
    assert json.loads((tmp_path / "recipe.json").read_text())["vocab"] == 420


def test_a_missing_stage_is_named(tmp_path: Path) -> None:
    r = recipe.change(SMALL, {"graft": "runs/no-such-stage"})
    with pytest.raises(
        InputError, match="no runs/no-such-stage, which this begins with; train that first"
    ):
        start(r, tmp_path / "run", device=CPU)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_a_mask_or_an_end_named_in_one_place_is_enough(where: str, tmp_path: Path) -> None:
    base = train(tmp_path / "base")
    path = base / where
    known = json.loads(path.read_text())
    for key in ("mask_token_id", "eos_token_id", "pad_token_id", "mask_token", "eos_token"):
        known.pop(key, None)
    path.write_text(json.dumps(known))
    trainer = start(recipe.change(SMALL, {"init": str(base)}), tmp_path / "on", device=CPU)
    trainer.train_step()
    assert LLM(trainer.model, trainer.tokenizer).mask_id == trainer.model.config.mask_id


def test_odd_lines_of_data_and_metrics(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    row = {"prompt": "one\u2028two", "answer": "three\x85"}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert read_jsonl(path)[0].prompt == "one\u2028two"
    for bad in ('{"prompt": "\\ud800", "answer": ""}', "9" * 5000, "[" * 100_000):
        path.write_text(json.dumps(row) + "\n" + bad)
        with pytest.raises(InputError, match="line 2: not JSON"):
            read_jsonl(path)
    metrics = tmp_path / "metrics.jsonl"
    whole = b'{"step": 1, "loss": 2.5}', b'{"step": 2, "task": "lists", "accuracy": 1, "count": 3}'
    odd = b'5\n\xff\n{"loss": 2}\n{"step": 2}\n{"step": 2, "task": "lists"}\n[1]\n' + b"9" * 5000
    metrics.write_bytes(b"\n".join([whole[0], odd, whole[1], b'{"ste']))
    assert [line["step"] for line in read_metrics(metrics)] == [1, 2]


@pytest.mark.parametrize(("tails", "share"), [(1.0, 1.0), (0.0, 0.0)])
def test_tails_reach_the_canvas_as_often_as_asked(
    tails: float, share: float, tokenizer: Tokenizer
) -> None:
    data = make_data(tokenizer)
    data.tails = tails
    rows = [e for step in range(4) for e in data.at(step)]
    assert sum(len(e) - e.prompt == data.canvas for e in rows) == share * len(rows)


def test_shorter_tails_are_of_every_order_of_size(tokenizer: Tokenizer) -> None:
    """Five times as many as whole ones, as many below the root of the room as above it."""
    data = make_data(tokenizer)
    data.tails = 0.1
    whole, short, long = 0, 0, 0
    rows = [e for step in range(150) for e in data.at(step)]
    for example in rows:
        tail = sum(1 for i in example.ids if i == data.end_id)
        room = data.canvas - (len(example) - example.prompt - tail)
        whole += tail == room
        short += 1 < tail < room**0.5
        long += room**0.5 <= tail < room
    assert whole / len(rows) == pytest.approx(0.1, abs=0.02)
    assert long / len(rows) == pytest.approx(0.25, abs=0.03)
    assert short / len(rows) == pytest.approx(0.25, abs=0.05)  # some of its tails are of one


def test_a_phase_may_have_a_canvas_of_its_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = make_data(tokenizer)
    rows = [e for step in range(4) for e in data.at(step, canvas=200)]
    assert {len(e) - e.prompt for e in rows} == {200}
    masks = {"random": 1.0}
    phases = [
        {"until": 0.5, "masks": masks, "canvas": 100},
        {"until": 1.0, "masks": masks},
    ]
    changes = {"phases": phases, "tails": 1.0, "steps": 2, "tasks": {"lists/copy": 1.0}}
    trainer = start(recipe.change(SMALL, changes), tmp_path, device=CPU)
    seen = []
    for _ in range(2):
        before = trainer.tokens
        trainer.train_step()
        seen.append(trainer.tokens - before)
    assert seen[1] - seen[0] == pytest.approx(SMALL.batch * (SMALL.canvas - 100), abs=40)


def test_another_recipe_and_a_damaged_state_are_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(
        InputError, match="another recipe: steps was 8 and is 9; name another --output"
    ):
        train(tmp_path, recipe.change(SMALL, {"steps": 9}))
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"state.pt is damaged .*delete it"):
        train(tmp_path)


def test_what_is_to_come_may_be_changed_on_the_way(tmp_path: Path) -> None:
    """More steps, other phases: the run is then the one that was meant so from the start."""
    long = recipe.change(SMALL, {"steps": 12, "tasks": {"lists": 1.0, "functions": 1.0}})
    phases = [
        {"until": 0.5, "masks": {"random": 1.0}},
        {"until": 1.0, "masks": {"prefix": 1.0}, "tasks": {"algebra": 1.0}},
    ]
    long = recipe.change(long, {"phases": phases})
    short = recipe.change(SMALL, {"steps": 8})
    half = start(short, tmp_path / "half", device=CPU)
    for _ in range(4):
        half.train_step()
    half.save()
    train(tmp_path / "half", long)
    assert recipe.load(tmp_path / "half" / "recipe.json") == long
    train(tmp_path / "whole", long)
    states = [
        torch.load(tmp_path / name / "state.pt", weights_only=True)["model"]
        for name in ("half", "whole")
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])
    with pytest.raises(InputError, match="another recipe: phases was"):
        train(tmp_path / "half", recipe.change(long, {"phases": phases[1:], "name": "other"}))


def test_other_data_is_not_the_same_run(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "Say hi.", "answer": "hi"}\n')
    r = recipe.change(SMALL, {"data": str(data), "tasks": {}, "steps": 4})
    train(tmp_path / "run", r)
    data.write_text('{"prompt": "Say hi.", "answer": "ho"}\n')
    with pytest.raises(InputError, match="was begun with other data"):
        train(tmp_path / "run", r)


def test_other_weights_to_begin_with_are_not_the_same_run(tmp_path: Path) -> None:
    first = train(tmp_path / "first")
    r = recipe.change(SMALL, {"init": str(first), "steps": 4})
    train(tmp_path / "run", r)
    train(tmp_path / "run", r)
    (first / "state.pt").unlink()
    (first / "model.safetensors").unlink()
    train(first, recipe.change(SMALL, {"seed": 7}))
    with pytest.raises(InputError, match="was begun with other data or weights"):
        train(tmp_path / "run", r)


def test_what_exceeds_a_small_context_is_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    r = recipe.change(SMALL, {"tasks": {"word-problems": 1.0}, "canvas": 150, "context": 210})
    train(tmp_path / "some", r, eval_every=8, eval_count=8)
    (line,) = [x for x in read_metrics(tmp_path / "some" / "metrics.jsonl") if "task" in x]
    assert 0 < line["count"] < 8
    assert f"{8 - line['count']} of 8 problems of word-problems left out" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_a_pretrained_model_is_asked_in_lines_as_it_was_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    solve = run_module.solve
    monkeypatch.setattr(
        run_module, "solve", lambda llm, task, problems, settings: (
            asked.extend(llm.encode(ask(llm, p, task.chat)) for p in problems),
            solve(llm, task, problems, settings),
        )[1],
    )  # fmt: skip
    r = recipe.change(SMALL, {"mode": "pretrain", "tasks": {"lists": 1.0}})
    trainer = train(tmp_path, r, eval_every=8, eval_count=2)
    tokenizer = Tokenizer.load(trainer)
    assert tokenizer is not None
    taught = [tokenizer.encode(f"{p.prompt}\n") for p in generated("lists").held_out(2)]
    assert asked == taught


def test_a_model_that_is_not_its_own_is_not_replaced(tmp_path: Path) -> None:
    first = train(tmp_path / "a")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model-00001-of-00002.safetensors").write_bytes(b"precious")
    with pytest.raises(InputError, match="which this run did not make"):
        train(other)
    assert [p.name for p in other.iterdir()] == ["model-00001-of-00002.safetensors"]
    (first / "state.pt").unlink()
    train(first)  # of the same recipe, killed before its first state
    (first / "state.pt").unlink()
    with pytest.raises(InputError, match="which this run did not make"):
        train(first, recipe.change(SMALL, {"steps": 9}))
    with pytest.raises(InputError, match="is what this begins with"):
        train(first, recipe.change(SMALL, {"init": str(first)}))


def test_a_start_without_a_tokenizer_is_named_before_anything_is_written(tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    with pytest.raises(CheckpointError, match="bare has no tokenizer"):
        train(tmp_path / "on", recipe.change(SMALL, {"init": str(bare)}))
    assert not (tmp_path / "on").exists()


def test_a_run_that_diverges_stops_and_keeps_what_it_saved(tmp_path: Path) -> None:
    wild = {"lr": 1e20, "matrix_lr": 1e20, "clip": 1e30, "warmup": 0, "steps": 40}
    with pytest.raises(DivergedError, match=r"at step \d+, .*Try --set lr"):
        train(tmp_path, recipe.change(SMALL, wild), save_every=1)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line
    weights = load_model(tmp_path, device="cpu").embed.weight
    assert weights.isfinite().all()


def test_what_an_interrupted_run_lacks_is_made_up_for(tmp_path: Path) -> None:
    """An evaluation that was not reached, and a model that is gone."""
    train(tmp_path, recipe.change(SMALL, {"tasks": {"lists": 1}}), eval_every=8)
    metrics, model = tmp_path / "metrics.jsonl", tmp_path / "model.safetensors"
    whole, weights = metrics.read_text(), model.read_bytes()
    assert '"task": "lists"' in whole
    metrics.write_text("".join(x for x in whole.splitlines(True) if "task" not in x))
    model.unlink()
    train(tmp_path, recipe.change(SMALL, {"tasks": {"lists": 1}}), eval_every=8)
    assert (metrics.read_text(), model.read_bytes()) == (whole, weights)


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    trainer = start(SMALL, tmp_path / "run", device=CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastdllm.training.train.save_model", _refuse)
        with pytest.raises(OSError, match="run could not be saved to: File too large"):
            trainer.save()


def _refuse(*_: object) -> None:
    raise SafetensorError("File too large")


def test_a_shape_that_does_not_fit_and_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="width 16 does not go into 3 heads"):
        train(tmp_path, recipe.change(SMALL, {"heads": 3}))
    with pytest.raises(InputError, match="nothing to train on"):
        train(tmp_path, recipe.change(SMALL, {"tasks": {}}))


def test_saved_models_load_as_they_were(tmp_path: Path) -> None:
    for family in ("llada", "Dream", "qwen3"):
        save(tmp_path / family, *random_checkpoint(family, 5, kv_heads=2))
        before = load_model(tmp_path / family, device="cpu")
        save_model(before, tmp_path / "again")
        after = load_model(tmp_path / "again", device="cpu")
        assert before.config == after.config
        for (name, a), (_, b) in zip(
            before.named_parameters(), after.named_parameters(), strict=True
        ):
            assert torch.equal(a, b), name


def test_the_curve_needs_a_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 20, "loss": 1.0}\n{"step": 40, "lo')
    assert plot(tmp_path) == tmp_path / "curve.svg"


# --- Grafts ------------------------------------------------------------------------------------


def test_a_graft_takes_over_what_fits(tmp_path: Path) -> None:
    donor_recipe = recipe.change(SMALL, {"kv_heads": 2, "tasks": {"lists": 1}})
    donor_folder = train(tmp_path / "donor", donor_recipe)
    r = recipe.change(SMALL, {"family": "Dream", "graft": str(donor_folder), "steps": 1})
    grafted = start(r, tmp_path / "new", device=CPU)
    donor, new = load_model(donor_folder, "float32", "cpu"), grafted.model
    theirs, mine = Tokenizer.load(donor_folder), grafted.tokenizer
    assert theirs is not None
    assert torch.equal(new.blocks[0].q.weight, donor.blocks[0].q.weight)
    one, two = donor.blocks[0].k.weight.split(8)  # two key heads of the donor, one of the model
    assert torch.allclose(new.blocks[0].k.weight, (one + two) / 2)
    assert not new.blocks[0].q.bias.any()
    for word in (" list", "1", "."):
        (a,), (b,) = mine.encode(word), theirs.encode(word)
        assert torch.equal(new.embed.weight[a], donor.embed.weight[b]), word
    assert mine.mask_id is not None
    assert torch.equal(new.embed.weight[mine.mask_id], donor.embed.weight[theirs.mask_id])


def test_bad_grafts(tmp_path: Path) -> None:
    donor = train(tmp_path / "donor")
    other = recipe.change(SMALL, {"graft": str(donor), "mlp": 32})
    with pytest.raises(InputError, match="mlp is 32, the donor's 16"):
        start(other, tmp_path / "new", device=CPU)
    with pytest.raises(InputError, match="one of the two"):
        recipe.change(SMALL, {"graft": str(donor), "init": str(donor)})
