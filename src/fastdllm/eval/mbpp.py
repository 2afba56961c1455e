"""MBPP: short functions from a sentence and three tests; the 500 test problems, ids 11 to 510.

    {"task_id": 11, "text": "Write a python function to remove ...", "code": "def remove_Occ ...",
     "test_list": ["assert remove_Occ('hello', 'l') == 'heo'", ...], "test_setup_code": ""}

Behind the three examples with the ids 2, 3 and 4, as lm-evaluation-harness asks it.
"""

from collections.abc import Sequence
from pathlib import Path

from fastdllm.eval.benchmark import Benchmark, Raw
from fastdllm.eval.sandbox import passes
from fastdllm.eval.scoring import extract_code
from fastdllm.eval.task import Problem

TESTED = range(11, 511)
SHOWN = (2, 3, 4)


def ask(row: Raw) -> str:
    """The problem and its tests, ready for the code."""
    tests = "\n".join(row["test_list"])
    return (
        "You are an expert Python programmer, and here is your task: "
        f"{row['text']} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """The test split, task by task."""
    for row in rows:
        tests = row["test_list"]
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise ValueError(f"test_list of {row['task_id']} is no list of texts")
    front = "".join(f"{ask(r)}{r['code']}\n[DONE]\n\n" for r in shown)
    return [
        Problem(
            front + ask(row),
            row["code"],
            {"tests": [row.get("test_setup_code") or "", *row["test_list"]]},
            id=f"mbpp/{row['task_id']}",
        )
        for row in rows
        if row["task_id"] in TESTED
    ]


def examples(task: Benchmark, data: Path | None, count: int) -> list[Raw]:
    """The first of the prompt split: in the whole file, or a split of its own on the hub."""
    rows = task.rows(data) if data is not None else task.read(None, (), "prompt")
    return [row for row in rows if row["task_id"] in SHOWN][:count]


def score(problem: Problem, text: str) -> bool:
    """Whether the function passes the tests."""
    code = extract_code(text.split("[DONE]")[0].replace("[BEGIN]", ""))
    setup, *tests = problem.check["tests"]
    return bool(code.strip()) and passes(code, [setup, *tests])


TASK = Benchmark(
    "mbpp", 2, score, stop=("[DONE]",), chat=False, runs_code=True, shots=3,
    files=("mbpp.jsonl",), hub=("google-research-datasets/mbpp", "full", "test"),
    columns=("task_id", "text", "code", "test_list"), texts=("text", "code"),
    convert=convert, examples=examples,
)  # fmt: skip
