"""Word problems, GSM8K's little sibling: two to five steps, the arithmetic spelt out.

    Mia has 34 shells. She finds 7 more. She gives 5 shells to Tom. How many shells are left?

    Mia starts with 34 shells. She finds 7, so now she has 7 + 34 = 41 shells. Then she gives away
    5, which makes 41 - 5 = 36.
    #### 36

Every total has two digits and every change one, so that how long a number is says nothing about
which one it is. The wording of each sentence is drawn, and which number of a sum comes first: there
two digits depend on each other, and committing both at once can go wrong.
"""

import random
import re

from fastdllm.eval.scoring import TAIL
from fastdllm.eval.task import Generated, Problem, say

SHE = ("Mia", "Anna", "Lucy", "Emma", "Sara", "Nina", "Zoe", "Ruth")
HE = ("Tom", "Ben", "Sam", "Max", "Leo", "Paul", "Jack", "Omar")
OBJECTS = (
    "apples", "books", "cards", "coins", "shells", "stamps", "pens", "eggs", "stones", "toys",
    "cakes", "balls", "kites", "beads", "plums", "maps",
)  # fmt: skip
BOXES = ("boxes", "bags", "jars", "packs")
LEADS = (", so now {he} has", ", which makes", ", so that is")

# Kind of step -> what the problem says, and how the answer takes it up.
GAIN = (
    ("{He} buys {k} more.", "{He} buys {k}"),
    ("{He} finds {k} more.", "{He} finds {k}"),
    ("{friend} gives {him} {k} {objects}.", "{He} gets {k}"),
    ("Then {k} {objects} arrive.", "{He} gets {k}"),
)
LOSS = (
    ("{He} gives {k} {objects} to {friend}.", "{He} gives away {k}"),
    ("{He} loses {k} {objects}.", "{He} loses {k}"),
    ("{He} sells {k} of them.", "{He} sells {k}"),
    ("{friend} takes {k} of them.", "{He} gives away {k}"),
)
PACKS = (
    ("{He} buys {a} {boxes} with {b} {objects} each.", "{a} {boxes} of {b} are {a} * {b} = {k}"),
    ("{friend} brings {a} {boxes} of {b} {objects}.", "{a} {boxes} of {b} are {a} * {b} = {k}"),
)
DOUBLE = (
    ("Then the number doubles.", "The number doubles"),
    ("{friend} doubles what {he} has.", "The number doubles"),
)
HALF = (
    ("{He} gives half of them to {friend}.", "{He} gives away half"),
    ("{He} sells half of the {objects}.", "{He} sells half"),
)


def make(rng: random.Random) -> Problem:
    """One problem."""
    she = rng.random() < 0.5
    name, friend = rng.choice(SHE if she else HE), rng.choice(HE if she else SHE)
    words = {
        "name": name,
        "friend": friend,
        "objects": rng.choice(OBJECTS),
        "boxes": rng.choice(BOXES),
        "he": "she" if she else "he",
        "He": "She" if she else "He",
        "him": "her" if she else "him",
    }
    total = rng.randint(12, 89)
    told = [f"{{name}} has {total} {{objects}}."]
    solved = [say(rng, "{name} starts with", "First {name} has") + f" {total} {{objects}}."]
    for _ in range(rng.choices((2, 3, 4, 5), (4, 3, 2, 1))[0]):
        said, taken, sum_, total = _step(rng, total)
        told.append(said)
        if say(rng, "", "Then"):
            taken = f"Then {taken.replace('{He}', '{he}').replace('The', 'the')}"
        solved.append(f"{taken}{say(rng, *LEADS)} {sum_}{say(rng, ' {objects}', '')}.")
    ask = rng.choice(("How many {objects} does {name} have now?", "How many {objects} are left?"))
    prompt = " ".join([*told, ask]).format_map(words)
    answer = " ".join(solved).format_map(words) + f"\n#### {total}"
    return Problem(prompt, answer, {"result": total})


def _step(rng: random.Random, total: int) -> tuple[str, str, str, int]:
    """What happens, how the answer takes it up, its arithmetic, and the new total."""
    while True:
        kind = rng.choices((GAIN, LOSS, PACKS, DOUBLE, HALF), (8, 8, 2, 1, 1))[0]
        k, a, b = rng.randint(2, 9), rng.randint(2, 4), rng.randint(2, 4)
        if kind is PACKS:
            k = a * b
        gained = " + ".join(rng.sample((str(total), str(k)), 2))
        new, sum_ = {
            GAIN: (total + k, gained),
            LOSS: (total - k, f"{total} - {k}"),
            PACKS: (total + k, gained),
            DOUBLE: (total * 2, f"{total} * 2"),
            HALF: (total // 2, f"{total} / 2"),
        }[kind]
        whole = kind is not HALF or total % 2 == 0
        if whole and 10 <= new <= 99 and k <= 9:
            break
    numbers = {"{k}": str(k), "{a}": str(a), "{b}": str(b)}
    said, taken = rng.choice(kind)
    for hole, number in numbers.items():
        said, taken = said.replace(hole, number), taken.replace(hole, number)
    return said, taken, f"{sum_} = {new}", new


def score(problem: Problem, text: str) -> bool:
    """Whether what stands after the last ####, up to the line's end, is the result."""
    said = text[-TAIL:].rpartition("####")[2].split("\n")[0] if "####" in text[-TAIL:] else ""
    found = re.fullmatch(r"[\s*$]*(-?\d{1,9})(?:\.0*)?[\s*.]*(?:[A-Za-z]+\.?)?\s*", said)
    return found is not None and int(found[1]) == problem.check["result"]


TASK = Generated("word-problems", 4, score, make=make)
