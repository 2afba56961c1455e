"""lm-evaluation-harness itself, on local tasks and a random checkpoint; and the masked bound."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import random_checkpoint, talking

from fastdllm import LLM, Generation, InputError
from fastdllm.cache import Fresh
from fastdllm.eval.likelihood import bound, hidden_positions, is_greedy, log_probabilities
from fastdllm.testing import JointTable

pytestmark = pytest.mark.filterwarnings("ignore")  # the harness's own libraries


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("llada"), *random_checkpoint("llada", 0, vocab=400))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three local tasks in the harness's own format, over local files."""
    where = tmp_path_factory.mktemp("tasks")
    rows = [{"q": f"What is {i} + {i}?", "a": f" {i + i}", "b": f" {i}"} for i in range(5)]
    (where / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {where}/rows.jsonl\n"
    head += "test_split: test\n"
    (where / "write.yaml").write_text(
        f"task: write\n{head}output_type: generate_until\ndoc_to_text: '{{{{q}}}}'\n"
        "doc_to_target: '{{a}}'\ngeneration_kwargs:\n  until: ['a']\n  max_gen_toks: 12\n"
        "metric_list:\n  - metric: exact_match\n"
    )
    (where / "choose.yaml").write_text(
        f"task: choose\n{head}output_type: multiple_choice\ndoc_to_text: '{{{{q}}}}'\n"
        "target_delimiter: ''\ndoc_to_choice: '{{[a, b]}}'\ndoc_to_target: 0\n"
        "metric_list:\n  - metric: acc\n"
    )
    (where / "roll.yaml").write_text(
        f"task: roll\n{head}output_type: loglikelihood_rolling\ndoc_to_text: ''\n"
        "doc_to_target: '{{q}}{{a}}'\nmetric_list:\n  - metric: bits_per_byte\n"
    )
    return where


def evaluate(model: str, arguments: str, tasks: Path, *names: str) -> dict:
    import lm_eval
    from lm_eval.tasks import TaskManager

    import fastdllm.eval.harness  # noqa: F401  registers the names

    found = lm_eval.simple_evaluate(
        model, model_args=arguments, tasks=list(names), batch_size=2, log_samples=True,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )  # fmt: skip
    assert found is not None
    return found


# --- The bound ---------------------------------------------------------------------------------


def joint() -> tuple[JointTable, LLM]:
    table = torch.rand(3, 3, 3, 3, generator=torch.Generator().manual_seed(5)) ** 3
    oracle = JointTable(table / table.sum())
    return oracle, LLM(oracle, mask_id=oracle.mask_id)


def test_the_bound_is_the_mean_over_all_hidings_and_tight_for_an_exact_model() -> None:
    oracle, llm = joint()
    prefix, target = [1], [2, 0, 1]
    by_count = []
    for k in (1, 2, 3):
        sums = []
        for hidden in itertools.combinations(range(3), k):
            ids = torch.tensor(prefix + target)
            ids[[1 + i for i in hidden]] = oracle.mask_id
            marginals = oracle.marginals(ids[None])[0]
            sums.append(sum(math.log(marginals[1 + i, target[i]]) for i in hidden))
        by_count.append(3 / k * sum(sums) / len(sums))
    exact = sum(by_count) / 3
    found = bound(llm, prefix, target, samples=6000, batch=500, seed=1)
    assert found == pytest.approx(exact, abs=0.05)
    blank = torch.tensor(prefix + [oracle.mask_id] * 3)
    truth = oracle.probability(blank, torch.tensor([1, 2, 3]), torch.tensor(target))
    assert exact == pytest.approx(math.log(truth), abs=1e-9)  # its marginals make one joint


def test_one_token_is_exact_and_a_seed_is_a_seed() -> None:
    oracle, llm = joint()
    ids = torch.tensor([[1, 0, 2, oracle.mask_id]])
    exact = math.log(oracle.marginals(ids)[0, 3, 1])
    assert bound(llm, [1, 0, 2], [1], samples=2) == pytest.approx(exact, abs=1e-5)
    one, other, again = (bound(llm, [1], [2, 0, 1], samples=8, seed=s) for s in (0, 1, 0))
    assert one == again != other
    assert bound(llm, [1], []) == 0


@pytest.mark.parametrize(("length", "samples"), [(1, 4), (5, 20), (7, 128), (40, 8)])
def test_hidings_are_spread_over_all_counts(length: int, samples: int) -> None:
    hidden = hidden_positions(length, samples, torch.Generator().manual_seed(0))
    counts = hidden.sum(dim=1)
    assert counts.min() >= 1
    assert counts.max() <= length
    if samples % length == 0:
        assert torch.bincount(counts, minlength=length + 1)[1:].tolist() == [samples // length] * (
            length
        )


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(family: str, tmp_path: Path) -> None:
    llm = LLM.load(talking(tmp_path, *random_checkpoint(family, 1, vocab=400)), device="cpu")
    prefix, target = [5, 6, 7], [8, 9, 10, 11]
    hidden = torch.tensor([[True, False, True, False], [True] * 4])
    found = log_probabilities(llm, prefix, target, hidden)
    for row, got in zip(hidden, found, strict=True):
        ids = torch.tensor(prefix + target)
        ids[3:][row] = llm.mask_id
        with torch.inference_mode():
            states = llm.model(ids[None], torch.arange(7)[None], Fresh(None))
            logits = llm.model.head(states)[0].index_fill(1, torch.tensor(llm.mask_id), -torch.inf)
        wanted = sum(
            float(logits[3 + i - llm.shift].log_softmax(-1)[target[i]]) for i in range(4) if row[i]
        )
        assert float(got) == pytest.approx(wanted, abs=1e-4)


def test_what_full_steps_write_is_greedy(folder: Path) -> None:
    llm = LLM.load(folder, device="cpu")
    prefix = llm.tokenizer.encode("What is 2")
    row = llm.row(prefix, Generation(6, 6, "full", "none", early_stop=False))
    list(llm.run([row], Generation(6, 6, "full", "none", early_stop=False)))
    made = row.ids[len(prefix) :].tolist()
    assert is_greedy(llm, prefix, made)
    assert not is_greedy(llm, prefix, [*made[:-1], (made[-1] + 1) % 390])


# --- The harness -------------------------------------------------------------------------------


def test_all_three_kinds_of_request(folder: Path, tasks: Path) -> None:
    arguments = f"pretrained={folder},select=topk:2,cache=none,block_size=8,mc_num=4,device=cpu"
    found = evaluate("fastdllm", arguments, tasks, "write", "choose", "roll")
    assert set(found["results"]) == {"write", "choose", "roll"}
    llm = LLM.load(folder, device="cpu")
    settings = Generation(12, 8, "topk:2", "none", stop="a")
    for sample in found["samples"]["write"]:
        assert sample["resps"][0][0] == llm.generate(sample["doc"]["q"], settings).text
    for sample in found["samples"]["choose"]:
        prefix = llm.tokenizer.encode(sample["doc"]["q"])
        for key, ((value, _),) in zip("ab", sample["resps"], strict=True):
            target = llm.tokenizer.encode(sample["doc"]["q"] + sample["doc"][key])[len(prefix) :]
            assert value == pytest.approx(bound(llm, prefix, target, samples=4), abs=1e-4)
    assert found["results"]["roll"]["bits_per_byte,none"] > 0


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("llada_dist", "model_path={},gen_length=16,steps=4,block_length=8,threshold=0.5,"
                       "use_cache=True,show_speed=True"),
        ("llada_dist", "model_path={},gen_length=16,steps=16,block_length=8"),
        ("llada_dist", "model_path={},gen_length=16,steps=4,block_length=8,factor=1.0,"
                       "use_cache=True,dual_cache=True"),
        ("llada_dist", "model_path={},gen_length=16,steps=4,block_length=8,frechet_margin=0.25"),
        ("dream", "pretrained={},max_new_tokens=16,diffusion_steps=16,alg=entropy"),
        ("dream", "pretrained={},max_new_tokens=32,diffusion_steps=32,alg=confidence_threshold,"
                  "threshold=0.9,use_cache=true,show_speed=True"),
        ("dream", "pretrained={},gen_length=16,steps=4,block_length=8,frechet_margin=0.25"),
    ],
)  # fmt: skip
def test_the_public_scripts_arguments(
    folder: Path, tasks: Path, model: str, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(model, arguments.format(folder) + ",device=cpu", tasks, "write")
    assert len(found["samples"]["write"]) == 5
    assert ("tokens_per_second" in capsys.readouterr().err) == ("show_speed" in arguments)


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("fastdllm", "select=full", "no model was named"),
        ("fastdllm", "pretrained={},selct=full", "did you mean 'select'"),
        ("fastdllm", "pretrained={},select=frechett:0.2", "did you mean 'frechet'"),
        ("llada_dist", "model_path={},threshold=0.9,factor=1", "exclude each other"),
        ("llada_dist", "model_path={},dual_cache=True,threshold=0.9", "use_cache=True"),
        ("llada_dist", "model_path={},cfg=1.5", "cfg=0"),
        ("dream", "pretrained={},alg=origin", "alg is 'origin'"),
        ("dream", "pretrained={},alg=entropy,diffusion_steps=8", "as many steps as tokens"),
    ],
)
def test_bad_arguments_are_named(
    folder: Path, tasks: Path, model: str, arguments: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        evaluate(model, arguments.format(folder), tasks, "write")


def test_the_command_takes_the_harness_own_arguments(folder: Path, tasks: Path) -> None:
    out = tasks.parent / "out"
    command = [
        sys.executable, "-m", "fastdllm", "lm-eval", "--model", "fastdllm", "--tasks", "write",
        "--model_args", f"pretrained={folder},select=frechet:0.25,cache=prefix,max_tokens=16,"
        "block_size=8,device=cpu", "--include_path", str(tasks), "--limit", "2",
        "--output_path", str(out), "--log_samples",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "exact_match" in done.stdout
    assert len(list(out.glob("**/samples_write_*.jsonl"))) == 1


@pytest.mark.slow
def test_two_processes_find_what_one_finds(folder: Path, tasks: Path, tmp_path: Path) -> None:
    arguments = f"pretrained={folder},select=topk:2,cache=none,mc_num=4,device=cpu"
    scores = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
            "-m", "fastdllm", "lm-eval", "--model", "fastdllm", "--tasks", "write,choose",
            "--model_args", arguments, "--include_path", str(tasks), "--output_path", str(out),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        scores.append(json.loads(next(out.glob("**/results_*.json")).read_text())["results"])
    for task in ("write", "choose"):
        assert scores[0][task] == scores[1][task]
