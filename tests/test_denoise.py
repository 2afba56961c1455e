"""The engine against recordings, against a naive decoder, and against its own single runs."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import END, MASK, random_checkpoint, save
from naive import NaiveModel, naive_decode
from safetensors.torch import load_file
from test_selection import slow

from fastdllm import Full, InputError, LogitsError, TopK, parse
from fastdllm.cache import Fresh, KVCache
from fastdllm.denoise import CachedReader, ForeignReader, Row, denoise
from fastdllm.models.loading import load_model
from fastdllm.predict import Sampling

GOLDEN = Path(__file__).parent / "golden"
CHECKPOINTS = ["llada_mha", "llada_tied", "llada_bf16", "dream_gqa"]
CASES = [json.loads(line) for line in (GOLDEN / "generation.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def golden_models():
    return {
        name: load_model(GOLDEN / "ckpt" / name, dtype="float32", device="cpu")
        for name in CHECKPOINTS
    }


def make_row(ids, holes, rule, block_size, number=0, **more) -> Row:
    masked = torch.zeros(len(ids), dtype=torch.bool)
    masked[holes] = True
    return Row(number, torch.tensor(ids), masked, rule, block_size, **more)


def canvas(prompt, new, mask_id=MASK):
    ids = [*prompt, *[mask_id] * new]
    return ids, list(range(len(prompt), len(ids)))


# --- Recordings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_golden_logits(golden_models, name: str) -> None:
    model, recorded = golden_models[name], load_file(GOLDEN / "logits" / f"{name}.safetensors")
    with torch.inference_mode():
        for i in range(3):
            ids = recorded[f"in{i}.ids"][None]
            positions = torch.arange(ids.shape[1])[None]
            logits = model.head(model(ids, positions, Fresh(None)))[0]
            torch.testing.assert_close(logits, recorded[f"in{i}.logits"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_golden_cached_passes(golden_models, name: str) -> None:
    model, recorded = golden_models[name], load_file(GOLDEN / "logits" / f"{name}.safetensors")
    start, stop = recorded["cache.range"].tolist()
    before, after = recorded["cache.xa"], recorded["cache.xb"]
    length = len(before)
    cache = KVCache(model.config, torch.device("cpu"), torch.float32)
    lane = cache.take(1, length)[0]

    @torch.inference_mode()
    def window(x, a, b):
        at = torch.arange(a, b)[None]
        return model.head(model(x[None, a:b], at, cache.view([lane], at, length, None)))[0]

    for name_, got in (
        ("refresh", window(before, 0, length)),
        ("suffix", window(after, start, length)),
        ("refresh", window(before, 0, length)),
        ("block", window(after, start, stop)),
    ):
        torch.testing.assert_close(got, recorded[f"cache.{name_}_logits"], rtol=0, atol=2e-4)


# Every third in each run, all 336 in the slow one; shapes are checked by the other tests.
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["id"], marks=[pytest.mark.slow] if i % 3 else [])
        for i, case in enumerate(CASES)
    ],
)
def test_golden_generation(golden_models, case: dict) -> None:
    start = len(case["prompt"])
    ids, holes = canvas(case["prompt"], case["max_tokens"], case["mask_id"])
    row = make_row(ids, holes, parse(case["select"]), case["block_size"])
    reader = CachedReader(golden_models[case["ckpt"]], case["cache"])
    steps = list(denoise(reader, [row], (case["mask_id"],)))
    inner = {"none": "F", "prefix": "S", "dual": "B"}[case["cache"]]
    trace = [
        [
            "F" if step.window.start == 0 and step.window.stop == len(ids) else inner,
            step.window.start - start,
            sorted(position - start for position in step.commits),
        ]
        for step in steps
    ]
    same = (
        row.ids[start:].tolist() == case["tokens"]
        and len(steps) == case["nfe"]
        and trace == [[kind, at, sorted(what)] for kind, at, what in case["trace"]]
    )
    assert same or case["fragile"]


# --- A naive decoder -----------------------------------------------------------------------------

RULES = ["full", "topk:3", "threshold:0.6", "factor:1", "frechet:0.1", "exact:0.1", "entropy:0.6"]
KINDS = [
    ("llada", {}),
    ("llada", {"tied": True}),
    ("llada", {"kv_heads": 2}),
    ("Dream", {"kv_heads": 2}),
    ("Dream", {"kv_heads": 1, "width": 48, "heads": 2}),
    ("llama", {"kv_heads": 2}),
    ("qwen2", {"tied": True}),
    ("qwen3", {"kv_heads": 2, "layers": 3}),
]


def compare(steps, passes) -> bool:
    """Whether a run agrees; a difference is excused only where a decision hung on a hair."""
    for step, naive in zip(steps, passes, strict=False):
        if step.commits != naive.commits or (step.window.start, step.window.stop) != naive.window:
            return naive.fragile
    return len(steps) == len(passes)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize(("family", "options"), KINDS, ids=lambda x: str(x))
def test_batches_against_the_naive_decoder(tmp_path, family, options, cache) -> None:
    """Rows of any length, rule and hole in one batch: each as the naive decoder does it alone."""
    agreed = excused = 0
    for seed in range(3):
        config, state = random_checkpoint(family, seed, **options)
        model = load_model(save(tmp_path / str(seed), config, state), device="cpu")
        naive = NaiveModel(config, state)
        g = torch.Generator().manual_seed(seed)

        def number(low: int, high: int, g=g) -> int:
            return int(torch.randint(low, high, (), generator=g))

        rows, expected = [], []
        for k in range(5):
            prompt = torch.randint(0, 40, (number(1, 14),), generator=g).tolist()
            ids, holes = canvas(prompt, number(3, 22))
            if k == 2:
                prompt[0] = MASK  # evidence, not a hole
                ids[0] = MASK
            if k == 3:  # infilling: two holes and a fixed suffix
                ids += torch.randint(0, 40, (6,), generator=g).tolist()
                holes = holes[:4] + holes[-3:]
                ids = [t if t != MASK or i in holes else number(0, 40) for i, t in enumerate(ids)]
            rule, block = parse(RULES[(seed + 3 * k) % len(RULES)]), number(3, 12)
            rows.append(make_row(ids, holes, rule, block, number=k))

            def by_rule(d, p2, h, rule=rule):
                return slow(rule, d, p2, h, [True] * len(d))

            expected.append(naive_decode(naive, ids, holes, by_rule, cache, block))
        steps: list = [[] for _ in rows]
        for step in denoise(CachedReader(model, cache), rows, (MASK,)):
            steps[step.row].append(step)
        for row, mine, (ids, passes) in zip(rows, steps, expected, strict=True):
            assert compare(mine, passes)
            if row.ids.tolist() == ids and len(mine) == len(passes):
                agreed += 1
            else:
                excused += 1
    assert excused <= 0.2 * (agreed + excused)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("name", ["llada_mha", "dream_gqa"])
def test_a_row_does_not_depend_on_its_neighbours(golden_models, name, cache) -> None:
    """Every recorded prompt, cut to many lengths, with every rule: together as alone."""
    rules = ["full", "threshold:0.9", "factor:0.75", "frechet:0.25", "exact:0.25", "topk:4"]
    g = torch.Generator().manual_seed(1)

    def build():
        g.manual_seed(1)
        rows = []
        for k in range(8):
            size, new = (int(torch.randint(2, 30, (), generator=g)) for _ in range(2))
            prompt = torch.randint(0, 480, (size,), generator=g).tolist()
            ids, holes = canvas(prompt, new + 6, 500)
            rows.append(make_row(ids, holes, parse(rules[k % len(rules)]), 16, number=k))
        return rows

    model = golden_models[name]
    together, alone = build(), build()
    steps: dict = {k: [] for k in range(8)}
    for step in denoise(CachedReader(model, cache), together, (500,)):
        steps[step.row].append(step)
    for row in alone:
        single = list(denoise(CachedReader(model, cache), [row], (500,)))
        pairs = [(a.commits, a.window) for a in steps[row.number]]
        assert pairs == [(b.commits, b.window) for b in single]
        for a, b in zip(steps[row.number], single, strict=True):
            assert a.doubts == pytest.approx(b.doubts, abs=1e-4)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_rows_come_and_go_between_steps(golden_models, cache) -> None:
    model = golden_models["llada_mha"]

    def fresh(number, size):
        ids, holes = canvas(range(3, 3 + size), 24, 500)
        return make_row(ids, holes, parse("frechet:0.25"), 8, number=number)

    alone = {}
    for number, size in ((0, 5), (1, 20), (2, 11), (3, 40)):
        row = fresh(number, size)
        alone[number] = len(list(denoise(CachedReader(model, cache), [row], (500,)))), row.ids
    rows = [fresh(0, 5), fresh(1, 20)]
    second = rows[1]
    count = dict.fromkeys(range(4), 0)
    for step in denoise(CachedReader(model, cache), rows, (500,)):
        count[step.row] += 1
        if count[0] == 3 and len(rows) == 2:
            rows.append(fresh(2, 11))
        if count[1] == 4 and second in rows:
            rows.remove(second)  # its request was cancelled
            rows.append(fresh(3, 40))
    assert count[1] == 4
    assert second.finish is None
    for row in rows:
        assert row.finish == "length"
        assert (count[row.number], row.ids.tolist()) == (
            alone[row.number][0],
            alone[row.number][1].tolist(),
        )


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("name", ["llada_mha", "dream_gqa"])
def test_a_row_may_rest(golden_models, name, cache) -> None:
    """Taken out and put back later, while another took its lane: its windows may be wider then,
    and its tokens are those of a row that opened its block anew."""
    model = golden_models[name]

    def fresh(number, size):
        return make_row(*canvas(range(3, 3 + size), 24, 500), TopK(1), 8, number=number)

    rows = [fresh(0, 5), fresh(1, 9)]
    resting, third = rows[0], fresh(2, 30)
    count = 0
    for step in denoise(CachedReader(model, cache), rows, (500,)):
        count += step.row == 0
        if step.row == 0 and count == 11:
            rows.remove(resting)
            rows.append(third)
        if step.row == 2 and resting not in rows:
            rows.append(resting)
    assert count == 24
    # The same by hand: one pass over the whole canvas at the twelfth step.
    alone = fresh(0, 5)
    reader = CachedReader(model, cache)
    for k, _ in enumerate(denoise(reader, [alone], (500,)), 1):
        if k == 11:
            alone.opened = None
    assert resting.ids.tolist() == alone.ids.tolist()


# --- What is read, and what is not ----------------------------------------------------------------


def test_the_head_runs_on_masked_positions_only(golden_models) -> None:
    model, asked = golden_models["llada_mha"], []
    handle = model.head.register_forward_pre_hook(lambda _, args: asked.append(args[0].shape[0]))
    ids, holes = canvas(range(9), 40, 500)
    row = make_row(ids, holes, TopK(4), 16)
    steps = list(denoise(CachedReader(model, "prefix"), [row], (500,)))
    handle.remove()
    assert asked == [len(step.positions) for step in steps]
    assert asked == [16, 12, 8, 4, 16, 12, 8, 4, 8, 4]  # the last block is shorter


def test_finished_rows_cost_nothing(golden_models) -> None:
    model, seen = golden_models["llada_mha"], []
    handle = model.embed.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    rows = [make_row(*canvas([1, 2], n, 500), Full(), 4, number=n) for n in (2, 6)]
    list(denoise(CachedReader(model, "none"), rows, (500,)))
    handle.remove()
    assert seen[:2] == [2, 2]
    assert set(seen[2:]) == {1}


def test_early_stop_waits_for_everything_before_the_end() -> None:
    """A model that is sure of the end first, then of what comes before it."""
    order = {5: END, 3: 7, 2: 6, 4: 8}

    def model(ids):
        logits = torch.zeros(*ids.shape, 48)
        for rank, (position, token) in enumerate(order.items()):
            logits[:, position, token] = 40.0 - 5 * rank
        logits[:, 6:, 1] = 9.0
        return logits

    ids, holes = canvas([1, 2], 8)
    row = make_row(ids, holes, Full(), 8, end_ids=(END,))
    steps = list(denoise(ForeignReader(model), [row], (MASK,)))
    assert [next(iter(s.commits)) for s in steps] == [5, 3, 2, 4]
    assert row.finish == "stop"
    assert row.ids.tolist()[2:6] == [6, 7, 8, END]
    to_the_end = make_row(ids, holes, Full(), 8)
    assert len(list(denoise(ForeignReader(model), [to_the_end], (MASK,)))) == 8
    assert to_the_end.finish == "length"


def test_foreign_models_of_both_kinds(golden_models) -> None:
    """`model(ids) -> logits`, bare or in an object: as our own reader without cache."""
    for name, shift in (("llada_mha", False), ("dream_gqa", True)):
        model = golden_models[name]

        def logits(ids, model=model):
            at = torch.arange(ids.shape[1]).expand_as(ids)
            return model.head(model(ids, at, Fresh(None)))

        class Wrapped:
            def __init__(self, logits):
                self.logits = logits

        runs = []
        for reader in (
            CachedReader(model, "none"),
            ForeignReader(logits, shift=shift),
            ForeignReader(lambda ids, f=logits: Wrapped(f(ids)), shift=shift),
        ):
            rows = [make_row(*canvas(range(3, 3 + n), 20, 500), parse("frechet:0.25"), 8, number=n)
                    for n in (4, 9, 4)]  # fmt: skip
            rows[2].number = 5
            runs.append([(s.row, s.commits) for s in denoise(reader, rows, (500,))])
        assert runs[0] == runs[1] == runs[2]


@pytest.mark.usefixtures("unchecked")
def test_a_foreign_model_of_the_wrong_shape() -> None:
    row = make_row(*canvas([1], 3), Full(), 4)
    with pytest.raises(InputError, match=r"logits of shape \(1, 2, 48\) for ids of shape \(1, 4\)"):
        list(denoise(ForeignReader(lambda ids: torch.zeros(1, 2, 48)), [row], (MASK,)))


def test_a_nan_names_its_row_and_position() -> None:
    def model(ids):
        logits = torch.zeros(*ids.shape, 48)
        logits[:, 3] = float("nan")
        return logits

    row = make_row(*canvas([1, 2], 4), Full(), 4, number=7)
    with pytest.raises(LogitsError, match="row 7: the logits at position 3"):
        list(denoise(ForeignReader(model), [row], (MASK,)))


def test_drawing_does_not_depend_on_the_batch(golden_models) -> None:
    model = golden_models["llada_mha"]

    def fresh(number, size, seed):
        ids, holes = canvas(range(3, 3 + size), 20, 500)
        sampling = Sampling(1.0, torch.Generator().manual_seed(seed), top_p=0.95, top_k=40)
        return make_row(ids, holes, parse("threshold:0.6"), 8, number=number, sampling=sampling)

    alone = []
    for k in range(4):
        row = fresh(k, 3 + 4 * k, seed=k % 2)
        list(denoise(CachedReader(model, "prefix"), [row], (500,)))
        alone.append(row.ids.tolist())
    rows = [fresh(k, 3 + 4 * k, seed=k % 2) for k in range(4)]
    list(denoise(CachedReader(model, "prefix"), rows, (500,)))
    assert [row.ids.tolist() for row in rows] == alone
