"""Pictures as lists of shapes, their SVG output, and estimates of the width of texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as Tree

from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import writing

_LETTER = 0.6
"""Width of a letter, as a fraction of the font size."""

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

Ink = Literal["text", "muted", "grid", "paper", "s0", "s1", "s2", "s3", "s4", "s5", "good", "bad"]
"""Name of a colour."""

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
"""Each colour on light pages and on dark pages."""

HALO = 2.0
"""Width of the outline of letters with a halo, in pixels."""

SERIES: tuple[Ink, ...] = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Colours for categories. They are distinguishable with colour blindness."""

_DARK = "\n".join(
    f'.chart [{attribute}="{light}"] {{ {attribute}: {dark} }}'
    for light, dark in dict.fromkeys(COLOURS.values())
    for attribute in ("fill", "stroke")
)

STYLE = f"""
.chart text {{ font-family: system-ui, sans-serif }}
@media (prefers-color-scheme: dark) {{
{_DARK}
}}
"""
"""CSS for a page with pictures. Shapes also contain the light colours, as most SVG converters lack CSS variables."""


def series(number: int) -> tuple[Ink, bool]:
    """Return the colour of a numbered line, and whether the line is dashed. The first twelve lines differ."""
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
    """Tooltip of the line."""
    values: Sequence[Point] = ()
    """The points in the units of the axes; empty if they have none."""


@dataclass(frozen=True, slots=True)
class Area:
    """A faintly filled polygon."""

    points: Sequence[Point]
    ink: Ink


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle, given by its top left corner."""

    x: float
    y: float
    width: float
    height: float
    ink: Ink
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point. A hollow point is only an outline."""

    x: float
    y: float
    ink: Ink
    radius: float = 3.0
    hollow: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A text, anchored at a point on its baseline."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    ink: Ink = "text"
    size: float = 12.0
    upright: bool = False
    """Whether the text is rotated and reads upwards."""
    halo: bool = False
    """Whether horizontal letters have an outline in the background colour, to be readable on top of lines."""


Shape = Line | Area | Box | Dot | Words


def lowered(shape: Shape, down: float) -> Shape:
    """Return a shape that is moved down by a number of pixels."""
    if isinstance(shape, Line | Area):
        return replace(shape, points=[(x, y + down) for x, y in shape.points])
    return replace(shape, y=shape.y + down)


@dataclass
class Picture:
    """Shapes on a light or dark background. Lengths are in pixels, and y grows downwards."""

    width: float
    height: float
    title: str
    description: str
    """Description for screen readers."""
    shapes: list[Shape] = field(default_factory=list)
    axes: tuple[str, str] = ("", "")
    """Names of the axes of lines with values."""

    def draw(self, *shapes: Shape) -> None:
        """Draw shapes on top of the earlier ones."""
        self.shapes.extend(shapes)

    def save(self, path: str | Path) -> None:
        """Write the picture to an SVG file.

        Raises:
            HpsearchError: The file's name doesn't end with `.svg`.
        """
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise HpsearchError(
                f"{path}: a picture is saved as SVG, so its name must end with .svg. Other programs make a PNG of it: "
                "rsvg-convert -z 2 picture.svg -o picture.png"
            )
        path.write_text(svg(self), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Return the picture for a notebook."""
        return svg(self)


def save_pictures(pictures: Mapping[str, Picture], folder: Path, purpose: str = "") -> list[Path]:
    """Write pictures to a folder as SVG files, and return their paths.

    Args:
        pictures: Pictures by file name, without suffix.
        folder: Output folder, which is created if missing.
        purpose: Purpose of the folder for error messages, such as ` for plots`.

    Raises:
        StorageError: The files can't be written.
    """
    paths = [folder / f"{name}.svg" for name in pictures]
    with writing(f"{folder}: expected a folder{purpose} that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for path, picture in zip(paths, pictures.values(), strict=True):
            picture.save(path)
    return paths


def svg(picture: Picture, name: str = "", values: bool = False) -> str:
    """Return a picture as SVG.

    Args:
        picture: The picture.
        name: Unique name of the picture on an HTML page. The page must contain `STYLE`, and can use the CSS variable
            `--width`, the picture's natural width. If empty, the SVG contains its own style, for a file or a notebook.
        values: Whether to write the axes and the values of lines as attributes, for a script of the page.
    """
    alone, name = not name, name or "chart-0"
    size = f"0 0 {_number(picture.width)} {_number(picture.height)}"
    root = Tree.Element("svg", {"class": "chart", "viewBox": size, "role": "img"})
    root.set("aria-labelledby", f"{name}-title {name}-told")
    if alone:
        root.set("xmlns", "http://www.w3.org/2000/svg")
        root.set("width", _number(picture.width))
        Tree.SubElement(root, "style").text = STYLE
    else:
        root.set("style", f"--width: {_number(picture.width)}px")
    Tree.SubElement(root, "title", {"id": f"{name}-title"}).text = _printable(picture.title)
    Tree.SubElement(root, "desc", {"id": f"{name}-told"}).text = _printable(picture.description)
    Tree.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": COLOURS["paper"][0]})
    if values and any(picture.axes):
        root.set("data-x", _printable(picture.axes[0]))
        root.set("data-y", _printable(picture.axes[1]))
    for shape in picture.shapes:
        element = _element(shape)
        if values and isinstance(shape, Line) and shape.values:
            element.set("data-values", " ".join(f"{x:.6g}:{y:.6g}" for x, y in shape.values))
        root.append(element)
    return Tree.tostring(root, encoding="unicode")


def _element(shape: Shape) -> Tree.Element:
    ink = COLOURS[shape.ink][0]
    match shape:
        case Line(points=points):
            element = Tree.Element("polyline", {"points": _points(points), "fill": "none", "stroke": ink})
            element.set("stroke-width", _number(shape.width))
            if shape.dashed:
                element.set("stroke-dasharray", "6 4")
            if shape.faint:
                element.set("opacity", "0.35")
        case Area(points=points):
            element = Tree.Element("polygon", {"points": _points(points), "fill": ink, "opacity": "0.18"})
        case Box(x=x, y=y, width=width, height=height):
            corner = {"x": _number(x), "y": _number(y), "width": _number(width), "height": _number(height)}
            element = Tree.Element("rect", {**corner, "fill": ink})
        case Dot(x=x, y=y, radius=radius, hollow=hollow):
            element = Tree.Element("circle", {"cx": _number(x), "cy": _number(y), "r": _number(radius)})
            element.set("fill", "none" if hollow else ink)
            if hollow:
                element.set("stroke", ink)
        case Words(x=x, y=y, text=text, anchor=anchor):
            element = Tree.Element("text", {"x": _number(x), "y": _number(y), "text-anchor": anchor, "fill": ink})
            element.set("font-size", _number(shape.size))
            if shape.halo:
                halo = {"stroke": COLOURS["paper"][0], "stroke-width": _number(2 * HALO), "stroke-linejoin": "round"}
                element.attrib.update({**halo, "paint-order": "stroke"})
            if shape.upright:
                element.set("transform", f"rotate(-90 {_number(x)} {_number(y)})")
            element.text = _printable(text)
    if not isinstance(shape, Area | Words) and shape.tip:
        Tree.SubElement(element, "title").text = _printable(shape.tip)
    return element


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _printable(text: str) -> str:
    """Replace characters that XML doesn't allow, such as control characters and lone surrogates."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def width_of(text: str, size: float) -> float:
    """Return an upper bound of a text's width in common fonts, in pixels.

    Args:
        text: Text in one line.
        size: Font size in pixels.
    """
    return size * sum(map(_wide, text))


def fitted(text: str, room: float, size: float) -> str:
    """Return the first line of a text. If it doesn't fit, its middle is cut out, as names often differ at their ends.

    Args:
        text: The text.
        room: Available width in pixels.
        size: Font size in pixels.
    """
    line = next(iter(text.splitlines()), "")
    if width_of(line, size) <= room:
        return line
    half = (room / size - _LETTER) / 2
    return f"{line[: _letters(line, half)]}…{line[len(line) - _letters(line[::-1], half) :]}"


def _letters(text: str, room: float) -> int:
    """Return the number of letters that fit, from the left."""
    for count, letter in enumerate(text):
        room -= _wide(letter)
        if room < 0:
            return count
    return len(text)


def _wide(letter: str) -> float:
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else _LETTER
