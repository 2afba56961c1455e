"""Small random checkpoints in the real formats, with every switch a family has."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastdllm.tokenizer import Tokenizer

MASK, END = 40, 41
TOKENIZER = Path(__file__).parent / "golden" / "tokenizer"


def random_checkpoint(
    family: str, seed: int, *, tied: bool = False, kv_heads: int | None = None, width: int = 32,
    heads: int = 4, layers: int = 2, vocab: int = 48, sharpness: float = 6.0,
) -> tuple[dict, dict[str, Tensor]]:  # fmt: skip
    """A config.json and a state dict whose confidences spread from 0.1 to 0.999."""
    g = torch.Generator().manual_seed(seed)
    kv_heads, mlp = kv_heads or heads, width * 2 + 16
    head_dim = width // heads

    def weight(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=g) / shape[-1] ** 0.5

    config: dict = {"model_type": family, "mask_token_id": MASK, "eos_token_id": END}
    if family == "llada":
        config |= {
            "d_model": width, "n_heads": heads, "n_kv_heads": kv_heads, "n_layers": layers,
            "mlp_hidden_size": mlp, "embedding_size": vocab, "vocab_size": vocab,
            "max_sequence_length": 256, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
            "weight_tying": tied, "block_type": "llama",
        }  # fmt: skip
    else:
        config |= {
            "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "num_hidden_layers": layers, "intermediate_size": mlp, "vocab_size": vocab,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": tied, "hidden_act": "silu",
        }  # fmt: skip
    llada = family == "llada"
    base = "model.transformer.blocks.{}." if llada else "model.layers.{}."
    names = (
        ["attn_norm", "q_proj", "k_proj", "v_proj", "attn_out",
         "ff_norm", "ff_proj", "up_proj", "ff_out"]
        if llada
        else ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
              "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
              "mlp.down_proj"]
    )  # fmt: skip
    kv = kv_heads * head_dim
    shapes = [(width,), (width, width), (kv, width), (kv, width), (width, width),
              (width,), (mlp, width), (mlp, width), (width, mlp)]  # fmt: skip
    state: dict[str, Tensor] = {}
    for layer in range(layers):
        for name, shape in zip(names, shapes, strict=True):
            full = base.format(layer) + name
            one = len(shape) == 1
            state[full + ".weight"] = (
                1 + 0.1 * torch.randn(shape, generator=g) if one else weight(*shape, scale=1.5)
            )
            if family in ("Dream", "qwen2") and name.split(".")[-1] in (
                "q_proj",
                "k_proj",
                "v_proj",
            ):
                state[full + ".bias"] = 0.3 * torch.randn(shape[0], generator=g)
        if family == "qwen3":
            for part in ("q_norm", "k_norm"):
                state[base.format(layer) + f"self_attn.{part}.weight"] = 1 + 0.1 * torch.randn(
                    head_dim, generator=g
                )
    embed, norm, head = (
        ("model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out")
        if llada
        else ("model.embed_tokens", "model.norm", "lm_head")
    )
    state[embed + ".weight"] = torch.randn(vocab, width, generator=g)
    state[norm + ".weight"] = torch.ones(width) * (sharpness / width**0.5 if tied else 1.0)
    if not tied:
        state[head + ".weight"] = weight(vocab, width, scale=sharpness)
    return config, state


def save(folder: Path, config: dict, state: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    return folder


def talking(folder: Path, config: dict, state: dict[str, Tensor]) -> Path:
    """The same with the golden tokenizer and its real special tokens."""
    tokenizer = Tokenizer.load(TOKENIZER)
    assert tokenizer is not None
    config |= {
        "mask_token_id": tokenizer.core.token_to_id("<|mdm_mask|>"),
        "eos_token_id": tokenizer.core.token_to_id("<|endoftext|>"),
    }
    where = save(folder, config, state)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, where)
    return where
