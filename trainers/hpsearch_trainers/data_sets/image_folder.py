"""Folders of images, one folder in it for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpsearch_trainers.data_sets.images import image_paths, is_grey, open_image, pixels
from hpsearch_trainers.data_sets.reading import DataSetError

__all__ = ["ImageFolder", "read_image_folder"]

_LONGEST_SIDE = 64
"""Pixels; what is larger trains for long without a GPU, and is asked for with `side`."""

_SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Images of one size and their labels."""

    paths: list[Path]
    images: NDArray[np.uint8]
    """Shape (rows, channels, height, width), with one channel where no image has colors, else three."""
    labels: list[str]
    size: tuple[int, int] | None
    """Height and width that all had, if so."""
    lines: list[str]
    """What was left out or changed."""


def read_image_folder(folder: Path, side: int | None) -> ImageFolder:
    """Read them all.

    Args:
        folder: Has a folder for each class, named like it, with its images and maybe more folders.
        side: Pixels of the longer side that all are made to have; if None, as they are, but at most 64.

    Raises:
        DataSetError: It is another folder, or a file in it is no image, which the message names.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = [path.name for path in classes]
    if names and {name.lower() for name in names} <= _SPLITS:
        raise DataSetError(f"{folder}: must have a folder for each class, got {', '.join(names)}: give one of them")
    if len(classes) < 2:
        raise DataSetError(f"{folder}: must have a folder for each of at least two classes, got {names or 'none'}")
    paths, labels, others = [], [], []
    for path in classes:
        images, more = image_paths(path)
        paths += images
        labels += [path.name] * len(images)
        others += more
        if not images:
            raise DataSetError(f"{path}: must have images in it, as it is a class, got none")
    others += [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    lines = []
    if others:
        some = ", ".join(str(path.relative_to(folder)) for path in others[:3])
        lines.append(f"{len(others)} files are left out, which are no images or lie in no class: {some}")
    shape, size = _common(paths, side)
    if size is None or size != shape[1:]:
        lines.append(f"images are resized to {shape[1]} x {shape[2]} pixels (height x width)")
    images_read = np.stack([pixels(open_image(path), shape) for path in paths])
    return ImageFolder(paths, images_read, labels, size, lines)


def _common(paths: list[Path], side: int | None) -> tuple[tuple[int, int, int], tuple[int, int] | None]:
    """Choose a shape for all: their median height and width; give also the size of all, if it is one."""
    sizes, grey = [], True
    for path in paths:
        image = open_image(path)
        sizes.append((image.height, image.width))
        grey = grey and is_grey(image)
    height, width = (float(np.median(lengths)) for lengths in zip(*sizes, strict=True))
    factor = (side or min(_LONGEST_SIDE, max(height, width))) / max(height, width)
    shape = (1 if grey else 3, max(1, round(factor * height)), max(1, round(factor * width)))
    return shape, sizes[0] if len(set(sizes)) == 1 else None
