"""One transformer for every family: bidirectional, pre-norm, rotary, gated.

It knows nothing of caches. A layer hands its keys and values to a `Memory`, which gives back all
that the window may attend to: the same ones, or those and what an earlier pass left.
"""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fastdllm.models.config import ModelConfig
from fastdllm.vision.eyes import Eyes

Window = Float[Tensor, "rows window width"]
Heads = Float[Tensor, "rows heads window head_dim"]
Keys = Float[Tensor, "rows kv_heads keys head_dim"]
Wanted = Int[Tensor, "rows wanted"]
"""Places in the window."""
Picked = Float[Tensor, "rows picked width"]
"""The window, or what is wanted of it."""


@runtime_checkable
class Memory(Protocol):
    """Where keys and values go between a layer's projections and its attention."""

    mask: Bool[Tensor, "rows 1 queries keys"] | None
    """Which keys count; None if all do."""

    def update(self, layer: int, k: Heads, v: Heads) -> tuple[Keys, Keys]:
        """Take the window's keys and values, give all there are."""


def pick(x: Window, at: Wanted | None) -> Picked:
    """The rows' entries at their own places; all of them without any."""
    return x if at is None else x.take_along_dim(at[..., None], dim=1)


class Norm(nn.Module):
    """Root-mean-square norm: statistics in float32, cast back before the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*shape size"]) -> Float[Tensor, "*shape size"]:
        """Scale to unit root mean square."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class Rope:
    """The rotation of a window's positions, made once per forward pass."""

    def __init__(self, config: ModelConfig, positions: Int[Tensor, "rows window"]) -> None:
        device = positions.device
        steps = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
        angle = positions.float()[:, None, :, None] / config.theta ** (steps / config.head_dim)
        angle = torch.cat((angle, angle), dim=-1)  # half-rotated, not interleaved
        self.cos, self.sin = angle.cos(), angle.sin()
        self.float32 = config.rope_float32

    def __call__(self, x: Heads, at: Wanted | None = None) -> Heads:
        """Rotate queries or keys: those of the whole window, or those at some of its places."""
        cos, sin = (pick(table[:, 0], at)[:, None] for table in (self.cos, self.sin))
        wide = x.float() if self.float32 else x
        if not self.float32:
            cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        low, high = wide.chunk(2, dim=-1)
        return (wide * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Block(nn.Module):
    """Attention, then the gated feed-forward, each on a normed copy of the stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        c = config
        self.layer, self.head_dim, self.shared = layer, c.head_dim, c.heads != c.kv_heads
        self.attention_norm = Norm(c.width, c.eps)
        self.q = nn.Linear(c.width, c.heads * c.head_dim, bias=c.qkv_bias)
        self.k = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.v = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.o = nn.Linear(c.heads * c.head_dim, c.width, bias=False)
        self.q_norm = Norm(c.head_dim, c.eps) if c.qk_norm else nn.Identity()
        self.k_norm = Norm(c.head_dim, c.eps) if c.qk_norm else nn.Identity()
        self.mlp_norm = Norm(c.width, c.eps)
        self.gate = nn.Linear(c.width, c.mlp, bias=False)
        self.up = nn.Linear(c.width, c.mlp, bias=False)
        self.down = nn.Linear(c.mlp, c.width, bias=False)

    def forward(self, x: Window, rope: Rope, memory: Memory, at: Wanted | None = None) -> Picked:
        """The stream after this block, of the whole window or only where it is wanted."""
        x, attended = pick(x, at), self.attend(self.attention_norm(x), rope, memory, at)
        x = x + self.o(attended)
        h = self.mlp_norm(x)
        mixed: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return x + mixed

    def attend(
        self, x: Window, rope: Rope, memory: Memory, at: Wanted | None
    ) -> Float[Tensor, "rows wanted all"]:
        """Every position that is wanted looks at every key the memory holds."""
        q, k, v = (
            project(y).unflatten(-1, (-1, self.head_dim))
            for project, y in ((self.q, pick(x, at)), (self.k, x), (self.v, x))
        )
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        k, v = memory.update(self.layer, rope(k), v.transpose(1, 2))
        out: Tensor = F.scaled_dot_product_attention(
            rope(q, at), k, v, attn_mask=memory.mask, enable_gqa=self.shared
        )
        return out.transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    """Tokens of a window to hidden states; `head` turns chosen ones of those into logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # The weight is given so that none is drawn: on the meta device that imports half of torch.
        self.embed = nn.Embedding(
            config.vocab, config.width, _weight=torch.empty(config.vocab, config.width)
        )
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = Norm(config.width, config.eps)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.eyes = Eyes(config.eyes, config.width) if config.eyes else None

    def forward(
        self,
        ids: Int[Tensor, "rows window"],
        positions: Int[Tensor, "rows window"],
        memory: Memory,
        at: Wanted | None = None,
    ) -> Picked:
        """The normed hidden states of the window, or only those at some of its places."""
        return self.blocks_over(self.embed(ids), positions, memory, at)

    def blocks_over(
        self,
        x: Window,
        positions: Int[Tensor, "rows window"],
        memory: Memory,
        at: Wanted | None = None,
    ) -> Picked:
        """The same from embeddings, which need not all be tokens'.

        The last block needs the others' keys and values, and nothing else of them.
        """
        rope = Rope(self.config, positions)
        *first, last = self.blocks
        for block in first:
            x = block(x, rope, memory)
        x = last(x, rope, memory, at)
        out: Tensor = self.norm(x)
        return out

    def cut_vocabulary(self, size: int) -> None:
        """Keep the first so many tokens: the rest were never trained and cannot be written."""
        if size < self.config.vocab:
            for table in (self.embed, self.head):
                table.weight = nn.Parameter(table.weight[:size], requires_grad=False)
            if self.config.tied:
                self.head.weight = self.embed.weight
            self.config = replace(self.config, vocab=size)
