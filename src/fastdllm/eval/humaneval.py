"""HumanEval: 164 functions to complete, scored by running their tests.

{"task_id": "HumanEval/0", "prompt": "def has_close_elements(...", "entry_point": "...",
 "canonical_solution": "    for ...", "test": "def check(candidate): ..."}
"""

import re
from collections.abc import Sequence

from fastdllm.eval.benchmark import Benchmark, Raw, no_examples
from fastdllm.eval.sandbox import passes
from fastdllm.eval.scoring import extract_code
from fastdllm.eval.task import Problem


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """The prompt as it stands: the model goes on from it."""
    keys = ("prompt", "test", "entry_point")
    return [
        Problem(
            row["prompt"], row["canonical_solution"], {key: row[key] for key in keys},
            id=str(row.get("task_id", "")),
        )
        for row in rows
    ]  # fmt: skip


def program(problem: Problem, text: str) -> str:
    """What to run: the function if the answer writes it out, else the prompt and what follows."""
    name = re.escape(problem.check["entry_point"])
    code = extract_code(text)
    if re.search(rf"^[ \t]*def {name}\b", code, re.MULTILINE):
        # The prompt's own imports and helpers stay; a repeated prompt is then defined twice.
        return f"{problem.check['prompt']}    pass\n\n{code}"
    return str(problem.check["prompt"]) + body(code if "```" in text else text)


def body(text: str) -> str:
    r"""The part of a completion that is still inside the function.

    >>> body("    return x\n\nprint(f(1))")
    '    return x\n'
    """
    lines = text.split("\n")
    ends = [i for i, line in enumerate(lines) if i and line.strip() and not line[0].isspace()]
    return "\n".join(lines[: ends[0]] if ends else lines)


def score(problem: Problem, text: str) -> bool:
    """Whether the function passes the benchmark's tests."""
    tests = [problem.check["test"], f"check({problem.check['entry_point']})"]
    return bool(text.strip()) and passes(program(problem, text), tests)


TASK = Benchmark(
    "humaneval", 2, score, chat=False,
    runs_code=True, shots=0, files=("HumanEval.jsonl.gz", "HumanEval.jsonl", "humaneval.jsonl"),
    hub=("openai/openai_humaneval", None, "test"),
    columns=("prompt", "canonical_solution", "test", "entry_point"),
    texts=("prompt", "canonical_solution", "test", "entry_point"), convert=convert,
    examples=no_examples,
)  # fmt: skip
