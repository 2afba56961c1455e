"""GSM8K: school mathematics in words, 1,319 test problems, scored by the number.

    {"question": "Janet's ducks lay 16 eggs ...", "answer": "Janet sells ... \\n#### 18"}

Asked as lm-evaluation-harness asks it, behind the first rows of the training split.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from fastdllm.eval.benchmark import Benchmark, Raw
from fastdllm.eval.scoring import last_number, same_number
from fastdllm.eval.task import Problem


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """Question by question."""
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
    """Whether the number after ####, or else the last one, is the result."""
    marked = re.search(r"####(.*)", text)
    found = last_number(marked.group(1)) if marked else None
    found = last_number(text) if found is None else found
    return same_number(found, problem.check["result"])


TASK = Benchmark(
    "gsm8k", 1, score, stop=("Question:",), chat=False, shots=5,
    files=("test.jsonl", "gsm8k_test.jsonl", "gsm8k.jsonl"), hub=("openai/gsm8k", "main", "test"),
    columns=("question", "answer"), convert=convert, examples=examples,
)  # fmt: skip
