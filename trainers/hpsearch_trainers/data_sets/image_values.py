"""See what the pixels of images are, and fit what makes a network's inputs of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpsearch_trainers.data_sets.arrays import Array
from hpsearch_trainers.data_sets.reading import DataSetError
from hpsearch_trainers.data_sets.sources import Examples

__all__ = ["fit_images", "image_line"]

_ROWS_AT_ONCE = 1000


def fit_images(examples: Examples, images: Array) -> dict[str, Any]:
    """Fit mean and scale of each channel, on the rows that the search may see, (rows, channels, height, width)."""
    count = images.size // images.shape[1]
    chunks = [images[start : start + _ROWS_AT_ONCE] for start in range(0, len(images), _ROWS_AT_ONCE)]
    means = sum(chunk.sum((0, 2, 3), dtype=np.float64) for chunk in chunks) / count
    far = [np.square(chunk - means[:, None, None]).sum((0, 2, 3)) for chunk in chunks]
    scales = np.sqrt(sum(far) / count)
    if not np.isfinite(scales).all():
        raise DataSetError(
            f"{examples.path}: must have pixels whose squares a float can hold, got up to {images.max()}"
        )
    if not scales.any():
        raise DataSetError(f"{examples.path}: must have images that differ, got {images.min()} in all their pixels")
    return {
        "channel_means": means.tolist(),
        "channel_scales": np.where(scales > 0, scales, 1.0).tolist(),
        "bytes": images.dtype == np.uint8,
        "least": float(images.min()),
        "most": float(images.max()),
        "size": None if examples.size is None else list(examples.size),
    }


def image_line(images: Array) -> str:
    """Say what they are."""
    channels, height, width = images.shape[1:]
    kind = {1: "grey images", 3: "images in color"}.get(channels, f"images of {channels} channels")
    return f"{kind}, {height} x {width} pixels (height x width), " + (
        "in bytes" if images.dtype == np.uint8 else f"from {images.min():g} to {images.max():g}"
    )
