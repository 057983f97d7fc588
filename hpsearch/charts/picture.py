"""A picture: shapes in the order of drawing, and what it shows in words. Nothing here knows how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hpsearch.errors import HpsearchError

__all__ = [
    "COLOURS",
    "HALO",
    "SERIES",
    "Anchor",
    "Area",
    "Box",
    "Dot",
    "Ink",
    "Line",
    "Picture",
    "Point",
    "Shape",
    "Words",
    "lowered",
    "series",
]

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

Ink = Literal["text", "muted", "grid", "paper", "s0", "s1", "s2", "s3", "s4", "s5", "good", "bad"]
"""What a shape is drawn with."""

COLOURS: dict[Ink, tuple[str, str]] = {
    "text": ("#24292f", "#e6edf3"),
    "muted": ("#57606a", "#9198a1"),
    "grid": ("#d8dee4", "#30363d"),
    "paper": ("#ffffff", "#0d1117"),
    "s0": ("#0969da", "#58a6ff"),
    "s1": ("#bc4c00", "#ffa657"),
    "s2": ("#1a7f37", "#3fb950"),
    "s3": ("#8250df", "#bc8cff"),
    "s4": ("#9a6700", "#e3b341"),
    "s5": ("#bf3989", "#ff7bc0"),
    "good": ("#1a7f37", "#3fb950"),
    "bad": ("#cf222e", "#ff7b72"),
}
"""On light pages, and on dark ones."""

HALO = 2.0
"""Pixels of paper around letters that have a halo."""

SERIES: tuple[Ink, ...] = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Inks that tell things apart, also by who sees few colours."""


def series(number: int) -> tuple[Ink, bool]:
    """Return the ink of one of several lines, and whether it is dashed; the first twelve differ."""
    around, colour = divmod(number, len(SERIES))
    return SERIES[colour], (number + around) % 2 == 1


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    ink: Ink
    width: float = 1.0
    dashed: bool = False
    faint: bool = False
    tip: str = ""
    """Shown where a pointer rests on it."""


@dataclass(frozen=True, slots=True)
class Area:
    """A faintly filled polygon."""

    points: Sequence[Point]
    ink: Ink


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle, from its corner at the left above."""

    x: float
    y: float
    width: float
    height: float
    ink: Ink
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point; hollow ones are outlines."""

    x: float
    y: float
    ink: Ink
    radius: float = 3.0
    hollow: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A text whose baseline's anchor lies at a point."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    ink: Ink = "text"
    size: float = 12.0
    upright: bool = False
    """Reads from below to above."""
    halo: bool = False
    """The paper is around its letters, so that they can be read on top of lines; not of one that is upright."""


Shape = Line | Area | Box | Dot | Words


def lowered(shape: Shape, down: float) -> Shape:
    """Give a shape so many pixels further down."""
    if isinstance(shape, Line | Area):
        return replace(shape, points=[(x, y + down) for x, y in shape.points])
    return replace(shape, y=shape.y + down)


@dataclass
class Picture:
    """Shapes on a white or dark ground; lengths are pixels, y grows downwards."""

    width: float
    height: float
    title: str
    told: str
    """What is to be seen, for who doesn't see it."""
    shapes: list[Shape] = field(default_factory=list)

    def draw(self, *shapes: Shape) -> None:
        """Draw on top of what is there."""
        self.shapes.extend(shapes)

    def save(self, path: str | Path) -> None:
        """Write it to an SVG file.

        Raises:
            HpsearchError: The file's name doesn't end with `.svg`.
        """
        from hpsearch.charts.svg import svg

        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise HpsearchError(
                f"{path}: a picture is saved as SVG, so its name must end with .svg. Other programs make a PNG of it: "
                "rsvg-convert -z 2 picture.svg -o picture.png"
            )
        path.write_text(svg(self, alone=True), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Show it in a notebook."""
        from hpsearch.charts.svg import svg

        return svg(self, alone=True)
