"""A conversation in the terminal."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fastdllm.errors import FastDLLMError, InputError, did_you_mean
from fastdllm.generation import Generation
from fastdllm.llm import LLM, Run
from fastdllm.tokenizer import Message
from fastdllm.vision.images import open_image
from fastdllm.vision.prompt import MARK

COMMANDS = {
    "/select": ("select", str, "the rule, for example /select threshold:0.9"),
    "/cache": ("cache", str, "none, prefix, dual, or prefix:32"),
    "/tokens": ("max_tokens", int, "new tokens at most"),
    "/image": (None, None, "a picture for the next question, for example /image cat.png"),
    "/reset": (None, None, "forget the conversation"),
    "/help": (None, None, "this list"),
    "/quit": (None, None, "leave; Ctrl-D does too"),
}


@dataclass(frozen=True)
class Talk:
    """What was said, and the pictures that stand in it."""

    messages: tuple[Message, ...] = ()
    images: tuple[Any, ...] = ()
    waiting: tuple[Any, ...] = ()
    """Pictures for the next question."""

    def show(self, llm: LLM, path: str) -> "Talk":
        """One more picture; a bad one is named at once."""
        if llm.eyes is None:
            raise InputError(f"{llm.name} reads text only; images want a LLaDA-V checkpoint")
        if not path:
            raise InputError("/image takes a path, for example /image cat.png")
        return replace(self, waiting=(*self.waiting, open_image(Path(path).expanduser())))

    def ask(self, line: str) -> "Talk":
        """One more question, with the pictures that waited for it."""
        question: Message = {"role": "user", "content": (MARK + "\n") * len(self.waiting) + line}
        return Talk((*self.messages, question), (*self.images, *self.waiting))


def converse(llm: LLM, settings: Generation) -> None:
    """Read a line, answer it, remember both. Ctrl-C ends an answer, or the conversation."""
    if llm.tokenizer is None or not llm.tokenizer.template:
        raise InputError(f"{llm.name} has no chat template; use `fastdllm generate` instead")
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[dim]{llm.name}, {settings.rule}, cache {settings.cache}; /help for help[/dim]")
    talk = Talk()
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
                talk = Talk()
            elif line.split(" ")[0] == "/image":
                talk = talk.show(llm, line.removeprefix("/image").strip())
            elif line.startswith("/"):
                settings = command(console, line, settings)
            elif line:
                talk = answer(console, llm, settings, talk, line)
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


def answer(console: Console, llm: LLM, settings: Generation, talk: Talk, line: str) -> Talk:
    """Print the answer as its text becomes stable; the conversation with it."""
    asked = talk.ask(line)
    run = Run(llm, llm.row(asked.messages, settings, images=asked.images), settings)
    sent = ""
    try:
        for _ in run.steps():
            text = run.stable_text()
            console.print(text[len(sent) :], end="", markup=False)
            sent = text
    except KeyboardInterrupt:
        console.print(" [dim](interrupted)[/dim]")
        return talk
    u = run.completion().usage
    console.print(
        f"\n[dim]{u.tokens} tokens, {u.nfe} passes, {u.tokens_per_nfe:.2f} a pass, "
        f"{u.seconds:.1f} s[/dim]"
    )
    said: Message = {"role": "assistant", "content": run.text()}
    return replace(asked, messages=(*asked.messages, said))
