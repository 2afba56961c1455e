"""A prompt with pictures in it: messages as LLaDA-V reads them, and where the pictures stand."""

from collections.abc import Sequence

from fastdllm.errors import InputError
from fastdllm.tokenizer import Message, Tokenizer

MARK = "<image>"
SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual "
    "content that the user provides, and assist the user with a variety of tasks using natural "
    "language."
)
# What the family calls its special tokens; its config.json does not say.
MASK = "<|mdm_mask|>"
TURN_END = "<|eot_id|>"
FORBIDDEN = ("<|endoftext|>", "<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>")


def special_ids(tokenizer: Tokenizer) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The mask, what ends an answer, and what is never proposed."""
    never = tuple(tokenizer.id_of(name) for name in FORBIDDEN)
    return tokenizer.id_of(MASK), (tokenizer.id_of(TURN_END),), never


def converse(prompt: "str | Sequence[Message]", pictures: int, think: bool | None) -> list[Message]:
    """Messages with the family's system prompt, a mark for every picture, and the thinking switch.

    Marks that are missing go before the first question.

    >>> converse("How many?", 1, True)[1]
    {'role': 'user', 'content': '<image>\\nHow many? /think'}
    """
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    messages = [dict(message) for message in prompt]
    if not all(isinstance(m.get("content"), str) and "role" in m for m in messages):
        raise InputError('a message is not {"role": ..., "content": text}; images go in images=')
    if not any(m["role"] == "system" for m in messages):
        messages.insert(0, {"role": "system", "content": SYSTEM})
    questions = [m for m in messages if m["role"] == "user"]
    for message in messages:  # what a model wrote is no mark
        if message["role"] != "user":
            message["content"] = message["content"].replace(MARK, "image")
    marks = sum(m["content"].count(MARK) for m in questions)
    if marks == 0 and questions:
        questions[0]["content"] = (MARK + "\n") * pictures + questions[0]["content"]
        marks = pictures
    if marks != pictures:
        raise InputError(
            f"the prompt holds {marks} {MARK} marks for {pictures} images; give one for each, or "
            "leave the marks out"
        )
    if think is not None and questions:
        questions[-1]["content"] += " /think" if think else " /no_think"
    return messages  # type: ignore[return-value]


def encode(
    tokenizer: Tokenizer, text: str, sizes: Sequence[int], drop_newline: bool
) -> tuple[list[int], list[int]]:
    """The ids of a text with marks, and the positions the pictures take; their ids mean nothing.

    `drop_newline` loses the first token after every mark, as the public code does and its figures
    were made with: it takes it for a token that begins a text.
    """
    ids: list[int] = []
    at: list[int] = []
    first, *rest = text.split(MARK)
    ids += tokenizer.encode(first)
    for size, chunk in zip(sizes, rest, strict=True):
        at += range(len(ids), len(ids) + size)
        ids += [0] * size
        ids += tokenizer.encode(chunk)[int(drop_newline) :]
    return ids, at
