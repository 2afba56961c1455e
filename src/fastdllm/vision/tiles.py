"""Any resolution: a picture as a small whole and a grid of tiles, as LLaDA-V was trained on them.

Sizes are (width, height), as Pillow has them; grids of features are (rows, columns).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
LONGEST = 4096
"""The side of the largest square a picture is put into before it is shrunk."""
Pixels = Float[Tensor, "tiles 3 side side"]


def best_canvas(size: Size, choices: Sequence[Size]) -> Size:
    """The canvas that keeps most of the picture's pixels, then wastes least; the first of equals.

    >>> best_canvas((97, 61), [(44, 44), (132, 88), (88, 132)])
    (132, 88)
    """
    width, height = size
    best, kept, wasted = choices[0], -1, 0
    for w, h in choices:
        scale = min(w / width, h / height)
        useful = min(int(width * scale) * int(height * scale), width * height)
        waste = w * h - useful
        if useful > kept or (useful == kept and waste < wasted):
            best, kept, wasted = (w, h), useful, waste
    return best


def cut(image: "Image", choices: Sequence[Size], side: int) -> Pixels:
    """The whole picture squeezed into one tile, then the tiles of the best canvas, row by row."""
    width, height = best_canvas(image.size, choices)
    canvas = _fit(image, (width, height))
    tiles = [image.resize((side, side))]
    tiles += [
        canvas.crop((x, y, x + side, y + side))
        for y in range(0, height, side)
        for x in range(0, width, side)
    ]
    return torch.stack([_pixels(tile) for tile in tiles])


def _fit(image: "Image", canvas: Size) -> "Image":
    """The picture as large as it goes, in the middle of black."""
    from PIL import Image

    (w, h), (width, height) = canvas, image.size
    across, down = w / width, h / height
    if across < down:
        new = w, min(math.ceil(height * across), h)
    else:
        new = min(math.ceil(width * down), w), h
    page = Image.new("RGB", canvas, (0, 0, 0))
    page.paste(image.resize(new), ((w - new[0]) // 2, (h - new[1]) // 2))
    return page


def square(image: "Image", side: int) -> Float[Tensor, "3 side side"]:
    """The picture in the middle of a grey square, as one tile."""
    from PIL import Image

    longest = max(image.size)
    if longest > LONGEST:  # a square of that would not fit the memory
        image = image.resize([max(1, round(n * LONGEST / longest)) for n in image.size])
        longest = max(image.size)
    page = Image.new("RGB", (longest, longest), (127, 127, 127))
    page.paste(image, ((longest - image.width) // 2, (longest - image.height) // 2))
    return _pixels(page.resize((side, side)))


def _pixels(tile: "Image") -> Float[Tensor, "3 side side"]:
    """0..255 to -1..1."""
    import numpy

    raw = torch.from_numpy(numpy.asarray(tile, dtype=numpy.float32)) / 255
    return ((raw - 0.5) / 0.5).permute(2, 0, 1)


def arrange(
    features: Float[Tensor, "tiles cells width"],
    newline: Float[Tensor, " width"],
    size: Size,
    canvas: Size,
    side: int,
    most: int | None,
) -> Float[Tensor, "tokens width"]:
    """The tiles' features as one picture: the small whole, then the large one row by row.

    What only shows the black border is cut away; more than `most` tiles' worth is shrunk; every
    row ends with the newline.
    """
    cells = math.isqrt(features.shape[1])
    columns, rows = canvas[0] // side, canvas[1] // side
    grid = features[1:].view(rows, columns, cells, cells, -1).permute(4, 0, 2, 1, 3)
    grid = _unpad(grid.flatten(1, 2).flatten(2, 3), size)
    height, width = grid.shape[1:]
    if most is not None and (times := math.sqrt(height * width / (most * cells**2))) > 1.1:
        smaller = (int(height // times), int(width // times))
        grid = F.interpolate(grid[None], smaller, mode="bilinear")[0]
    ends = newline[:, None, None].expand(-1, grid.shape[1], 1).to(grid)
    return torch.cat((features[0], torch.cat((grid, ends), dim=2).flatten(1).T))


def _unpad(
    grid: Float[Tensor, "width rows columns"], size: Size
) -> Float[Tensor, "width kept_rows kept_columns"]:
    """Without the rows or columns that show the border."""
    (width, height), (rows, columns) = size, grid.shape[1:]
    if width / height > columns / rows:
        edge = (rows - int(height * (columns / width))) // 2
        return grid[:, edge : rows - edge]
    edge = (columns - int(width * (rows / height))) // 2
    return grid[:, :, edge : columns - edge]


def count_tokens(
    size: Size, choices: Sequence[Size], side: int, cells: int, most: int | None
) -> int:
    """How many positions a picture takes, without looking at it."""
    canvas = best_canvas(size, choices)
    blank = torch.empty(1, canvas[1] // side * cells, canvas[0] // side * cells, device="meta")
    height, width = _unpad(blank, size).shape[1:]
    if most is not None and (times := math.sqrt(height * width / (most * cells**2))) > 1.1:
        height, width = int(height // times), int(width // times)
    return cells**2 + height * (width + 1)
