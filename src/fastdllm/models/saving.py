"""The other direction: a model to a checkpoint folder in its family's own format."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastdllm.models.config import ModelConfig
from fastdllm.models.families import FAMILIES, tensor_name
from fastdllm.models.transformer import Transformer
from fastdllm.vision.eyes import write_eyes

ARCHITECTURES = {
    "llada": "LLaDAModelLM", "Dream": "DreamModel", "llava_llada": "LlavaLLaDAModelLM",
}  # fmt: skip


def write_config(config: ModelConfig) -> dict[str, Any]:
    """A config.json that `read_config` reads back as the same."""
    family = FAMILIES[config.family]
    raw: dict[str, Any] = {"model_type": config.family}
    if config.family in ARCHITECTURES:
        raw["architectures"] = [ARCHITECTURES[config.family]]
    for ours, key in family.keys.items():
        raw[key if isinstance(key, str) else key[0]] = getattr(config, ours)
    raw |= {key: value for key, value in family.wanted.items() if key != "rope_scaling"}
    if config.family == "llada":
        raw["vocab_size"] = config.vocab
    if config.eyes is not None:
        raw |= write_eyes(config.eyes)
    if config.shift != family.switches["shift"]:
        raw["shift"] = config.shift
    ends = list(config.end_ids)
    return raw | {
        "mask_token_id": config.mask_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": ends[0] if ends else None,
        "torch_dtype": config.stored_dtype,
    }


def save_model(model: Transformer, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write config.json and model.safetensors; an older pair stays until the new one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    tensors = {
        tensor_name(config.family, name): parameter.detach().to("cpu", dtype).contiguous()
        for name, parameter in model.named_parameters()
    }
    raw = {**write_config(config), "torch_dtype": str(dtype).removeprefix("torch.")}
    save_file(tensors, folder / "model.safetensors.new", metadata={"format": "pt"})
    (folder / "config.json.new").write_text(json.dumps(raw, indent=2) + "\n")
    for name in ("model.safetensors", "config.json"):
        os.replace(folder / f"{name}.new", folder / name)
