"""Plots of curves and of gains as SVG, readable on light and on dark pages, and without telling its colours apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

_WIDTH, _HEIGHT = 720, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 704, 44, 428
_STYLE = """
    text { font: 13px sans-serif; fill: #24292f } .ground { fill: #ffffff } .grid { stroke: #d0d7de }
    .line0 { color: #0969da } .line1 { color: #1a7f37 } .line2 { color: #cf222e } .line3 { color: #9a6700 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .ground { fill: #0d1117 } .grid { stroke: #30363d }
      .line0 { color: #58a6ff } .line1 { color: #3fb950 } .line2 { color: #ff7b72 } .line3 { color: #e3b341 }
    }
    polyline, .key { fill: none; stroke: currentColor; stroke-width: 2 } polygon { fill: currentColor; opacity: 0.18 }
"""
_DASHES = ("none", "8 3", "2 3", "10 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """Several runs of one kind, drawn as their mean within their range."""

    name: str
    runs: Sequence[Sequence[float]]
    """Of each run the values at 1, 2, 3, ...; all above 0 and equally many."""


def draw(
    title: str,
    across: str,
    up: str,
    lines: Sequence[Line],
    ticks: Sequence[float],
    names: Sequence[str] | None = None,
) -> str:
    """Return the SVG, with a logarithmic vertical axis.

    Args:
        title: Above it.
        across: What counts from 1 along the horizontal axis.
        up: What the values are.
        lines: Four at most.
        ticks: Marked values, rising; the axis goes from the first to the last, and every value must lie between.
        names: Of what counts from 1, in place of the numbers.
    """
    count = len(lines[0].runs[0])
    steps = range(1, count + 1)

    def x(step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step - 1) / (count - 1)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])

    def path(values: Sequence[float]) -> list[str]:
        return [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(steps, values, strict=True)]

    parts = [f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>']
    parts.append(_text(_LEFT, 26, title, "start"))
    for value in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(_text(_LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    named = [str(step) for step in steps] if names is None else names
    parts += [_text(x(step), _BOTTOM + 20, name, "middle") for step, name in zip(steps, named, strict=True)]
    parts.append(_text((_LEFT + _RIGHT) / 2, _HEIGHT - 10, across, "middle"))
    middle = (_TOP + _BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 18 {middle})">{_text(18, middle, up, "middle")}</g>')
    for number, line in enumerate(lines):
        at_step = list(zip(*line.runs, strict=True))
        outline = path([max(values) for values in at_step]) + path([min(values) for values in at_step])[::-1]
        mean = " ".join(path([fmean(values) for values in at_step]))
        dashes = f'stroke-dasharray="{_DASHES[number]}"'
        key = _TOP + 18 + 18 * number
        parts.append(f'<g class="line{number}"><polygon points="{" ".join(outline)}"/>')
        parts.append(f'<polyline points="{mean}" {dashes}/>')
        parts.append(f'<line class="key" x1="{_RIGHT - 250}" x2="{_RIGHT - 214}" y1="{key}" y2="{key}" {dashes}/></g>')
        parts.append(_text(_RIGHT - 206, key + 4, line.name, "start"))
    return _svg(title, _HEIGHT, parts)


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better something is, drawn as a point within two standard errors."""

    name: str
    mean: float
    error: float
    kind: int
    """Colour and shape: 0 or 1."""


def draw_gains(title: str, across: str, gains: Sequence[Gain], kinds: Sequence[str], ticks: Sequence[float]) -> str:
    """Return the SVG, with a row for each gain.

    Args:
        title: Above it.
        across: What the horizontal axis is.
        gains: What to draw.
        kinds: What they are gains over.
        ticks: Marked values, rising, 0 among them; every row must lie between the first and the last.
    """
    left, row = 210, 26
    bottom = _TOP + 30 + row * len(gains)

    def x(value: float) -> float:
        return left + (_RIGHT - left) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [f'<rect class="ground" width="{_WIDTH}" height="{bottom + 60}" rx="6"/>', _text(24, 26, title, "start")]
    for number, name in enumerate(kinds):
        parts.append(f'<g class="line{number}">{_point(left + 200 * number, _TOP + 10, number)}</g>')
        parts.append(_text(left + 200 * number + 12, _TOP + 14, f"over {name}", "start"))
    for value in ticks:
        wide = ' stroke-width="2"' if value == 0 else ""
        parts.append(
            f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP + 26}" y2="{bottom}"{wide}/>'
        )
        parts.append(_text(x(value), bottom + 18, f"{value:g}", "middle"))
    for place, gain in enumerate(gains):
        y = _TOP + 26 + row * (place + 0.5)
        low, high = x(gain.mean - 2 * gain.error), x(gain.mean + 2 * gain.error)
        parts.append(_text(left - 12, y + 4, gain.name, "end"))
        parts.append(f'<g class="line{gain.kind}"><line class="key" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f"{_point(x(gain.mean), y, gain.kind)}</g>")
    parts.append(_text((left + _RIGHT) / 2, bottom + 44, across, "middle"))
    return _svg(title, bottom + 60, parts)


def _point(x: float, y: float, kind: int) -> str:
    if kind == 0:
        return f'<circle fill="currentColor" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return f'<rect fill="currentColor" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">'
    inside = "\n  ".join([f"<title>{escape(title)}</title>", f"<style>{_STYLE}  </style>", *parts])
    return f"{head}\n  {inside}\n</svg>\n"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
