"""Legends, in as many rows as needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hpsearch.page.charts.letters import fitted, width_of
from hpsearch.page.charts.picture import Box, Dot, Ink, Line, Shape, Words

__all__ = ["ROW", "Key", "Mark", "legend"]

Mark = Literal["line", "dashed", "dot", "ring", "box"]

ROW = 18.0
"""Pixels from one row to the next."""

_MARK, _APART, _SIZE = 24.0, 16.0, 12.0
"""Pixels of a mark, of the gap between a text and the next mark, and of the font."""


@dataclass(frozen=True, slots=True)
class Key:
    """A legend's entry."""

    ink: Ink
    text: str
    mark: Mark = "line"


def legend(keys: Sequence[Key], left: float, right: float, y: float) -> tuple[list[Shape], int]:
    """Draw a legend from left to right, in as many rows as needed; return the number of rows.

    Args:
        keys: Entries in order; the middle of a text that doesn't fit in a row is cut out.
        left: Where rows begin, in pixels.
        right: Where they must end.
        y: The first row's baseline.
    """
    shapes: list[Shape] = []
    x, rows = left, 1 if keys else 0
    for key in keys:
        text = fitted(key.text, right - left - _MARK, _SIZE)
        end = x + _MARK + width_of(text, _SIZE)
        if x > left and end > right:
            x, rows = left, rows + 1
            end = x + _MARK + width_of(text, _SIZE)
        shapes += _drawn(key, text, x, y + ROW * (rows - 1))
        x = end + _APART
    return shapes, rows


def _drawn(key: Key, text: str, x: float, y: float) -> Iterator[Shape]:
    match key.mark:
        case "line" | "dashed":
            yield Line([(x, y - 4), (x + 18, y - 4)], key.ink, 2, key.mark == "dashed")
        case "dot" | "ring":
            yield Dot(x + 9, y - 4, key.ink, 4, key.mark == "ring")
        case "box":
            yield Box(x + 2, y - 9, 14, 10, key.ink)
    yield Words(x + _MARK, y, text, size=_SIZE)
