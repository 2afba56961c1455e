"""The families: how each names its settings and its tensors. Adding one is adding a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastdllm.errors import CheckpointError, did_you_mean
from fastdllm.models.config import ModelConfig
from fastdllm.vision.eyes import read_eyes

Json = Mapping[str, Any]

# Our module -> the checkpoint's, with {i} for the block.
LLADA_NAMES = {
    "embed": "model.transformer.wte",
    "blocks.{i}.attention_norm": "model.transformer.blocks.{i}.attn_norm",
    "blocks.{i}.q": "model.transformer.blocks.{i}.q_proj",
    "blocks.{i}.k": "model.transformer.blocks.{i}.k_proj",
    "blocks.{i}.v": "model.transformer.blocks.{i}.v_proj",
    "blocks.{i}.o": "model.transformer.blocks.{i}.attn_out",
    "blocks.{i}.mlp_norm": "model.transformer.blocks.{i}.ff_norm",
    "blocks.{i}.gate": "model.transformer.blocks.{i}.ff_proj",
    "blocks.{i}.up": "model.transformer.blocks.{i}.up_proj",
    "blocks.{i}.down": "model.transformer.blocks.{i}.ff_out",
    "norm": "model.transformer.ln_f",
    "head": "model.transformer.ff_out",
}
LLAMA_NAMES = {
    "embed": "model.embed_tokens",
    "blocks.{i}.attention_norm": "model.layers.{i}.input_layernorm",
    "blocks.{i}.q": "model.layers.{i}.self_attn.q_proj",
    "blocks.{i}.k": "model.layers.{i}.self_attn.k_proj",
    "blocks.{i}.v": "model.layers.{i}.self_attn.v_proj",
    "blocks.{i}.o": "model.layers.{i}.self_attn.o_proj",
    "blocks.{i}.q_norm": "model.layers.{i}.self_attn.q_norm",
    "blocks.{i}.k_norm": "model.layers.{i}.self_attn.k_norm",
    "blocks.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "blocks.{i}.gate": "model.layers.{i}.mlp.gate_proj",
    "blocks.{i}.up": "model.layers.{i}.mlp.up_proj",
    "blocks.{i}.down": "model.layers.{i}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}

# Our setting -> the checkpoint's key, or (key, default) where it may be missing.
LLADA_KEYS = {
    "layers": "n_layers",
    "width": "d_model",
    "heads": "n_heads",
    "kv_heads": ("n_kv_heads", None),
    "head_dim": ("head_dim", None),
    "mlp": "mlp_hidden_size",
    "vocab": "embedding_size",
    "context": "max_sequence_length",
    "eps": ("rms_norm_eps", 1e-5),
    "theta": ("rope_theta", 10_000.0),
    "tied": ("weight_tying", False),
    "qkv_bias": ("include_qkv_bias", False),
}
LLAMA_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "mlp": "intermediate_size",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "eps": ("rms_norm_eps", 1e-6),
    "theta": ("rope_theta", 10_000.0),
    "tied": ("tie_word_embeddings", False),
}

# What we do not compute. A checkpoint that asks for it is refused, not run wrong.
LLADA_WANTED: Json = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "rope_full_precision": True,
    "alibi": False,
    "include_bias": False,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
}
LLAMA_WANTED: Json = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}


@dataclass(frozen=True)
class Family:
    """One row: how to read a config.json of this `model_type`, and how its tensors are named."""

    names: Mapping[str, str]
    keys: Mapping[str, Any]
    wanted: Json
    switches: Json
    """Settings the config.json does not hold."""


EYES_NAMES = {
    "eyes.tower": "model.vision_tower.vision_tower.vision_model",
    "eyes.projector": "model.mm_projector",
    "eyes.newline": "model.image_newline",
}

LLAMA_SWITCHES = {"qkv_bias": False, "qk_norm": False, "shift": False, "rope_float32": False}

FAMILIES: dict[str, Family] = {
    # LLaDA-8B-Base and -Instruct, LLaDA-1.5
    "llada": Family(
        LLADA_NAMES,
        LLADA_KEYS,
        LLADA_WANTED,
        {"qk_norm": False, "shift": False, "rope_float32": True},
    ),
    # Dream-v0 Base and Instruct, Dream-Coder, DiffuCoder
    "Dream": Family(
        LLAMA_NAMES, LLAMA_KEYS, LLAMA_WANTED, {**LLAMA_SWITCHES, "qkv_bias": True, "shift": True}
    ),
    # Autoregressive models converted to bidirectional ones
    "llama": Family(LLAMA_NAMES, LLAMA_KEYS, LLAMA_WANTED, LLAMA_SWITCHES),
    "qwen2": Family(LLAMA_NAMES, LLAMA_KEYS, LLAMA_WANTED, {**LLAMA_SWITCHES, "qkv_bias": True}),
    "qwen3": Family(LLAMA_NAMES, LLAMA_KEYS, LLAMA_WANTED, {**LLAMA_SWITCHES, "qk_norm": True}),
}
# LLaDA-V, which reads pictures
FAMILIES["llava_llada"] = Family(LLAMA_NAMES, LLAMA_KEYS, LLAMA_WANTED, LLAMA_SWITCHES)
FAMILIES |= {f"a2d-{name}": FAMILIES[name] for name in ("llama", "qwen2", "qwen3")}  # dLLM's


def read_config(raw: Json, generation: Json | None = None) -> ModelConfig:
    """A config.json (and, where there is one, a generation_config.json) as a `ModelConfig`."""
    kind = str(raw.get("model_type", ""))
    if kind not in FAMILIES:
        hint = did_you_mean(kind, FAMILIES)
        raise CheckpointError(f"config.json: model_type '{kind}' is not a known family; {hint}")
    family = FAMILIES[kind]
    raw = _plain_rope(raw)
    for key, value in family.wanted.items():
        if raw.get(key, value) != value:
            raise CheckpointError(
                f"config.json: {key} is {raw[key]!r}; this family is only run with {value!r}"
            )
    values = {ours: _read(raw, theirs) for ours, theirs in family.keys.items()}
    values["kv_heads"] = values["kv_heads"] or values["heads"]
    _check_whole(values, "layers", "width", "heads", "kv_heads", "mlp", "vocab", "context")
    values["head_dim"] = values["head_dim"] or values["width"] // values["heads"]
    _check_whole(values, "head_dim")
    for name in ("eps", "theta"):
        if not isinstance(values[name], float | int) or values[name] <= 0:
            raise CheckpointError(f"config.json: {name} is {values[name]!r}; wanted a number > 0")
    if values["head_dim"] % 2:
        raise CheckpointError(f"config.json: head_dim is {values['head_dim']}; wanted an even one")
    if values["heads"] % values["kv_heads"]:
        raise CheckpointError(
            f"config.json: {values['heads']} heads cannot share {values['kv_heads']} key heads"
        )
    # A converted model may have been trained either way; its config.json can say so.
    switches = {**family.switches, **({"shift": raw["shift"]} if "shift" in raw else {})}
    if not isinstance(switches["shift"], bool):
        raise CheckpointError(f"config.json: shift is {raw['shift']!r}; wanted true or false")
    return ModelConfig(
        family=kind,
        **{**switches, **values},
        stored_dtype=str(raw.get("torch_dtype") or raw.get("dtype") or "float32"),
        mask_id=next(iter(_ids(raw, "mask_token_id") + _ids(generation, "mask_token_id")), None),
        end_ids=_ids(raw, "eos_token_id") + _ids(generation, "eos_token_id"),
        eyes=read_eyes(raw) if kind == "llava_llada" else None,
    )


def _plain_rope(raw: Json) -> Json:
    """The rotation's settings where we look for them; any but the plain one is refused."""
    new = raw.get("rope_parameters") or {}  # as transformers writes it since version 5
    for settings in (new, raw.get("rope_scaling") or {}):
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default" or settings.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(f"config.json: RoPE of type {kind!r} is not run here, only plain")
    theta = {"rope_theta": new["rope_theta"]} if "rope_theta" in new else {}
    return {**raw, **theta, "rope_scaling": None}


def _read(raw: Json, key: Any) -> Any:
    """One setting; `key` is the name, or the name and a default."""
    name, *default = key if isinstance(key, tuple) else (key,)
    if name in raw:
        return raw[name]
    if default:
        return default[0]
    raise CheckpointError(f"config.json: the key '{name}' is missing; is this the whole file?")


def _check_whole(values: Json, *names: str) -> None:
    for name in names:
        if not isinstance(values[name], int) or values[name] < 1:
            raise CheckpointError(
                f"config.json: {name} is {values[name]!r}; wanted a whole number of at least 1"
            )


def _ids(raw: Json | None, key: str) -> tuple[int, ...]:
    """None, one or several token ids."""
    value = (raw or {}).get(key)
    ids = () if value is None else (value,) if isinstance(value, int) else value
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) for i in ids):
        raise CheckpointError(f"{key} is {value!r}; wanted a token id, or a list of them")
    return tuple(ids)


def tensor_name(family: str, ours: str) -> str:
    """The checkpoint's name of one of our tensors.

    >>> tensor_name("llada", "blocks.3.gate.weight")
    'model.transformer.blocks.3.ff_proj.weight'
    """
    for mine, theirs in EYES_NAMES.items():
        if ours.startswith(mine):
            return theirs + ours.removeprefix(mine)
    module, _, kind = ours.rpartition(".")
    parts = module.split(".")
    index = parts[1] if parts[0] == "blocks" else ""
    pattern = ".".join(["blocks", "{i}", *parts[2:]]) if index else module
    return f"{FAMILIES[family].names[pattern]}.{kind}".replace("{i}", index)
