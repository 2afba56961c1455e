"""The point of the project in two minutes: watch one problem, then compare on many."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fastdllm.errors import InputError
from fastdllm.eval.report import measure, table
from fastdllm.eval.run import ask
from fastdllm.eval.task import Problem, generated
from fastdllm.generation import Generation
from fastdllm.llm import LLM, Run
from fastdllm.viz.html import write_page
from fastdllm.viz.terminal import watch

RULES = ("full", "threshold:0.9", "factor:0.75", "frechet:0.25")
CACHES = ("none", "prefix", "dual")
CANVAS = 96  # three blocks: with five, which the longest answers want, it would take twice as long
WATCHED = "frechet:0.25"
SHOWN = 1  # a problem that the rule solves; how often it does not, the table says


def short(llm: LLM, problems: Sequence[Problem], count: int) -> list[Problem]:
    """The first so many whose answer, with its end, fits the canvas."""
    found = [problem for problem in problems if len(llm.encode(problem.answer)) < CANVAS]
    if count > len(found):
        raise InputError(f"--problems {count}: {len(found)} are short enough; ask for at most that")
    return found[:count]


def show(model: str, problems: int, batch: int, page: Path) -> None:
    """Solve one before your eyes, then print the table and where the trace is."""
    console = Console()
    llm, task = LLM.load(model), generated("word-problems")
    chosen = short(llm, task.held_out(), problems)
    shown = chosen[min(SHOWN, problems - 1)]
    first = replace(Generation(CANVAS), select=WATCHED)
    console.print(f"[bold]A problem the model has never seen[/bold]\n{shown.prompt}\n")
    run = Run(llm, llm.row(ask(llm, shown), first), first, trace=True)
    watch(llm, run.row, run.steps(), pause=0.1 if console.is_terminal else 0.0)
    done = run.completion()
    verdict = "right" if task.score(shown, done.text) else "wrong"
    u = done.usage
    console.print(f"\n{u.tokens} tokens in {u.nfe} forward passes; the answer is {verdict}.\n")
    assert done.trace is not None
    write_page(done.trace, page)

    settings = [replace(first, select=rule, cache=cache) for rule in RULES for cache in CACHES]
    sheets = measure(llm, task, chosen, chosen, settings, batch)
    title = (
        f"{llm.name} on {problems} held-out word problems of up to {CANVAS} tokens, blocks of 32"
    )
    console.print(table(title, sheets))
    console.print(
        "What to see: a forward pass is what costs, so few passes (NFE) at the accuracy of "
        "`full`, which commits one token a pass, is what a rule is for (a small p says that the "
        "accuracy is not that of the first line); the caches make each pass cheaper on top."
    )
    console.print(f"Open the trace of the problem above in a browser: {page}", soft_wrap=True)
