"""Sizes as people write them: `64K` is 65,536 bytes."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_MOST = 8 << 30


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes such as `1K,64K,1M` as bytes; each counts once.

    Raises:
        ValueError: One isn't a whole number of float32 elements, or larger than 8G.
    """
    sizes = []
    for item in text.split(","):
        match = _SIZE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"expected sizes such as 1K,64K,1M, got {item.strip()!r}")
        size = int(match[1]) * _UNITS[match[2].upper()]
        if size % 4 or not 0 < size <= _MOST:
            raise ValueError(f"expected sizes that are multiples of 4 bytes (float32) up to 8G, got {item.strip()}")
        sizes.append(size)
    return tuple(dict.fromkeys(sizes))


def format_size(nbytes: int) -> str:
    """Write a size with the largest unit that leaves it whole."""
    for unit in "GMK":
        if nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)
