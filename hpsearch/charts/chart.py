"""A plot of values over values: axes, grid, and what is drawn between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hpsearch.charts.picture import Area, Dot, Ink, Line, Picture, Point, Words
from hpsearch.charts.scales import Scale

__all__ = ["Chart"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 30.0, 46.0
_TICK = 14.0
"""Pixels that a mark's text takes across."""


class Chart:
    """A picture with two axes; points are given as (value across, value up), and those that aren't finite left out."""

    def __init__(
        self, title: str, told: str, across: Scale, up: Scale, names: tuple[str, str], size: Point = (760, 340)
    ) -> None:
        """Draw the axes.

        Args:
            title: Of the picture.
            told: What is to be seen, in words.
            across: The horizontal axis.
            up: The vertical one.
            names: What the two are.
            size: Pixels.
        """
        self.picture = Picture(*size, title, told)
        self._across, self._up = across, up
        self._right, self._bottom = size[0] - _RIGHT, size[1] - _BOTTOM
        self._key = _LEFT
        for value, text in up.ticks():
            y = self._y(value)
            self.picture.draw(Line([(_LEFT, y), (self._right, y)], "grid"))
            self.picture.draw(Words(_LEFT - 6, y + 4, text, "end", "muted", 11))
        for value, text in across.ticks(8):
            x = self._x(value)
            self.picture.draw(Line([(x, self._bottom), (x, self._bottom + 4)], "muted"))
            self.picture.draw(Words(x, self._bottom + 17, text, "middle", "muted", 11))
        middle = (_LEFT + self._right) / 2, (_TOP + self._bottom) / 2
        self.picture.draw(Words(middle[0], size[1] - 8, names[0], "middle"))
        self.picture.draw(Words(14, middle[1], names[1], "middle", upright=True))

    def line(
        self,
        points: Iterable[Point],
        ink: Ink,
        width: float = 1.5,
        dashed: bool = False,
        faint: bool = False,
        tip: str = "",
    ) -> None:
        """Draw a line through points; one that isn't finite parts it."""
        for part in _parts(points):
            placed = [self._place(point) for point in part]
            if len(placed) == 1:
                self.picture.draw(Dot(*placed[0], ink, 1.5, tip=tip))
            else:
                self.picture.draw(Line(placed, ink, width, dashed, faint, tip))

    def steps(
        self, points: Sequence[Point], ink: Ink, width: float = 2.0, dashed: bool = False, until: float | None = None
    ) -> None:
        """Draw a line that keeps each value until the next one, the last one as far as `until`."""
        cornered: list[Point] = []
        for x, y in points:
            if cornered:
                cornered.append((x, cornered[-1][1]))
            cornered.append((x, y))
        if cornered and until is not None:
            cornered.append((until, cornered[-1][1]))
        self.line(cornered, ink, width, dashed)

    def band(self, points: Sequence[tuple[float, float, float]], ink: Ink) -> None:
        """Fill what lies between two values, given as (across, one, other)."""
        known = [point for point in points if all(map(math.isfinite, point))]
        edge = [(x, one) for x, one, _ in known] + [(x, other) for x, _, other in reversed(known)]
        if edge:
            self.picture.draw(Area([self._place(point) for point in edge], ink))

    def dot(self, point: Point, ink: Ink, radius: float = 3.0, hollow: bool = False, tip: str = "") -> None:
        """Draw a point."""
        if all(map(math.isfinite, point)):
            self.picture.draw(Dot(*self._place(point), ink, radius, hollow, tip))

    def key(self, ink: Ink, text: str, dashed: bool = False, dotted: bool = False, hollow: bool = False) -> None:
        """Say above the plot what an ink stands for."""
        y = _TOP - 14
        if dotted:
            self.picture.draw(Dot(self._key + 9, y - 4, ink, 4, hollow))
        else:
            self.picture.draw(Line([(self._key, y - 4), (self._key + 18, y - 4)], ink, 2, dashed))
        self.picture.draw(Words(self._key + 24, y, text))
        self._key += 40 + 6.6 * len(text)

    def _place(self, point: Point) -> Point:
        return self._x(point[0]), self._y(point[1])

    def _x(self, value: object) -> float:
        return _LEFT + (self._right - _LEFT) * _clipped(self._across.share(value))

    def _y(self, value: object) -> float:
        return self._bottom - (self._bottom - _TOP) * _clipped(self._up.share(value))


def _clipped(share: float) -> float:
    """Keep what lies beyond an axis on its end, where it shows that there is more."""
    return min(max(share, 0.0), 1.0)


def _parts(points: Iterable[Point]) -> Iterable[list[Point]]:
    part: list[Point] = []
    for point in points:
        if all(map(math.isfinite, point)):
            part.append(point)
        elif part:
            yield part
            part = []
    if part:
        yield part
