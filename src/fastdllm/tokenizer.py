"""Text to ids and back, and the chat template, all read from the checkpoint's own files."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from fastdllm.errors import CheckpointError, InputError

Message = Mapping[str, Any]
"""{"role": "user", "content": "..."}"""

# How Qwen2's tokenizer cuts text before byte-pair encoding; Dream ships no tokenizer.json.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<end_of_turn>")


class Tokenizer:
    """A checkpoint's tokenizer.

    `mask_id` and `end_ids` are what its files say; a model's config.json may say more.
    """

    def __init__(self, core: Any, settings: Mapping[str, Any], template: str | None) -> None:
        self.core, self.settings, self.template = core, settings, template
        self.mask_id = self._special("mask_token")
        ends = [self._special("eos_token"), *map(core.token_to_id, TURN_ENDS)]
        self.end_ids = tuple(dict.fromkeys(i for i in ends if i is not None))

    def _special(self, name: str) -> int | None:
        token = _content(self.settings.get(name))
        found: int | None = self.core.token_to_id(token) if token else None
        return found

    def id_of(self, token: str) -> int:
        """The id of a special token."""
        found: int | None = self.core.token_to_id(token)
        if found is None:
            raise CheckpointError(f"the tokenizer has no {token}, which this family needs")
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the whole of it."""
        return hashlib.sha256(self.core.to_str().encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return int(self.core.get_vocab_size(with_added_tokens=True))

    @property
    def start(self) -> str:
        """The token that begins a text, as text."""
        found = _content(self.settings.get("bos_token"))
        if not found:
            raise InputError("this tokenizer names no token that begins a text (bos_token)")
        return found

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer | None":
        """The folder's tokenizer, or None if it has none."""
        from tokenizers import Tokenizer as Core

        settings = {
            **_json(folder / "special_tokens_map.json"),
            **_json(folder / "tokenizer_config.json"),
        }
        template = folder / "chat_template.jinja"
        chat = template.read_text() if template.exists() else _chat(settings.get("chat_template"))
        try:
            if (folder / "tokenizer.json").exists():
                return cls(Core.from_file(str(folder / "tokenizer.json")), settings, chat)
            if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
                return cls(_byte_pairs(folder, settings), settings, chat)
        except Exception as error:  # the library raises bare Exceptions
            raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from None
        return None

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as it stands: nothing is added in front or behind."""
        return list(self.core.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special tokens are left out unless asked for."""
        kept = [i for i in ids if i != self.mask_id]
        return str(self.core.decode(kept, skip_special_tokens=not special))

    def piece(self, token: int) -> str:
        """One token, for people to look at."""
        return str(self.core.decode([token], skip_special_tokens=False))

    def chat(self, messages: Sequence[Message]) -> str:
        """Messages as the text the model was trained on, ready for the assistant's turn."""
        if not self.template:
            raise InputError("this checkpoint has no chat template; give a plain text prompt")
        names = {k: _content(v) for k, v in self.settings.items() if k.endswith("_token")}
        try:
            return str(
                self._compiled.render(messages=list(messages), add_generation_prompt=True, **names)
            )
        except Exception as error:  # a template is a program: it can fail in any way
            raise InputError(f"the chat template refused these messages: {error}") from None

    @cached_property
    def _compiled(self) -> Any:
        """The template, compiled once: 4 ms, which a trainer would pay for every example."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        room = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        room.globals |= {
            "raise_exception": refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        room.filters["tojson"] = lambda value, **options: json.dumps(
            value, **{"ensure_ascii": False, **options}
        )
        return room.from_string(self.template or "")


def stable(text: str) -> str:
    """A text without the replacement characters of a character that is still half there.

    >>> stable("caf\\ufffd")
    'caf'
    """
    return text.rstrip("\ufffd")


def _content(token: Any) -> str | None:
    """A special token is written as text, or as an object with its text."""
    return token.get("content") if isinstance(token, Mapping) else token


def _chat(found: Any) -> str | None:
    """One template, or a list of named ones."""
    if isinstance(found, list):
        return next((t["template"] for t in found if t.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None


def _byte_pairs(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Qwen2's byte-level byte-pair encoding from vocab.json and merges.txt."""
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Core

    core = Core(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    added = settings.get("added_tokens_decoder") or {
        str(i): {"content": token, "special": True}
        for token, i in _json(folder / "added_tokens.json").items()
    }
    # Ids are given out in order, so they must be added in order.
    for number in sorted(added, key=int):
        token = added[number]
        flags = {k: token[k] for k in ("lstrip", "rstrip", "single_word") if k in token}
        one = AddedToken(token["content"], normalized=False, **flags)
        add = core.add_special_tokens if token.get("special") else core.add_tokens
        add([one])
        if core.token_to_id(token["content"]) != int(number):
            raise CheckpointError(
                f"{folder}: added token {token['content']!r} should have id {number}, and got "
                f"{core.token_to_id(token['content'])}"
            )
    return core


HOLE = re.compile(r"\[MASK:(\d+)\]")


def split_holes(text: str) -> list[str | int]:
    """A text with holes as its pieces: strings, and for each hole its length in tokens.

    >>> split_holes("a [MASK:3] b")
    ['a ', 3, ' b']
    """
    parts = HOLE.split(text)
    pieces: list[str | int] = [
        int(part) if i % 2 else part for i, part in enumerate(parts) if i % 2 or part
    ]
    if not any(isinstance(piece, int) and piece > 0 for piece in pieces):
        raise InputError("there is no hole in the text; write one as [MASK:24], 24 tokens long")
    return pieces
