"""What a task is: problems from a seed, a held-out share that no training sees, a verifier.

task = get("word-problems")
task.held_out(3)             the first three of 1,000 fixed problems
task.stream(seed=0)          training problems, without end
task.score(problem, text)    is this answer right?
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastdllm.errors import InputError, did_you_mean

Ask = Callable[[str, str], str | None]
"""A prompt, and the pattern of a reply that can be used."""
"""A judge model: a prompt to its reply, None if it gave none."""
HELD_OUT = 1000
SHARES = 8  # one prompt in eight, by its hash, is never trained on


@dataclass(frozen=True)
class Problem:
    """A question, a model answer, and what the verifier must know."""

    prompt: str
    answer: str
    check: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Any, ...] = ()
    """Pictures it is about: paths, or PIL images."""
    key: str = ""
    """Where one prompt is asked of several pictures: which problem this is."""
    id: str = ""
    """What people call it: HumanEval/17, lists/3."""

    @property
    def fingerprint(self) -> str:
        """A name for the problem that is the same on every machine."""
        return hashlib.sha256((self.prompt + self.key).encode()).hexdigest()

    @property
    def is_held_out(self) -> bool:
        """Whether it is in the share kept for evaluation: by its picture, if it has one."""
        known = hashlib.sha256(self.key.encode()).hexdigest() if self.key else self.fingerprint
        return int(known[:8], 16) % SHARES == 0


@dataclass(frozen=True)
class Task:
    """A name, a version that changes whenever a problem or a score would, and a verifier."""

    name: str
    version: int
    score: Callable[[Problem, str], bool]
    """Whether a text answers a problem; it must survive any text."""
    stop: tuple[str, ...] = ()
    """Text that ends an answer."""
    chat: bool = True
    """Asked as a chat turn of a model that chats, else as plain text."""
    runs_code: bool = False
    """The score runs what the model wrote."""
    metric: str = "accuracy"
    """What the share of right answers is called."""
    packages: tuple[str, ...] = ()
    """What its score cannot do without."""
    judge: Callable[[Problem, str, Ask], bool | None] | None = None
    """A verdict by asking a judge model; None where it failed."""

    def problems(self, data: Path | None = None, shots: int | None = None) -> list[Problem]:
        """All of them, in their order."""
        raise NotImplementedError

    def check_allowed(self, code: bool) -> None:
        """Complain if a score wants what is missing, or runs what a model wrote unallowed."""
        for package in self.packages:
            if find_spec(package) is None:
                name = package.replace("_", "-")
                raise InputError(f"{self.name} is scored with {name}; try: pip install {name}")
        if self.runs_code and not code:
            raise InputError(
                f"{self.name} is scored by running what the model writes; it runs in a sandbox, "
                "and only with --allow-code-execution"
            )
        if self.runs_code:
            from fastdllm.eval.sandbox import check

            check()

    def some(
        self, problems: Sequence[Problem], limit: int | None, kinds: str, skip: int = 0
    ) -> list[Problem]:
        """The first few after `skip`, or all of those without a limit; of some kinds."""
        if limit is not None and limit < 1:
            raise InputError(f"the limit is {limit}; wanted at least 1, or none for all")
        found = self.of_kind(problems, kinds)
        if found and skip >= len(found):
            raise InputError(f"{skip} are to be skipped; there are {len(found)}, try fewer")
        return found[skip:][:limit]

    def check_kinds(self, wanted: Sequence[str], problems: Sequence[Problem]) -> None:
        """Complain about a kind that none of these problems is of."""
        known = sorted({str(p.check["kind"]) for p in problems if "kind" in p.check})
        for kind in wanted:
            if kind not in known:
                hint = did_you_mean(kind, known) if known else f"{self.name} has none"
                raise InputError(f"unknown kind '{kind}'; {hint}")

    def of_kind(self, problems: Sequence[Problem], kinds: str) -> list[Problem]:
        """Only those of some kinds, named with commas between; all without any."""
        wanted = [k for k in kinds.split(",") if k]
        self.check_kinds(wanted, problems)
        return [p for p in problems if not wanted or p.check["kind"] in wanted]


@dataclass(frozen=True)
class Generated(Task):
    """A task made from a seed, here."""

    make: Callable[[random.Random], Problem] = field(kw_only=True)
    whole: "Generated | None" = None
    """What this is one kind of."""

    def problems(self, data: Path | None = None, shots: int | None = None) -> list[Problem]:
        """The held-out ones."""
        if data is not None or shots:
            raise InputError(f"{self.name} is generated here; it takes no --data and no --shots")
        return self.held_out()

    def stream(self, seed: int) -> Iterator[Problem]:
        """Training problems, without end; none of them is held out."""
        rng = random.Random(f"{self.name}/{self.version}/train/{seed}")
        while True:
            problem = self.make(rng)
            if not problem.is_held_out:
                yield problem

    def held_out(self, count: int | None = None) -> list[Problem]:
        """The first of the 1,000 fixed problems, all different; of a kind, of those of it."""
        if self.whole is None:
            found = list(_held_out(self))
        else:
            kind = self.name.rpartition("/")[2]
            found = self.of_kind(self.whole.held_out(), kind)
        if count is not None and not 1 <= count <= len(found):
            raise InputError(f"{count} problems were asked for; {self.name} has 1 to {len(found)}")
        return found[:count]

    def only(self, kind: str) -> "Generated":
        """A task of one kind of these problems."""
        rng = random.Random(kind)
        self.check_kinds([kind], [self.make(rng) for _ in range(100)])

        def make(rng: random.Random) -> Problem:
            while (problem := self.make(rng)).check["kind"] != kind:
                pass
            return problem

        return replace(self, name=f"{self.name}/{kind}", make=make, whole=self)


@cache
def _held_out(task: Generated) -> tuple[Problem, ...]:
    rng = random.Random(f"{task.name}/{task.version}/held-out")
    found: dict[str, Problem] = {}
    while len(found) < HELD_OUT:
        problem = task.make(rng)
        if problem.is_held_out and problem.fingerprint not in found:
            found[problem.fingerprint] = replace(problem, id=f"{task.name}/{len(found)}")
    return tuple(found.values())


def say(rng: random.Random, *ways: str) -> str:
    """One of several ways to say a thing, each four times as often as the next.

    Free wording is most of what is uncertain in a text, and it is as skewed as this in any.

    >>> rng = random.Random(0)
    >>> [say(rng, "so", "thus", "hence") for _ in range(6)]
    ['thus', 'so', 'so', 'so', 'so', 'so']
    """
    return rng.choices(ways, [4.0**-i for i in range(len(ways))])[0]


GENERATED = {
    "word-problems": "word_problems",
    "algebra": "algebra",
    "functions": "functions",
    "lists": "lists",
    "shapes": "shapes",
}
BENCHMARKS = {
    "gsm8k": "gsm8k", "math": "math500", "humaneval": "humaneval", "mbpp": "mbpp",
    "mathvista": "mathvista", "mathverse": "mathverse",
}  # fmt: skip
TASKS = GENERATED | BENCHMARKS


def get(name: str) -> Task:
    """A task by its name.

    >>> get("gsm8k").stop
    ('Question:',)
    """
    if name not in TASKS:
        raise InputError(f"unknown task '{name}'; {did_you_mean(name, TASKS)}")
    task = import_module(f"fastdllm.eval.{TASKS[name]}").TASK
    assert isinstance(task, Task)
    return task


def chosen(
    name: str,
    data: Path | None,
    shots: int | None,
    limit: int | None,
    kinds: str,
    code: bool,
    images: Path | None = None,
    skip: int = 0,
) -> tuple[Task, list[Problem], list[Problem]]:
    """A task, all of its problems, and those asked for; `code` allows running what was written."""
    task = get(name)
    task.check_allowed(code)
    every = task.problems(data, shots)
    if images is not None and not any(problem.images for problem in every[:1]):
        raise InputError(f"{name} asks about no pictures; leave out --images")
    some = task.some(every, limit, kinds, skip)
    return task, every, [with_pictures(problem, data, images) for problem in some]


def with_pictures(problem: Problem, data: Path | None, images: Path | None) -> Problem:
    """With its pictures' whole paths, by default beside the data; the first missing is named."""
    if not any(isinstance(image, str) for image in problem.images):
        return problem
    folder = images or (data.parent if data is not None and data.is_file() else data)
    paths = tuple((folder or Path()) / image for image in problem.images)
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise InputError(f"there is no picture {missing}; name the folder it is in with --images")
    return replace(problem, images=paths)


@cache
def generated(name: str) -> Generated:
    """One of the tasks made here, by its name; or only one kind of its problems.

    >>> generated("lists").held_out(1)[0].id
    'lists/0'
    >>> generated("lists/sort").held_out(1)[0].prompt.split(":")[0]
    'Sort this list'
    """
    name, slash, kind = name.partition("/")
    if name not in GENERATED:
        raise InputError(f"unknown task '{name}'; {did_you_mean(name, GENERATED)}")
    task = get(name)
    assert isinstance(task, Generated)
    return task.only(kind) if slash else task
