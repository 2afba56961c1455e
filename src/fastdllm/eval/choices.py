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
MARKER = re.compile(r"answer\s*(?:is\s*:?|:)", re.IGNORECASE)


def ending(text: str) -> tuple[str, bool]:
    r"""What follows the last "Answer:", or all there is; and whether there was such a mark.

    >>> ending(r"2 and 3 make 5. The answer is: **\boxed{five}**.")
    ('five', True)
    """
    *before, end = MARKER.split(text)
    end = re.sub(r"\\(?:boxed|text|mathrm)\{([^{}]*)\}", r"\1", end)
    return end.replace("**", "").strip("*$ \n.:"), bool(before)


def letter_of(end: str, marked: bool) -> str:
    """A choice's letter: in brackets, alone, or at the start of what was marked as the answer.

    >>> letter_of("option B, since", True), letter_of("A circle is shown", False)
    ('B', '')
    """
    if found := re.search(r"\(([A-Za-z])\)", end):
        return found[1].upper()
    named = re.match(r"(?:(?:the )?(?:option|choice|letter) )?([A-Z])(?![\w'])", end)
    alone = named is not None and re.fullmatch(r"[^a-z]*|.*[.:)]\s.*", end, re.DOTALL)
    if named and (marked or alone) and not re.match(r"A [a-z]", end):
        return named[1]
    return ""


def answer_of(text: str, kind: str, answer_type: str, choices: Sequence[str] = ()) -> str:
    """What an answer in prose comes to, by our own rules; empty if it comes to nothing.

    >>> answer_of("2 and 3 make 5. Answer: (B) five", "multi_choice", "text", ["four", "five"])
    'five'
    >>> answer_of("So there are 1,200 of them.", "free_form", "integer")
    '1200'
    """
    end, marked = ending(text)
    if kind == "multi_choice":
        return _chosen(end, marked, choices)
    if answer_type == "list":
        lists = re.findall(r"\[[^\[\]]*\]", text)
        return lists[-1] if lists else ""
    numbers = NUMBER.findall(end)
    return numbers[-1].replace(",", "") if numbers else ""


def _chosen(end: str, marked: bool, choices: Sequence[str]) -> str:
    """One of the choices: written out, by its letter, or nearly written out after a mark."""
    same_case = {choice.strip(" .").lower(): choice for choice in reversed(choices)}
    if end.lower() in same_case:
        return same_case[end.lower()]
    letter = letter_of(end, marked)
    if letter:
        place = ord(letter) - ord("A")
        return choices[place] if place < len(choices) else ""
    first = end.splitlines()[0].strip(" .") if end else ""
    if not marked or not first or not choices:
        return ""
    near = most_similar(first, choices)
    return near if distance(first.lower(), near.lower()) < len(near) / 2 else ""
