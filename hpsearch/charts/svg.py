"""Pictures as SVG: within a page, whose style colours them, or alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from xml.etree import ElementTree as Tree

from hpsearch.charts.picture import COLOURS, HALO, Area, Box, Dot, Line, Picture, Point, Shape, Words

__all__ = ["STYLE", "svg"]

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
"""What a page that holds pictures needs. Shapes have the light colours themselves: most programs that convert SVG files
know no variables of CSS.
"""

_numbers = itertools.count(1)


def svg(picture: Picture, alone: bool = False) -> str:
    """Give a picture as SVG.

    Args:
        picture: What to write.
        alone: It brings its own style, as a file or in a notebook; else the page must hold `STYLE`, and may lay it out
            by `--width`, how many pixels wide it is by nature.
    """
    name = f"chart-{next(_numbers)}" if not alone else "chart-0"
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
    Tree.SubElement(root, "desc", {"id": f"{name}-told"}).text = _printable(picture.told)
    Tree.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": COLOURS["paper"][0]})
    for shape in picture.shapes:
        root.append(_element(shape))
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
    """Leave out what XML can't hold, such as control characters and lone surrogates."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
