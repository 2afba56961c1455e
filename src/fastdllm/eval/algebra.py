r"""Algebra, MATH's little sibling: linear equations, fractions, expanding and collecting.

Solve for x: 3x + 5 = 26.

First subtract 5 from both sides. This gives 3x = 26 - 5 = 21. Then divide both sides by 3.
This gives x = 21 / 3 = 7. The answer is $\boxed{7}$.

Every sum has a number of one digit in it. The wording is drawn, and so is every order that is free:
of two terms, of a product's factors, of what is collected first.
"""

import random
import re
from math import gcd

from fastdllm.eval.scoring import math_equal
from fastdllm.eval.task import Generated, Problem, say

LETTERS = ("x", "y", "z", "n", "t", "k")


def one_side(rng: random.Random) -> tuple[str, str, str]:
    """ax + b = c."""
    a, x = _factors(rng)
    b, plus = rng.randint(1, 9), rng.random() < 0.5
    c = a * x + b if plus else a * x - b
    if not 10 <= c <= 99:
        return one_side(rng)
    sign, verb = ("+", "subtract {} from") if plus else ("-", "add {} to")
    done = f"{c} - {b}" if plus else _either(rng, " + ", c, b)
    solved = (
        f"{_first(rng)} {verb.format(b)} {_sides(rng)}. {_gives(rng)} {a}x = {done} = {a * x}. "
        f"{_divide(rng, a, x)}"
    )
    return f"Solve for x: {a}x {sign} {b} = {c}.", solved, str(x)


def two_sides(rng: random.Random) -> tuple[str, str, str]:
    """ax + b = cx + d."""
    a, x = _factors(rng)  # what is left of x after collecting
    c, b = rng.randint(2, 9), rng.randint(1, 9)
    d = a * x + b
    if a + c > 9 or d > 99:
        return two_sides(rng)
    solved = (
        f"{_first(rng)} subtract {c}x from {_sides(rng)}. {_gives(rng)} {a}x + {b} = {d}. "
        f"{_then(rng)} subtract {b} from {_sides(rng)}. {_gives(rng)} {a}x = {d} - {b} = {a * x}. "
        f"{_divide(rng, a, x)}"
    )
    return f"Solve for x: {a + c}x + {b} = {c}x + {d}.", solved, str(x)


def fractions(rng: random.Random) -> tuple[str, str, str]:
    """a/b + c/d with b and d coprime, so that the sum is in lowest terms by itself."""
    b, d = rng.randint(2, 9), rng.randint(2, 9)
    a, c = rng.randint(1, b - 1), rng.randint(1, d - 1)
    plus = rng.random() < 0.5
    top = a * d + c * b if plus else a * d - c * b
    if gcd(b, d) > 1 or gcd(a, b) > 1 or gcd(c, d) > 1 or b * d < 10 or top < 1 or c * b > 9:
        return fractions(rng)
    sign = "+" if plus else "-"
    done = _either(rng, " + ", a * d, c * b) if plus else f"{a * d} - {c * b}"
    solved = (
        f"The common denominator {_is(rng)} {_either(rng, ' * ', b, d)} = {b * d}. "
        f"The first numerator {_is(rng)} {a} * {d} = {a * d}. "
        f"The second numerator {_is(rng)} {c} * {b} = {c * b}. "
        f"{say(rng, 'Together they are', 'So this makes')} {done} = {top}."
    )
    asked = f"Compute \\frac{{{a}}}{{{b}}} {sign} \\frac{{{c}}}{{{d}}}."
    return asked, solved, f"\\frac{{{top}}}{{{b * d}}}"


def expand(rng: random.Random) -> tuple[str, str, str]:
    """a(x + b) + c(x + d)."""
    a, b = _factors(rng)
    c, d = rng.randint(2, 4), rng.randint(2, 4)
    if a + c > 9 or c * d > 9:
        return expand(rng)
    terms = f"{_either(rng, ' + ', f'{a}x', f'{c}x')} = {a + c}x"
    numbers = f"{_either(rng, ' + ', a * b, c * d)} = {a * b + c * d}"
    solved = (
        f"{say(rng, 'Expand the first part:', 'The first part is')} {a}(x + {b}) = {a}x + {a * b}. "
        f"{say(rng, 'Expand the second part:', 'The second part is')} {c}(x + {d}) = "
        f"{c}x + {c * d}. {say(rng, 'Collect the terms:', 'Then together:', 'Together')} "
        f"{_either(rng, ' and ', terms, numbers)}."
    )
    return (
        f"Expand and collect: {a}(x + {b}) + {c}(x + {d}).",
        solved,
        f"{a + c}x + {a * b + c * d}",
    )


def _either(rng: random.Random, between: str, *parts: object) -> str:
    """Two parts, in one order or the other."""
    return between.join(map(str, rng.sample(parts, 2)))


def _first(rng: random.Random) -> str:
    return say(rng, "First", "First we", "We first")


def _then(rng: random.Random) -> str:
    return say(rng, "Then", "Now", "Then we")


def _sides(rng: random.Random) -> str:
    return say(rng, "both sides", "the two sides", "each side")


def _gives(rng: random.Random) -> str:
    return say(rng, "This gives", "So", "That makes")


def _is(rng: random.Random) -> str:
    return say(rng, "is", "is now", "becomes")


def _factors(rng: random.Random) -> tuple[int, int]:
    """Two digits whose product has two."""
    while True:
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        if a * b >= 10:
            return a, b


def _divide(rng: random.Random, a: int, x: int) -> str:
    return f"{_then(rng)} divide {_sides(rng)} by {a}. {_gives(rng)} x = {a * x} / {a} = {x}."


def make(rng: random.Random) -> Problem:
    """One problem, of one of the four kinds, in one of six letters."""
    kind = rng.choices((one_side, two_sides, fractions, expand), (2, 3, 2, 3))[0]
    prompt, solved, result = kind(rng)
    ends = say(rng, "The answer is", "So the answer is", "The result is")
    answer = f"{solved} {ends} $\\boxed{{{result}}}$."
    if kind is not fractions:
        letter = rng.choice(LETTERS)
        prompt, answer, result = (_in_letter(s, letter) for s in (prompt, answer, result))
    return Problem(prompt, answer, {"result": result, "kind": kind.__name__})


def _in_letter(text: str, letter: str) -> str:
    """The same with another unknown.

    >>> _in_letter("Expand 3(x + 4) = 3x + 12", "y")
    'Expand 3(y + 4) = 3y + 12'
    """
    return re.sub(r"(?<![a-zA-Z])x(?![a-zA-Z])", letter, text)


def score(problem: Problem, text: str) -> bool:
    """Whether what stands in the last box equals the result, by MATH's scorer."""
    return math_equal(problem.check["result"], text)


TASK = Generated("algebra", 3, score, packages=("math_verify",), make=make)
