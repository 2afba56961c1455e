"""What a checkpoint is and what it will cost, before anything is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastdllm.models.config import ModelConfig
from fastdllm.models.loading import DTYPES, find_folder, load_config, pick_dtype, weight_files
from fastdllm.tokenizer import Tokenizer
from fastdllm.vision.prompt import special_ids


@dataclass(frozen=True)
class Cost:
    """Bytes, at a given length, batch and dtype."""

    weights: int
    cache: int
    """Keys and values of every position, under prefix or dual; none needs none."""
    logits: int
    """What the head makes in one step: the masked positions of one block, per row."""
    canvas_logits: int
    """What it would be for the whole canvas, as the public decoders have it."""


def cost(config: ModelConfig, dtype: str, length: int, batch: int, block_size: int) -> Cost:
    """The large tensors of a run."""
    each = DTYPES[dtype].itemsize
    kv = 2 * config.layers * config.kv_heads * config.head_dim
    return Cost(
        weights=config.parameters * each,
        cache=batch * length * kv * each,
        logits=batch * min(block_size, length) * config.vocab * each,
        canvas_logits=batch * length * config.vocab * each,
    )


def _files(folder: Path) -> str:
    """The weight files, if they are there: of a hub id only the texts are fetched."""
    if not list(folder.glob("*.safetensors")) and not list(folder.glob("*.bin")):
        return "not here yet"
    return ", ".join(path.name for path in weight_files(folder))


def describe(name: str, dtype: str, length: int, batch: int, block_size: int) -> None:
    """Print family, sizes, dtype, special tokens and the memory a run needs."""
    import torch

    folder = find_folder(name, weights=False)
    config, tokenizer = load_config(folder), Tokenizer.load(folder)
    # The dtype of an accelerator: `auto` on a CPU is float32, whatever is stored.
    kind = str(pick_dtype(dtype, config, torch.device("cuda"))).removeprefix("torch.")
    price = cost(config, kind, length, batch, block_size)
    mask = config.mask_id if config.mask_id is not None or not tokenizer else tokenizer.mask_id
    ends: Iterable[int] = dict.fromkeys(
        (*config.end_ids, *(tokenizer.end_ids if tokenizer else ()))
    )

    never: tuple[int, ...] = ()
    if config.eyes is not None and tokenizer is not None:
        mask, ends, never = special_ids(tokenizer)

    def token(i: int | None) -> str:
        if i is None:
            return "none named: give mask_id"
        return f"{i} {tokenizer.piece(i)!r}" if tokenizer else str(i)

    rows = {
        "family": config.family + (", shifted head" if config.shift else ""),
        "parameters": f"{config.parameters / 1e6:,.2f} M",
        "shape": f"{config.layers} layers of width {config.width}, {config.heads} heads "
        f"({config.kv_heads} for keys) of {config.head_dim}, feed-forward {config.mlp}",
        "vocabulary": f"{config.vocab:,}"
        + (f", cut to {len(tokenizer):,}" if never and tokenizer else "")
        + (", tied head" if config.tied else ""),
        "context": f"{config.context:,}",
        "mask token": token(mask),
        "end tokens": ", ".join(map(token, ends)) or "none",
        "tokenizer": f"{len(tokenizer):,} tokens" if tokenizer else "none: takes token ids only",
        "chat template": "yes" if tokenizer and tokenizer.template else "no",
        "files": _files(folder),
        "stored as": config.stored_dtype,
    }
    if never:
        rows["never proposed"] = ", ".join(map(token, never))
    if (eyes := config.eyes) is not None:
        rows["eyes"] = (
            f"{eyes.layers} layers of width {eyes.width}, tiles of {eyes.side} pixels, "
            f"{eyes.cells} x {eyes.cells} features each, {len(eyes.canvases)} canvases"
        )
    memory = {
        f"weights, {kind}": price.weights,
        f"cache, {batch} x {length} positions": price.cache,
        f"logits of a block, {batch} x {min(block_size, length)}": price.logits,
        "(logits of the whole canvas, never made)": price.canvas_logits,
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(key, Text(value))  # not markup: a token may be called [mask]
    for key, size in memory.items():
        table.add_row(key, f"{size / 1e9:,.3f} GB")
    Console().print(table)
