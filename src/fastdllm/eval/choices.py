"""MathVista's scoring by rules: from what a model wrote to one of the choices, or a number.

`extract`, `normalize` and `same` do what the original code does before and after it asks a judge
model. `answer_of` is ours: it stands in for the judge, so its score has a name of its own.
"""

import re
from collections.abc import Sequence
from typing import Any


def distance(one: str, other: str) -> int:
    """Levenshtein's: how many letters to insert, delete or replace.

    >>> distance("kitten", "sitting")
    3
    """
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def most_similar(text: str, choices: Sequence[str]) -> str:
    """The nearest choice, the first of equals."""
    return min(choices, key=lambda choice: distance(text, choice))


def extract(response: str, kind: str, answer_type: str, choices: Sequence[str]) -> str | None:
    """An answer that stands there by itself; None where the original asks a judge."""
    if response == "":
        return ""
    if kind == "multi_choice" and response in choices:
        return response
    try:
        if answer_type == "integer":
            return str(int(response))
        if answer_type == "float":
            return str(float(response))
    except ValueError:
        return None
    return None


def normalize(
    extraction: Any, kind: str, answer_type: str, choices: Sequence[str], precision: float | None
) -> str | None:
    """An extracted answer as the file writes answers, or None if it is none."""
    if kind == "multi_choice":
        text = str(extraction).strip()
        if letter := re.search(r"\(([a-zA-Z])\)", text):
            text = letter[1].upper()
        letters = [chr(ord("A") + i) for i in range(len(choices))]
        return choices[letters.index(text)] if text in letters else most_similar(text, choices)
    try:
        if answer_type == "integer":
            return str(int(float(extraction)))
        if answer_type == "float":
            return str(round(float(extraction), int(precision)))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return str(extraction)


def same(prediction: Any, answer: Any) -> bool:
    """As strings, without the space around them."""
    return str(prediction).strip() == str(answer).strip()


NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|-?\.\d+")


def ending(text: str) -> str:
    """What follows the last "Answer:", or all there is.

    >>> ending("2 and 3 make 5. The answer is: **five**")
    'five'
    """
    end = re.split(r"answer\s*(?:is)?\s*:|answer is", text, flags=re.IGNORECASE)[-1]
    return end.strip("*$ \n")


def answer_of(text: str, kind: str, answer_type: str, choices: Sequence[str] = ()) -> str:
    """What an answer in prose comes to, by our own rules; empty if it comes to nothing.

    >>> answer_of("2 and 3 make 5. Answer: (B) five", "multi_choice", "text")
    '(B)'
    >>> answer_of("So there are 1,200 of them.", "free_form", "integer")
    '1200'
    """
    end = ending(text)
    if kind == "multi_choice":
        if end in choices:
            return end
        if found := re.search(r"\(([A-Za-z])\)", end):
            return f"({found[1]})"
        lone = re.match(r"([A-Z])(?:[.:)\s]|$)", end)
        return f"({lone[1]})" if lone else end.splitlines()[0].strip(" .") if end else ""
    if answer_type == "list":
        lists = re.findall(r"\[[^\[\]]*\]", end)
        return lists[-1] if lists else ""
    numbers = NUMBER.findall(end)
    return numbers[-1].replace(",", "") if numbers else ""
