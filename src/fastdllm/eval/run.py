"""Held-out problems through the engine, and the accuracy with its interval."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastdllm.eval.task import Problem, Task
from fastdllm.generation import Completion, Generation
from fastdllm.llm import LLM, Prompt


@dataclass(frozen=True)
class Result:
    """One problem, what came out, and whether it is right."""

    problem: Problem
    completion: Completion
    right: bool


def ask(llm: LLM, problem: Problem) -> Prompt:
    """The problem as the model wants to be asked: a chat turn if it chats."""
    if llm.tokenizer is not None and llm.tokenizer.template:
        return [{"role": "user", "content": problem.prompt}]
    return problem.prompt


def answers(
    llm: LLM, task: Task, problems: Sequence[Problem], settings: Generation, batch: int = 32
) -> Iterator[Result]:
    """Each problem's result, a batch at a time."""
    for start in range(0, len(problems), batch):
        part = problems[start : start + batch]
        completions = llm.generate([ask(llm, p) for p in part], settings)
        for problem, done in zip(part, completions, strict=True):
            yield Result(problem, done, task.score(problem, done.text))


@dataclass(frozen=True)
class Summary:
    """A fold over results."""

    count: int
    right: int
    nfe: int
    tokens: int

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Summary":
        """Add them up."""
        usages = [r.completion.usage for r in results]
        return cls(
            len(results),
            sum(r.right for r in results),
            sum(u.nfe for u in usages),
            sum(u.tokens for u in usages),
        )

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy lies with 95 % confidence."""
        return wilson(self.right, self.count)

    @property
    def tokens_per_nfe(self) -> float:
        """Tokens up to the end of text over forward passes."""
        return self.tokens / self.nfe


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a share.

    >>> [round(x, 3) for x in wilson(90, 100)]
    [0.826, 0.945]
    """
    share, n = right / count, count
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return middle - half, middle + half
