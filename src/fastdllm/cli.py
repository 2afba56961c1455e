"""The command line. Each command imports only what it needs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fastdllm import __version__
from fastdllm.errors import FastDLLMError, InputError, did_you_mean

app = typer.Typer(
    help="Faster decoding for masked diffusion language models, with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DEMO_RULES = (
    "full threshold:0.9 threshold:0.5 factor:0.75 frechet:0.25 exact:0.25 entropy:0.5 topk:4"
)


def main() -> None:
    """The entry point: an error of ours is one line and its exit code, never a traceback."""
    try:
        app()
    except FastDLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"fastdllm {__version__}")
        raise typer.Exit


@app.command()
def rules() -> None:
    """List the rules that decide which masked tokens are committed together."""
    from fastdllm import selection

    table = (selection.__doc__ or "").split("\n\n")[2]
    print(table)


@app.command()
def demo(
    select: Annotated[
        str, typer.Option(help="Rules to compare, with spaces between.")
    ] = DEMO_RULES,
    sequences: Annotated[int, typer.Option(min=1, help="How many sequences to decode.")] = 16,
    length: Annotated[int, typer.Option(min=2, help="Tokens in each sequence.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the oracle, the sequences and the hints.")] = 0,
) -> None:
    """Compare rules on an oracle: a denoiser whose probabilities are exactly right.

    Sequences of a hidden Markov model, one token in seven given as a hint. Every commit is held
    to the true joint arg-max, so an error in the table is the rule's own and nobody else's.
    """
    from fastdllm.bench.oracle import compare

    compare(select.split(), sequences, length, seed)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="Which one: profile.")],
    output: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("docs/figures"),
) -> None:
    """Draw a figure of the docs as SVG and PNG."""
    if name != "profile":
        raise InputError(f"unknown figure '{name}'; {did_you_mean(name, ['profile'])}")
    try:
        from fastdllm.bench.figures import profile_figure
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is missing; try: pip install 'fastdllm[plots]'") from None
    for path in profile_figure(output):
        print(path)
