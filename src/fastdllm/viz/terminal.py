"""The canvas filling in, in the terminal."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fastdllm.denoise import Row, Step

if TYPE_CHECKING:
    from fastdllm.llm import LLM

NEW, KNOWN, MASKED = "bold black on green3", "", "grey42"
SURE = ("red3", "orange3", "yellow3", "green3")  # of a proposal not taken, by confidence


def watch(llm: "LLM", row: Row, steps: Iterator[Step], pause: float = 0.0) -> None:
    """Redraw after every step: what was committed, what is still masked and how sure it is."""
    with Live(console=Console(), refresh_per_second=30, transient=False) as live:
        for number, step in enumerate(steps, 1):
            live.update(Group(_canvas(llm, row, step), _caption(number, row, step)), refresh=True)
            time.sleep(pause)
        live.update(_canvas(llm, row, None), refresh=True)


def _canvas(llm: "LLM", row: Row, step: Step | None) -> Text:
    """The generated part, token by token."""
    sure = dict(zip(step.positions, step.doubts, strict=True)) if step else {}
    text = Text()
    for position in range(row.origin, row.end):
        token = int(row.ids[position])
        if row.masked[position]:
            style = MASKED if position not in sure else SURE[_quarter(1 - sure[position])]
            text.append("·", style)
        elif token in llm.end_ids:
            text.append("⏎", "grey35")
        else:
            piece = llm.tokenizer.piece(token) if llm.tokenizer else f" {token}"
            text.append(piece, NEW if step and position in step.commits else KNOWN)
    return text


def _quarter(confidence: float) -> int:
    return min(3, int(4 * confidence))


def _caption(number: int, row: Row, step: Step) -> Text:
    left = int(row.masked.sum())
    window = f"recomputed {step.window.start}..{step.window.stop - 1}"
    return Text(
        f"step {number}: committed {len(step.commits)} of {len(step.positions)}, "
        f"{left} masks left, {window}",
        "dim",
    )
