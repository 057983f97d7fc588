"""Read images from files.

A copy of this file is saved with each model of `hpsearch design`: it needs Python, NumPy and Pillow.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reading import DataSetError

__all__ = ["IMAGE_ENDINGS", "image_paths", "is_grey", "open_image", "pixels"]

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")

_GREY_MODES = ("1", "L")
_CLEAR_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_WIDE = 257
"""From 16 bits to 8: 65,535 becomes 255."""


def image_paths(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder and the folders in it, and the other files, in the order of their names.

    What begins with a dot is hidden, and so is what lies in a folder that does.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    seen = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    images = [path for path in seen if path.suffix.lower() in IMAGE_ENDINGS]
    return images, [path for path in seen if path not in set(images)]


def open_image(path: Path) -> Any:
    """Read an image with 8 bits and its EXIF rotation, as mode L or RGB, with transparency over white.

    Raises:
        DataSetError: It can't be read, or its pixels' range is unknown.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataSetError(f"{path}: images are read with Pillow, which isn't installed: pip install pillow") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd tags, and of large images before they are refused
            with Image.open(path) as file:
                file.load()
                image = ImageOps.exif_transpose(file)
        if image.mode == "F" or image.mode.startswith("I"):
            return Image.fromarray(_narrowed(path, np.asarray(image)))
        if image.mode in _CLEAR_MODES or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("L" if image.mode in _GREY_MODES else "RGB")
    except DataSetError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataSetError(
            f"{path}: must be an image, but can't be read: {error}; remove it or fetch it again"
        ) from error


def _narrowed(path: Path, wide: NDArray[Any]) -> NDArray[np.uint8]:
    if wide.dtype.kind == "f" or wide.min() < 0 or wide.max() > 255 * _WIDE:
        raise DataSetError(
            f"{path}: must be an image of 8 or 16 bits, got pixels from {wide.min()} to {wide.max()}: save it as PNG"
        )
    return ((wide.astype(np.int64) + _WIDE // 2) // _WIDE).astype(np.uint8)


def is_grey(image: Any) -> bool:
    """Return whether an image has no colors, whatever its mode."""
    if image.mode == "L":
        return True
    colors = np.asarray(image)
    return bool((colors == colors[..., :1]).all())


def pixels(image: Any, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return an image's pixels, resized to (channels, height, width)."""
    from PIL import Image

    channels, height, width = shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    found = np.asarray(image, np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(found.transpose(2, 0, 1))
