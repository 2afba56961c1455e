"""The point of the project in two minutes: watch one problem, then compare on many."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fastdllm.eval.report import measure, table
from fastdllm.eval.run import ask
from fastdllm.eval.task import generated
from fastdllm.generation import Generation
from fastdllm.llm import LLM, Run
from fastdllm.viz.html import write_page
from fastdllm.viz.terminal import watch

RULES = ("full", "threshold:0.9", "factor:0.75", "frechet:0.25")
CACHES = ("none", "prefix", "dual")
CANVAS = 160  # five blocks; no answer of this task is longer
WATCHED = "frechet:0.25"


def show(model: str, problems: int, batch: int, page: Path) -> None:
    """Solve one before your eyes, then print the table and where the trace is."""
    console = Console()
    llm, task = LLM.load(model), generated("word-problems")
    chosen = task.held_out(problems)
    first = replace(Generation(CANVAS), select=WATCHED)
    console.print(f"[bold]A problem the model has never seen[/bold]\n{chosen[0].prompt}\n")
    run = Run(llm, llm.row(ask(llm, chosen[0]), first), first, trace=True)
    watch(llm, run.row, run.steps(), pause=0.1 if console.is_terminal else 0.0)
    done = run.completion()
    verdict = "right" if task.score(chosen[0], done.text) else "wrong"
    u = done.usage
    console.print(f"\n{u.tokens} tokens in {u.nfe} forward passes; the answer is {verdict}.\n")
    assert done.trace is not None
    write_page(done.trace, page)

    settings = [replace(first, select=rule, cache=cache) for rule in RULES for cache in CACHES]
    sheets = measure(llm, task, chosen, chosen, settings, batch)
    title = f"{llm.name} on {problems} held-out word problems, {batch} at a time, blocks of 32"
    console.print(table(title, sheets))
    console.print(
        "What to see: a forward pass is what costs, so few passes (NFE) at the accuracy of "
        "`full`, which commits one token a pass, is what a rule is for (a small p says that the "
        "accuracy is not that of the first line); the caches make each pass cheaper on top."
    )
    console.print(f"Open the trace of the problem above in a browser: {page}", soft_wrap=True)
