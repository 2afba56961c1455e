"""LLaDA-V's eyes: a SigLIP tower, a projector, and the newline that ends a row of a picture."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fastdllm.errors import CheckpointError, InputError
from fastdllm.vision.images import Source, open_image
from fastdllm.vision.tiles import Pixels, Size, arrange, best_canvas, cut, square

if TYPE_CHECKING:
    from PIL.Image import Image

# SigLIP so400m at 384 pixels, which the public code builds whatever the checkpoint says.
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
}  # fmt: skip


@dataclass(frozen=True)
class EyesConfig:
    """The shape of the tower, and which canvases a picture may be laid out on."""

    width: int
    mlp: int
    layers: int
    """Without the last, which is never read."""
    heads: int
    side: int
    """Of a tile, in pixels."""
    patch: int
    canvases: tuple[Size, ...]
    most: int | None
    """A large picture is shrunk to so many tiles' features."""

    @property
    def cells(self) -> int:
        """Features along a side of a tile; pixels beyond the last whole patch are not seen."""
        return self.side // self.patch

    def parameters(self, width: int) -> int:
        """How many numbers the weights hold, in front of a language model of some width."""
        w = self.width
        layer = 4 * (w * w + w) + 2 * w * self.mlp + self.mlp + w + 4 * w
        front = (3 * self.patch**2 + 1 + self.cells**2) * w
        return front + self.layers * layer + 2 * w + (w + 1 + width + 1) * width + width


def write_eyes(config: EyesConfig) -> dict[str, Any]:
    """Keys of a config.json that `read_eyes` reads back as the same."""
    return {
        "mm_projector_type": "mlp2x_gelu", "mm_patch_merge_type": "spatial_unpad",
        "mm_hidden_size": config.width, "mm_use_im_start_end": False,
        "mm_use_im_patch_token": False,
        "image_aspect_ratio": f"anyres_max_{config.most}" if config.most else "anyres",
        "image_grid_pinpoints": [list(canvas) for canvas in config.canvases],
        "vision_config": {
            "hidden_size": config.width, "intermediate_size": config.mlp,
            "num_hidden_layers": config.layers + 1, "num_attention_heads": config.heads,
            "image_size": config.side, "patch_size": config.patch,
        },
    }  # fmt: skip


def read_eyes(raw: Mapping[str, Any]) -> EyesConfig:
    """From a config.json; every other layout than the one LLaDA-V is run with is refused."""
    wanted = {
        "mm_projector_type": "mlp2x_gelu", "mm_patch_merge_type": "spatial_unpad",
        "mm_use_im_start_end": False, "mm_use_im_patch_token": False,
    }  # fmt: skip
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise CheckpointError(
                f"config.json: {key} is {raw[key]!r}; this family is only run with {value!r}"
            )
    ratio = str(raw.get("image_aspect_ratio", "anyres_max_4"))
    found = re.fullmatch(r"anyres(?:_max_(\d+))?", ratio)
    if not found:
        raise CheckpointError(f"config.json: image_aspect_ratio is {ratio!r}; wanted anyres_max_4")
    shape = {**SIGLIP, **(raw.get("vision_config") or {})}
    for key in SIGLIP:
        least = 2 if key == "num_hidden_layers" else 1
        if not isinstance(shape[key], int) or shape[key] < least:
            raise CheckpointError(f"config.json: vision_config.{key} is {shape[key]!r}")
    if shape["hidden_size"] % shape["num_attention_heads"] or found[1] == "0":
        raise CheckpointError("config.json: the vision tower's width does not go into its heads")
    points = raw.get("image_grid_pinpoints")
    try:
        canvases = tuple((int(w), int(h)) for w, h in points)  # type: ignore[union-attr]
        if not canvases or any(n % shape["image_size"] or n < 1 for c in canvases for n in c):
            raise ValueError
    except (TypeError, ValueError):
        raise CheckpointError(
            "config.json: image_grid_pinpoints is not a list of [width, height] in whole tiles of "
            f"{shape['image_size']} pixels"
        ) from None
    return EyesConfig(
        shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"] - 1,
        shape["num_attention_heads"], shape["image_size"], shape["patch_size"], canvases,
        int(found[1]) if found[1] else None,
    )  # fmt: skip


class Eyes(nn.Module):
    """From a picture to positions of a prompt."""

    def __init__(self, config: EyesConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.tower = _tower(config)
        self.projector = nn.Sequential(
            nn.Linear(config.width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.newline = nn.Parameter(torch.empty(width))

    def settle(self) -> None:
        """Make what is not stored, after the weights have come."""
        place = self.newline.device
        self.tower.embeddings.position_ids = torch.arange(self.config.cells**2, device=place)[None]

    def features(self, pixels: Pixels) -> Float[Tensor, "tiles cells features"]:
        """The tower's last hidden states, before its final norm."""
        pixels = pixels.to(self.newline)
        hidden: Tensor = self.tower.encoder(
            inputs_embeds=self.tower.embeddings(pixels)
        ).last_hidden_state
        return hidden

    def embed(self, pictures: Sequence[tuple[Pixels, Size]]) -> list[Float[Tensor, "tokens width"]]:
        """What stands in a prompt for each picture: its tiles, and the size it had."""
        c = self.config
        seen = self.projector(self.features(torch.cat([pixels for pixels, _ in pictures])))
        parts = torch.split(seen, [len(pixels) for pixels, _ in pictures])
        return [
            arrange(part, self.newline, size, best_canvas(size, c.canvases), c.side, c.most)
            for part, (_, size) in zip(parts, pictures, strict=True)
        ]

    @torch.inference_mode()
    def look(self, image: "Image") -> Float[Tensor, "tokens width"]:
        """What stands in the prompt for a picture."""
        return self.embed([(cut(image, self.config.canvases, self.config.side), image.size)])[0]

    @torch.inference_mode()
    def glance(self, images: Sequence["Image"]) -> list[Float[Tensor, "tokens width"]]:
        """Several pictures, each as one square tile without newlines."""
        pixels = torch.stack([square(image, self.config.side) for image in images])
        return list(self.projector(self.features(pixels)))

    def see(self, sources: Sequence[Source]) -> list[Float[Tensor, "tokens width"]]:
        """One picture in full, or several at a glance."""
        images = [open_image(source) for source in sources]
        return [self.look(images[0])] if len(images) == 1 else self.glance(images)


def _tower(config: EyesConfig) -> Any:
    """Transformers' SigLIP without its pooling head."""
    try:
        from transformers import SiglipVisionConfig, SiglipVisionModel
    except ModuleNotFoundError:
        raise InputError(
            "a model that sees needs more packages; try: pip install 'fastdllm[vision]'"
        ) from None
    shape: dict[str, Any] = {
        "hidden_size": config.width, "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "image_size": config.side, "patch_size": config.patch, "vision_use_head": False,
    }  # fmt: skip
    model = SiglipVisionModel(SiglipVisionConfig(**shape))
    return getattr(model, "vision_model", model)  # one level less since transformers 5
