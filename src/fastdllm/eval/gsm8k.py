"""GSM8K: school mathematics in words, 1,319 test problems, scored by the number.

    {"question": "Janet's ducks lay 16 eggs ...", "answer": "Janet sells ... \\n#### 18"}

Asked as lm-evaluation-harness asks it, behind the first rows of the training split.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from fastdllm.eval.benchmark import Benchmark, Raw
from fastdllm.eval.scoring import NUMBER, after_answer, last_boxed, last_number, same_number
from fastdllm.eval.task import Problem


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """Question by question."""
    for number, row in enumerate(rows, 1):
        if not NUMBER.search(row["answer"].split("####")[-1]):
            raise ValueError(f"the answer of row {number} ends with no number; wanted #### 18")
    front = "".join(f"Question: {r['question']}\nAnswer: {r['answer']}\n\n" for r in shown)
    return [
        Problem(
            f"{front}Question: {row['question']}\nAnswer:",
            row["answer"],
            {"result": row["answer"].split("####")[-1].strip()},
        )
        for row in rows
    ]


def examples(task: Benchmark, data: Path | None, count: int) -> list[Raw]:
    """The first rows of the training split, which lies beside the test split."""
    folder = data.parent if data is not None and data.is_file() else data
    return task.read(folder, ("train.jsonl", "gsm8k_train.jsonl"), "train")[:count]


def score(problem: Problem, text: str) -> bool:
    """Whether the number after ####, in a box, after "answer is", or else the last, is right."""
    text = re.sub(r"(?<=\d)(?:\{,\}|\\[,!])(?=\d)", ",", text.replace("\u2212", "-"))
    text = re.sub(r"\\?[$\u20ac\u00a3\u00a5]\s?(?=[-.\d])|\*\*", "", text)  # money, bold
    text = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    return same_number(said(text), problem.check["result"])


FIRST = re.compile(rf"\s*(?:{NUMBER.pattern})[^-+*/=\u00d7\u00f7\d]*(?:,|;|since|because|$)")
"""A number that stands first, and not in a sum."""
SPELT = re.compile(r"\b(?:times|plus|minus|divided by|which is|makes|gives|equals)\b")
QUOTIENT = re.compile(r"\s*(-?\d+)\s*/\s*(\d+)\s*")


def number_in(part: str) -> str | None:
    """The number a phrase says: of a sum its result, else the first.

    >>> [number_in(x) for x in ("9 * 2 = 18", "18 = 9 * 2", "18 for 2 days", "36/2")]
    ['18', '18', '18', '18']
    """
    quotient = QUOTIENT.fullmatch(part)
    if quotient and int(quotient[2]):
        return str(Fraction(int(quotient[1]), int(quotient[2])))
    found: list[str] = NUMBER.findall(part)
    if not found or FIRST.match(part):
        return found[0] if found else None
    sides = [NUMBER.findall(side) for side in part.split("=")]
    if len(sides) > 1:
        lone = [side[0] for side in reversed(sides) if len(side) == 1]
        return next(iter(lone or sides[-1] or found), None)
    return found[-1] if SPELT.search(part) else found[0]


def said(text: str) -> str | None:
    """The number a text answers with.

    >>> said("#### 18 (9 eggs at $2)"), said("#### 9 * 2 = 18"), said("It is 18.")
    ('18', '18', '18')
    """
    lines = [line for line in re.findall(r"####[^\S\n]*(.*)", text) if NUMBER.search(line)]
    starting = [line for line in lines if NUMBER.match(line)]
    for line in starting[:1] or lines[-1:]:
        return number_in(line)
    for part in (last_boxed(text), after_answer(text)):
        if part and NUMBER.search(part):
            return number_in(part)
    return last_number(text)


TASK = Benchmark(
    "gsm8k", 2, score, stop=("Question:",), chat=False, shots=5,
    files=("test.jsonl", "gsm8k_test.jsonl", "gsm8k.jsonl"), hub=("openai/gsm8k", "main", "test"),
    columns=("question", "answer"), texts=("question", "answer"),
    convert=convert, examples=examples,
)  # fmt: skip
