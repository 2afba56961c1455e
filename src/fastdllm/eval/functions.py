r'''Functions, HumanEval's and MBPP's little sibling: a description, an example call, the code.

    Write a Python function total(values) that returns the sum of the squares of the even numbers
    in values. For example, total([3, 4, 6]) returns 52.

    def total(values):
        """Return the sum of the squares of the even numbers."""
        result = 0
        for n in values:
            if n % 2 == 0:
                result += n * n
        return result

What the variables are called is drawn: a name must be the same wherever it stands.
'''

import random

from fastdllm.eval.sandbox import passes
from fastdllm.eval.scoring import extract_code
from fastdllm.eval.task import Generated, Problem

NAMES = ("total", "solve", "compute", "measure", "collect", "select", "combine", "process")
INPUTS = ("values", "numbers", "items", "data")
RESULTS = ("result", "answer")
EACH = ("n", "x")

# What is wanted of the numbers -> (the words, start, the statement for each, the end).
GOALS = {
    "sum": ("the sum of {these}", "0", "{r} += {e}", "{r}"),
    "count": ("the number of {these}", "0", "{r} += 1", "{r}"),
    "list": ("a list of {these}", "[]", "{r}.append({e})", "{r}"),
    "largest": ("the largest of 0 and {these}", "0", "{r} = max({r}, {e})", "{r}"),
    "reversed": ("a reversed list of {these}", "[]", "{r}.append({e})", "{r}[::-1]"),
}
CONDITIONS = (
    ("even numbers", "{x} % 2 == 0"),
    ("odd numbers", "{x} % 2 == 1"),
    ("positive numbers", "{x} > 0"),
    ("negative numbers", "{x} < 0"),
    ("numbers above {k}", "{x} > {k}"),
    ("numbers below {k}", "{x} < {k}"),
    ("multiples of {k}", "{x} % {k} == 0"),
)
CHANGES = (
    ("the {which}", "{x}"),
    ("the squares of the {which}", "{x} * {x}"),
    ("twice the {which}", "2 * {x}"),
    ("{j} times the {which}", "{j} * {x}"),
    ("{j} plus the {which}", "{x} + {j}"),
    ("the {which} minus {j}", "{x} - {j}"),
)


def make(rng: random.Random) -> Problem:
    """One problem; its hidden tests are five calls with the results of the model answer."""
    words, start, each, end = rng.choice(tuple(GOALS.values()))
    which, condition = rng.choice(CONDITIONS)
    how, change = rng.choice(CHANGES if "{e}" in each else CHANGES[:1])
    name, given, r, x = (rng.choice(options) for options in (NAMES, INPUTS, RESULTS, EACH))
    holes: dict[str, object] = {"k": rng.randint(2, 9), "j": rng.randint(3, 9), "r": r, "x": x}
    holes["e"] = change.format_map(holes)
    holes["which"] = which.format_map(holes)
    holes["these"] = how.format_map(holes)
    asked = words.format_map(holes)
    lines = [f"def {name}({given}):", f'    """Return {asked}."""']
    lines += [f"    {r} = {start}", f"    for {x} in {given}:"]
    lines += ["        if " + condition.format_map(holes) + ":"]
    lines += ["            " + each.format_map(holes), "    return " + end.format_map(holes)]
    code = "\n".join(lines)
    calls = [[rng.randint(-9, 20) for _ in range(rng.randint(4, 8))] for _ in range(5)]
    shown = [rng.randint(1, 19) for _ in range(3)]
    results = _results(code, name, [shown, *calls])
    prompt = (
        f"Write a Python function {name}({given}) that returns {asked} in {given}. "
        f"For example, {name}({shown}) returns {results[0]}."
    )
    pairs = zip(calls, results[1:], strict=True)
    tests = [f"assert {name}({call}) == {result}" for call, result in pairs]
    return Problem(prompt, code, {"tests": tests})


def _results(code: str, name: str, calls: list[list[int]]) -> list[object]:
    room: dict[str, object] = {}
    exec(code, room)  # our own text, a few lines above
    function = room[name]
    assert callable(function)
    return [function(call) for call in calls]


def score(problem: Problem, text: str) -> bool:
    """Whether the function passes the hidden tests."""
    return passes(extract_code(text), problem.check["tests"])


TASK = Generated("functions", 1, score, runs_code=True, make=make)
