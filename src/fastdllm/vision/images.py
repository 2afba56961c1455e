"""A picture from a path, bytes or PIL, as a person would see it: upright, in colour, one frame."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdllm.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Source = Any
"""A path, bytes, or a PIL image."""

MOST_PIXELS = 80_000_000
"""A larger picture is refused before it is unpacked; it would be shrunk to a few tiles anyway."""


def as_list(sources: Any) -> list[Any]:
    """One source, several or none, as a list.

    >>> as_list("a.png"), as_list(None), as_list(("a.png", "b.png"))
    (['a.png'], [], ['a.png', 'b.png'])
    """
    if sources is None:
        return []
    return list(sources) if isinstance(sources, list | tuple) else [sources]


def open_image(source: Source) -> "Image":
    """Any picture as RGB, or one line that says what is wrong with it.

    The first frame of an animation; the rotation a camera wrote down is applied; what is
    transparent becomes white; 16 bits become 8.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ModuleNotFoundError:
        raise InputError("pictures want Pillow; try: pip install 'fastdllm[vision]'") from None

    if not isinstance(source, bytes | str | Path | Image.Image):
        raise InputError(
            f"an image is a {type(source).__name__}; wanted a path, bytes or PIL image"
        )
    name = str(source) if isinstance(source, str | Path) else "the image"
    try:
        if isinstance(source, Image.Image):
            image = source.copy()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                image = Image.open(BytesIO(source) if isinstance(source, bytes) else Path(source))
        width, height = image.size
        if not width or not height:
            raise InputError(f"{name} has no pixels; it is {width} x {height}")
        if width * height > MOST_PIXELS:
            raise InputError(
                f"{name} has too many pixels, {width} x {height}; wanted at most {MOST_PIXELS:,}"
            )
        upright = ImageOps.exif_transpose(image)
        return _rgb(upright if upright is not None else image)
    except FileNotFoundError:
        raise InputError(f"there is no file {name}") from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is not a picture that can be read; try PNG or JPEG") from None
    except Image.DecompressionBombError:
        raise InputError(f"{name} has too many pixels; wanted at most {MOST_PIXELS:,}") from None
    except InputError:
        raise
    except IsADirectoryError:
        raise InputError(f"{name} is a folder; wanted a picture") from None
    except Exception as error:  # a decoder may fail in any way on a damaged file
        raise InputError(f"{name} cannot be read as a picture: {error}") from None


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits: convert() would clip
        import numpy

        values = numpy.nan_to_num(numpy.asarray(image, dtype=numpy.float64)).clip(0)
        most = 65535.0 if image.mode.startswith("I") else max(1.0, float(values.max()))
        image = Image.fromarray((values.clip(0, most) * (255 / most)).astype(numpy.uint8))
    if image.mode in ("RGBa", "La"):
        image = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
