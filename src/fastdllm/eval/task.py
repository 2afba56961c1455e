"""What a task is: problems from a seed, a held-out share that no training sees, a verifier.

task = get("word-problems")
task.held_out(3)             the first three of 1,000 fixed problems
task.stream(seed=0)          training problems, without end
task.score(problem, text)    is this answer right?
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from fastdllm.errors import InputError, did_you_mean

HELD_OUT = 1000
SHARES = 8  # one prompt in eight, by its hash, is never trained on


@dataclass(frozen=True)
class Problem:
    """A question, a model answer, and what the verifier must know."""

    prompt: str
    answer: str
    check: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """A name for the prompt that is the same on every machine."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()

    @property
    def is_held_out(self) -> bool:
        """Whether the prompt lies in the share that is kept for evaluation."""
        return int(self.fingerprint[:8], 16) % SHARES == 0


@dataclass(frozen=True)
class Task:
    """A generated task. `version` changes whenever a problem or a score would."""

    name: str
    version: int
    make: Callable[[random.Random], Problem]
    score: Callable[[Problem, str], bool]

    def stream(self, seed: int) -> Iterator[Problem]:
        """Training problems, without end; none of them is held out."""
        rng = random.Random(f"{self.name}/{self.version}/train/{seed}")
        while True:
            problem = self.make(rng)
            if not problem.is_held_out:
                yield problem

    def held_out(self, count: int = HELD_OUT) -> list[Problem]:
        """The first of the 1,000 fixed problems, all different."""
        if not 1 <= count <= HELD_OUT:
            raise InputError(f"{count} problems were asked for; {self.name} has 1 to {HELD_OUT}")
        return list(_held_out(self))[:count]

    def of_kind(self, problems: Sequence[Problem], kinds: str) -> list[Problem]:
        """Only those of some kinds, named with commas between; all without any."""
        wanted = [k for k in kinds.split(",") if k]
        known = sorted({str(p.check["kind"]) for p in problems if "kind" in p.check})
        for kind in wanted:
            if kind not in known:
                hint = did_you_mean(kind, known) if known else f"{self.name} has none"
                raise InputError(f"unknown kind '{kind}'; {hint}")
        return [p for p in problems if not wanted or p.check["kind"] in wanted]


@cache
def _held_out(task: Task) -> tuple[Problem, ...]:
    rng = random.Random(f"{task.name}/{task.version}/held-out")
    found: dict[str, Problem] = {}
    while len(found) < HELD_OUT:
        problem = task.make(rng)
        if problem.is_held_out:
            found.setdefault(problem.prompt, problem)
    return tuple(found.values())


TASKS = {
    "word-problems": "word_problems",
    "algebra": "algebra",
    "functions": "functions",
    "lists": "lists",
}


def get(name: str) -> Task:
    """A task by its name.

    >>> get("lists").held_out(1)[0].prompt.split(":")[0]
    'Copy this list'
    """
    if name not in TASKS:
        raise InputError(f"unknown task '{name}'; {did_you_mean(name, TASKS)}")
    task = import_module(f"fastdllm.eval.{TASKS[name]}").TASK
    assert isinstance(task, Task)
    return task
