"""MathVista: mathematics in pictures, 1,000 problems of testmini, scored by choice or number.

    {"7": {"question": "How many ...?", "image": "images/7.jpg", "choices": null, "unit": null,
           "precision": null, "answer": "3", "question_type": "free_form", "answer_type": "integer",
           "metadata": {"task": "figure question answering", "context": "bar chart", ...}}}

Asked to reason first. The original score lets a judge model read the answer out of the prose. Ours
by rules is reported under its own name; with a judge, that is asked in our words, not the
original's.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastdllm.eval.benchmark import Benchmark, Raw, no_examples
from fastdllm.eval.choices import answer_of, extract, normalize, same
from fastdllm.eval.task import Ask, Problem

HINTS = {
    ("text", None): "select the question from the choices",
    ("integer", None): "answer the question requiring an integer answer and provide the final "
    "value, e.g., 1, 2, 3, at the end",
    ("float", 1): "answer the question requiring a floating-point number with one decimal place "
    "and provide the final value, e.g., 1.2, 1.3, 1.4, at the end",
    ("float", 2): "answer the question requiring a floating-point number with two decimal places "
    "and provide the final value, e.g., 1.23, 1.34, 1.45, at the end",
    ("list", None): "answer the question requiring a Python list as an answer and provide the "
    "final list, e.g., [1, 2, 3], [1.2, 1.3, 1.4], at the end",
}
GROUPS = ("category", "task", "context", "grade", "source")


def query(row: Raw) -> str:
    """The question as the model is asked it."""
    unit = f" (Unit: {row['unit']})" if row["unit"] else ""
    lines = [f"Question: {row['question']}{unit}"]
    if row["choices"]:
        lines += ["Choices:", *(f"({chr(65 + i)}) {c}" for i, c in enumerate(row["choices"]))]
    precision = int(row["precision"]) if row["answer_type"] == "float" else None
    hint = HINTS[row["answer_type"], precision]
    lines += [f"First perform reasoning, then finally {hint} in the following format: Answer: xxx."]
    return "\n".join([*lines, "If it is hard to determine, give the closest answer."])


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """Question by question; the same question may be asked of two pictures."""
    return [
        Problem(
            query(row), str(row["answer"]),
            {
                "kind": row["question_type"], "answer_type": row["answer_type"],
                "choices": row["choices"] or [], "precision": row["precision"],
                "groups": {name: row["metadata"][name] for name in GROUPS},
            },
            images=(row.get("decoded_image") or row["image"],), key=str(row["pid"]),
        )
        for row in rows
    ]  # fmt: skip


def read(problem: Problem, extraction: Any) -> bool:
    """Whether an extracted answer is right; an empty one never is."""
    c = problem.check
    if extraction is None or not str(extraction).strip():
        return False
    if extraction in c["choices"]:
        return same(extraction, problem.answer)
    found = normalize(extraction, c["kind"], c["answer_type"], c["choices"], c["precision"])
    return found is not None and same(found, problem.answer)


def score(problem: Problem, text: str) -> bool:
    """By rules: what stands there by itself, or what our own reading of the prose finds."""
    c = problem.check
    found = extract(text, c["kind"], c["answer_type"], c["choices"])
    if found is None:
        found = answer_of(text, c["kind"], c["answer_type"], c["choices"])
    return read(problem, found)


ASK = """Read a model's answer to a question and write down only what it answers: the letter of a \
choice, a number or a list. Write nothing else. If it answers nothing, write NONE.

Question: How many apples are there? Answer with an integer.
Model: Counting from the left, I see 4 in the first row and 3 in the second, 7 in all.
Answer: 7

Question: Which is larger? Choices: (A) the circle (B) the square
Model: The square has the greater side, so the second choice is right.
Answer: B

"""


def judge(problem: Problem, text: str, ask: Ask) -> bool | None:
    """What stands there by itself, else what a judge reads out of it, asked in our words."""
    c = problem.check
    text = text.strip().removesuffix(".").strip()
    found = extract(text, c["kind"], c["answer_type"], c["choices"])
    if found is not None:
        return read(problem, found)
    reply = ask(f"{ASK}Question: {problem.prompt}\nModel: {text}\nAnswer:", r"\S")
    if reply is None:
        return None
    if re.fullmatch(r"\W*(?:none|n/?a|no answer)\W*", reply, re.IGNORECASE):
        return False
    found = answer_of(f"Answer: {reply}", c["kind"], c["answer_type"], c["choices"])
    return read(problem, found)


TASK = Benchmark(
    "mathvista", 1, score, metric="accuracy by rules", judge=judge, shots=0,
    files=("testmini.json",),
    hub=("AI4Math/MathVista", None, "testmini"),
    columns=("pid", "question", "image", "choices", "unit", "precision", "answer", "question_type",
             "answer_type", "metadata"),
    convert=convert, examples=no_examples,
)  # fmt: skip
