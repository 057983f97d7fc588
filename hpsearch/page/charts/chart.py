"""Plots with two axes and a grid, and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hpsearch.page.charts.picture import (
    Area,
    Box,
    Dot,
    Ink,
    Line,
    Picture,
    Point,
    Shape,
    Words,
    fitted,
    lowered,
    width_of,
)
from hpsearch.page.charts.scales import Scale

T = TypeVar("T", bound=tuple[float, ...])

Mark = Literal["line", "dashed", "dot", "ring", "box"]

ROW = 18.0
"""Distance between rows of a legend, in pixels."""

_MARK, _APART, _SIZE = 24.0, 16.0, 12.0
"""Sizes in pixels: of a mark, of the gap between a text and the next mark, and of the font."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 30.0, 46.0
_NAME = 28.0
"""Space for the rotated title of the vertical axis, in pixels."""


@dataclass(frozen=True, slots=True)
class Key:
    """A legend's entry."""

    ink: Ink
    text: str
    mark: Mark = "line"


class Chart:
    """A picture with two axes. Points are (horizontal, vertical) values. Non-finite points are skipped."""

    def __init__(
        self, title: str, description: str, across: Scale, up: Scale, names: tuple[str, str], size: Point = (760, 340)
    ) -> None:
        """Draw the axes.

        Args:
            title: The picture's title.
            description: Description of the picture, for screen readers.
            across: The horizontal scale.
            up: The vertical scale.
            names: Titles of the two axes.
            size: Width and height in pixels.
        """
        self._title, self._description, self._size, self._names = title, description, size, names
        self._shapes: list[Shape] = []
        self._keys: list[Key] = []
        self._across, self._up = across, up
        self._right, self._bottom = size[0] - _RIGHT, size[1] - _BOTTOM
        marks = up.ticks()
        self._left = max([_LEFT, *(_NAME + width_of(text, 11) for _, text in marks)])
        for value, text in marks:
            y = self._y(value)
            self._draw(
                Line([(self._left, y), (self._right, y)], "grid"),
                Words(self._left - 6, y + 4, text, "end", "muted", 11),
            )
        for value, text in across.ticks(8):
            x = self._x(value)
            self._draw(Line([(x, self._bottom), (x, self._bottom + 4)], "muted"))
            self._draw(Words(x, self._bottom + 17, text, "middle", "muted", 11))
        middle = (self._left + self._right) / 2, (_TOP + self._bottom) / 2
        self._draw(Words(middle[0], size[1] - 8, fitted(names[0], self._right - self._left, 12), "middle"))
        self._draw(Words(14, middle[1], fitted(names[1], self._bottom - _TOP, 12), "middle", upright=True))

    @property
    def picture(self) -> Picture:
        """The current picture, with the legend above the plot."""
        above, rows = legend(self._keys, self._left, self._right, _TOP - 14)
        deeper = ROW * max(rows - 1, 0)
        picture = Picture(self._size[0], self._size[1] + deeper, self._title, self._description, axes=self._names)
        picture.draw(*(lowered(shape, deeper) for shape in self._shapes), *above)
        return picture

    def line(
        self,
        points: Iterable[Point],
        ink: Ink,
        width: float = 1.5,
        dashed: bool = False,
        faint: bool = False,
        tip: str = "",
    ) -> None:
        """Draw a line through points. A non-finite point interrupts the line."""
        for run in _finite_parts(points):
            placed = [self._to_pixels(point) for point in run]
            if len(placed) == 1:
                self._draw(Dot(*placed[0], ink, 1.5, tip=tip))
            else:
                self._draw(Line(placed, ink, width, dashed, faint, tip, run))

    def steps(
        self, points: Sequence[Point], ink: Ink, width: float = 2.0, dashed: bool = False, until: float | None = None
    ) -> None:
        """Draw a step curve: each value is kept until the next point, and the last value until `until`."""
        cornered: list[Point] = []
        for x, y in points:
            if cornered:
                cornered.append((x, cornered[-1][1]))
            cornered.append((x, y))
        if cornered and until is not None:
            cornered.append((until, cornered[-1][1]))
        self.line(cornered, ink, width, dashed)

    def band(self, points: Iterable[tuple[float, float, float]], ink: Ink) -> None:
        """Fill the area between two curves. Points are (x, first, second). A non-finite number interrupts the area."""
        for run in _finite_parts(points):
            edge = [(x, first) for x, first, _ in run] + [(x, other) for x, _, other in reversed(run)]
            self._draw(Area([self._to_pixels(point) for point in edge], ink))

    def dot(self, point: Point, ink: Ink, radius: float = 3.0, hollow: bool = False, tip: str = "") -> None:
        """Draw a point."""
        if all(map(math.isfinite, point)):
            self._draw(Dot(*self._to_pixels(point), ink, radius, hollow, tip))

    def key(self, ink: Ink, text: str, mark: Mark = "line") -> None:
        """Add an entry to the legend above the plot."""
        self._keys.append(Key(ink, text, mark))

    def _draw(self, *shapes: Shape) -> None:
        self._shapes += shapes

    def _to_pixels(self, point: Point) -> Point:
        return self._x(point[0]), self._y(point[1])

    def _x(self, value: object) -> float:
        return self._left + (self._right - self._left) * _clipped(self._across.fraction(value))

    def _y(self, value: object) -> float:
        return self._bottom - (self._bottom - _TOP) * _clipped(self._up.fraction(value))


def _clipped(fraction: float) -> float:
    """Clamp a position to the ends of the axis, so that values beyond it are visible at its edge."""
    return min(max(fraction, 0.0), 1.0)


def _finite_parts(points: Iterable[T]) -> Iterator[list[T]]:
    """Split the points at points with a non-finite number, which are left out."""
    run: list[T] = []
    for point in points:
        if all(map(math.isfinite, point)):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def legend(keys: Sequence[Key], left: float, right: float, y: float) -> tuple[list[Shape], int]:
    """Draw a legend from left to right, in as many rows as needed, and return the number of rows.

    Args:
        keys: Entries, in order. The middle of a text is cut out if the text doesn't fit in a row.
        left: Left end of the rows, in pixels.
        right: Right end of the rows, in pixels.
        y: Baseline of the first row, in pixels.
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
