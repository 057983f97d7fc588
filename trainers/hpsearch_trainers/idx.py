"""IDX files, the format of MNIST and its kin, mapped into memory: the processes of a host share one copy.

A file begins with two zero bytes, the type of its numbers, the number of dimensions, and the size of each (32 bits, big
endian); the numbers follow, row by row. Only unsigned bytes (type 8) are read, which is what such data sets have.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
from pathlib import Path
from typing import BinaryIO

import torch

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.cache import cached

__all__ = ["map_idx"]

_UNSIGNED_BYTES = 8
_MOST_DIMENSIONS = 8


def map_idx(path: str | os.PathLike[str]) -> torch.Tensor:
    """Map an IDX file.

    One that ends in `.gz` is unpacked first, into the user's cache (see `cached`), where it is found the next time.

    Returns:
        uint8, of the file's shape. It lies in the file's own pages and mustn't be written to.

    Raises:
        ConfigurationError: There is no such file, or it is no IDX file of bytes.
    """
    file = Path(path)
    try:
        file = _unpacked(file) if file.suffix == ".gz" else file
        with file.open("rb") as stream:
            shape, start = _read_head(stream.read(4 + 4 * _MOST_DIMENSIONS), Path(path))
        size = file.stat().st_size
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"expected an IDX file at {path}, which can't be read: {error}") from error
    count = math.prod(shape)
    if size != start + count:
        raise ConfigurationError(
            f"expected {path} to hold {count} numbers, as its head says (shape {list(shape)}), got {size - start}: "
            "fetch it again"
        )
    everything = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    return everything[start:].view(shape)


def _read_head(head: bytes, path: Path) -> tuple[tuple[int, ...], int]:
    """Return the shape, and the byte at which the numbers begin."""
    if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= _MOST_DIMENSIONS or len(head) < 4 + 4 * head[3]:
        raise ConfigurationError(f"expected {path} to be an IDX file, got one that begins with {head[:4].hex(' ')}")
    if head[2] != _UNSIGNED_BYTES:
        raise ConfigurationError(f"expected {path} to hold unsigned bytes (type 08), got type {head[2]:02x}")
    start = 4 + 4 * head[3]
    return struct.unpack(f">{head[3]}I", head[4:start]), start


def _unpacked(path: Path) -> Path:
    def unpack(target: BinaryIO) -> None:
        with gzip.open(path) as source:
            shutil.copyfileobj(source, target)

    return cached(path, ".idx", unpack)
