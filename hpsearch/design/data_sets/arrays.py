"""Read arrays from NPZ, NPY and IDX files.

A copy of this file is saved with each model of `hpsearch design`: it needs only Python and NumPy.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .reading import DataSetError

__all__ = ["Array", "as_images", "check_finite", "is_idx", "listed", "new_array", "read_idx", "read_npz"]

Array: TypeAlias = NDArray[Any]

_IDX = re.compile(r".*idx\d-u?byte(\.gz)?", re.IGNORECASE)
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHANNELS = (1, 3, 4)


def is_idx(path: Path) -> bool:
    """Return whether a file is called as MNIST's are, such as train-images-idx3-ubyte.gz."""
    return _IDX.fullmatch(path.name) is not None


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an NPZ file; of an NPY file its one, without a name.

    Raises:
        DataSetError: It can't be read, or only by running code in it, as arrays of Python objects are.
    """
    name = ""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found:
            arrays = {}
            for name in found.files:
                arrays[name] = found[name]
            return arrays
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, struct.error) as error:
        array = f", array {name!r}" if name else ""
        raise DataSetError(
            f"{path}{array}: must be an NPZ or NPY file with arrays of numbers or texts, but can't be read: {error}"
        ) from error


def read_idx(path: Path) -> Array:
    """Read an IDX file, packed or not: two zero bytes, type, dimensions, the size of each (32 bits), then the numbers.

    Raises:
        DataSetError: It can't be read, or is no such file.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataSetError(f"{path}: must be an IDX file, but can't be read: {error}") from error
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:2] != b"\0\0" or dimensions == 0 or len(content) < start or content[2] not in _IDX_TYPES:
        raise DataSetError(f"{path}: must be an IDX file, got one that begins with {content[:4].hex(' ') or 'nothing'}")
    kind = np.dtype(_IDX_TYPES[content[2]])
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape) * kind.itemsize:
        raise DataSetError(
            f"{path}: must hold {math.prod(shape)} numbers, as its head says (shape {list(shape)}), got "
            f"{(len(content) - start) // kind.itemsize}: fetch it again"
        )
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="), copy=False)


def new_array(path: Path, name: str | None) -> Array:
    """Read the array to predict for: the only one of a file, or the one with the training array's name."""
    if path.suffix.lower() not in (".npz", ".npy"):
        return read_idx(path)
    arrays = read_npz(path)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if name not in arrays:
        raise DataSetError(f"{path}: must hold one array, or {name!r} as in training, got {listed(arrays)}")
    return arrays[name]


def listed(arrays: dict[str, Array]) -> str:
    """Return which arrays there are."""
    return ", ".join(f"{name!r} {list(array.shape)}" for name, array in arrays.items()) or "none"


def as_images(array: Array, where: str) -> Array:
    """Return images of shape (rows, channels, height, width), from any position of the channels.

    Raises:
        DataSetError: Their position is ambiguous.
    """
    if array.ndim == 3:
        return array[:, None]
    first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
    if first == last:
        first, last = array.shape[2] == array.shape[3], array.shape[1] == array.shape[2]
    if first == last:
        raise DataSetError(
            f"{where}: must be images of shape (rows, channels, height, width) or (rows, height, width, channels), got "
            f"{list(array.shape)}, which may be both or neither: give (rows, height, width) or other sizes"
        )
    return array if first else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def check_finite(images: Array, places: Iterable[str]) -> None:
    """Refuse images with pixels that are no numbers."""
    if images.dtype.kind != "f":
        return
    for image, place in zip(images, places, strict=False):
        if not np.isfinite(image).all():
            raise DataSetError(f"{place}: must be an image of finite numbers, got {image[~np.isfinite(image)][0]}")
