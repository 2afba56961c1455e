"""The command as a user meets it: a process, its output and its exit code."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import random_checkpoint, save

TOKENIZER = Path(__file__).parent / "golden" / "tokenizer"


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = "from fastdllm.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        input=stdin,
    )


def test_oracle_prints_the_table() -> None:
    done = run("oracle", "--select", "full frechet:0.25", "--sequences", "2", "--length", "12")
    assert done.returncode == 0, done.stderr
    for word in ("full", "frechet:0.25", "tokens/step", "certified", "errors"):
        assert word in done.stdout


def test_rules_lists_every_rule() -> None:
    from fastdllm.selection import RULES

    listed = run("rules").stdout
    assert all(name in listed for name in RULES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("oracle", "--select", "frechet:0.25 frechett:0.3"), "did you mean 'frechet'?"),
        (("oracle", "--select", "frechet:1.5"), "wanted a number in [0, 1), try 0.99"),
        (("train", "--output", "/no/where", "--set", "lr=fast"), "lr is 'fast'; wanted a number"),
        (("train", "--output", "/no/where", "--task", "listz"), "did you mean 'lists'?"),
        (("reproduce", "divergence", "--data", "/no/where"), "leave out --data and --images"),
        (("reproduce", "table1", "--calibration", "/no/where"), "table1 uses no calibration"),
        (("eval", "--task", "lists", "--images", "/no/where"), "asks about no pictures"),
        (("train", "--output", "/no/where", "--set", 'tasks={"lists": "x"}'), "names with numbers"),
        (("train", "--output", "/no/where", "--task", "lists=x"), "'x' is no weight"),
        (("train", "--output", "/no/where", "--recipe", "tiny-lada"), "did you mean 'tiny-llada'"),
        (("train", "--output", "/no/where", "--set", "steps"), "wanted KEY=VALUE"),
        (("eval", "--task", "functions"), "only with --allow-code-execution"),
        (("eval", "--task", "lists", "--data", "x"), "takes no --data"),
        (("eval", "--task", "list"), "did you mean 'lists'?"),
        (("eval", "--task", "lists", "--limit", "0"), "wanted at least 1"),
        (("eval", "--task", "lists", "--select", "full,fule"), "did you mean 'full'?"),
        (("eval", "--task", "lists", "--kind", "sorted"), "did you mean 'sort'?"),
        (("figure", "profil"), "did you mean 'profile'?"),
        (("oracle", "--select", ""), "no rule was named"),
        (("oracle", "--sequences", "1", "--length", "2", "--seed", "32"), "given as a hint"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A random LLaDA with a tokenizer, in a folder."""
    config, state = random_checkpoint("llada", 0, vocab=400, sharpness=8.0)
    where = save(tmp_path_factory.mktemp("cli"), config | {"mask_token_id": 384}, state)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, where)
    return str(where)


def test_generate_trace_and_page(model, tmp_path) -> None:
    file = tmp_path / "run.jsonl"
    done = run("generate", "Tom has 12", "--model", model, "--max-tokens", "24", "--block-size",
               "8", "--cache", "dual", "--no-early-stop", "--trace", str(file))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ tokens, \d+ forward passes, .* ended by length", done.stderr)
    page = run("trace", str(file))
    assert page.stdout.strip() == str(tmp_path / "run.html")
    assert "<!doctype html>" in (tmp_path / "run.html").read_text()


def test_generate_reads_stdin_and_fills_holes(model) -> None:
    arguments = ("generate", "--model", model, "--max-tokens", "8", "--raw")
    piped = run(*arguments, stdin="Tom has 12")
    direct = run("generate", "Tom has 12", *arguments[1:])
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == direct.stdout
    filled = run("generate", "a [MASK:5] b", "--model", model)
    assert filled.stdout.startswith("a ")
    assert filled.stdout.rstrip().endswith(" b")
    watched = run(*arguments, "--watch", stdin="Tom has 12")
    assert watched.returncode == 0, watched.stderr


def test_inspect_loads_nothing(model) -> None:
    (told := run("inspect", model, "--length", "512", "--batch", "4")).check_returncode()
    for word in ("llada", "2 layers of width 32", "384 '<|mdm_mask|>'", "weights, float32",
                 "cache, 4 x 512", "chat template"):  # fmt: skip
        assert word in told.stdout, word


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-tokens", "500"), "more than the model's context of 256"),
        (("--block-size", "0"), "block_size is 0"),
        (("--select", "frechett"), "did you mean 'frechet'"),
        (("--cache", "duel"), "did you mean 'dual'"),
        (("--dtype", "float8"), "unknown dtype 'float8'"),
        (("--device", "gpu"), "unknown device 'gpu'"),
    ],
)
def test_bad_generation_is_one_line(model, arguments, message) -> None:
    done = run("generate", "x", "--model", model, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_models_are_one_line(model, tmp_path) -> None:
    for name, message in ((str(tmp_path / "none"), "is not a folder"), ("", "no model was named")):
        done = run("generate", "x", "--model", name)
        assert (done.returncode, message in done.stderr) == (2, True)
    assert run("generate", "", "--model", model).returncode == 2
    for command in ("generate", "inspect"):
        weights = tmp_path / command
        shutil.copytree(model, weights)
        config = json.loads((weights / "config.json").read_text())
        del config["d_model"]
        (weights / "config.json").write_text(json.dumps(config))
        words = ("x", "--model", str(weights)) if command == "generate" else (str(weights),)
        done = run(command, *words)
        assert done.returncode == 2
        assert "the key 'd_model' is missing" in done.stderr


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.argv = ['fastdllm', '--help']\n"
        "from fastdllm.cli import main\n"
        "try: main()\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert run("--version").stdout.startswith("fastdllm 0.")


def test_figure_is_written(tmp_path) -> None:
    done = run("figure", "profile", "--output", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    names = {path.name: path.stat().st_size for path in (tmp_path / "new").iterdir()}
    assert names.keys() == {"profile.svg", "profile.png"}
    assert min(names.values()) > 5000
