"""LLM: a model and its tokenizer, ready to generate."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from fastdllm.denoise import CachedReader, ForeignReader, Picture, Reader, Row, Step, denoise
from fastdllm.errors import CheckpointError, InputError
from fastdllm.generation import Completion, Generation, Usage
from fastdllm.models.loading import Progress, find_folder, load_model
from fastdllm.models.transformer import Transformer
from fastdllm.tokenizer import Message, Tokenizer, split_holes, stable
from fastdllm.tracing import Trace
from fastdllm.vision.images import Source, as_list
from fastdllm.vision.prompt import MARK, converse, encode, special_ids

Prompt = str | Sequence[int] | Tensor | Sequence[Message]
"""Text as it stands, token ids, or chat messages."""
PICTURE = -1
"""In a trace, a position where a part of a picture stands."""


class LLM:
    """A masked diffusion language model.

    llm = LLM.load("path/to/LLaDA-8B-Instruct")
    done = llm.generate("Tom has 12 apples ...", Generation(select="frechet:0.25", cache="dual"))
    print(done.text, done.usage.nfe, done.usage.tokens_per_nfe)
    """

    def __init__(
        self,
        model: Transformer | Callable[[Tensor], Any],
        tokenizer: Tokenizer | None = None,
        *,
        mask_id: int | None = None,
        end_ids: Sequence[int] | None = None,
        shift: bool = False,
        forbidden: Sequence[int] = (),
        name: str = "model",
    ) -> None:
        """Also for a foreign model, anything called as `model(ids) -> logits`: no cache then."""
        self.model, self.tokenizer, self.name, self.shift = model, tokenizer, name, shift
        known_mask: int | None = None
        known_ends: tuple[int, ...] = ()
        self.vocab: int | None = None
        self.context: int | None = None
        self.device = torch.device("cpu")
        if isinstance(model, Transformer):
            config = model.config
            known_mask, known_ends = config.mask_id, config.end_ids
            self.vocab, self.context = config.vocab, config.context
            self.device, self.shift = model.embed.weight.device, config.shift
        elif isinstance(model, torch.nn.Module):
            self.device = next((p.device for p in model.parameters()), self.device)
        if tokenizer is not None:
            known_mask = tokenizer.mask_id if known_mask is None else known_mask
            known_ends = (*known_ends, *tokenizer.end_ids)
        self.eyes = model.eyes if isinstance(model, Transformer) else None
        if self.eyes is not None and tokenizer is not None:
            known_mask, known_ends, never = special_ids(tokenizer)
            forbidden = forbidden or never
        mask = known_mask if mask_id is None else mask_id
        if mask is None:
            raise CheckpointError(
                "neither config.json nor the tokenizer names a mask token; give mask_id="
            )
        self.mask_id = mask
        ends = known_ends if end_ids is None else end_ids
        self.end_ids = tuple(dict.fromkeys(ends))
        self.forbidden = (self.mask_id, *forbidden)
        """What is never proposed."""
        self.drop_newline = True
        """What follows a picture loses its first token, as in LLaDA-V's own code."""

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        mask_id: int | None = None,
        shift: bool | None = None,
        progress: Progress | None = None,
    ) -> "LLM":
        """A model folder or a hub id. Strict: a checkpoint that does not fit does not load.

        `mask_id` and `shift` are for converted models whose files do not say.
        """
        folder = find_folder(name)
        tokenizer = Tokenizer.load(folder)  # its errors come before the long wait
        model = load_model(folder, dtype, device, progress)
        if shift is not None:
            model.config = replace(model.config, shift=shift)
        if model.eyes is not None and tokenizer is not None:
            model.cut_vocabulary(len(tokenizer))
        return cls(model, tokenizer, mask_id=mask_id, name=str(name))

    @property
    def fingerprint(self) -> str:
        """A short hash of the weights: the start of every tensor."""
        known = hashlib.sha256()
        if isinstance(self.model, torch.nn.Module):
            for name, parameter in self.model.named_parameters():
                first = parameter.detach().flatten()[:16].float().cpu()
                known.update(f"{name} {tuple(parameter.shape)} {first.tolist()}".encode())
        return known.hexdigest()[:16]

    # --- Generating ----------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: str, settings: Generation = ..., *, images: Any = ..., trace: bool = ...
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Any, settings: Generation = ..., *, images: Any = ..., trace: bool = ...
    ) -> Any: ...
    def generate(
        self,
        prompt: Any,
        settings: Generation | None = None,
        *,
        images: Any = (),
        trace: bool = False,
    ) -> Any:
        """A completion for a prompt, or a list of them for a list of prompts, decoded together.

        `images` are paths, bytes or PIL images: one, a list, or of several prompts one or a list
        for each.
        """
        settings = settings or Generation()
        done = self._complete(self._rows(prompt, settings, images), settings, trace)
        return done if _is_many(prompt) else done[0]

    def _rows(self, prompt: Any, settings: Generation, images: Any) -> list[Row]:
        many = _is_many(prompt)
        prompts = list(prompt) if many else [prompt]
        pictures = [as_list(one) for one in as_list(images)] if many else [as_list(images)]
        pictures = pictures or [[]] * len(prompts)
        if len(pictures) != len(prompts):
            raise InputError(f"{len(prompts)} prompts have images for {len(pictures)}; wanted each")
        return [
            self.row(p, settings, number, images=seen)
            for number, (p, seen) in enumerate(zip(prompts, pictures, strict=True))
        ]

    def infill(
        self, text: str, settings: Generation | None = None, *, trace: bool = False
    ) -> Completion:
        """Fill the holes of a text, each written as [MASK:24] for 24 tokens.

        The completion's text is the whole of it, its tokens are those of the holes.
        """
        settings = replace(settings or Generation(), early_stop=False, stop=())
        ids: list[int] = []
        masked: list[bool] = []
        pieces = split_holes(text)
        self._check_length(sum(piece for piece in pieces if isinstance(piece, int)))
        for piece in pieces:
            new = [self.mask_id] * piece if isinstance(piece, int) else self.encode(piece)
            ids += new
            masked += [isinstance(piece, int)] * len(new)
        row = self._row(ids, masked, settings, 0)
        done = self._complete([row], settings, trace)[0]
        whole = self.tokenizer.decode(row.ids.tolist()) if self.tokenizer else ""
        filled = tuple(row.ids[torch.tensor(masked)].tolist())
        return replace(
            done,
            text=whole,
            tokens=filled,
            usage=replace(done.usage, tokens=len(filled), prompt_tokens=len(ids) - len(filled)),
        )

    def stream(
        self,
        prompt: Prompt,
        settings: Generation | None = None,
        *,
        images: Source | Sequence[Source] = (),
    ) -> Iterator[str]:
        """Pieces of text, each as soon as nothing before it can change any more."""
        settings = settings or Generation()
        run = Run(self, self.row(prompt, settings, images=as_list(images)), settings)
        sent = ""
        for _ in run.steps():
            text = run.stable_text()
            if len(text) > len(sent):
                yield text[len(sent) :]
                sent = text

    def steps(
        self, prompt: Any, settings: Generation | None = None, *, images: Any = ()
    ) -> Iterator[Step]:
        """The primitive: every step of every row, as it happens; images are as for `generate`."""
        settings = settings or Generation()
        yield from self.run(self._rows(prompt, settings, images), settings)

    def row(
        self,
        prompt: Prompt,
        settings: Generation,
        number: int = 0,
        *,
        images: Sequence[Source] = (),
    ) -> Row:
        """A canvas: the prompt, then `max_tokens` masks. Text with images is a chat turn."""
        picture = None
        marked = isinstance(prompt, str) and MARK in prompt
        if images or (self.eyes is not None and (marked or _is_chat(prompt))):
            ids, picture = self._seen(prompt, images, settings.think)
        else:
            ids = self._ids(prompt)
        if not ids:
            raise InputError("the prompt is empty; give at least one token")
        self._check_length(len(ids) + settings.max_tokens)
        masked = [False] * len(ids) + [True] * settings.max_tokens
        row = self._row(ids + [self.mask_id] * settings.max_tokens, masked, settings, number)
        row.picture = picture
        return row

    def run(self, rows: list[Row], settings: Generation) -> Iterator[Step]:
        """Denoise a live list of rows; a row also ends at its first stop string."""
        for step in denoise(self.reader(settings.cache), rows, self.forbidden):
            if settings.stops:
                row = next(row for row in rows if row.number == step.row)
                if _first_stop(self.known_text(row), settings.stops) is not None:
                    row.finish = "stop"
            yield step

    def reader(self, cache: str) -> Reader:
        """The model under a cache policy."""
        if isinstance(self.model, Transformer):
            return CachedReader(self.model, cache)
        return ForeignReader(self.model, device=self.device, shift=self.shift)

    # --- From prompts to rows, from rows to completions ----------------------------------------

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as it stands: no chat template around it."""
        if self.tokenizer is None:
            raise InputError(
                f"{self.name} has no tokenizer, so text cannot be read; give token ids"
            )
        return self.tokenizer.encode(text)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        parts = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if isinstance(parts, list | tuple) and all(isinstance(p, Integral) for p in parts):
            return [int(p) for p in parts]
        if isinstance(parts, list | tuple) and all(isinstance(p, Mapping) for p in parts):
            if self.tokenizer is None:
                raise InputError(f"{self.name} has no tokenizer, so it cannot chat; give token ids")
            return self.encode(self.tokenizer.chat(parts))
        raise InputError(
            f"a prompt of type {type(prompt).__name__} cannot be read; wanted text, a list of "
            "token ids, or a list of chat messages"
        )

    def _seen(
        self, prompt: Prompt, images: Sequence[Source], think: bool | None
    ) -> tuple[list[int], Picture | None]:
        """The ids of a prompt with pictures, and what stands where they are."""
        if self.eyes is None:
            raise InputError(f"{self.name} reads text only; images want a LLaDA-V checkpoint")
        if self.tokenizer is None or not (isinstance(prompt, str) or _is_chat(prompt)):
            raise InputError("images go with text or chat messages, and want a tokenizer")
        text = self.tokenizer.chat(converse(prompt, len(images), think))  # type: ignore[arg-type]
        seen = self.eyes.see(images) if images else []
        ids, at = encode(self.tokenizer, text, [len(one) for one in seen], self.drop_newline)
        return ids, Picture(torch.tensor(at), torch.cat(seen)) if seen else None

    def _row(self, ids: list[int], masked: list[bool], settings: Generation, number: int) -> Row:
        self._check_length(len(ids))
        if settings.rule.calibration is not None:
            written = self.tokenizer.fingerprint if self.tokenizer else ""
            settings.rule.calibration.check(self.fingerprint, written)
        if self.vocab is not None and not all(0 <= i < self.vocab for i in ids):
            bad = next(i for i in ids if not 0 <= i < self.vocab)
            raise InputError(
                f"token id {bad} is outside the vocabulary; wanted 0 <= id < {self.vocab}"
            )
        if self.shift and masked[0]:
            raise InputError("this model reads position i at i - 1, so the first cannot be a hole")
        ends = self.end_ids if settings.early_stop else ()
        return Row(
            number,
            torch.tensor(ids),
            torch.tensor(masked),
            settings.rule,
            settings.block_size,
            end_ids=ends if self.eyes is None else (),
            cuts=tuple((end,) for end in ends) if self.eyes is not None else (),
            sampling=settings.sampling(self.device),
        )

    def _check_length(self, length: int) -> None:
        if self.context is not None and length > self.context:
            raise InputError(
                f"prompt and new tokens make a canvas of {length}, more than the model's context "
                f"of {self.context}; shorten the prompt or lower max_tokens"
            )

    def _complete(self, rows: list[Row], settings: Generation, trace: bool) -> list[Completion]:
        runs = [Run(self, row, settings, trace) for row in rows]
        for step in self.run(rows, settings):
            runs[step.row].note(step)
        return [run.completion() for run in runs]

    def known_tokens(self, row: Row) -> tuple[int, ...]:
        """The tokens that are known without a gap, up to the end of text."""
        left = row.masked.nonzero()
        known = row.ids[row.origin : int(left[0]) if len(left) else row.end].tolist()
        ends = [i for i, token in enumerate(known) if token in self.end_ids]
        return tuple(known[: ends[0]] if ends else known)

    def known_text(self, row: Row) -> str:
        """The text of those tokens, without half a character at its end."""
        return stable(self.tokenizer.decode(self.known_tokens(row))) if self.tokenizer else ""


class Run:
    """One row on its way: what it took so far, and what is known of its text."""

    def __init__(self, llm: LLM, row: Row, settings: Generation, trace: bool = False) -> None:
        self.llm, self.row, self.settings, self.trace = llm, row, settings, trace
        canvas = row.ids.clone()
        if row.picture is not None:
            canvas[row.picture.at] = PICTURE
        self.canvas = tuple(canvas.tolist())
        self.taken: list[Step] = []
        self.commits: list[int] = []
        self.start = time.perf_counter()
        self.seconds = 0.0

    def steps(self) -> Iterator[Step]:
        """Run this row by itself."""
        for step in self.llm.run([self.row], self.settings):
            self.note(step)
            yield step

    def note(self, step: Step) -> None:
        """Take a step of this row into account."""
        self.commits.append(sum(step.committed))
        self.seconds = time.perf_counter() - self.start
        if self.trace:
            self.taken.append(step)

    def text(self) -> str:
        """What is known of the text, cut at the first stop string."""
        text = self.llm.known_text(self.row)
        return text[: _first_stop(text, self.settings.stops)]

    def stable_text(self) -> str:
        """What nothing can change any more: half a stop string is held back."""
        text = self.text()
        return _hold_back(text, self.settings.stops) if self.row.finish is None else text

    def completion(self) -> Completion:
        """The result."""
        tokens = self._tokens()
        usage = Usage(tuple(self.commits), self.row.origin, len(tokens), self.seconds)
        kept = self._trace() if self.trace else None
        return Completion(self.text(), tokens, self.row.finish or "length", usage, kept)

    def _tokens(self) -> tuple[int, ...]:
        """The tokens of the text: those of a stop string, and after it, do not count."""
        tokens = self.llm.known_tokens(self.row)
        tokenizer, stops = self.llm.tokenizer, self.settings.stops
        if tokenizer is None or _first_stop(tokenizer.decode(tokens), stops) is None:
            return tokens
        size = len(self.text())
        kept = 0
        while kept < len(tokens) and len(tokenizer.decode(tokens[: kept + 1])) <= size:
            kept += 1
        return tokens[:kept]

    def _trace(self) -> Trace:
        seen = {*self.canvas, *(token for step in self.taken for token in step.tokens)}
        tokenizer = self.llm.tokenizer
        return Trace(
            model=self.llm.name,
            select=str(self.settings.rule),
            cache=self.settings.cache if isinstance(self.llm.model, Transformer) else "none",
            block_size=self.settings.block_size,
            canvas=self.canvas,
            origin=self.row.origin,
            mask_id=self.llm.mask_id,
            pieces={i: _piece(tokenizer, i) for i in sorted(seen)} if tokenizer else {},
            steps=tuple(self.taken),
        )


def _piece(tokenizer: Tokenizer, token: int) -> str:
    return "▦" if token == PICTURE else tokenizer.piece(token)


def _is_chat(prompt: Any) -> bool:
    """Messages, not text or token ids."""
    listed = isinstance(prompt, list | tuple) and bool(prompt)
    return listed and all(isinstance(p, Mapping) for p in prompt)


def _is_many(prompt: Any) -> bool:
    """A list of prompts; a list of numbers or of messages is one."""
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim == 2)
    if not isinstance(prompt, list | tuple):
        return False
    return not all(isinstance(p, Integral | Mapping) for p in prompt)


def _first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    found = [at for at in (text.find(s) for s in stop) if at >= 0]
    return min(found, default=None)


def _hold_back(text: str, stop: tuple[str, ...]) -> str:
    """Without an ending that may turn out to be the start of a stop string."""
    for s in stop:
        for n in range(len(s) - 1, 0, -1):
            if text.endswith(s[:n]):
                text = text[:-n]
                break
    return text
