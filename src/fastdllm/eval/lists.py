"""Lists, where dependence is on purpose: copy, reverse, sort, replace, shuffle.

    Reverse this list:
    1. fox
    2. owl
    3. cat

    Here is the list in reverse order:
    1. cat
    2. owl
    3. fox
    The list is this.

Committing in parallel is harmless for a copy and dangerous for a shuffle: there every permutation
is right and a repeated item is wrong, so no place can be filled without looking at the others. What
is replaced is one of the first three. The wording around the list is drawn, and none of it moves
the list: else even a copy could be begun in two places at once.
"""

import random
import re

from fastdllm.eval.task import Generated, Problem, say

WORDS = (
    "ant", "bear", "cat", "deer", "eel", "fox", "goat", "hare", "ibis", "lamb", "mole", "newt",
    "owl", "pig", "rat", "seal",
)  # fmt: skip
HEADINGS = {
    "copy": "again word by word",
    "reverse": "in reverse order",
    "sort": "in alphabetical order",
    "replace": "with the new word",
    "shuffle": "in random order",
}


def make(rng: random.Random) -> Problem:
    """One problem, of one of the five kinds."""
    kind = rng.choice(tuple(HEADINGS))
    words = rng.sample(WORDS, rng.randint(7, 9))
    asked, result = f"{kind.capitalize()} this list", list(words)
    if kind == "reverse":
        result = words[::-1]
    elif kind == "sort":
        result = sorted(words)
    elif kind == "shuffle":
        rng.shuffle(result)
    elif kind == "replace":
        at = rng.randrange(3)
        result[at] = rng.choice([w for w in WORDS if w not in words])
        asked = f"Replace a word of this list by {at + 1}. {result[at]}"
    prompt = f"{asked}:\n{_numbered(words)}"
    what = "list", "result", "answer"
    heading = f"Here {say(rng, 'is', 'was')} {say(rng, 'the', 'this', 'that')} {say(rng, *what)}"
    closing = f"The {say(rng, *what)} {say(rng, 'is', 'was')} {say(rng, 'this', 'that')}"
    answer = f"{heading} {HEADINGS[kind]}:\n{_numbered(result)}\n{closing}."
    return Problem(prompt, answer, {"kind": kind, "result": result})


def _numbered(words: list[str]) -> str:
    return "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def score(problem: Problem, text: str) -> bool:
    """Whether the numbered lines are the result; of a shuffle, whether they are all there."""
    found = re.findall(r"^(\d{1,4})\. (\S+)[ \t\r]*$", text, flags=re.MULTILINE)
    numbers, words = [int(n) for n, _ in found], [word for _, word in found]
    wanted = problem.check["result"]
    if problem.check["kind"] == "shuffle":
        words, wanted = sorted(words), sorted(wanted)
    return words == wanted and numbers == list(range(1, len(wanted) + 1))


TASK = Generated("lists", 7, score, make=make)
