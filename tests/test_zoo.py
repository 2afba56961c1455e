"""The models that come with the package: there, small, and as good as their cards say."""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fastdllm import LLM, Generation
from fastdllm.bench import demo
from fastdllm.bench.reproduce import taught
from fastdllm.eval.reliability import Reliability, on_own_order, on_random_masks
from fastdllm.eval.run import Sheet, ask, run, solve
from fastdllm.eval.task import generated
from fastdllm.models.loading import EMBEDDED, ZOO, find_folder
from fastdllm.training import recipe

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not EMBEDDED, reason="no embedded model has landed yet")


@pytest.fixture(scope="module", params=EMBEDDED)
def llm(request: pytest.FixtureRequest) -> LLM:
    return LLM.load(request.param, device="cpu")


def test_a_model_is_small_and_complete(llm: LLM) -> None:
    folder = ZOO / llm.name
    assert (folder / "model.safetensors").stat().st_size <= 12e6
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 13e6
    text = (folder / "README.md").read_text()
    for heading in ("## Accuracy", "## Calibration", "## Known weaknesses"):
        assert heading in text
    assert llm.tokenizer is not None
    assert llm.tokenizer.template
    assert llm.mask_id == llm.tokenizer.mask_id


def test_the_card_says_what_was_measured_of_these_weights(llm: LLM) -> None:
    folder = ZOO / llm.name
    measured = json.loads((folder / "measured.json").read_text())
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights.startswith(measured["weights"])
    text = (folder / "README.md").read_text()
    for key, result in measured["results"].items():
        if "right" in result:
            task, _, rule = key.split("/")
            share = f"{result['right'] / result['count']:.1%}"
            assert re.search(rf"\| {task} \| {re.escape(rule)} \| \d+ \| {share} ", text), key


def test_a_model_is_what_its_recipe_makes(llm: LLM) -> None:
    about = json.loads((ZOO / llm.name / "training.json").read_text())
    shipped = recipe.load(ZOO / "recipes" / f"{llm.name}.json")
    assert recipe.change(recipe.Recipe(), about["recipe"]) == shipped


def test_make_trains_every_model_from_nothing() -> None:
    """In an order in which each finds what it begins with, and no recipe is left out."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    listed = re.search(r"^TINY \?= (.*)$", makefile, re.MULTILINE)
    assert listed is not None
    made: list[str] = []
    for name in listed[1].split():
        one = recipe.load(ZOO / "recipes" / f"{name}.json")
        assert one.name == name
        begins_with = one.init or one.graft
        assert not begins_with or begins_with in [f"runs/{earlier}" for earlier in made]
        made.append(name)
    assert set(made) == {path.stem for path in (ZOO / "recipes").glob("*.json")}
    assert set(EMBEDDED) <= set(made)


def test_answers_have_40_to_200_tokens_and_digits_are_tokens(llm: LLM) -> None:
    assert llm.tokenizer is not None
    for problem in (p for task in taught(llm.name) for p in generated(task).held_out()):
        ids = llm.tokenizer.encode(problem.answer)
        least = 8 if problem.images else 40  # of a picture little is said
        assert least <= len(ids) <= 200, problem.answer
        pieces = [llm.tokenizer.piece(i) for i in ids]
        assert "".join(pieces) == problem.answer
        assert all(len(p) == 1 for p in pieces if any(c.isdigit() for c in p))


def test_no_wording_moves_a_list(llm: LLM) -> None:
    """Or even a copy could be begun in two places at once."""
    assert llm.tokenizer is not None
    if "lists" in taught(llm.name):
        starts: dict[str, set[int]] = {}
        for problem in generated("lists").held_out():
            heading = problem.answer.partition("\n")[0]
            place = len(llm.tokenizer.encode(heading + "\n"))
            starts.setdefault(problem.check["kind"], set()).add(place)
        assert all(len(places) == 1 for places in starts.values())


def test_what_a_rule_risks_is_seen_on_lists() -> None:
    """Four tokens a pass are harmless in a copy, and repeat words in a shuffle."""
    llm = LLM.load("tiny-llada", device="cpu")
    right = {}
    for kind in ("copy", "shuffle"):
        task = generated(f"lists/{kind}")
        for rule in ("full", "topk:4"):
            settings = Generation(64, select=rule, cache="none")
            right[kind, rule] = sum(r.right for r in solve(llm, task, task.held_out(20), settings))
    assert min(right["copy", "full"], right["copy", "topk:4"], right["shuffle", "full"]) >= 12
    assert right["shuffle", "topk:4"] <= 6


def test_it_solves_what_it_never_saw(llm: LLM) -> None:
    """A floor, far below the card: the whole evaluation is `fastdllm eval`."""
    for name in {"word-problems", "functions", "shapes"} & set(taught(llm.name)):
        size = 64 if name == "shapes" else 256
        settings = Generation(size, select="frechet:0.25")
        done = solve(llm, generated(name), generated(name).held_out(24), settings)
        assert sum(r.right for r in done) >= 12, name


def test_settings_take_turns(llm: LLM) -> None:
    task = generated(taught(llm.name)[0])
    settings = [Generation(96, select=rule) for rule in ("threshold:0.9", "frechet:0.25")]
    sheets = [Sheet(None, one) for one in settings]
    assert [s.settings for s in run(llm, task, task.held_out(5), sheets, 2)] == settings * 3
    alone = [solve(llm, task, [p], settings[0])[0] for p in task.held_out(5)]
    assert [r.completion.text for r in alone] == [x["text"] for x in sheets[0].lines.values()]


def test_calibration_is_read_off_known_truth(llm: LLM) -> None:
    problems = generated(taught(llm.name)[0]).held_out(4)
    for seen in (on_random_masks(llm, problems), on_own_order(llm, problems)):
        assert isinstance(seen, Reliability)
        assert 0 <= seen.error <= 1
    assert llm.tokenizer is not None
    sizes = [len(llm.tokenizer.encode(p.answer)) // 32 * 32 + 32 for p in problems]
    assert len(on_own_order(llm, problems).right) == sum(sizes)  # every token of every canvas


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_folder(EMBEDDED[0]) == ZOO / EMBEDDED[0]
    (tmp_path / EMBEDDED[0]).mkdir()
    assert find_folder(EMBEDDED[0]) == Path(EMBEDDED[0])


def test_a_wheel_carries_the_models(tmp_path: Path) -> None:
    """Built, unpacked and run from another folder, with nothing of this tree on the path."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    prompt = generated("functions").held_out(1)[0].prompt
    code = (
        "import sys, fastdllm.cli\nprint(fastdllm.__file__, file=sys.stderr)\nfastdllm.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", prompt],
        env={**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"},
        cwd=elsewhere, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(str(site))
    assert "def " in done.stdout
    assert not list(elsewhere.iterdir())


def test_asking_is_a_chat_turn_where_there_is_a_template(llm: LLM) -> None:
    problem = generated("lists").held_out(1)[0]
    assert ask(llm, problem) == [{"role": "user", "content": problem.prompt}]


def test_the_demo_shows_a_problem_that_is_solved() -> None:
    """It is the first thing a newcomer sees."""
    llm, task = LLM.load("tiny-llada", device="cpu"), generated("word-problems")
    shown = demo.short(llm, task.held_out(), demo.SHOWN + 1)[-1]
    [done] = solve(llm, task, [shown], Generation(demo.CANVAS, select=demo.WATCHED))
    assert done.right
