"""Draw the pictures in docs/images: `python -m tests.pictures`; equal bytes each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hpsearch.space import Chain, Ordinal, Space
from hpsearch_trainers.architectures import layers

IMAGES = Path(__file__).parents[1] / "docs" / "images"

_STYLE = """
    text { font: 13px sans-serif; fill: #24292f; text-anchor: middle } .small { font-size: 12px; fill: #57606a }
    .left { text-anchor: start } .ground { fill: #ffffff } .line { stroke: #57606a; fill: none; stroke-width: 1.5 }
    .tip { fill: #57606a } .box { fill: #f6f8fa; stroke: #57606a } .cell { fill: #ddf4ff; stroke: #0969da }
    .new { fill: #dafbe1; stroke: #1a7f37; stroke-width: 2 } .other { fill: #fff8c5; stroke: #9a6700 }
    .absent { opacity: 0.4; stroke-dasharray: 4 3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .small { fill: #9198a1 } .ground { fill: #0d1117 } .line { stroke: #9198a1 }
      .tip { fill: #9198a1 } .box { fill: #161b22; stroke: #9198a1 } .cell { fill: #0c2d6b; stroke: #58a6ff }
      .new { fill: #04260f; stroke: #3fb950 } .other { fill: #341a00; stroke: #e3b341 }
    }
"""
_HIGH = 28


class Picture:
    """Boxes, lines and words."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._title, self._size = title, (width, height)
        self._parts = [f'<rect class="ground" width="{width}" height="{height}" rx="6"/>']

    def svg(self) -> str:
        """Return the SVG file."""
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        head += f'viewBox="0 0 {width} {height}" role="img">'
        inside = "\n  ".join([f"<title>{escape(self._title)}</title>", f"<style>{_STYLE}  </style>", *self._parts])
        return f"{head}\n  {inside}\n</svg>\n"

    def words(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write words around a point."""
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y + 4.5:g}">{escape(words)}</text>')

    def box(self, x: float, y: float, words: str, wide: float = 120, kind: str = "box") -> None:
        """Draw a box around a point."""
        shape = f'x="{x - wide / 2:g}" y="{y - _HIGH / 2:g}" width="{wide:g}" height="{_HIGH}" rx="5"'
        self._parts.append(f'<rect class="{kind}" {shape}/>')
        self.words(x, y, words, "absent" if "absent" in kind else "")

    def line(self, *points: tuple[float, float], kind: str = "", tip: bool = True, bend: float = 0) -> None:
        """Draw an arrow through points; bent, from the first to the second."""
        (x0, y0), (x1, y1) = points[0], points[-1]
        if bend:
            middle = (x0 + x1) / 2, (y0 + y1) / 2 + bend
            path = f"M{x0:g} {y0:g} Q{middle[0]:g} {middle[1]:g} {x1:g} {y1:g}"
            before = middle
        else:
            path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
            before = points[-2]
        self._parts.append(f'<path class="line {kind}" d="{path}"/>')
        if tip:
            dx, dy = x1 - before[0], y1 - before[1]
            long = (dx * dx + dy * dy) ** 0.5
            ux, uy = dx / long, dy / long
            back, side = (x1 - 8 * ux, y1 - 8 * uy), (-4 * uy, 4 * ux)
            corners = [(x1, y1), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
            written = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            self._parts.append(f'<polygon class="tip {kind}" points="{written}"/>')


def choice() -> str:
    """A choice with branches as a tree."""
    made = Picture("A choice: what isn't chosen is absent", 620, 220)
    made.box(310, 30, "optimizer", kind="cell")
    for x, words, below, kind in [
        (170, "sgd", ["momentum: 0.9", "nesterov: true"], "new"),
        (470, "adam", ["beta1"], "box absent"),
    ]:
        absent = "absent" if "absent" in kind else ""
        made.line((310, 44), (x, 86), kind=absent)
        made.box(x, 100, words, kind=kind)
        for place, inner in enumerate(below):
            at = x + 140 * (place - (len(below) - 1) / 2)
            made.line((x, 114), (at, 146), kind=absent)
            made.box(at, 160, inner, kind="box absent" if absent else "box")
    made.words(310, 200, 'params["optimizer"] is {"sgd": {"momentum": 0.9, "nesterov": True}}', "small")
    return made.svg()


def repeat() -> str:
    """A repeated block: some copies of those that there may be."""
    made = Picture("A repeat: each copy has values of its own", 620, 120)
    made.box(75, 40, "hidden: 2 of 1 to 4", 136, "cell")
    made.line((143, 40), (174, 40))
    copies = ["hidden.0: 64", "hidden.1: 16", "hidden.2", "hidden.3"]
    for place, words in enumerate(copies):
        made.box(222 + 110 * place, 40, words, 96, "new" if place < 2 else "box absent")
        if place < 3:
            made.line((270 + 110 * place, 40), (284 + 110 * place, 40), kind="" if place == 0 else "absent")
    made.words(310, 92, 'params["hidden"] is [64, 16]', "small")
    return made.svg()


def chain() -> str:
    """A chain with the shape after each layer."""
    value = [{"conv": {"channels": 16, "kernel": 3}}, "pool", {"separable": {"channels": 32}}]
    tree = layers(value, (1, 8, 8), 10)
    made = Picture("A chain, with the shape after each layer", 360, 330)
    boxes: list[tuple[str, tuple[int, ...], str]] = [("input", (1, 8, 8), "box")]
    for part in tree.parts:
        for one in part.parts or (part,):
            given = ", ".join(f"{name} {setting}" for name, setting in one.settings.items())
            kind = "cell" if part.place == "body" else "box"
            boxes.append((f"{one.name} {given}".strip(), one.shape or (), kind))
    for place, (words, shape, kind) in enumerate(boxes):
        y = 30 + 54 * place
        made.box(125, y, words, 190, kind)
        made.words(240, y, " x ".join(map(str, shape)), "small left")
        if place:
            made.line((125, y - 54 + _HIGH / 2), (125, y - _HIGH / 2))
    return made.svg()


def edge_cell() -> str:
    """A cell of NAS-Bench-201."""
    cell = {
        "0-1": "nor_conv_3x3",
        "0-2": "skip_connect",
        "1-2": "nor_conv_1x1",
        "0-3": "nor_conv_3x3",
        "1-3": "none",
        "2-3": "avg_pool_3x3",
    }
    made = Picture("A cell with operations on edges", 720, 310)
    x = {node: 60 + 200 * node for node in range(4)}
    bends = {"0-3": -200, "0-2": 90, "1-3": 190}
    for edge, operation in cell.items():
        start, end = map(int, edge.split("-"))
        absent = "absent" if operation == "none" else ""
        bend = bends.get(edge, 0)
        off = 0 if not bend else (-12 if bend < 0 else 12)
        begin, to = (x[start] + (26 if not bend else 18), 146 + off), (x[end] - (26 if not bend else 18), 146 + off)
        made.line(begin, to, bend=bend, kind=absent)
        made.words((begin[0] + to[0]) / 2, 146 + off + bend / 2 + (16 if bend > 0 else -12), operation, absent)
    for node, words in enumerate(["0: in", "1", "2", "3: out"]):
        made.box(x[node], 146, words, 52, "cell")
    made.words(360, 292, "A node is the sum of what comes to it; none brings zeros.", "small")
    return made.svg()


def node_cell() -> str:
    """A cell as NASNet has them, and how a stack repeats it."""
    cell: Mapping[str, Any] = {
        "2": [{"from": 0, "operation": "sep_3x3"}, {"from": 1, "operation": "skip"}],
        "3": [{"from": 1, "operation": "sep_5x5"}, {"from": 0, "operation": "avg_3x3"}],
    }
    stack = layers({"cells": {"cell": cell, "stages": 2, "repeats": 2, "channels": 16}}, (3, 32, 32)).parts[0]
    made = Picture("A cell with operations on nodes, and a stack of it", 720, 390)
    inputs = {0: (110, 30), 1: (290, 30)}
    made.words(200, 376, "The cell: loose nodes side by side", "small")
    for number, x in [("2", 105), ("3", 295)]:
        for place, side in enumerate(cell[number]):
            at = x + 92 * (place - 0.5)
            source = inputs[side["from"]]
            made.line((source[0], 44), (at, 136))
            made.line((at, 164), (x, 216))
            made.box(at, 150, side["operation"], 82)
        made.box(x, 230, f"node {number}: sum", 120, "cell")
        made.line((x, 244), (200, 306))
    for place, (at, y) in inputs.items():
        made.box(at, y, "input 1: cell before" if place else "input 0: before that", 164)
    made.box(200, 320, "output", 90, "cell")
    made.words(570, 376, "The stack: 2 stages of 2 cells", "small")
    y = 30
    made.box(570, y, "input, 3 x 32 x 32", 150)
    places = [(570, y)]
    for step in stack.parts:
        y += 60
        reduces = step.place == "reduction"
        shape = " x ".join(map(str, step.shape or ()))
        made.line((570, y - 60 + _HIGH / 2), (570, y - _HIGH / 2))
        made.box(570, y, f"{step.place}, {shape}", 170, "other" if reduces else "cell")
        if len(places) > 1 and not reduces:  # a cell's other input: the output before the last one
            before = places[-2]
            side = 676 + 24 * (len(places) % 2)
            made.line(
                (655 if before[1] > 30 else 645, before[1] + 5), (side, before[1] + 5), (side, y - 5), (655, y - 5)
            )
        places.append((570, y))
    return made.svg()


def moves() -> str:
    """What evolution does, as the space does it."""
    parameter = Chain({"conv": {"channels": Ordinal([8, 16, 32])}, "sep": {}, "pool": {}}, min=2, max=4)
    space = Space.from_parameters({"layers": parameter})
    first, second = (_point(space, *names) for names in (["conv", "pool", "sep"], ["sep", "conv", "pool"]))
    rows: list[tuple[str, list[str], list[str]]] = [("parent", _layers(space, first), ["box"] * 4)]
    seen: set[int] = set()
    seed = 0
    while len(seen) < 2:  # one longer, and one of the same length
        child = _layers(space, space.mutate(first, seed=seed))
        seed += 1
        if len(child) in (3, 4) and len(child) not in seen:
            seen.add(len(child))
            kept = rows[0][1]
            kinds = ["box" if _is_old(child, kept, place) else "new" for place in range(len(child))]
            rows.append(("inserted" if len(child) == 4 else "changed", child, kinds))
    rows.append(("other parent", _layers(space, second), ["other"] * 4))
    mixed = next(
        child
        for seed in range(100)
        if (child := _layers(space, space.crossover(first, second, seed=seed))) not in (rows[0][1], rows[-1][1])
    )
    both = zip(mixed, rows[0][1], rows[-1][1], strict=False)
    rows.append(("crossover", mixed, ["box" if one == a else "other" if one == b else "new" for one, a, b in both]))
    made = Picture("Mutations of a chain, and a crossover", 640, 270)
    for number, (name, child, kinds) in enumerate(rows):
        y = 32 + 50 * number
        made.words(16, y, name, "left")
        for place, (words, kind) in enumerate(zip(child, kinds, strict=False)):
            made.box(180 + 128 * place, y, words, 112, kind)
            if place:
                made.line((180 + 128 * place - 72, y), (180 + 128 * place - 56, y), tip=False)
    return made.svg()


def _point(space: Space, *names: str) -> Mapping[str, Any]:
    point: dict[str, Any] = {"layers": len(names)}
    for place, name in enumerate(names):
        point[f"layers.{place}"] = name
        if name == "conv":
            point[f"layers.{place}.conv.channels"] = 16
    return space.check(point)


def _layers(space: Space, point: Mapping[str, Any]) -> list[str]:
    nested = [next(iter(layer.items())) for layer in space.nest(point)["layers"]]
    return [f"{name} {own['channels']}" if own else name for name, own in nested]


def _is_old(child: Sequence[str], parent: Sequence[str], place: int) -> bool:
    """Tell whether a layer of a child with one more, or one other layer is the parent's."""
    if len(child) == len(parent):
        return child[place] == parent[place]
    new = next(number for number, one in enumerate([*child]) if number == len(parent) or one != parent[number])
    return place != new


def pictures() -> dict[str, str]:
    """Return the files by their names."""
    drawn = (choice, repeat, chain, edge_cell, node_cell, moves)
    return {f"{draw.__name__}.svg": draw() for draw in drawn}


if __name__ == "__main__":
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
