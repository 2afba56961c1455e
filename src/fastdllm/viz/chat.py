"""A conversation in the terminal."""

from dataclasses import replace
from typing import Any

from rich.console import Console

from fastdllm.errors import FastDLLMError, InputError, did_you_mean
from fastdllm.generation import Generation
from fastdllm.llm import LLM, Run
from fastdllm.tokenizer import Message

COMMANDS = {
    "/select": ("select", str, "the rule, for example /select threshold:0.9"),
    "/cache": ("cache", str, "none, prefix or dual"),
    "/tokens": ("max_tokens", int, "new tokens at most"),
    "/reset": (None, None, "forget the conversation"),
    "/help": (None, None, "this list"),
    "/quit": (None, None, "leave; Ctrl-D does too"),
}


def converse(llm: LLM, settings: Generation) -> None:
    """Read a line, answer it, remember both. Ctrl-C ends an answer, or the conversation."""
    if llm.tokenizer is None or not llm.tokenizer.template:
        raise InputError(f"{llm.name} has no chat template; use `fastdllm generate` instead")
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[dim]{llm.name}, {settings.rule}, cache {settings.cache}; /help for help[/dim]")
    messages: list[Message] = []
    while True:
        try:
            line = console.input("[bold]you>[/bold] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line == "/quit":
            return
        try:
            if line == "/reset":
                messages = []
            elif line.startswith("/"):
                settings = command(console, line, settings)
            elif line:
                messages = answer(console, llm, settings, messages, line)
        except FastDLLMError as error:
            console.print(str(error), style="red", markup=False)


def command(console: Console, line: str, settings: Generation) -> Generation:
    """Carry out one of the commands; the settings after it."""
    word, _, value = line.partition(" ")
    if word == "/help":
        for known, (_, _, what) in COMMANDS.items():
            console.print(f"  {known:8} {what}")
        return settings
    if word not in COMMANDS:
        raise InputError(f"unknown command '{word}'; {did_you_mean(word, COMMANDS)}")
    name, kind, what = COMMANDS[word]
    if name is None or kind is None:
        return settings
    try:
        change: dict[str, Any] = {name: kind(value.strip())}
    except ValueError:
        raise InputError(f"{word} takes {what}") from None
    settings = replace(settings, **change)
    console.print(
        f"[dim]{settings.rule}, cache {settings.cache}, {settings.max_tokens} tokens[/dim]"
    )
    return settings


def answer(
    console: Console, llm: LLM, settings: Generation, messages: list[Message], line: str
) -> list[Message]:
    """Print the answer as its text becomes stable; the conversation with it."""
    asked: list[Message] = [*messages, {"role": "user", "content": line}]
    run = Run(llm, llm.row(asked, settings), settings)
    sent = ""
    try:
        for _ in run.steps():
            text = run.stable_text()
            console.print(text[len(sent) :], end="", markup=False)
            sent = text
    except KeyboardInterrupt:
        console.print(" [dim](interrupted)[/dim]")
        return messages
    u = run.completion().usage
    console.print(
        f"\n[dim]{u.tokens} tokens, {u.nfe} passes, {u.tokens_per_nfe:.2f} a pass, "
        f"{u.seconds:.1f} s[/dim]"
    )
    return [*asked, {"role": "assistant", "content": run.text()}]
