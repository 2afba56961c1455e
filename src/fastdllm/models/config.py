"""What a checkpoint says of itself, in one vocabulary for all families."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastdllm.vision.eyes import EyesConfig


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model and the switches in which families differ."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    context: int
    eps: float
    theta: float
    stored_dtype: str
    """The dtype the checkpoint names; what `dtype="auto"` loads."""
    tied: bool
    """The head is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    shift: bool
    """The prediction for position i is read at i - 1."""
    rope_float32: bool
    """Queries and keys are rotated in float32, whatever the model's dtype."""
    mask_id: int | None
    end_ids: tuple[int, ...]
    eyes: "EyesConfig | None" = None
    """Of a model that reads pictures too."""

    @property
    def parameters(self) -> int:
        """How many numbers the weights hold."""
        kv = self.kv_heads * self.head_dim
        q = self.heads * self.head_dim
        attention = self.width * (2 * q + 2 * kv) + (q + 2 * kv) * self.qkv_bias
        norms = 2 * self.width + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab * self.width * (1 if self.tied else 2)
        block = attention + 3 * self.width * self.mlp + norms
        eyes = self.eyes.parameters(self.width) if self.eyes else 0
        return self.layers * block + embeddings + self.width + eyes
