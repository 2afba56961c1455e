"""Shapes, for models that see: coloured shapes to read, count, compare and add, and bar charts.

[a picture of 32 x 32 pixels]  How many squares are there?

none square none none / none none none none / none none none none / none square none none: 2
#### 2

[a chart]  How much taller is the red bar than the blue bar?

The red bar is 7 high. The blue bar is 4 high. 7 - 4 = 3.
#### 3
"""

import random
from typing import TYPE_CHECKING

from fastdllm.errors import InputError
from fastdllm.eval.task import Generated, Problem

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

SIDE, CELLS = 32, 4
COLOURS = {
    "red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 220), "yellow": (235, 200, 40),
}  # fmt: skip
FORMS = ("square", "circle", "triangle")
Thing = tuple[str, str]
"""A colour and a form."""


def _page() -> "tuple[Image, ImageDraw]":
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        raise InputError("pictures want Pillow; try: pip install 'fastdllm[vision]'") from None
    page = Image.new("RGB", (SIDE, SIDE), "white")
    return page, ImageDraw.Draw(page)


def draw_shapes(things: list[Thing | None]) -> "Image":
    """A grid of cells, each with a shape or empty, on white."""
    page, pen = _page()
    size = SIDE // CELLS
    for i, thing in enumerate(things):
        if thing is None:
            continue
        colour, form = thing
        x, y = i % CELLS * size + 1, i // CELLS * size + 1
        box = (x, y, x + size - 3, y + size - 3)
        if form == "square":
            pen.rectangle(box, fill=COLOURS[colour])
        elif form == "circle":
            pen.ellipse(box, fill=COLOURS[colour])
        else:
            top = (x + (size - 3) / 2, y)
            pen.polygon([top, (box[2], box[3]), (x, box[3])], fill=COLOURS[colour])
    return page


def draw_bars(heights: dict[str, int]) -> "Image":
    """A bar for each colour, from 1 to 9 high, over a line for every unit."""
    page, pen = _page()
    width, unit = SIDE // len(COLOURS), (SIDE - 2) // 9
    for n in range(10):
        y = SIDE - 1 - n * unit
        pen.line((0, y, SIDE, y), fill=(215, 215, 215))
    for i, (colour, height) in enumerate(heights.items()):
        box = (i * width + 1, SIDE - 1 - height * unit, (i + 1) * width - 2, SIDE - 1)
        pen.rectangle(box, fill=COLOURS[colour])
    return page


def make(rng: random.Random) -> Problem:
    """One of the five kinds."""
    kind = rng.choice(("count", "compare", "add", "chart", "read"))
    if kind == "chart":
        return _chart(rng)
    things: list[Thing | None] = [None] * CELLS**2
    few = rng.sample(tuple(COLOURS), 2 if rng.random() < 0.5 else 3)
    for i in rng.sample(range(CELLS**2), rng.randint(3, 8)):
        things[i] = (rng.choice(few), rng.choice(FORMS))
    part = rng.randrange(2)
    names = (tuple(COLOURS), FORMS)[part]
    cells = ["none" if thing is None else thing[part] for thing in things]
    if kind == "read":
        asked = f"Which {('colours', 'forms')[part]} are there, row by row?"
        return _problem(kind, asked, _read(cells), str(len(cells) - cells.count("none")), things)
    one, other = rng.sample(names, 2)
    words = [f"{name} shapes" if part == 0 else f"{name}s" for name in (one, other)]
    a, b = cells.count(one), cells.count(other)
    if kind == "count":
        return _problem(kind, f"How many {words[0]} are there?", _found(cells, one), str(a), things)
    said = f"{_found(cells, one)}\n{_found(cells, other)}"
    if kind == "add":
        asked = f"How many {words[0]} and {words[1]} are there together?"
        return _problem(kind, asked, f"{said}\n{a} + {b} = {a + b}.", str(a + b), things)
    asked = f"Are there more {words[0]} or more {words[1]}?"
    return _problem(kind, asked, said, "equal" if a == b else one if a > b else other, things)


def _read(cells: list[str]) -> str:
    """Row by row."""
    return " / ".join(" ".join(cells[i : i + CELLS]) for i in range(0, CELLS**2, CELLS))


def _found(cells: list[str], name: str) -> str:
    """Where one is, and how many: what is counted is written down first, at a known length."""
    return f"{_read([name if cell == name else 'none' for cell in cells])}: {cells.count(name)}"


def _chart(rng: random.Random) -> Problem:
    heights = {colour: rng.randint(1, 9) for colour in COLOURS}
    one, other = rng.sample(tuple(COLOURS), 2)
    one, other = (one, other) if heights[one] >= heights[other] else (other, one)
    a, b = heights[one], heights[other]
    said = f"The {one} bar is {a} high."
    if rng.random() < 0.4:
        asked, result = f"How high is the {one} bar?", a
    else:
        asked, result = f"How much taller is the {one} bar than the {other} bar?", a - b
        said += f" The {other} bar is {b} high. {a} - {b} = {a - b}."
    return _problem("chart", asked, said, str(result), heights)


def _problem(
    kind: str, asked: str, said: str, result: str, shown: "list[Thing | None] | dict[str, int]"
) -> Problem:
    picture = draw_bars(shown) if isinstance(shown, dict) else draw_shapes(shown)
    return Problem(
        asked, f"{said}\n#### {result}", {"kind": kind, "result": result}, (picture,), repr(shown)
    )


def score(problem: Problem, text: str) -> bool:
    """Whether what follows the last #### is the result."""
    _, mark, after = text.rpartition("####")
    return bool(mark) and after.strip() == problem.check["result"]


TASK = Generated("shapes", 7, score, make=make)
