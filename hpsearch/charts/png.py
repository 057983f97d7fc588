"""Pictures as PNG, for what shows no SVG; on white."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence

from hpsearch.charts.fonts import font_for, spelled
from hpsearch.charts.picture import COLOURS, HALO, Area, Box, Dot, Line, Picture, Point, Words

__all__ = ["png"]

_FINER = 2
"""Pillow draws without smoothing: so it draws larger, and the picture is made smaller."""

_DASH, _GAP = 6.0, 4.0


def png(picture: Picture, scale: float = 2.0) -> bytes:
    """Give a picture as PNG.

    Args:
        picture: What to write.
        scale: Pixels of the file for each of the picture's.
    """
    from PIL import Image, ImageColor, ImageDraw

    factor = scale * _FINER
    size = round(picture.width * factor), round(picture.height * factor)
    image = Image.new("RGB", size, COLOURS["paper"][0])
    pen = ImageDraw.Draw(image, "RGBA")

    letters = font_for(shape.text for shape in picture.shapes if isinstance(shape, Words))
    paper = ImageColor.getrgb(COLOURS["paper"][0])

    def at(points: Sequence[Point]) -> list[Point]:
        return [(x * factor, y * factor) for x, y in points]

    for shape in picture.shapes:
        colour = ImageColor.getrgb(COLOURS[shape.ink][0])
        match shape:
            case Line(points=points, dashed=dashed, width=width, faint=faint):
                filled = (*colour, 90 if faint else 255)
                for part in _dashes(points) if dashed else [points]:
                    pen.line(at(part), fill=filled, width=max(1, round(width * factor)), joint="curve")
            case Area(points=points):
                pen.polygon(at(points), fill=(*colour, 46))
            case Box(x=x, y=y, width=width, height=height):
                pen.rectangle(at([(x, y), (x + width, y + height)]), fill=colour)
            case Dot(x=x, y=y, radius=radius, hollow=hollow):
                corners = at([(x - radius, y - radius), (x + radius, y + radius)])
                pen.ellipse(corners, fill=None if hollow else colour, outline=colour, width=round(factor))
            case Words(x=x, y=y, text=text, anchor=anchor):
                text, font = spelled(text, letters.has), letters.at(shape.size * factor)
                letter = {"start": "l", "middle": "m", "end": "r"}[anchor]
                if not shape.upright:
                    around = round(HALO * factor) if shape.halo else 0
                    place, anchored = (x * factor, y * factor), f"{letter}s"
                    pen.text(place, text, colour, font, anchored, stroke_width=around, stroke_fill=paper)
                    continue
                left, top, right, bottom = (math.ceil(edge) for edge in font.getbbox(text))
                turned = Image.new("L", (right - left, bottom - top))
                ImageDraw.Draw(turned).text((-left, -top), text, fill=255, font=font)
                turned = turned.rotate(90, expand=True)
                corner = round(x * factor) - turned.width, round(y * factor) - turned.height // 2
                image.paste(colour, corner, turned)
    smaller = image.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    smaller.save(written, "PNG", optimize=True)
    return written.getvalue()


def _dashes(points: Sequence[Point]) -> list[list[Point]]:
    """Cut a line into dashes."""
    dashes: list[list[Point]] = []
    travelled = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        done = 0.0
        while done < length:
            phase = (travelled + done) % (_DASH + _GAP)
            step = min(length - done, (_DASH if phase < _DASH else _DASH + _GAP) - phase)
            if phase < _DASH:
                ends = [
                    (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
                    for share in (done / length, (done + step) / length)
                ]
                dashes.append(ends)
            done += max(step, 1e-6)
        travelled += length
    return dashes
