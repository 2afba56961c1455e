"""The public benchmarks: their real files load, and odd answers are scored as a person would.

The real files are not ours to ship; where they are not beside the project, those tests are skipped.
"""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdllm.errors import InputError
from fastdllm.eval import humaneval
from fastdllm.eval.benchmark import Benchmark, read_rows
from fastdllm.eval.scoring import extract_code, last_number, math_equal, same_number
from fastdllm.eval.task import BENCHMARKS, Problem, generated, get

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
FOLDERS = {"gsm8k": "gsm8k", "math": "math500", "humaneval": "humaneval", "mbpp": "mbpp"}
COUNTS = {"gsm8k": 1319, "math": 500, "humaneval": 164, "mbpp": 500}
real = pytest.mark.skipif(not DATA.is_dir(), reason="the benchmarks' files are not here")


@real
@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_gold_answers_are_right_and_perturbed_ones_wrong(name: str) -> None:
    task = get(name)
    problems = task.problems(DATA / FOLDERS[name])
    assert len(problems) == COUNTS[name]
    assert all(task.score(p, p.answer) for p in problems)
    wrongly = set()
    for p in problems[:: 3 if name == "gsm8k" else 1]:
        result = p.check["result"]
        places = [i for i, c in enumerate(result) if c.isdigit()]
        for at in {*places[:1], *places[-1:]}:
            digit = str((int(result[at]) + 1) % 10)
            changed = result[:at] + digit + result[at + 1 :]
            wrong = f"#### {changed}" if name == "gsm8k" else f"\\boxed{{{changed}}}"
            if task.score(p, wrong):
                wrongly.add(f"{result} ~ {changed}")
    # A unit is not looked at, and so not its power.
    assert wrongly <= {
        r"864 \mbox{ inches}^2 ~ 864 \mbox{ inches}^3", r"15\mbox{ cm}^2 ~ 15\mbox{ cm}^3",
    }  # fmt: skip


ALL = [pytest.param(name, 1, marks=pytest.mark.slow) for name in ("humaneval", "mbpp")]


@real
@pytest.mark.parametrize(("name", "step"), [("humaneval", 8), ("mbpp", 25), *ALL])
def test_gold_programs_pass_and_others_do_not(name: str, step: int) -> None:
    task = get(name)
    problems = task.problems(DATA / FOLDERS[name])
    assert len(problems) == COUNTS[name]
    missed = [p.prompt[-200:] for p in problems[::step] if not task.score(p, p.answer)]
    assert not missed
    for p in problems[:: 10 * step]:
        assert not task.score(p, "    return None\n")
        assert not task.score(p, "def unrelated():\n    pass\n")


@real
def test_prompts_carry_their_examples() -> None:
    five = get("gsm8k").problems(DATA / "gsm8k")[0].prompt
    assert five.count("Question:") == 6
    assert five.endswith("Answer:")
    assert get("gsm8k").problems(DATA / "gsm8k" / "test.jsonl", 8)[0].prompt.count("####") == 8
    assert get("math").problems(DATA / "math500")[0].prompt.count("Problem:") == 5
    mbpp = get("mbpp").problems(DATA / "mbpp")
    assert mbpp[0].prompt.count("[DONE]") == 3
    assert get("humaneval").problems(DATA / "humaneval")[0].prompt.startswith("from typing")
    assert get("gsm8k").problems(DATA / "gsm8k", 0)[0].prompt.count("Question:") == 1


@real
def test_problems_have_the_names_people_know() -> None:
    found = {name: get(name).problems(DATA / place) for name, place in FOLDERS.items()}
    firsts = {problems[0].id for problems in found.values()}
    assert firsts == {"gsm8k/0", "math/0", "HumanEval/0", "mbpp/11"}
    assert all(len({p.id for p in problems}) == len(problems) for problems in found.values())


def test_the_same_question_twice_is_two_problems(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "answer": f"#### {n}"} for n in (1, 2, 1)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = get("gsm8k").problems(tmp_path, 0)
    assert len({p.fingerprint for p in found}) == 3
    assert [p.id for p in found] == ["gsm8k/0", "gsm8k/1", "gsm8k/2"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "?", "answer": "none"}, "row 1 ends with no number"),
        ("mbpp", {"task_id": 11, "text": "", "code": "", "test_list": "1"}, "is no list of texts"),
    ],
)  # fmt: skip
def test_rows_that_can_never_be_right_are_named(
    name: str, row: dict, message: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=message):
        get(name).problems(tmp_path, 0)


def test_an_error_in_reading_is_not_one_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(InputError, match=r"^[^:]*x\.csv, line 1: not JSON"):
        get("gsm8k").problems(tmp_path / "x.csv", 0)


def test_a_missing_package_is_named_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdllm.eval.task.find_spec", lambda name: None)
    with pytest.raises(InputError, match="math is scored with math-verify; try: pip install"):
        get("math").check_allowed(False)


GSM = Problem("", "", {"result": "1250"})


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("#### 1250", True),
        ("#### $1,250.00", True),
        (r"\boxed{1{,}250}", True),
        (r"\boxed{1\,250}", True),
        (r"The answer is \$1{,}250.", True),
        ("The answer is 1250, since 5 * 50 = 250 and 1000 more.", True),
        ("The answer is 1000 + 250 = 1250.", True),
        ("#### 1250 dollars a month", True),
        ("She pays 3 times 400, so the answer is $1,250.", True),
        ("The total is 1,250 dollars.\n\nI hope this helps!", True),
        ("1250%", True),
        ("#### 1250\n#### 7 was my first guess", True),
        ("#### Step 1: multiply\n#### Answer: 1250", True),
        ("#### 1250 (5 months at $250)", True),
        ("#### 5 * 250 = 1250", True),
        ("The answer is 1250. She has 3 ducks.", True),
        ("\\boxed{1250}\nCheck: that is 5 times 250.", True),
        ("#### \u20ac1250 for 5 months", True),
        ("#### \u00a31,250 (5 months)", True),
        ("#### $ 1250 for 5 months", True),
        ("#### **1250** (5 months)", True),
        ("#### Total: $1250 (5 x 250)", True),
        ("#### 1250 = 5 * 250", True),
        ("The answer is 1250 = 5*250.", True),
        (r"\boxed{\frac{2500}{2}}", True),
        (r"\boxed{2500/2}", True),
        (r"\boxed{2500/0}", False),
        ("Answer: 1250 dollars for 12 months", True),
        ("The answer: 1250. There are 3 ducks.", True),
        ("The Answer Is 1250. There are 3 others", True),
        ("The answer is 3 times 400 plus 50, which is 1250.", True),
        ("#### 1250/2", False),
        ("#### 5 * 250 = 1251", False),
        ("#### \u22121250", False),
        ("#### 125", False),
        ("#### 1250.5", False),
        ("#### -1250", False),
        ("one thousand", False),
        ("", False),
        ("####", False),
    ],
)
def test_numbers_are_read_as_a_person_would(text: str, right: bool) -> None:
    assert get("gsm8k").score(GSM, text) == right


@pytest.mark.parametrize(
    ("result", "text", "right"),
    [
        (r"\frac{1}{2}", r"so $\boxed{\dfrac12}$", True),
        (r"\frac{1}{2}", r"\boxed{0.5}", True),
        (r"\frac{1}{2}", r"The answer is $\frac{1}{2}$.", True),
        (r"\frac{1}{2}", r"first \boxed{3}, no: \boxed{\frac{2}{4}}", True),
        (r"\frac{1}{2}", r"\boxed{\boxed{\frac{1}{2}}}", True),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", False),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}", True),
        ("42", "Final Answer: The final answer is $42$. I hope it is correct.", True),
        ("42", r"$\boxed{42\text{ apples}}$", True),
        ("42", "The final answer is $42$. I hope my answer is correct.", True),
        ("7", "The answer is 7. There are 3 others.", True),
        ("5", r"\boxed{5}\boxed{}", True),
        ("42", "", False),
        ("x^2+1", r"\boxed{1+x^2}", True),
        ("10,000", r"\boxed{10000}", True),
        (r"\text{Evelyn}", r"\boxed{Evelyn}", True),
        (r"90^\circ", r"\boxed{90}", True),
        ("52_8", r"\boxed{52_9}", False),
        ("52_8", r"\boxed{52_{8}}", True),
        (".0000672", r"\boxed{.0000673}", False),
        (".0000672", r"\boxed{0.00006720}", True),
        ("3", r"\boxed{" * 500, False),
        ("3", r"\boxed{9^{9^{9^{9^9}}}}", False),
    ],
)
def test_mathematics_is_compared_as_mathematics(result: str, text: str, right: bool) -> None:
    assert math_equal(result, text) == right


CODE = Problem(
    "", "", {"prompt": 'def twice(x):\n    """Twice x."""\n', "entry_point": "twice",
             "test": "def check(f):\n    assert f(4) == 8"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("    return 2 * x\n", True),
        ("    return x\n", False),
        ("def twice(x):\n    return 2 * x", True),
        ("```python\ndef twice(x):\n    return x + x\n```\nThis doubles x.", True),
        ("Sure! Here it is:\n\ndef twice(x):\n    return x + x\n\nIt doubles x.", True),
        ("def helper(x):\n    return x\n\ndef twice(x):\n    return helper(x) * 2\n", True),
        (f"{CODE.check['prompt']}    return 2 * x\n", True),
        ("```\ndef twice(x):\n    return 2 * x", True),
        ("def check(f): pass\ndef twice(x): pass", False),
        ("    import os; os._exit(0)\n    return 2 * x", False),
        ("    return 2 * x\n\nThis doubles x.", True),
        ("    return 2 * x\n\ndef main():\n    print(twice(", True),
        ("```Python\ndef twice(x):\n    return x + x\n```", True),
        ("```python\n    return 2 * x\n```", True),
        (
            "```python\ndef twice(x):\n    return x + x\n```\nOutput:\n```\n>>> twice(4)\n8\n```",
            True,
        ),
        ("```bash\npip install x\n```\n```python\ndef twice(x):\n    return 2 * x\n```", True),
        ("1. Like this:\n   ```python\n   def twice(x):\n       return 2 * x\n   ```", True),
        ("```python\ndef twice(x):\n    return 2 * x```\nThat is all.", True),
        ("from the docstring we see it\n\ndef twice(x):\n    return 2 * x\nIt's done.", True),
        ("def twice(x):\n    return 2 * x\n\nif __name__ == '__main__':\n    int(input())", True),
        (
            "def twice(x):\n    return 2 * x\n\nif __name__ == '__main__':\n    1\nelse:\n    2",
            True,
        ),
        (f"    return 2 * x\n\n\n{CODE.check['prompt']}", True),
        (f"def twice(x):\n    return 2 * x\n\n\n{CODE.check['prompt']}", True),
        ("    return 2 * x\n```\n", True),
        ("def twice(x):\n    return 2 * x\n```\n\nIt doubles x.", True),
        ("return 2 * x\n", True),
        ("y = x\n    return y + x\n", True),
        ("```python\nreturn 2 * x\n```", True),
        ("```python\ny = x\nreturn y + x\n```", True),
        (
            "```python\ndef twice(x):\n    return x + x\n```\nTry:\n```python\nn = int(input())\n"
            "print(twice(n))\n```",
            True,
        ),
        (
            "def twice(x):\n    return x + x\n\nassert twice(1) == 3\nprint(twice(int(input())))",
            True,
        ),
        ("def twice(x):\n    return x + x\nEND", True),
        ("def twice(x):\n    return x + x\nExplanation: it is x*2", True),
        ("    return x + x\n    It is doubled.", True),
        ("    y = [x,\n2]\n    # so\n# then\n    return y[0] * 2", True),
        ('    y = """\nno\n"""\n    return x + x', True),
        ("    return x\n\nassert twice(4) == 8", False),
        ("", False),
    ],
)
def test_programs_are_found_and_judged(text: str, right: bool) -> None:
    assert humaneval.score(CODE, text) == right


@settings(max_examples=200)
@given(st.text() | st.text(alphabet="\\boxed{}$^_#.,0123456789-frac ") | st.binary().map(repr))
def test_no_text_crashes_a_scorer(text: str) -> None:
    assert get("gsm8k").score(GSM, text) in (True, False)
    assert math_equal("42", text[:80]) in (True, False)
    assert isinstance(extract_code(text), str)
    assert same_number(last_number(text), "1") in (True, False)


def test_long_texts_do_not_hang_a_scorer() -> None:
    for task in ("word-problems", "lists", "algebra", "shapes"):
        for piece in ("#### " + "1" * 5000, "1" * 5000 + ". ant", "1. ant\n" * 3000):
            generated(task).score(generated(task).held_out(1)[0], piece)
    code = "Sure:\ndef f():\n    return 1\n" + "x = [1, 2, 3]\n" * 4000
    extract_code(code + "this is prose here\n" * 300)
    for piece in ("1", "(", "\\boxed{", "{", "def f(", "####", "\n", "```python\n", "9^"):
        text = piece * 20_000
        get("gsm8k").score(GSM, text)
        math_equal("42", text)
        extract_code(text)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("math", {"problem": "?", "solution": "", "answer": 2}),
        ("humaneval", {"prompt": "", "canonical_solution": "", "test": None, "entry_point": "f"}),
    ],
)
def test_a_column_that_is_no_text_is_named(name: str, row: dict, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"row 1: (answer is 2|test is None); wanted a text"):
        get(name).problems(path, 0)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_bad_files(name: str, tmp_path: Path) -> None:
    task = get(name)
    assert isinstance(task, Benchmark)
    with pytest.raises(InputError, match="holds none of"):
        task.problems(tmp_path, 0)
    with pytest.raises(InputError, match="there is no file"):
        task.problems(tmp_path / "none.jsonl", 0)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=rf"row 1: no column .*is this {name}"):
        task.problems(wrong, 0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1}\n{"a":', "line 2: not JSON"),
        (b"", "holds no rows"),
        (b"[1, 2]", "holds no rows"),
        (b"\xff\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_rows(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_rows(path)
    (tmp_path / "f.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match="damaged"):
        read_rows(tmp_path / "f.jsonl.gz")


def test_rows_in_every_shape(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": "b\u2028c"}]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.jsonl").write_text(
        "\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    )
    (tmp_path / "packed.jsonl.gz").write_bytes(
        gzip.compress((tmp_path / "lines.jsonl").read_bytes())
    )
    for path in tmp_path.iterdir():
        assert read_rows(path) == rows
