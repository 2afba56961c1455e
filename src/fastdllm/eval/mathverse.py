"""MathVerse: geometry and functions in pictures, as much of the problem in the picture as possible.

    {"sample_index": "1", "problem_version": "Vision Only", "question": "...", "image": "...png",
     "answer": "D", "question_type": "multi-choice", "query_cot": "Please first conduct ...",
     "metadata": {"subject": "Plane Geometry", "subfield": "Angle"}}

The paper's figure is of `--kind vision-intensive,vision-dominant,vision-only`. The original score
is a judge model's; ours by rules is reported under its own name; a judge is asked in our words.
"""

import re
from collections.abc import Sequence

from fastdllm.eval.benchmark import Benchmark, Raw, no_examples
from fastdllm.eval.choices import ending, letter_of
from fastdllm.eval.scoring import math_equal
from fastdllm.eval.task import Ask, Problem

LAST_WORDS = 30


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """Question by question."""
    return [
        Problem(
            row["query_cot"].strip(), str(row["answer"]),
            {
                "kind": row["problem_version"].lower().replace(" ", "-"),
                "type": row["question_type"],
                "choices": dict(re.findall(r"^([A-Z]):(.*)$", row["question"], re.MULTILINE)),
                "groups": {
                    "version": row["problem_version"], "subject": row["metadata"]["subject"],
                    "subfield": row["metadata"]["subfield"],
                },
            },
            images=(row["image"],) if row["image"] else (), key=str(row["sample_index"]),
        )
        for row in rows
    ]  # fmt: skip


def last_words(text: str) -> str:
    """What the original keeps of an answer: the end of it, cut at single spaces."""
    return " ".join(text.strip().split(" ")[-LAST_WORDS:])


def score(problem: Problem, text: str) -> bool:
    """By rules: the letter chosen, or the same mathematics; an empty answer is never right."""
    end, marked = ending(last_words(text))
    if problem.check["type"] == "multi-choice":
        named = {v.strip().upper(): k for k, v in problem.check["choices"].items()}
        found = letter_of(end, marked) or named.get(end.upper(), end.upper())
        return bool(found) and found == problem.answer.strip("() \n").upper()
    end = re.sub(r"(?<=\d)\s*degrees?$", "°", end)
    return bool(end) and math_equal(problem.answer, end)


ASK = """Here are a question, its right answer, and the end of a model's answer to it. Do the two \
answers say the same? Write 1 if they do, 0 if they do not or the model gives none; nothing else.

"""


VERDICT = r"(?i)\A[\s*\"'.:]*(?:judge?ment|verdict)?[\s*\"'.:]*([01])[\s*\"'.]*\Z"


def judge(problem: Problem, text: str, ask: Ask) -> bool | None:
    """Whether a judge, asked in our words, finds the end of the answer to say the same."""
    said = last_words(text)
    if not said:
        return False
    reply = ask(
        f"{ASK}Question: {problem.prompt}\nRight answer: {problem.answer}\nModel: {said}\nVerdict:",
        VERDICT,
    )
    found = re.search(VERDICT, reply or "")
    return found.group(1) == "1" if found else None


TASK = Benchmark(
    "mathverse", 1, score, metric="accuracy by rules", judge=judge, shots=0,
    files=("testmini.json", "testmini_text_only.json"),
    hub=("AI4Math/MathVerse", "testmini", "testmini"),
    columns=("sample_index", "problem_version", "question", "image", "answer", "question_type",
             "query_cot", "metadata"),
    convert=convert, examples=no_examples,
)  # fmt: skip
