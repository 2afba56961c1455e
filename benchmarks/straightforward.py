"""A decoder written as the public ones are: the baseline of `benchmarks/decode.py`.

Logits of every position it runs, a float64 soft-max of them all, a gather and an arg-max, keys
cached before their rotation and rotated anew in every pass. On the same weights as ours.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fastdllm.models.transformer import Transformer


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


def rotate(x: Tensor, theta: float, start: int) -> Tensor:
    half = x.shape[-1] // 2
    frequency = 1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    angle = torch.outer(torch.arange(start, start + x.shape[2]).float(), frequency)
    angle = torch.cat((angle, angle), -1)
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos() + turned * angle.sin()


def forward(model: Transformer, ids: Tensor, start: int, past: list | None, replace: bool):
    """Logits of the window that starts at `start`, and the keys and values of the canvas."""
    c, present = model.config, []
    x = model.embed(ids)
    for layer, block in enumerate(model.blocks):
        h = norm(x, block.attention_norm.weight, c.eps)
        q, k, v = (
            m(h).view(1, ids.shape[1], -1, c.head_dim).transpose(1, 2)
            for m in (block.q, block.k, block.v)
        )
        if past is not None:
            old_k, old_v = past[layer]
            if replace:
                old_k[:, :, start : start + k.shape[2]] = k
                old_v[:, :, start : start + v.shape[2]] = v
                k, v = old_k, old_v
            else:
                k = torch.cat((old_k[:, :, :start], k), 2)
                v = torch.cat((old_v[:, :, :start], v), 2)
        present.append((k, v))
        out = F.scaled_dot_product_attention(
            rotate(q, c.theta, start), rotate(k, c.theta, 0), v, is_causal=False
        )
        x = x + block.o(out.transpose(1, 2).reshape(1, ids.shape[1], -1))
        h = norm(x, block.mlp_norm.weight, c.eps)
        x = x + block.down(F.silu(block.gate(h)) * block.up(h))
    return model.head(norm(x, model.norm.weight, c.eps)), present


def commit(logits: Tensor, x: Tensor, masked: Tensor, count: int) -> None:
    """The `count` most confident masked positions of x, in place."""
    best = logits.argmax(-1)
    p = torch.softmax(logits.to(torch.float64), dim=-1)
    confidence = p.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    best = torch.where(masked, best, x)
    confidence = torch.where(masked, confidence, -torch.inf)
    chosen = confidence[0].topk(min(count, int(masked.sum()))).indices
    x[0, chosen] = best[0, chosen]


@torch.inference_mode()
def generate(
    model: Transformer, prompt: Tensor, new: int, block: int, per_step: int, cache: str
) -> tuple[Tensor, int]:
    mask_id = model.config.mask_id
    x = torch.cat((prompt, torch.full((1, new), mask_id)), 1)
    nfe = 0
    for start in range(prompt.shape[1], x.shape[1], block):
        stop, past = start + block, None
        while (x[:, start:stop] == mask_id).any():
            if past is None or cache == "none":
                begin, window = 0, x
                logits, past = forward(model, x, 0, None, False)
            elif cache == "prefix":
                begin, window = start, x[:, start:]
                logits, _ = forward(model, window, start, past, False)
            else:
                begin, window = start, x[:, start:stop]
                logits, _ = forward(model, window, start, past, True)
            nfe += 1
            masked = window == mask_id
            masked[:, stop - begin :] = False
            commit(logits, window, masked, per_step)
    return x, nfe
