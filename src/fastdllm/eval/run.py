"""Held-out problems through the engine: accuracy with its interval, forward passes, speed."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastdllm.eval.task import Problem, Task
from fastdllm.generation import Completion, Generation
from fastdllm.llm import LLM, Prompt


@dataclass(frozen=True)
class Result:
    """One problem under one setting."""

    problem: Problem
    settings: Generation
    completion: Completion
    right: bool
    seconds: float
    """Its share of the time its batch took."""


def ask(llm: LLM, problem: Problem, chat: bool = True) -> Prompt:
    """The problem as the model wants to be asked: a chat turn if it chats and the task does."""
    if chat and llm.tokenizer is not None and llm.tokenizer.template:
        return [{"role": "user", "content": problem.prompt}]
    return problem.prompt


def solve(llm: LLM, task: Task, problems: Sequence[Problem], settings: Generation) -> list[Result]:
    """One batch, decoded together."""
    prompts = [ask(llm, problem, task.chat) for problem in problems]
    start = time.perf_counter()
    completions = llm.generate(prompts, settings)
    seconds = (time.perf_counter() - start) / len(problems)
    return [
        Result(problem, settings, done, task.score(problem, done.text), seconds)
        for problem, done in zip(problems, completions, strict=True)
    ]


def compare(
    llm: LLM, task: Task, problems: Sequence[Problem], settings: Sequence[Generation], batch: int
) -> Iterator[list[Result]]:
    """Every setting on every problem, batch by batch in turn: noise of the machine hits all alike.

    The first batch under the first setting is run twice, so that nobody pays for warming up.
    """
    solve(llm, task, problems[:batch], settings[-1])
    for start in range(0, len(problems), batch):
        for one in settings:
            yield solve(llm, task, problems[start : start + batch], one)


@dataclass(frozen=True)
class Summary:
    """A fold over results."""

    count: int
    right: int
    nfe: int
    tokens: int
    seconds: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Summary":
        """Add them up."""
        usages = [r.completion.usage for r in results]
        return cls(
            len(results),
            sum(r.right for r in results),
            sum(u.nfe for u in usages),
            sum(u.tokens for u in usages),
            sum(r.seconds for r in results),
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
        return self.tokens / self.nfe if self.nfe else 0.0

    @property
    def tokens_per_second(self) -> float:
        """As the caller of a batch sees it."""
        return self.tokens / self.seconds


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a share.

    >>> [round(x, 3) for x in wilson(90, 100)]
    [0.826, 0.945]
    """
    share, n = right / count, count
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return middle - half, middle + half
