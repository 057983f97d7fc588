"""A learning curve drawn with letters: Braille dots, or stars where the encoding has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpsearch.tables.wording import number

__all__ = ["curve_lines"]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a Braille letter, by row and column."""

_EMPTY = 0x2800


def curve_lines(points: Sequence[tuple[int, float]], width: int, height: int, draws: bool = True) -> list[str]:
    """Draw a curve, with its greatest and least value at the left and its iterations beneath.

    Args:
        points: (iteration, value), by iteration; what isn't finite is left out.
        width: Columns in all.
        height: Lines of the curve.
        draws: Whether there are Braille letters.
    """
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    labels = {0: number(high), height - 1: number(low)} if high > low else {height - 1: number(low)}
    margin = max(map(len, labels.values()))
    across, down = (2, 4) if draws else (1, 1)
    columns = max(4, width - margin - 3)
    first, last = finite[0][0], finite[-1][0]
    dots: set[tuple[int, int]] = set()
    former: tuple[int, int] | None = None
    for at, value in finite:
        x = _scaled(at, first, last, columns * across - 1)
        y = _scaled(value, high, low, height * down - 1) if high > low else height * down - 1
        dots.update(_line(former or (x, y), (x, y)))
        former = x, y
    wall, floor, corner = ("│", "─", "└") if draws else ("|", "-", "+")
    lines = [
        f"{labels.get(row, ''):>{margin}} {wall}{_row(dots, row, columns, draws)}".rstrip() for row in range(height)
    ]
    end = f" iteration {last}".rjust(columns - len(str(first)))
    ends = f"{first}{end}" if last > first else f"iteration {first}"
    return [*lines, f"{'':>{margin}} {corner}{floor * columns}", f"{'':>{margin}}  {ends}"]


def _scaled(value: float, least: float, greatest: float, most: int) -> int:
    return 0 if greatest == least else round((value / 2 - least / 2) / (greatest / 2 - least / 2) * most)


def _line(one: tuple[int, int], other: tuple[int, int]) -> set[tuple[int, int]]:
    """Give the dots from one to another."""
    steps = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
    (x, y), (to_x, to_y) = one, other
    return {(round(x + (to_x - x) * step / steps), round(y + (to_y - y) * step / steps)) for step in range(steps + 1)}


def _row(dots: set[tuple[int, int]], row: int, columns: int, draws: bool) -> str:
    if not draws:
        return "".join("*" if (column, row) in dots else " " for column in range(columns))
    letters = []
    for column in range(columns):
        bits = sum(_DOTS[y][x] for y in range(4) for x in range(2) if (column * 2 + x, row * 4 + y) in dots)
        letters.append(chr(_EMPTY + bits) if bits else " ")
    return "".join(letters)
