"""MathVista and MathVerse: scoring as recorded, the real files, and a judge behind real HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdllm import InputError
from fastdllm.eval import choices, mathverse, mathvista
from fastdllm.eval.judge import Judge, judged
from fastdllm.eval.task import Problem, chosen, get

RECORDED = json.loads((Path(__file__).parent / "golden" / "llada_v" / "scoring.json").read_text())
DATA = Path(__file__).parents[2] / "shared" / "data"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the benchmarks' files are not here")


@pytest.mark.parametrize("case", RECORDED["extract"])
def test_extraction_is_the_originals(case: dict) -> None:
    if case["quick_extract"]:
        pytest.skip("an option of the original that its task does not use")
    found = choices.extract(
        case["response"], case["question_type"], case["answer_type"], case["choices"]
    )
    assert found == (None if case["result"] == "<<GPT>>" else case["result"])


@pytest.mark.parametrize("case", RECORDED["normalize"])
def test_normalization_is_the_originals(case: dict) -> None:
    found = choices.normalize(
        case["extraction"], case["question_type"], case["answer_type"], case["choices"],
        case["precision"],
    )  # fmt: skip
    assert found == case["result"]


def test_the_small_parts_are_the_originals() -> None:
    for case in RECORDED["safe_equal"]:
        assert choices.same(case["prediction"], case["answer"]) == case["result"]
    for case in RECORDED["most_similar"]:
        found = [choices.distance(case["prediction"], c) for c in case["choices"]]
        assert found == case["distances"]
        assert choices.most_similar(case["prediction"], case["choices"]) == case["result"]
    for case in RECORDED["mathverse_trunk"]:
        assert mathverse.last_words(case["full"]) == case["kept"]


# --- The real files ----------------------------------------------------------------------------


@real
def test_mathvista_is_read_and_gold_answers_are_right(tmp_path: Path) -> None:
    task = get("mathvista")
    problems = task.problems(DATA / "mathvista")
    assert len(problems) == len({p.fingerprint for p in problems}) == 1000
    for p in problems:
        assert task.score(p, f"I think so.\nAnswer: {p.answer}"), p
        assert not task.score(p, "")
        if p.check["answer_type"] == "list":
            assert not task.score(p, f"Answer: {p.answer.replace('2', '3')}")
        elif p.check["kind"] == "free_form":
            assert not task.score(p, f"Answer: {p.answer}9")
        else:
            letter = chr(65 + p.check["choices"].index(p.answer))
            assert task.score(p, f"It is ({letter}) {p.answer}.")
            other = "A" if letter != "A" else "B"
            if p.check["choices"][ord(other) - 65] != p.answer:
                assert not task.score(p, f"Answer: ({other})")
    for text in (
        "A diagram is shown, and I cannot determine the result.",
        "I think it cannot be determined.",
        "None of this helps.",
        "Answer: unknown",
    ):
        assert sum(task.score(p, text) for p in problems) <= 2, text
    with pytest.raises(InputError, match=r"no picture .*--images"):
        chosen("mathvista", DATA / "mathvista", None, 3, "", False)


@real
def test_mathverse_is_read_and_gold_answers_are_right() -> None:
    task = get("mathverse")
    _, every, _ = chosen("mathverse", DATA / "mathverse", None, None, "", False)
    assert len(every) == 788  # the file that is at hand has no pictures
    wrong = [p for p in every if not task.score(p, f"Hence so. The answer is: {p.answer}")]
    assert {p.answer for p in wrong} == {"C\nD", "A\nC"}  # two letters: we look for one
    assert not any(task.score(p, "") for p in every)


@given(st.text(max_size=200))
def test_no_answer_breaks_the_rules(text: str) -> None:
    for kind, answer_type, options in (
        ("multi_choice", "text", ["yes", "no"]), ("free_form", "integer", []),
        ("free_form", "float", []), ("free_form", "list", []),
    ):  # fmt: skip
        problem = Problem(
            "?", "yes",
            {"kind": kind, "answer_type": answer_type, "choices": options, "precision": 1},
        )  # fmt: skip
        mathvista.score(problem, text)
    mathverse.score(Problem("?", "B", {"type": "multi-choice", "choices": {"A": "1"}}), text)


@pytest.mark.parametrize(
    ("kind", "answer", "text", "right"),
    [
        ("multi-choice", "B", "So the answer is: B", True),
        ("multi-choice", "B", "Answer: B: 60°", True),
        ("multi-choice", "B", "Answer: 60°", True),
        ("multi-choice", "B", "Answer: (C)", False),
        ("multi-choice", "B", "", False),
        ("multi-choice", "B", "The answer is **B**.", True),
        ("multi-choice", "B", r"Answer: \boxed{B}", True),
        ("multi-choice", "B", "The correct answer is option B", True),
        ("multi-choice", "B", "Answer: B, since it is", True),
        ("multi-choice", "A", "A circle passes through it", False),
        ("multi-choice", "A", "The answer is a circle", False),
        ("free-form", "12°", "The answer is 12 degrees", True),
        ("free-form", r"\frac{1}{2}", "The answer is 0.5", True),
        ("free-form", "12", "The answer is 13", False),
    ],
)
def test_mathverse_by_rules(kind: str, answer: str, text: str, right: bool) -> None:
    problem = Problem("?", answer, {"type": kind, "choices": {"A": "40°", "B": "60°", "C": "1"}})
    assert mathverse.score(problem, text) is right


# --- The judge ---------------------------------------------------------------------------------


class Server:
    """An OpenAI-compatible address that says what it is told to."""

    def __init__(self) -> None:
        self.script: list[tuple[int, str]] = []  # what to answer before the usual
        self.reply, self.asked, self.keys = "B", 0, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/chat/completions"
                assert body["temperature"] == 0
                outer.asked += 1
                outer.keys.append(self.headers.get("Authorization"))
                code, text = outer.script.pop(0) if outer.script else (200, outer.reply)
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", text + "/chat/completions")
                self.end_headers()
                if code == 200 and text == "<junk>":
                    self.wfile.write(b"<html>")
                elif code == 200:
                    message = {"choices": [{"message": {"role": "assistant", "content": text}}]}
                    self.wfile.write(json.dumps(message).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


def test_a_judge_tries_again_and_remembers(server: Server, tmp_path: Path) -> None:
    server.script = [(500, ""), (429, ""), (200, "<junk>"), (200, "  ")]
    cache = tmp_path / "judge" / "replies.jsonl"
    judge = Judge(server.url, "m", cache, pause=0.001)
    assert judge.ask("one?", r"\S") == "B"
    assert server.asked == 5
    again = Judge(server.url, "m", cache, pause=0.001)
    assert again.ask("one?", r"\S") == "B"
    assert server.asked == 5
    assert Judge(server.url, "other", cache, pause=0.001).ask("one?", r"\S") == "B"
    assert server.asked == 6  # another judge is asked anew


def test_a_judge_that_fails_is_never_right(server: Server, tmp_path: Path) -> None:
    problem = Problem(
        "Which?", "no", {"kind": "multi_choice", "answer_type": "text", "choices": ["yes", "no"],
                         "precision": None},
    )  # fmt: skip
    lines = {problem.fingerprint: {"text": "I would say the second."}}
    judge = Judge(server.url, "m", tmp_path / "replies.jsonl", pause=0.001)
    server.script = [(400, "")]
    found = judged(judge, mathvista.TASK, [problem], lines)
    assert (found.right, found.failed, len(found.verdicts)) == (0, 1, 1)
    assert server.asked == 1  # it will not change its mind
    found = judged(judge, mathvista.TASK, [problem], lines)
    assert (found.right, found.failed) == (1, 0)
    server.reply = "NONE"
    lines = {problem.fingerprint: {"text": "Who knows."}}
    assert judged(judge, mathvista.TASK, [problem], lines).right == 0
    assert judged(judge, mathvista.TASK, [problem], {problem.fingerprint: {"text": ""}}).right == 0


@pytest.mark.parametrize(
    ("reply", "right", "failed"),
    [("1", 1, 0), ("0", 0, 0), ("yes, 1", 0, 1), ("", 0, 1), ("Judgement: 1.", 1, 0), ("-1", 0, 1)],
)
def test_verdicts_of_mathverse(
    server: Server, tmp_path: Path, reply: str, right: int, failed: int
) -> None:
    server.reply = reply
    problem = Problem("?", "B", {"type": "multi-choice", "choices": {}})
    lines = {problem.fingerprint: {"text": "B, I think"}}
    judge = Judge(server.url, "m", tmp_path / "replies.jsonl", pause=0.001)
    found = judged(judge, mathverse.TASK, [problem], lines)
    assert (found.right, found.failed) == (right, failed)


def test_a_reply_of_no_use_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    problem = Problem("?", "B", {"type": "multi-choice", "choices": {}})
    lines = {problem.fingerprint: {"text": "B, I think"}}
    server.reply = "I cannot decide."
    for reply, right in (("I cannot decide.", 0), ("1", 1)):
        server.reply = reply
        judge = Judge(server.url, "m", tmp_path / "replies.jsonl", pause=0.001)
        assert judged(judge, mathverse.TASK, [problem], lines).right == right


@pytest.mark.parametrize("url", ["http://[bad", "ftp://x", "localhost:80", "http://"])
def test_a_bad_address_is_named_at_once(url: str) -> None:
    with pytest.raises(InputError, match="the judge's address is"):
        Judge(url, "m")


def test_the_key_is_sent_and_written_nowhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("FASTDLLM_JUDGE_KEY", "secret-key")
    judge = Judge(server.url, "m", tmp_path / "replies.jsonl", pause=0.001)
    judge.ask("one?", r"\S")
    server.script = [(401, "")]
    assert judge.ask("two?", r"\S") is None
    assert server.keys == ["Bearer secret-key"] * 2
    told = "".join(capfd.readouterr()) + judge.trouble + (tmp_path / "replies.jsonl").read_text()
    assert "secret" not in told


@pytest.mark.parametrize(
    ("reply", "right"),
    [("NONE", 0), ("None.", 0), ("N/A", 0), ("no answer", 0), ("The model gives no answer.", 0),
     ("B", 1), ("B.", 1), ("(B) no", 1), ("no", 1), ("A", 0)],
)  # fmt: skip
def test_what_a_judge_reads_out(server: Server, reply: str, right: int) -> None:
    server.reply = reply
    check = {"kind": "multi_choice", "answer_type": "text", "choices": ["yes", "no"]}
    problem = Problem("Which?", "no", {**check, "precision": None})
    lines = {problem.fingerprint: {"text": "It depends on the light."}}
    assert judged(Judge(server.url, "m"), mathvista.TASK, [problem], lines).right == right


def test_the_key_goes_nowhere_else(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Server()
    monkeypatch.setenv("FASTDLLM_JUDGE_KEY", "secret-key")
    server.script = [(302, other.url)]
    assert Judge(server.url, "m", pause=0.001).ask("?", r"\S") is None
    assert other.asked == 0
    other.http.shutdown()
    other.http.server_close()


def test_nobody_at_the_address() -> None:
    judge = Judge("http://127.0.0.1:9", "m", pause=0.001)
    assert judge.ask("?", r"\S") is None
    assert judge.trouble
    with pytest.raises(InputError, match="wanted http"):
        Judge("ftp://x", "m")
