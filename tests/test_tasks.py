"""The embedded tasks: fixed, disjoint from training, and scored as a person would."""

import hashlib
import random
import re
from itertools import islice, pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdllm.errors import InputError
from fastdllm.eval.scoring import extract_code, last_boxed, math_equal
from fastdllm.eval.shapes import COLOURS, FORMS
from fastdllm.eval.task import GENERATED, Problem, generated

# Of all held-out prompts. A change here is a change of the task: raise its version.
FINGERPRINTS = {
    "word-problems": (4, "2bf6bddfa2f68b40"),
    "algebra": (3, "a590eb1e33bb4e3a"),
    "functions": (5, "c4e0c68d093818b4"),
    "lists": (7, "07888cb43f7f16de"),
    "shapes": (7, "f37455b6a9cb88fa"),
}


@pytest.mark.parametrize("name", GENERATED)
def test_held_out_problems_are_fixed_and_never_trained_on(name: str) -> None:
    task = generated(name)
    prompts = [p.prompt + p.key for p in task.held_out()]
    assert len(set(prompts)) == 1000
    whole = hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:16]
    assert (task.version, whole) == FINGERPRINTS[name]
    trained = {p.prompt + p.key for seed in range(2) for p in islice(task.stream(seed), 3000)}
    assert not trained & set(prompts)


@pytest.mark.parametrize("name", GENERATED)
def test_the_model_answers_are_right_and_the_neighbours_answers_wrong(name: str) -> None:
    task = generated(name)
    problems = task.held_out()[: 60 if name == "functions" else 1000]
    assert all(task.score(p, p.answer) for p in problems)
    assert not any(task.score(p, "") for p in problems[:50])
    # Another problem's answer is right only where both ask for the same.
    for p, other in pairwise(problems):
        if name == "functions":
            continue
        same = p.check["result"] == other.check["result"]
        assert task.score(p, other.answer) == same, (p.prompt, other.answer)


@pytest.mark.parametrize("name", GENERATED)
def test_streams_differ_by_seed_and_repeat_by_seed(name: str) -> None:
    one, again, other = (list(islice(generated(name).stream(s), 20)) for s in (1, 1, 2))
    assert one == again != other


def test_some_problems_are_chosen_and_others_left_for_the_showing() -> None:
    task = generated("lists")
    every = task.held_out()
    assert task.some(every, 300, "") == every[:300]
    assert task.some(every, 300, "", skip=500) == every[500:800]
    sorts = [p for p in every if p.check["kind"] == "sort"]
    assert task.some(every, None, "sort", skip=5) == sorts[5:]
    with pytest.raises(InputError, match="1000 are to be skipped; there are 1000, try fewer"):
        task.some(every, None, "", skip=1000)


def test_every_sum_of_a_word_problem_is_true() -> None:
    for problem in generated("word-problems").held_out():
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", problem.answer)
        assert 2 <= len(sums) <= 10
        for a, sign, b, c in sums:
            assert eval(f"{a} {sign} {b}") == int(c)
        assert problem.answer.endswith(f"\n#### {sums[-1][3]}")


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("#### 36", True), ("#### $36.00", True), ("#### **36**", True), ("#### 36 shells.", True),
        ("#### 12\n#### 36", True), ("#### 36,000", False), ("#### 36/2", False),
        ("#### 36 + 2 = 38", False), ("#### 36 - 5", False), ("#### 36 41", False),
        ("#### 36e2", False), ("#### 36\n#### none", False), ("36", False), ("#### 36.5", False),
    ],
)  # fmt: skip
def test_the_whole_of_a_word_problems_result_counts(said: str, right: bool) -> None:
    assert generated("word-problems").score(Problem("", "", {"result": 36}), said) == right


def test_a_function_is_told_from_its_neighbours() -> None:
    """A bound off by one, a sign that lets it in, an order turned round."""
    changes = (
        lambda code: re.sub(r"(n [<>] )(\d)", lambda m: f"{m[1]}{int(m[2]) + 1}", code),
        lambda code: re.sub(r"(n [<>] )(\d)", lambda m: f"{m[1]}{int(m[2]) - 1}", code),
        lambda code: re.sub(r"n ([<>]) ", r"n \1= ", code),
        lambda code: code.replace("[::-1]", ""),
    )
    every = [[n] for n in range(-30, 60)] + [[*range(-20, 20)]]
    told = 0
    for problem in generated("functions").held_out(300):
        name = problem.answer.partition("(")[0].removeprefix("def ")
        for change in changes:
            rooms: list[dict] = [{}, {}]
            for room, code in zip(rooms, (problem.answer, change(problem.answer)), strict=True):
                exec(code, room)
            right, wrong = ([room[name](values) for values in every] for room in rooms)
            if right != wrong:  # n >= 0 and n > 0 have the same sum
                told += 1
                with pytest.raises(AssertionError):
                    exec("\n".join(problem.check["tests"]), rooms[1])
    assert told > 300


def test_every_equation_of_algebra_is_true() -> None:
    """Put a number in for the letter, and hold the sides of every `=` together."""
    for problem in generated("algebra").held_out():
        solved = re.search(r"Solve for (\w)", problem.prompt)
        expanded = re.search(r"\((\w) \+", problem.prompt)
        letter = (solved or expanded or "?x")[1]
        value = int(problem.check["result"]) if solved else 7
        term = rf"(?:\d*{letter}(?![a-z])|\d+|[-()+*/ ])+"
        chains = re.findall(rf"(?<![a-z]){term}(?:={term})+", f"{problem.prompt} {problem.answer}")
        assert len(chains) >= 3
        for chain in chains:
            spelt = re.sub(rf"(?<=\d)(?=[({letter}])", "*", chain).split("=")
            sides = {eval(side.strip(), {letter: value}) for side in spelt}
            assert len(sides) == 1, (chain, problem.answer)


@given(st.integers(0, 10**6), st.randoms())
def test_any_permutation_is_a_shuffle_and_a_repeated_item_is_not(
    seed: int, rng: random.Random
) -> None:
    task = generated("lists")
    maker = random.Random(seed)
    while (problem := task.make(maker)).check["kind"] != "shuffle":
        pass
    items = list(problem.check["result"])
    rng.shuffle(items)

    def numbered(words: list[str]) -> str:
        return "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))

    assert task.score(problem, numbered(items))
    assert not task.score(problem, numbered([items[1], *items[1:]]))
    assert not task.score(problem, numbered(items[:-1]))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("Here it is:\n```python\ndef f():\n    pass\n```\nDone.", "def f():\n    pass\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("Sure! def f():\n    pass", "def f():\n    pass"),
    ],
)
def test_code_is_found_in_an_answer(text: str, code: str) -> None:
    assert extract_code(text) == code


def test_the_last_box_counts_and_braces_match() -> None:
    assert last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1") is None
    assert last_boxed("nothing") is None
    assert math_equal(r"\frac{1}{2}", r"$\boxed{\dfrac{1}{2}}$")
    assert not math_equal("12", r"$\boxed{13}$")


@given(st.text())
def test_no_text_breaks_a_scorer(text: str) -> None:
    for name in ("word-problems", "algebra", "lists"):
        problem = generated(name).held_out(1)[0]
        assert generated(name).score(problem, text) in (True, False)


def test_bad_requests() -> None:
    with pytest.raises(InputError, match="did you mean 'lists'"):
        generated("list")
    with pytest.raises(InputError, match="1 to 1000"):
        generated("lists").held_out(0)
    with pytest.raises(InputError, match="did you mean 'copy'"):
        generated("lists").of_kind(generated("lists").held_out(50), "copi")
    assert {
        p.check["kind"] for p in generated("lists").of_kind(generated("lists").held_out(50), "sort")
    } == {"sort"}
    assert generated("lists").of_kind([Problem("a", "b")], "") == [Problem("a", "b")]


def test_the_held_out_problems_of_a_kind_are_those_of_the_whole() -> None:
    """Of a kind with few prompts there are no 1,000, and looking for them would not end."""
    every = generated("algebra").held_out()
    found = generated("algebra/fractions").held_out()
    assert found == [p for p in every if p.check["kind"] == "fractions"]
    with pytest.raises(InputError, match=f"fractions has 1 to {len(found)}$"):
        generated("algebra/fractions").held_out(len(found) + 1)


AREAS = {36: "square", 24: "circle", 21: "triangle", 0: "none"}


def test_what_is_said_of_a_picture_can_be_counted_in_it() -> None:
    """Not from what was meant to be drawn: from the pixels."""
    for problem in generated("shapes").held_out(300):
        pixels = numpy.asarray(problem.images[0]).astype(int)
        near = {
            colour: (abs(pixels - numpy.array(rgb)).sum(axis=2) < 30)
            for colour, rgb in COLOURS.items()
        }
        if problem.check["kind"] == "chart":
            for colour, height in re.findall(r"The (\w+) bar is (\d) high", problem.answer):
                rows = near[colour].any(axis=1).sum()
                assert rows == 3 * int(height) + 1
            continue
        cells = {
            colour: [mask[y : y + 8, x : x + 8].sum() for y in range(0, 32, 8)
                     for x in range(0, 32, 8)]
            for colour, mask in near.items()
        }  # fmt: skip
        sizes = numpy.array(list(cells.values()))
        colours = [list(cells)[k] for k in sizes.argmax(axis=0)]
        forms = [AREAS[size] for size in sizes.max(axis=0)]
        seen = [{c, f} if f != "none" else {"none"} for c, f in zip(colours, forms, strict=True)]
        lines = problem.answer.split("\n")
        if problem.check["kind"] == "read":
            read = re.findall(r"[a-z]+", lines[0])
            assert all(word in cell for word, cell in zip(read, seen, strict=True))
            continue
        asked = re.findall("|".join((*COLOURS, *FORMS)), problem.prompt)
        assert len(asked) == (1 if problem.check["kind"] == "count" else 2)
        for name, line in zip(asked, lines, strict=False):
            found = [name if name in cell else "none" for cell in seen]
            assert re.findall(r"[a-z]+", line) == found
            assert line.endswith(f": {found.count(name)}")
