"""The table of rules on an oracle: steps, certified steps, errors."""

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fastdllm.errors import InputError
from fastdllm.selection import parse
from fastdllm.testing import HiddenMarkov, Oracle, Verdict, judge

HINTS = 1 / 7  # the share of tokens given in advance: without evidence nothing is certain


def compare(rules: list[str], sequences: int, length: int, seed: int) -> list[Verdict]:
    """Judge every rule on the same sequences and print the table."""
    selectors = [parse(rule) for rule in rules]  # all of them, before the first one runs
    if not selectors:
        raise InputError("no rule was named; try --select 'full frechet:0.25'")
    oracle = HiddenMarkov.random(length, seed=seed)
    ids = hinted(oracle, sequences, seed)
    if not (ids == oracle.mask_id).any():
        raise InputError("every token was given as a hint; ask for longer or for more sequences")
    console = Console()
    verdicts = [
        judge(oracle, rule, ids)
        for rule in track(selectors, "judging the rules", console=console, transient=True)
    ]
    console.print(_table(verdicts, sequences, length))
    console.print(_reading(verdicts))
    return verdicts


def hinted(oracle: Oracle, sequences: int, seed: int) -> torch.Tensor:
    """Canvases of masks with a few true tokens."""
    generator = torch.Generator().manual_seed(seed)
    truth = oracle.sample(sequences, generator)
    shown = torch.rand(truth.shape, generator=generator) < HINTS
    return torch.where(shown, truth, oracle.mask_id)


def _table(verdicts: list[Verdict], sequences: int, length: int) -> Table:
    tokens = verdicts[0].tokens
    table = Table(
        title=f"{sequences} sequences of {length} from a hidden Markov model: {tokens} masks, "
        "blocks of 32",
        title_justify="left",
    )
    table.add_column("rule")
    for name in ("steps", "tokens/step", "certified steps", "errors", "certified errors"):
        table.add_column(name, justify="right")
    for v in verdicts:
        share = f"{v.certified} ({v.certified / v.steps:.1%})"
        numbers = (str(v.steps), f"{v.tokens_per_step:.2f}", share, str(v.errors))
        table.add_row(str(v.rule), *numbers, str(v.certified_errors))
    return table


def _reading(verdicts: list[Verdict]) -> str:
    wrong = sum(v.certified_errors for v in verdicts)
    return (
        "A step commits several tokens of one sequence at once: the fewer steps, the faster. An "
        "error is a step whose tokens are not the most probable combination. A certified step is "
        f"one that the exact certificate vouches for; {wrong} of those were errors. What a rule "
        "gains by other steps, it gains at its own risk."
    )
