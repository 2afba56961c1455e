"""HumanEval: 164 functions to complete, scored by running their tests.

{"task_id": "HumanEval/0", "prompt": "def has_close_elements(...", "entry_point": "...",
 "canonical_solution": "    for ...", "test": "def check(candidate): ..."}
"""

import re
from collections.abc import Sequence
from textwrap import indent

from fastdllm.eval.benchmark import Benchmark, Raw, no_examples
from fastdllm.eval.sandbox import passes
from fastdllm.eval.scoring import LONGEST, extract_code, python_lines
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
    name, prompt = re.escape(problem.check["entry_point"]), str(problem.check["prompt"])
    code = extract_code(text)
    goes_on = re.match(r"\s*\n?[ \t]+(?!def |class |import |from |@)\S", text)
    if not goes_on and re.search(rf"^[ \t]*def {name}\b", code, re.MULTILINE):
        # The prompt's own imports and helpers stay; a repeated prompt is then defined twice.
        return f"{prompt}    pass\n\n{code}"
    return prompt + body(prompt, code if "```" in text else text)


def body(prompt: str, text: str) -> str:
    r"""The part of a completion that goes on from the prompt, indented if it has lost that.

    >>> body("def f(x):\n", "return x\n\nThis returns x.")
    '    return x\n'
    """
    text = text[:LONGEST].lstrip("\n")
    if not text[:1].isspace():
        whole = text.partition("\n")[2].lstrip("\n")[:1].isspace()  # only the first line lost it
        text = f"    {text}" if whole else indent(text, "    ")
    above, lines = prompt.split("\n")[:-1], text.split("\n")
    count = python_lines([*above, *lines]) - len(above)
    return "\n".join(lines[:count] if count > 0 else lines)


def score(problem: Problem, text: str) -> bool:
    """Whether the function passes the benchmark's tests."""
    tests = [problem.check["test"], f"check({problem.check['entry_point']})"]
    return bool(text.strip()) and passes(program(problem, text), tests)


TASK = Benchmark(
    "humaneval", 3, score, chat=False,
    runs_code=True, shots=0, files=("HumanEval.jsonl.gz", "HumanEval.jsonl", "humaneval.jsonl"),
    hub=("openai/openai_humaneval", None, "test"),
    columns=("prompt", "canonical_solution", "test", "entry_point"),
    texts=("prompt", "canonical_solution", "test", "entry_point"), convert=convert,
    examples=no_examples,
)  # fmt: skip
