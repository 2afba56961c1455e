r"""MATH: competition problems, scored by whether the last box is the same mathematics.

    {"problem": "Convert the point $(0,3)$ ...", "answer": "(3, \\pi/2)",
     "solution": "We have ... \\boxed{...}"}

Behind the four worked examples of Minerva, as lm-evaluation-harness asks it.
"""

from collections.abc import Sequence
from pathlib import Path

from fastdllm.eval.benchmark import Benchmark, Raw
from fastdllm.eval.scoring import math_equal
from fastdllm.eval.task import Problem

MINERVA = (
    (
        r"Find the domain of the expression  $\frac{\sqrt{x-2}}{\sqrt{5-x}}$.}",
        r"The expressions inside each square root must be non-negative. Therefore, $x-2 \ge 0$, so "
        r"$x\ge2$, and $5 - x \ge 0$, so $x \le 5$. Also, the denominator cannot be equal to zero, "
        r"so $5-x>0$, which gives $x<5$. Therefore, the domain of the expression is "
        r"$\boxed{[2,5)}$.",
        "[2,5)",
    ),
    (
        r"If $\det \mathbf{A} = 2$ and $\det \mathbf{B} = 12,$ then find "
        r"$\det (\mathbf{A} \mathbf{B}).$",
        r"We have that $\det (\mathbf{A} \mathbf{B}) = (\det \mathbf{A})(\det \mathbf{B}) = "
        r"(2)(12) = \boxed{24}.$",
        "24",
    ),
    (
        "Terrell usually lifts two 20-pound weights 12 times. If he uses two 15-pound weights "
        "instead, how many times must Terrell lift them in order to lift the same total weight?",
        r"If Terrell lifts two 20-pound weights 12 times, he lifts a total of $2\cdot "
        r"12\cdot20=480$ pounds of weight.  If he lifts two 15-pound weights instead for $n$ "
        r"times, he will lift a total of $2\cdot15\cdot n=30n$ pounds of weight.  Equating this to "
        r"480 pounds, we can solve for $n$: \begin{align*} 30n&=480\\ \Rightarrow\qquad "
        r"n&=480/30=\boxed{16} "
        r"\end{align*}",
        "16",
    ),
    (
        r"If the system of equations \begin{align*} 6x-4y&=a,\\ 6y-9x &=b. \end{align*}has a "
        r"solution $(x, y)$ where $x$ and $y$ are both nonzero, find $\frac{a}{b},$ assuming $b$ is"
        r" nonzero.",
        r"If we multiply the first equation by $-\frac{3}{2}$, we obtain $$6y-9x=-\frac{3}{2}a.$$"
        r"Since we also know that $6y-9x=b$, we have $$-\frac{3}{2}a=b\Rightarrow\frac{a}{b}="
        r"\boxed{-\frac{2}{3}}.$$",
        r"-\frac{2}{3}",
    ),
)


def convert(rows: Sequence[Raw], shown: Sequence[Raw]) -> list[Problem]:
    """Problem by problem."""
    front = "".join(
        f"Problem:\n{r['problem']}\n\nSolution:\n{r['solution']}\n"
        f"Final Answer: The final answer is ${r['answer']}$. I hope it is correct.\n\n"
        for r in shown
    )
    return [
        Problem(
            f"{front}Problem:\n{row['problem']}\n\nSolution:",
            row["solution"],
            {"result": row["answer"], "kind": str(row.get("subject", ""))},
            id=str(row.get("unique_id", "")),
        )
        for row in rows
    ]


def examples(task: Benchmark, data: Path | None, count: int) -> list[Raw]:
    """Minerva's, fixed."""
    names = ("problem", "solution", "answer")
    return [dict(zip(names, one, strict=True)) for one in MINERVA[:count]]


def score(problem: Problem, text: str) -> bool:
    """Whether the answer is the same mathematics as the result."""
    return math_equal(problem.check["result"], text)


TASK = Benchmark(
    "math", 2, score, stop=("Problem:",), chat=False, shots=4, packages=("math_verify",),
    files=("test.jsonl", "math500.jsonl", "math.jsonl"),
    hub=("HuggingFaceH4/MATH-500", None, "test"), columns=("problem", "solution", "answer"),
    texts=("problem", "solution", "answer"),
    convert=convert, examples=examples,
)  # fmt: skip
