"""Batches that depend on nothing but the seed and the step, so that a run resumes by counting.

Whichever process asks, a step's examples are the same; with several, each takes its share.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fastdllm.errors import InputError
from fastdllm.eval.task import Problem, generated
from fastdllm.tokenizer import Tokenizer
from fastdllm.vision.eyes import EyesConfig
from fastdllm.vision.prompt import converse, encode
from fastdllm.vision.tiles import Pixels, Size, count_tokens, cut

Draw = Callable[[random.Random], Problem]
"""Where problems come from."""


@dataclass(frozen=True)
class Example:
    """A canvas: ids, how many of them are prompt, and where masks may stand if not after it."""

    ids: tuple[int, ...]
    prompt: int
    only: frozenset[int] = frozenset()
    picture: "tuple[Pixels, Size] | None" = None
    """The tiles of what stands in the prompt, and the size it had."""
    at: tuple[int, ...] = ()
    """Where it stands."""

    def __len__(self) -> int:
        return len(self.ids)


def read_jsonl(path: Path) -> list[Problem]:
    """Problems from lines with `prompt` and `answer`; a bad line is named."""
    found = []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; wanted lines of JSON") from None
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from None
        try:
            row = json.loads(line)
            line.encode() + json.dumps(row, ensure_ascii=False).encode()  # no half characters
        except (ValueError, RecursionError) as error:
            reason = str(error).split(":")[0]
            raise InputError(f"{path}, line {number}: not JSON ({reason})") from None
        for key in ("prompt", "answer"):
            if not isinstance(row, dict) or not isinstance(row.get(key), str):
                raise InputError(
                    f'{path}, line {number}: no text under "{key}"; wanted {{"prompt": "...", '
                    '"answer": "..."}'
                )
        found.append(Problem(row["prompt"], row["answer"]))
    if not found:
        raise InputError(f"{path} holds no line; wanted JSON with prompt and answer")
    return found


def source(tasks: Mapping[str, float], data: Path | None) -> Draw:
    """A draw from the tasks, each as often as its weight says, or from a file."""
    if data is not None:
        problems = read_jsonl(data)
        return lambda rng: rng.choice(problems)
    if not tasks:
        raise InputError("there is nothing to train on; name tasks, or a file with --data")
    known = [generated(name) for name in tasks]

    def draw(rng: random.Random) -> Problem:
        task = rng.choices(known, list(tasks.values()))[0]
        while (problem := task.make(rng)).is_held_out:
            pass
        return problem

    return draw


class Data:
    """Canvases from a source.

    `too_long` counts answers that did not fit the canvas, which are left out; in pre-training
    texts longer than it, of which a part is learnt.
    The counts cover the first `counted` steps: one that is made again does not count twice.
    """

    def __init__(
        self,
        draw: Draw,
        tokenizer: Tokenizer,
        *,
        end_id: int,
        batch: int,
        canvas: int,
        context: int,
        seed: int,
        pretrain: bool = False,
        eyes: EyesConfig | None = None,
        tails: float = 1.0,
    ) -> None:
        self.tails = tails
        self.draw, self.tokenizer, self.end_id = draw, tokenizer, end_id
        self.batch, self.seed, self.pretrain = batch, seed, pretrain
        self.canvas, self.context, self.eyes = canvas, context, eyes
        self.seen = self.too_long = self.counted = 0

    def at(
        self, step: int, drills: float = 0.0, longest: int = 0, draw: Draw | None = None,
        canvas: int = 0,
    ) -> list[Example]:  # fmt: skip
        """The examples of a step; a share of them drills, the others at most so long.

        `draw` and `canvas` are another source and another canvas for this step.
        """
        rng = random.Random(f"{self.seed}/step/{step}")
        counts = self.seen, self.too_long
        found = [
            self._drill(rng)
            if rng.random() < drills
            else self._example(rng, longest, draw or self.draw, canvas or self.canvas)
            for _ in range(self.batch)
        ]
        if step < self.counted:
            self.seen, self.too_long = counts
        self.counted = max(self.counted, step + 1)
        return found

    def _example(self, rng: random.Random, longest: int, draw: Draw, canvas: int) -> Example:
        for _ in range(1000):
            problem = draw(rng)
            prompt, picture, at = self._prompt(problem)
            if self.pretrain and not longest:
                self.seen += 1
                return self._text(rng, prompt + self.tokenizer.encode(problem.answer), canvas)
            answer = self.tokenizer.encode(problem.answer)
            if longest and len(prompt) + len(answer) >= longest:
                continue
            self.seen += 1
            if len(answer) < canvas and len(prompt) + canvas <= self.context:
                tail = 1 if longest else self._tail(rng, canvas - len(answer))
                ids = prompt + answer + [self.end_id] * tail
                start = 0 if self.pretrain else len(prompt)
                return Example(tuple(ids), start, picture=picture, at=tuple(at))
            self.too_long += 1
        wanted = f"has at most {longest} tokens" if longest else f"fits a canvas of {canvas}"
        more = "a recipe whose phases have a larger 'longest'"
        raise InputError(
            f"of 1000 answers none {wanted} in a context of {self.context} tokens; try "
            f"{more if longest else '--set canvas and --set context with more'}"
        )

    def _text(self, rng: random.Random, ids: list[int], canvas: int) -> Example:
        """A text to learn whole; of one longer than the canvas, a part."""
        self.too_long += len(ids) > canvas
        if len(ids) < canvas:
            ids = ids + [self.end_id] * self._tail(rng, canvas - len(ids))
        start = rng.randint(0, len(ids) - min(len(ids), canvas))
        return Example(tuple(ids[start : start + canvas]), 0)

    def fits(self, problem: Problem, size: int) -> bool:
        """Whether the context holds its prompt and so many tokens more."""
        return len(self._prompt(problem)[0]) + size <= self.context

    def _prompt(
        self, problem: Problem
    ) -> tuple[list[int], "tuple[Pixels, Size] | None", list[int]]:
        """Ids; of a problem with a picture, that and where it stands too."""
        if not problem.images:
            return self.tokenizer.encode(self._wrap(problem.prompt)), None, []
        if self.eyes is None:
            raise InputError("a task with pictures wants a model that sees; try family=llava_llada")
        c, image = self.eyes, problem.images[0]
        text = self.tokenizer.chat(converse(problem.prompt, 1, None))
        size = count_tokens(image.size, c.canvases, c.side, c.cells, c.most)
        ids, at = encode(self.tokenizer, text, [size], drop_newline=True)
        return ids, (cut(image, c.canvases, c.side), image.size), at

    def _wrap(self, prompt: str) -> str:
        if self.pretrain:
            return f"{prompt}\n"
        if self.tokenizer.template:
            return self.tokenizer.chat([{"role": "user", "content": prompt}])
        return prompt

    def _tail(self, rng: random.Random, room: int) -> int:
        """How many ends of text follow: up to the canvas, or to a place in it, or one."""
        luck = rng.random()
        if luck < self.tails:
            return room
        return round(room ** rng.random()) if luck < 6 * self.tails else 1

    def _drill(self, rng: random.Random) -> Example:
        """Sums packed one after the other; only their results may be masked."""
        ids: list[int] = []
        only: list[int] = []
        for _ in range(12):
            asked, result = sum_drill(rng)
            ids += self.tokenizer.encode(asked)
            digits = self.tokenizer.encode(result)
            only += range(len(ids), len(ids) + len(digits))
            ids += digits + self.tokenizer.encode(". ")
        return Example(tuple(ids), 0, frozenset(only))


def stack(
    examples: Sequence[Example], end_id: int
) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"]]:
    """Rows of one length, the short ones with more ends of text; and where masks may stand."""
    length = max(map(len, examples))
    ids = torch.full((len(examples), length), end_id)
    maskable = torch.zeros(ids.shape, dtype=torch.bool)
    for i, example in enumerate(examples):
        ids[i, : len(example)] = torch.tensor(example.ids)
        if example.only:
            maskable[i, list(example.only)] = True
        else:
            maskable[i, example.prompt :] = True
    return ids, maskable


def sum_drill(rng: random.Random) -> tuple[str, str]:
    """A sum of the kind the tasks are made of, and its result.

    >>> sum_drill(random.Random(1))
    ('6 + 18 = ', '24')
    """
    while True:
        sign = rng.choices("+-*/", (4, 4, 2, 1))[0]
        a, b = rng.randint(10, 99), rng.randint(2, 9)
        if sign == "*":
            a = rng.randint(2, 9) if rng.random() < 0.8 else rng.randint(10, 49)
            b = rng.randint(2, 9) if a < 10 else 2
        if sign == "/":
            b = rng.randint(2, 9)
            a = b * rng.randint(2, 9) if rng.random() < 0.7 else 2 * rng.randint(10, 49)
            b = b if a < 90 and a % b == 0 else 2
        if sign == "/" and a % b:
            continue
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        if (1 if sign in "/*" else 10) <= result <= 99:
            if sign in "+*" and rng.random() < 0.5:
                a, b = b, a
            return f"{a} {sign} {b} = ", str(result)


def texts(draw: Draw, count: int, seed: int) -> Iterator[str]:
    """Texts to learn a vocabulary from."""
    rng = random.Random(f"{seed}/texts")
    for _ in range(count):
        problem = draw(rng)
        yield problem.prompt
        yield problem.answer
