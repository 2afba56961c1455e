"""From a folder or a hub id to a loaded model: strict, no second copy, no remote code ever."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fastdllm.errors import CheckpointError, InputError
from fastdllm.models.config import ModelConfig
from fastdllm.models.families import read_config, tensor_name
from fastdllm.models.transformer import Transformer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
ZOO = Path(__file__).parent.parent / "zoo"
EMBEDDED = tuple(sorted(path.parent.name for path in ZOO.glob("*/config.json")))
"""The models that come with the package."""
FLOATS = {"F64", "F32", "F16", "BF16"}

Progress = Callable[[int, int], None]
"""Called with tensors done and tensors in all."""


def find_folder(name: str | Path, *, weights: bool = True) -> Path:
    """A folder as it is, an embedded model by its name; anything else is a hub id to download."""
    try:
        folder = Path(name).expanduser()
    except RuntimeError as error:  # ~someone who is nobody
        raise CheckpointError(f"'{name}' is not a folder: {error}") from None
    if folder.is_dir():
        return folder
    if str(name) in EMBEDDED:
        return ZOO / str(name)
    if folder.exists() or str(name).startswith((".", "/", "~")) or str(name).count("/") != 1:
        embedded = f", or one of {', '.join(EMBEDDED)}" if EMBEDDED else ""
        raise CheckpointError(
            f"'{name}' is not a folder; wanted a folder with config.json, or a hub id owner/name"
            f"{embedded}"
        )
    from huggingface_hub import snapshot_download

    try:
        wanted = FILES if weights else [kind for kind in FILES if kind != "*.safetensors"]
        return Path(snapshot_download(str(name), allow_patterns=wanted))
    except Exception as error:  # the hub's client raises a dozen kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"'{name}' is no folder here and could not be fetched from the hub: {reason}"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an error that names the file and the line."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; is it a model folder?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}; wanted an object")
    return found


def load_config(folder: Path) -> ModelConfig:
    """What the folder's config.json and generation_config.json say."""
    extra = folder / "generation_config.json"
    return read_config(
        read_json(folder / "config.json"), read_json(extra) if extra.exists() else None
    )


def pick_device(device: str) -> torch.device:
    """`auto` is the best there is: cuda, then mps, then cpu. A process of several has its own."""
    if device == "auto":
        best = ("cuda", torch.cuda), ("mps", torch.backends.mps)
        device = next((name for name, where in best if where.is_available()), "cpu")
    if device == "cuda" and "LOCAL_RANK" in os.environ:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    if device.split(":")[0] not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device '{device}'; try auto, cpu, cuda, cuda:1 or mps")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{device}' cannot be used here: {reason}") from None
    return torch.device(device)


def pick_dtype(dtype: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own, but float32 on a CPU, where half precision is slower."""
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else config.stored_dtype
    name = dtype.removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"unknown dtype '{dtype}'; try auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(
    folder: Path, dtype: str = "auto", device: str = "auto", progress: Progress | None = None
) -> Transformer:
    """The model of a folder. Every tensor is checked before the first one is loaded."""
    config = load_config(folder)
    place = pick_device(device)
    kind = pick_dtype(dtype, config, place)
    with torch.device("meta"):
        model = Transformer(config)
    files = _open_all(weight_files(folder))
    wanted = {
        tensor_name(config.family, name): (name, tuple(parameter.shape))
        for name, parameter in model.named_parameters()  # a tied head is named once
    }
    _check(folder, {k: shape for k, (_, shape) in wanted.items()}, files)
    for done, (theirs, (ours, _)) in enumerate(wanted.items(), 1):
        # Memory-mapped: converted and moved one tensor at a time, or used as it lies.
        _assign(model, ours, files[theirs].get_tensor(theirs).to(place, kind))
        if progress:
            progress(done, len(wanted))
    if config.tied:
        model.head.weight = model.embed.weight
    if model.eyes is not None:
        model.eyes.settle()
    return model.eval().requires_grad_(False)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or those its index names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        where = read_json(index).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
            raise CheckpointError(f"{index}: weight_map does not map tensor names to files")
        shards = sorted(set(where.values()))
        missing = [name for name in shards if not (folder / name).exists()]
        if missing or not shards:
            raise CheckpointError(
                f"{folder}: the index names {', '.join(missing) or 'no file'}, not there; "
                "download the folder again"
            )
        return [folder / name for name in shards]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    pickled = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth") for p in folder.glob(kind))
    if pickled:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({', '.join(pickled)}), and loading those runs "
            "code; convert them first with transformers: "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    raise CheckpointError(f"{folder} has no model.safetensors; is the download complete?")


def _open_all(paths: list[Path]) -> dict[str, Any]:
    """Tensor name to the open file that holds it."""
    found: dict[str, Any] = {}
    for path in paths:
        try:
            file = safe_open(path, framework="pt")
            found |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged or cut short ({error}); download it again"
            ) from None
    return found


def _check(folder: Path, wanted: dict[str, tuple[int, ...]], files: dict[str, Any]) -> None:
    """Every missing, unexpected and mis-shaped tensor at once; nothing loads half-way."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}
    problems = {
        "missing": sorted(wanted.keys() - shapes.keys()),
        "unexpected": sorted(shapes.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {list(shapes[name])} for {list(shape)}"
            for name, shape in wanted.items()
            if name in shapes and shapes[name] != shape
        ],
        "not of a float dtype": sorted(
            name for name, file in files.items() if file.get_slice(name).get_dtype() not in FLOATS
        ),
    }
    listed = [f"{len(n)} {kind}: {', '.join(n)}" for kind, n in problems.items() if n]
    if listed:
        raise CheckpointError(
            f"{folder}: the tensors do not fit its config.json; {'; '.join(listed)}"
        )


def _assign(model: nn.Module, name: str, value: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(value, requires_grad=False))
