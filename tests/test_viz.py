"""What people look at: the page of a trace, the canvas in the terminal, the conversation."""

import io
import json
import re

import pytest
import torch
from rich.console import Console
from test_llm import TOKENIZER, scripted

from fastdllm import Generation, InputError
from fastdllm.llm import Run
from fastdllm.tokenizer import Tokenizer
from fastdllm.viz import chat, terminal
from fastdllm.viz.html import trace_page, write_page


@pytest.fixture(scope="module")
def llm():
    return scripted(Tokenizer.load(TOKENIZER), "It is </script> 42.")


SETTINGS = Generation(max_tokens=40, block_size=8, select="frechet:0.25")


def test_the_page_holds_the_trace_and_nothing_from_outside(llm, tmp_path) -> None:
    kept = llm.generate("x", SETTINGS, trace=True).trace
    write_page(kept, tmp_path / "t.html")
    page = (tmp_path / "t.html").read_text()
    assert not re.search(r"""(src|href)\s*=|@import|fetch\(""", page)
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    read = json.loads(data.group(1))
    assert len(read["steps"]) == kept.nfe
    assert read["margin"] == 0.25
    step = read["steps"][0]
    assert len(step["score"]) == len(step["doubts"]) == 8
    known = {
        position: token
        for s in read["steps"]
        for position, token, yes in zip(s["positions"], s["tokens"], s["committed"], strict=True)
        if yes
    }
    text = "".join(read["pieces"][str(known[position])] for position in sorted(known))
    assert text.startswith("It is </script> 42.")
    assert page.count("</script>") == 2  # the data's own is escaped


def test_a_page_for_a_rule_without_a_margin(llm) -> None:
    kept = llm.generate("x", Generation(max_tokens=40, select="threshold:0.9"), trace=True).trace
    assert '"margin": null' in trace_page(kept)


def test_watching_draws_every_step(llm, monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr(terminal, "Console", lambda: console)
    run = Run(llm, llm.row("x", SETTINGS), SETTINGS)
    terminal.watch(llm, run.row, run.steps())
    drawn = out.getvalue()
    assert "42." in drawn
    assert "step 1: committed" in drawn
    assert "·" in drawn
    assert drawn.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_conversation(llm, monkeypatch) -> None:
    lines = iter(["/help", "Hello", "/select threshold:0.9", "/cache dual", "/tokens x", "/foo",
                  "And now?", "/reset", "/quit"])  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=80)
    monkeypatch.setattr(chat, "Console", lambda **_: console)
    monkeypatch.setattr(console, "input", lambda _: next(lines))
    chat.converse(llm, SETTINGS)
    said = out.getvalue()
    assert said.count("It is </script> 42.") == 2
    assert "threshold:0.9, cache dual" in said
    assert "/tokens takes" in said
    assert "unknown command '/foo'" in said


def test_a_conversation_ends_at_the_end_of_input(llm, monkeypatch) -> None:
    def nothing(_):
        raise EOFError

    console = Console(file=io.StringIO())
    monkeypatch.setattr(chat, "Console", lambda **_: console)
    monkeypatch.setattr(console, "input", nothing)
    chat.converse(llm, SETTINGS)
    plain = scripted(Tokenizer(llm.tokenizer.core, llm.tokenizer.settings, None), "x")
    with pytest.raises(InputError, match="no chat template"):
        chat.converse(plain, SETTINGS)


def test_ctrl_c_ends_an_answer_and_not_the_conversation(llm, monkeypatch) -> None:
    def interrupted(ids):
        raise KeyboardInterrupt

    broken = scripted(llm.tokenizer, "x")
    broken.model = interrupted
    out = io.StringIO()
    console = Console(file=out, width=80)
    before = chat.Talk(({"role": "user", "content": "earlier"},))
    assert chat.answer(console, broken, SETTINGS, before, "now") == before
    assert "(interrupted)" in out.getvalue()


def test_a_foreign_model_can_be_watched_without_a_tokenizer() -> None:
    from fastdllm import LLM

    llm = LLM(lambda ids: torch.zeros(*ids.shape, 9), mask_id=8)
    run = Run(llm, llm.row([1, 2], Generation(max_tokens=4)), Generation(max_tokens=4))
    for step in run.steps():
        assert "·" in terminal._canvas(llm, run.row, step).plain or run.row.finish
