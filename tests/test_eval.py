"""Evaluation runs: every answer kept, none asked twice, figures that are folds over lines."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from checkpoints import random_checkpoint, talking
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fastdllm import LLM, Generation, InputError
from fastdllm.bench import report, reproduce, sweep
from fastdllm.bench.drawings import draw
from fastdllm.bench.sweep import area, frontier, grid
from fastdllm.eval.report import as_json, measure, table
from fastdllm.eval.run import LINE, Sheet, about, ask, claim, describe, read_lines, run, solve
from fastdllm.eval.summary import Summary, mcnemar, wilson
from fastdllm.eval.task import GENERATED, Problem, Task, generated, get
from fastdllm.models.loading import EMBEDDED

SHORT = Generation(16, 8, "topk:4", "none", early_stop=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("llada"), *random_checkpoint("llada", 0, vocab=400))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM.load(folder, device="cpu")


PROBLEMS = [Problem(f"Say {i}.", str(i), id=f"echo/{i}") for i in range(7)]
TASK = Task("echo", 3, lambda problem, text: len(text) % 2 == 0, chat=False)


def test_a_line_says_everything_and_the_sheet_is_its_file(llm: LLM, tmp_path: Path) -> None:
    sheet = Sheet(tmp_path, SHORT)
    assert [s is sheet for s in run(llm, TASK, PROBLEMS, [sheet], 3)] == [True] * 3
    assert sheet.path is not None
    lines = [json.loads(line) for line in sheet.path.read_text().splitlines()]
    assert [x["id"] for x in lines] == [f"echo/{i}" for i in range(7)]
    assert [x["prompt"] for x in lines] == [p.fingerprint for p in PROBLEMS]
    done = llm.generate(PROBLEMS[2].prompt, SHORT)
    assert lines[2]["text"] == done.text
    assert (lines[2]["nfe"], lines[2]["tokens"]) == (done.usage.nfe, done.usage.tokens)
    assert lines[2]["settings"] == describe(SHORT)
    assert lines[2]["versions"]["task"] == 3
    assert Sheet(tmp_path, SHORT).lines == sheet.lines


def test_a_table_has_a_gap_only_between_rules_with_several_caches(llm: LLM) -> None:
    for caches, gaps in ((["none"], 0), (["none", "dual"], 1)):
        settings = [
            replace(SHORT, select=rule, cache=cache)
            for rule in ("topk:4", "topk:8")
            for cache in caches
        ]
        grid = table("", [Sheet(None, one) for one in settings])
        assert sum(row.end_section for row in grid.rows) == gaps


def test_what_has_a_line_is_not_asked_again(llm: LLM, tmp_path: Path) -> None:
    first = Sheet(tmp_path, SHORT)
    steps = run(llm, TASK, PROBLEMS, [first], 2)
    next(steps)
    next(steps)  # interrupted here
    again = Sheet(tmp_path, SHORT)
    assert len(again.lines) == 4
    asked: list[str] = []
    task = replace(TASK, score=lambda problem, text: asked.append(problem.prompt) or True)
    list(run(llm, task, PROBLEMS, [again], 3))
    assert asked == [p.prompt for p in PROBLEMS[4:]]
    assert again.path is not None
    assert len(again.path.read_text().splitlines()) == 7


def test_the_settings_take_turns_problem_by_problem(llm: LLM) -> None:
    sheets = [Sheet(None, SHORT), Sheet(None, replace(SHORT, cache="dual"))]
    assert list(run(llm, TASK, PROBLEMS, sheets, 1)) == sheets * len(PROBLEMS)


@given(st.integers(0, 400))
def test_a_file_cut_anywhere_loses_at_most_the_cut_line(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    blank = dict.fromkeys(LINE, 0)
    lines = [blank | {"id": str(i), "right": i % 2 == 0, "text": "é\n"} for i in range(6)]
    whole = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(whole[:cut])
    kept = read_lines(path, mend=True)
    assert kept == lines[: whole[:cut].count(b"\n")]
    with path.open("a") as file:
        file.write(json.dumps(lines[5]) + "\n")
    assert read_lines(path) == [*kept, lines[5]]


def test_a_changed_setting_has_its_own_file(tmp_path: Path) -> None:
    changes = (
        {}, {"select": "topk:5"}, {"cache": "dual"}, {"block_size": 4}, {"max_tokens": 8},
        {"seed": 1}, {"stop": "x"}, {"early_stop": True}, {"temperature": 0.5},
    )  # fmt: skip
    paths = {Sheet(tmp_path, replace(SHORT, **change)).path for change in changes}
    assert len(paths) == len(changes)


def test_a_foreign_line_is_named(tmp_path: Path) -> None:
    sheet = Sheet(tmp_path, SHORT)
    assert sheet.path is not None
    sheet.path.write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="line 1 is not one of ours"):
        Sheet(tmp_path, SHORT)


def test_a_folder_is_one_runs(llm: LLM, tmp_path: Path) -> None:
    facts = about(llm, TASK, PROBLEMS, None, 4)
    claim(tmp_path / "new", facts)
    claim(tmp_path / "new", facts)
    claim(tmp_path / "new", facts | {"date": "another day"})
    for other in ({"machine": "another"}, {"batch": 8}):
        with pytest.raises(InputError, match=f"a run with {next(iter(other))}"):
            claim(tmp_path / "new", facts | other)
    with pytest.raises(InputError, match="is a run with task 'echo', not 'other'; name another"):
        claim(tmp_path / "new", facts | {"task": "other"})
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=r"holds other files and no run.json"):
        claim(tmp_path, facts)
    with pytest.raises(InputError, match="cannot be written to"):
        claim(tmp_path / "mine.txt", facts)
    (tmp_path / "new" / "run.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        claim(tmp_path / "new", facts)


def test_a_claim_that_was_cut_short_is_made_again(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "run.new").write_text('{"mod')
    claim(tmp_path, about(llm, TASK, PROBLEMS, None, 4))
    claim(tmp_path, about(llm, TASK, PROBLEMS, None, 4))
    changed = [replace(PROBLEMS[0], answer="other"), *PROBLEMS[1:]]
    with pytest.raises(InputError, match="run with data"):
        claim(tmp_path, about(llm, TASK, changed, None, 4))
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(InputError, match="damaged"):
        claim(tmp_path, about(llm, TASK, PROBLEMS, None, 4))


def test_the_same_rule_twice_is_asked_once(llm: LLM, tmp_path: Path) -> None:
    sheets = measure(llm, TASK, PROBLEMS, PROBLEMS, [SHORT, SHORT], 4, tmp_path)
    assert len(sheets) == 1
    (file,) = tmp_path.glob("*.jsonl")
    assert len(file.read_text().splitlines()) == len(PROBLEMS)


def test_an_instruct_model_is_asked_in_chat(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(llm, PROBLEMS[0], chat=False) == PROBLEMS[0].prompt
    monkeypatch.setattr(llm, "name", "LLaDA-8B-Instruct")
    assert ask(llm, PROBLEMS[0], chat=False) == [{"role": "user", "content": PROBLEMS[0].prompt}]


def test_other_weights_are_another_model(llm: LLM, folder: Path) -> None:
    other = LLM.load(folder, device="cpu")
    assert other.fingerprint == llm.fingerprint
    other.model.norm.weight[0] += 1  # type: ignore[union-attr,operator]
    assert other.fingerprint != llm.fingerprint


def test_shares_of_two_processes_make_the_whole(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sheet(None, SHORT)
    list(run(llm, TASK, PROBLEMS, [whole], 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        list(run(llm, TASK, PROBLEMS, [Sheet(tmp_path, SHORT, rank)], 2))
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    merged = Sheet(tmp_path, SHORT)
    assert merged.lines.keys() == whole.lines.keys()
    for key, line in whole.lines.items():
        for field in ("right", "text", "nfe", "tokens"):
            assert merged.lines[key][field] == line[field]


def test_the_command_resumes_after_kill(folder: Path, tmp_path: Path) -> None:
    """Killed in the middle, run again: every problem once, and the summary of all."""
    command = [
        sys.executable, "-m", "fastdllm", "eval", "--model", str(folder), "--task", "lists",
        "--limit", "24", "--batch-size", "2", "--max-tokens", "32", "--select",
        "full,threshold:0.5",
        "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90

    def written() -> int:
        return sum(f.read_bytes().count(b"\n") for f in (tmp_path / "out").glob("*.jsonl"))

    while written() < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 6 <= written() < 48
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = list((tmp_path / "out").glob("*.jsonl"))
    assert len(files) == 2
    for file in files:
        ids = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
        assert sorted(ids) == sorted(p.fingerprint for p in generated("lists").held_out(24))
    last = json.loads(done.stdout.splitlines()[-1])
    assert [r["count"] for r in last["results"]] == [24, 24]


def test_a_full_disk_loses_nothing(folder: Path, tmp_path: Path) -> None:
    """No file may grow beyond 9,000 bytes, as on a disk that is full; then it may again."""
    command = [
        sys.executable, "-m", "fastdllm", "eval", "--model", str(folder), "--task", "lists",
        "--limit", "32", "--batch-size", "4", "--max-tokens", "16", "--select", "full",
        "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    limit = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
    full = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])", *command]
    done = subprocess.run(full, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "too large" in done.stderr
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert not file.read_bytes().endswith(b"\n")  # the last line is cut
    kept = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    assert kept
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[: len(kept)] == kept
    assert sorted(line["prompt"] for line in lines) == sorted(
        p.fingerprint for p in generated("lists").held_out(32)
    )


def test_the_command_in_two_processes_finds_what_one_finds(folder: Path, tmp_path: Path) -> None:
    """As under torchrun and accelerate launch: own files, one fold, one table."""
    arguments = [
        "-m", "fastdllm", "eval", "--model", str(folder), "--task", "lists", "--limit", "7",
        "--batch-size", "2", "--max-tokens", "16", "--select", "full,threshold:0.5", "--device",
        "cpu", "--output",
    ]  # fmt: skip
    alone = subprocess.run(
        [sys.executable, *arguments, str(tmp_path / "one")], capture_output=True, text=True
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    both = subprocess.run(
        [*launch, *arguments, str(tmp_path / "two")], capture_output=True, text=True
    )
    assert alone.returncode == both.returncode == 0, both.stderr
    assert len(list((tmp_path / "two").glob("*.jsonl"))) == 4
    results = []
    for done in (alone, both):
        last = json.loads(done.stdout.splitlines()[-1])["results"]
        timed = ("tokens_per_second", "speed_up")
        results.append([{k: v for k, v in r.items() if k not in timed} for r in last])
    assert results[0] == results[1]
    assert both.stdout.count("threshold:0.5") == 2  # the table and the JSON, once


# --- Figures -----------------------------------------------------------------------------------


@given(st.integers(1, 500), st.data())
def test_wilson_is_scipys(count: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, count))
    expected = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_a_sign_test_of_the_differences(pairs: list[tuple[bool, bool]]) -> None:
    one = {str(i): {"right": a} for i, (a, _) in enumerate(pairs)}
    other = {str(i): {"right": b} for i, (_, b) in enumerate(pairs)}
    lost, won, p = mcnemar(one, other)
    assert (lost, won) == (sum(a > b for a, b in pairs), sum(b > a for a, b in pairs))
    expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert p == pytest.approx(expected)


def test_only_shared_problems_are_paired() -> None:
    one = {"a": {"right": True}, "b": {"right": True}}
    assert mcnemar(one, {"a": {"right": False}, "c": {"right": True}})[:2] == (1, 0)


def test_the_summary_adds_up() -> None:
    lines = [
        {"right": True, "nfe": 10, "tokens": 40, "seconds": 2.0},
        {"right": False, "nfe": 30, "tokens": 40, "seconds": 2.0},
    ]
    s = Summary.of(lines)
    assert (s.accuracy, s.mean_nfe, s.tokens_per_nfe, s.tokens_per_second) == (0.5, 20, 2, 20)
    assert Summary.of([]).accuracy == 0


def test_the_table_and_the_json_say_the_same(llm: LLM) -> None:
    from rich.console import Console

    sheets = [Sheet(None, SHORT), Sheet(None, replace(SHORT, select="full"))]
    list(run(llm, TASK, PROBLEMS, sheets, 4))
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table("title", sheets))
    text = console.export_text()
    for row in as_json(sheets):
        assert row["select"] in text
        assert f"{row['accuracy']:.1%}" in text
        assert f"{row['nfe']:.1f}" in text
    assert "4.00x" not in text
    console.file.close()


def test_a_chat_task_asks_in_the_models_words(llm: LLM) -> None:
    problem = PROBLEMS[0]
    assert ask(llm, problem) == [{"role": "user", "content": problem.prompt}]
    assert ask(llm, problem, chat=False) == problem.prompt
    assert solve(llm, TASK, [problem], SHORT)[0].completion.text == (
        llm.generate(problem.prompt, SHORT).text
    )


# --- Frontiers ---------------------------------------------------------------------------------

costs = st.lists(
    st.tuples(st.integers(1, 20).map(float), st.integers(0, 10).map(lambda x: x / 10)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(costs)
def test_the_frontier_holds_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    best = frontier(points)
    for point in points:
        beaten = any(c <= point[0] and a >= point[1] and (c, a) != point for c, a in points)
        assert (point in best) == (not beaten) or points.count(point) > 1


@given(costs)
def test_the_area_is_the_mean_over_budgets(points: list[tuple[float, float]]) -> None:
    """Against the sum over whole budgets: costs are whole numbers here."""
    full = 20
    bought = [max((a for c, a in points if c <= b), default=0.0) for b in range(full)]
    assert area(points, full) == pytest.approx(sum(bought) / full)


def test_a_sweep_is_drawn_and_resumes(folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "fastdllm", "sweep", "--model", str(folder), "--task", "lists",
        "--limit", "4", "--max-tokens", "16", "--rules", "threshold:0.5/0.9,topk:2", "--output",
        str(tmp_path),
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert {"fig-frontier.svg", "fig-frontier.png"} <= set(os.listdir(tmp_path))
    last = json.loads(first.stdout.splitlines()[-1])
    wanted = ["full", "threshold:0.5", "threshold:0.9", "topk:2"]
    assert [p["select"] for p in last["points"]] == wanted
    assert subprocess.run(command, capture_output=True, text=True).stdout == first.stdout


def test_unknown_grids() -> None:
    with pytest.raises(InputError, match="did you mean 'threshold'"):
        grid(["treshold"])


# --- The paper's tables ------------------------------------------------------------------------


def test_the_papers_figures_are_as_printed() -> None:
    """A few by hand, and its own arithmetic: the averages it states follow from its rows."""
    rows = reproduce.paper()["table1"]["rows"]
    assert len(rows) == 24
    first = rows[0]
    assert (first["task"], first["accuracy"], first["nfe_total"]) == ("gsm8k", 77.6, 107135)
    by = {(r["task"], r["max_tokens"], r["rule"]): r for r in rows}
    pairs = [(by[t, n, "threshold"], by[t, n, "frechet"]) for t, n, rule in by if rule == "frechet"]
    speed = [f["tokens_per_second"] / t["tokens_per_second"] for t, f in pairs]
    less = [1 - f["nfe_total"] / t["nfe_total"] for t, f in pairs]
    assert sum(speed) / 8 == pytest.approx(1.36, abs=0.01)
    assert sum(less) / 8 == pytest.approx(0.292, abs=0.001)


@pytest.mark.parametrize("name", reproduce.EXPERIMENTS)
def test_an_experiment_is_measured_written_and_drawn(llm: LLM, tmp_path: Path, name: str) -> None:
    rows = [
        replace(cell, task="word-problems", max_tokens=16, block_size=min(cell.block_size, 16))
        for cell in reproduce.cells(name, GENERATED, sees=name == "table-v")
        if cell.task in ("word-problems", "shapes")
    ][:4]
    sheets = reproduce.run(llm, rows, None, 2, 2, tmp_path)
    found = reproduce.figures(rows, sheets)
    more = reproduce.extra(name, rows, sheets)
    written = reproduce.write(name, llm, found, more, tmp_path)
    written += draw(name, found, "title", tmp_path, more)
    assert all(path.stat().st_size > 100 for path in written)
    assert len(written) == 5
    table = (tmp_path / f"{name}.md").read_text().split("\n## ")[0]
    assert table.count("\n| ") == len(rows) + 1
    for row, sheet in zip(found, sheets, strict=True):
        assert row["count"] == len(sheet.lines) == 2
    whole = reproduce.divergence(rows, sheets)
    assert whole["count"] == 2 >= whole["texts_differ"] >= whole["correctness_differs"]


class Outline(HTMLParser):
    """Which elements stand in a page, whether each is closed, and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.refers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.refers += [value or "" for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_files_of_others_are_never_replaced(tmp_path: Path) -> None:
    reproduce.check_output("divergence", "tiny-llada", tmp_path / "new")
    (tmp_path / "divergence.md").write_text("precious")
    with pytest.raises(InputError, match=r"holds divergence.md, which is not divergence of tiny"):
        reproduce.check_output("divergence", "tiny-llada", tmp_path)
    (tmp_path / "divergence.json").write_text('{"model": "other"}')
    with pytest.raises(InputError, match="name another --output"):
        reproduce.check_output("divergence", "tiny-llada", tmp_path)
    reproduce.check_output("divergence", "other", tmp_path)


def test_a_grid_keeps_what_follows_the_values() -> None:
    assert sweep.grid(["frechet:0.5/0.25,calibration=a/b.json"]) == [
        "frechet:0.5,calibration=a/b.json", "frechet:0.25,calibration=a/b.json",
    ]  # fmt: skip


def test_a_report_holds_everything_and_loads_nothing(llm: LLM, tmp_path: Path) -> None:
    for name in ("fig-steps", "divergence"):
        rows = [replace(c, max_tokens=16, block_size=8) for c in reproduce.cells(name, GENERATED)]
        sheets = reproduce.run(llm, rows, None, 3, 3, tmp_path)
        found, more = reproduce.figures(rows, sheets), reproduce.extra(name, rows, sheets)
        if name == "divergence":  # a random model is never right, and never hostile
            texts = {"threshold:0.9": "<script>alert(1)</script>", "factor:0.75": "a ```` b"}
            more["alone_right"] = {"threshold:0.9": {"asked": "What <b>is</b> it?", "texts": texts}}
        reproduce.write(name, llm, found, more, tmp_path)
        draw(name, found, "title", tmp_path, more)
    assert "`````text\na ```` b\n`````" in (tmp_path / "divergence.md").read_text()
    page = report.write(tmp_path).read_text()
    outline = Outline()
    outline.feed(page)
    assert not outline.open
    assert outline.seen.count("table") == 3  # two experiments and the run they share
    assert "script" not in outline.seen
    assert all(r.startswith(("data:image/svg+xml;base64,", "#")) for r in outline.refers)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    for sheet in sheets:
        assert str(sheet.settings.rule) in page


def test_a_report_folds_every_answer_a_setting_has(llm: LLM, tmp_path: Path) -> None:
    """The baseline answered one of seven, and another setting none of those."""
    facts = about(llm, TASK, PROBLEMS, None, 1)
    claim(tmp_path, facts)
    for settings, part in (
        (replace(SHORT, select="full"), PROBLEMS[:1]), (SHORT, PROBLEMS[:5]),
        (replace(SHORT, cache="dual"), PROBLEMS[5:]),
    ):  # fmt: skip
        list(run(llm, TASK, part, [Sheet(tmp_path, settings)], 1))
    rows = re.findall(r"<tr>(.*?)</tr>", report.write(tmp_path).read_text())
    cells = {tuple(re.findall(r"<td[^>]*>(.*?)</td>", row)) for row in rows} - {()}
    counts = {(row[0], row[1]): (row[4], row[7]) for row in cells}
    assert counts["full", "none"] == ("1", "")
    assert counts["topk:4", "none"][0] == "5"
    assert counts["topk:4", "dual"] == ("2", "")  # nothing in common, so no p


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("run.json", b"{}"), ("run.json", b"[]"), ("run.json", b"\xff"), ("table1.json", b"\xff"),
        ("table1.json", b'{"rows": [{"count": 1}]}'), ("table1.json", b"[]"),
        ("sweep.json", b"{}"),
        ("x.jsonl", json.dumps(dict.fromkeys(LINE, 0) | {"settings": {"select": "full"}}).encode()),
        ("x.jsonl", json.dumps(dict.fromkeys(LINE, "x") | {"settings": describe(SHORT)}).encode()),
    ],
)  # fmt: skip
def test_a_report_names_what_is_not_ours(llm: LLM, name: str, raw: bytes, tmp_path: Path) -> None:
    claim(tmp_path, about(llm, TASK, PROBLEMS, None, 1))
    list(run(llm, TASK, PROBLEMS[:1], [Sheet(tmp_path, SHORT)], 1))
    (tmp_path / name).write_bytes(raw + b"\n")
    with pytest.raises(InputError, match=f"{name} (is|holds)"):
        report.write(tmp_path)


def test_an_impossible_rule_is_named_before_a_line_is_written(llm: LLM, tmp_path: Path) -> None:
    sheets = [Sheet(tmp_path, replace(SHORT, select=rule, cache="prefix"))
              for rule in ("full", "wino:0.9")]  # fmt: skip
    with pytest.raises(InputError, match="wants cache none"):
        list(run(llm, TASK, PROBLEMS, sheets, 1))
    assert not list(tmp_path.iterdir())


def test_the_usual_shots_may_be_named(llm: LLM) -> None:
    gsm8k = get("gsm8k")
    said = {about(llm, gsm8k, PROBLEMS, shots, 1)["shots"] for shots in (None, 5)}
    assert said == {5}
    assert about(llm, gsm8k, PROBLEMS, 8, 1)["shots"] == 8
    assert {about(llm, TASK, PROBLEMS, shots, 1)["shots"] for shots in (None, 0)} == {None}


def test_a_report_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        report.write(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        report.write(tmp_path / "no")


def test_passes_and_their_commits_add_up(llm: LLM, tmp_path: Path) -> None:
    cells = reproduce.cells("fig-steps", GENERATED)
    rows = [replace(c, max_tokens=16, block_size=8) for c in cells]
    sheets = reproduce.run(llm, rows, None, 3, 3, tmp_path)
    for (rule, told), sheet in zip(
        reproduce.steps(rows, sheets)["steps"].items(), sheets, strict=True
    ):
        assert rule == str(sheet.settings.rule)
        passes = sum(line["nfe"] for line in sheet.lines.values())
        assert sum(told["running"]) == sum(told["counts"].values()) == passes
        committed = sum(sum(line["commits"]) for line in sheet.lines.values())
        means = zip(told["mean"], told["running"], strict=True)
        assert sum(m * n for m, n in means) == pytest.approx(committed, abs=0.01)
        assert sum(int(n) * count for n, count in told["counts"].items()) == committed


def test_unknown_experiments() -> None:
    with pytest.raises(InputError, match="did you mean 'table1'"):
        reproduce.names("table11", "")
    with pytest.raises(InputError, match="asks about pictures, which this model cannot see"):
        reproduce.cells("table-v", GENERATED)
    with pytest.raises(InputError, match="asks in text alone"):
        reproduce.cells("table1", GENERATED, sees=True)


def test_each_experiment_has_its_model() -> None:
    every = reproduce.names("all", "")
    assert set(every.values()) <= set(EMBEDDED)
    assert every["table1"] == "tiny-llada"
    for one, who in reproduce.MODELS.items():
        landed = who in EMBEDDED
        assert every.get(one) == (who if landed else None if one == "table-v" else "tiny-llada")
    assert "table-v" not in reproduce.names("all", "path/to/LLaDA")
    assert list(reproduce.names("all", "tiny-llada-v")) == ["table-v", "fig-margin"]


def test_equal_accuracy_takes_the_cheapest_that_is_not_worse(tmp_path: Path) -> None:
    """By hand: full 9 of 10; bold loses 7 of them, mild 1."""
    cells = [reproduce.Cell("lists", None, s) for s in ("full", "topk:8", "topk:2")]
    sheets = [Sheet(None, cell.settings(())) for cell in cells]
    for sheet, right, nfe in zip(sheets, (9, 2, 8), (40, 5, 20), strict=True):
        sheet.lines = {
            str(i): {"right": i < right, "nfe": nfe, "tokens": 1, "seconds": 1.0} for i in range(10)
        }
    found = reproduce.equal_accuracy(cells, sheets)["equal_accuracy"]["lists"]
    assert list(found) == ["topk", "full"]
    assert found["topk"]["select"] == "topk:2"


def test_on_a_checkpoint_the_cells_are_the_papers() -> None:
    rows = reproduce.cells("table1")
    assert [(c.task, c.shots, c.max_tokens) for c in rows[:3]] == [("gsm8k", 5, 256)] * 3
    assert len(rows) == 24
    own = reproduce.cells("table1", GENERATED)
    assert {c.task for c in own} == {"word-problems", "algebra", "functions", "lists"}
    assert len(own) == len(set(own)) == 24, "each row of the paper has one"
    assert {c.max_tokens for c in own} == {256, 512}
    lists = reproduce.cells("table1", ["lists"])
    assert {c.task for c in lists} == {"lists"}, "only what a model was taught"


def test_areas_and_files_of_a_sweep_by_hand(tmp_path: Path) -> None:
    found = [
        {"rule": "full", "nfe": 10.0, "tokens_per_second": 10.0, "accuracy": 100.0},
        {"rule": "topk", "nfe": 5.0, "tokens_per_second": 40.0, "accuracy": 80.0},
    ]
    assert sweep.areas(found) == {
        "full": {"nfe": 0.0, "seconds": 0.0},
        "topk": {"nfe": pytest.approx(0.4), "seconds": pytest.approx(0.6)},
    }
    table, told = sweep.write(found, "title", tmp_path)
    assert table.read_text().splitlines()[2] == "topk,5.0,40.0,80.0"
    assert json.loads(told.read_text())["points"] == found
