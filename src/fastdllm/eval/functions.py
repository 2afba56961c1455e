r'''Functions, HumanEval's and MBPP's little sibling: a description, an example call, the code.

    Write a Python function total(values) that returns the sum of the squares of the even numbers
    in values. For example, total([3, 4, 6]) returns 52.

    def total(values):
        """Return the sum of the squares of the even numbers in values."""
        result = 0  # starts with this
        for n in values:  # for each of them
            if n % 2 == 0:  # with this number
                result += n * n  # so add this
        return result  # that is the result

The function's name is drawn; it must be the same wherever it stands. So is the wording of the
comments, word by word.
'''

import random

from fastdllm.eval.sandbox import passes
from fastdllm.eval.scoring import extract_code
from fastdllm.eval.task import Generated, Problem, say

NAMES = ("total", "solve", "compute", "measure", "collect", "select", "combine", "process")

# What is wanted of the numbers -> (the words, start, the statement for each, the end).
GOALS = {
    "sum": ("the sum of {these}", "0", "result += {e}", "result"),
    "count": ("the number of {these}", "0", "result += 1", "result"),
    "list": ("a list of {these}", "[]", "result.append({e})", "result"),
    "largest": ("the largest of 0 and {these}", "0", "result = max(result, {e})", "result"),
    "reversed": ("a reversed list of {these}", "[]", "result.append({e})", "result[::-1]"),
}
CONDITIONS = (
    ("even numbers", "n % 2 == 0"),
    ("odd numbers", "n % 2 == 1"),
    ("positive numbers", "n > 0"),
    ("negative numbers", "n < 0"),
    ("numbers above {k}", "n > {k}"),
    ("numbers below {k}", "n < {k}"),
    ("multiples of {k}", "n % {k} == 0"),
)
CHANGES = (
    ("the {which}", "n"),
    ("the squares of the {which}", "n * n"),
    ("twice the {which}", "2 * n"),
    ("{j} times the {which}", "{j} * n"),
    ("{j} plus the {which}", "n + {j}"),
    ("the {which} minus {j}", "n - {j}"),
)


def make(rng: random.Random) -> Problem:
    """One problem; its hidden tests are calls with the results of the model answer.

    Five at random, and those that tell a function from its neighbours: at every boundary, in an
    order that shows, with none.
    """
    words, start, each, end = rng.choice(tuple(GOALS.values()))
    which, condition = rng.choice(CONDITIONS)
    how, change = rng.choice(CHANGES if "{e}" in each else CHANGES[:1])
    name = rng.choice(NAMES)
    k = rng.randint(2, 9)
    holes: dict[str, object] = {"k": k, "j": rng.randint(3, 9)}
    holes["e"] = change.format_map(holes)
    holes["which"] = which.format_map(holes)
    holes["these"] = how.format_map(holes)
    asked = words.format_map(holes) + " in values"
    lines = [
        f"def {name}(values):",
        f'    """{say(rng, "Return", "Compute", "Collect")} {asked}."""',
    ]
    lines += [f"    result = {start}", "    for n in values:"]
    lines += ["        if " + condition.format_map(holes) + ":"]
    lines += ["            " + each.format_map(holes), f"    return {end}"]
    code = "\n".join(
        [*lines[:2], *(f"{line}  # {_note(rng, i)}" for i, line in enumerate(lines[2:]))]
    )
    calls = [[rng.randint(-9, 20) for _ in range(rng.randint(4, 8))] for _ in range(5)]
    shown = [rng.randint(1, 19) for _ in range(3)]
    calls += [[n] for n in (-1, 0, 1, 2, k - 1, k, k + 1, 2 * k)]
    calls += [[], [k + 1, -3, 2 * k, 1, -8, k - 1, 3 * k, 2, -k]]
    results = _results(code, name, [shown, *calls])
    prompt = (
        f"Write a Python function {name}(values) that returns {asked}. "
        f"For example, {name}({shown}) returns {results[0]}."
    )
    pairs = zip(calls, results[1:], strict=True)
    tests = [f"assert {name}({call}) == {result}" for call, result in pairs]
    return Problem(prompt, code, {"tests": tests})


NOTES = (  # a comment for each line: the ways to say each word, none moves the code below it
    (("starts", "first"), ("with", "from"), ("this", "that")),
    (("for", "takes", "now"), ("each", "more"), ("of",), ("them", "values", "numbers")),
    (("with", "for", "from"), ("this", "that", "each"), ("number", "part")),
    (("so", "and"), ("add", "takes"), ("this", "that", "more")),
    (("that", "this"), ("is", "was"), ("the",), ("result", "answer", "total")),
)


def _note(rng: random.Random, line: int) -> str:
    return " ".join(say(rng, *ways) for ways in NOTES[line])


def _results(code: str, name: str, calls: list[list[int]]) -> list[object]:
    room: dict[str, object] = {}
    exec(code, room)  # our own text, a few lines above
    function = room[name]
    assert callable(function)
    return [function(call) for call in calls]


def score(problem: Problem, text: str) -> bool:
    """Whether the function passes the hidden tests."""
    return passes(extract_code(text), problem.check["tests"])


TASK = Generated("functions", 5, score, runs_code=True, make=make)
