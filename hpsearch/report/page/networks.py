"""The best trials' structures as graphs: layers below each other, cells as nodes with their edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpsearch.charts import Picture
from hpsearch.charts.picture import SERIES, Box, Dot, Ink, Line, Point, Words
from hpsearch.report.outline import outline, written
from hpsearch.report.page.section import Section
from hpsearch.report.study import Study
from hpsearch.report.wording import number, shortened
from hpsearch.trial import Value

__all__ = ["networks"]

_MOST = 3
"""Structures that are drawn: those of the best trials that differ."""
_WIDE, _HIGH = 300.0, 26.0
_MOST_LAYERS = 30
_APART = 130.0

_Edge = tuple[int, int, str, int]
"""From, to, its operation, and on which side it is drawn: 1 above, -1 below."""


def networks(study: Study) -> list[Section]:
    """Draw the structures of the best trials; none where the space has none."""
    objective, space = study.sweep.objective, study.sweep.parameters
    rows = {row.number: row for row in study.trials if row.values}
    sections: list[Section] = []
    drawn: set[str] = set()
    for trial in objective.rank({one: row.score for one, row in rows.items()}):
        structures = [(name, value) for name, value, is_structure in space.top(rows[trial].params) if is_structure]
        told = "; ".join(f"{name}: {outline(rows[trial].params, space)[name]}" for name, _ in structures)
        if not structures or told in drawn:
            continue
        drawn.add(told)
        values = ", ".join(
            f"{goal.name} {number(value)}" for goal, value in zip(objective.goals, rows[trial].values, strict=True)
        )
        for name, value in structures:
            title = f"Trial {trial}: {name}"
            if (picture := _picture(value, title, told)) is not None:
                sections.append(Section(title, [f"{values}. {told}"], picture))
        if len(drawn) == _MOST:
            break
    return sections


def _picture(value: Value, title: str, told: str) -> Picture | None:
    match value:
        case [_, *_]:
            return _stack(value, title, told)
        case dict() if value and all(_is_edge(key) for key in value):
            return _cell([_edge(key, one) for key, one in value.items()], title, told)
        case dict() if value and all(isinstance(sides, list) for sides in value.values()):
            return _cell([edge for node, sides in value.items() for edge in _inputs(int(node), sides)], title, told)
    return None


def _is_edge(key: str) -> bool:
    first, _, last = key.partition("-")
    return first.isdecimal() and last.isdecimal()


def _edge(key: str, operation: Value) -> _Edge:
    first, last = map(int, key.split("-"))
    return first, last, written(operation), 1


def _inputs(node: int, sides: Sequence[Mapping[str, Value]]) -> list[_Edge]:
    return [
        (int(side["from"]), node, written(side["operation"]), 1 if place == 0 else -1)
        for place, side in enumerate(sides)
    ]


def _stack(layers: Sequence[Value], title: str, told: str) -> Picture:
    shown = layers[:_MOST_LAYERS]
    names = list(dict.fromkeys(_kind(layer) for layer in layers))
    step = _HIGH + 14
    picture = Picture(760, 20 + step * len(shown), title, told)
    left = 24.0
    for place, layer in enumerate(shown):
        y = 10 + step * place
        ink: Ink = SERIES[names.index(_kind(layer)) % len(SERIES)]
        if place:
            picture.draw(Line([(left + 20, y - 14), (left + 20, y)], "muted", 1.5))
        picture.draw(Box(left, y, 10, _HIGH, ink, written(layer)))
        picture.draw(Words(left + 32, y + 17, shortened(written(layer), 100)))
    if len(layers) > len(shown):
        more = f"and {len(layers) - len(shown)} more"
        picture.draw(Words(left + _WIDE, picture.height - 6, more, "start", "muted"))
    return picture


def _kind(layer: Value) -> str:
    return next(iter(layer)) if isinstance(layer, dict) and len(layer) == 1 else "layer"


def _cell(edges: Sequence[_Edge], title: str, told: str) -> Picture:
    nodes = sorted({node for first, last, *_ in edges for node in (first, last)})
    reach = max(last - first for first, last, *_ in edges)
    below = any(side < 0 for *_, side in edges)
    high = 26.0 + 34.0 * reach
    apart = min(_APART, 680 / max(len(nodes) - 1, 1))
    middle = high + 14
    picture = Picture(760, middle + (high if below else 24) + 20, title, told)
    places = {node: 40 + apart * place for place, node in enumerate(nodes)}
    labels = []
    names = list(dict.fromkeys(text for *_, text, _ in edges))
    for first, last, text, side in edges:
        bow = side * (20.0 + 34.0 * (last - first))
        ink = SERIES[names.index(text) % len(SERIES)]
        picture.draw(Line(_arc(places[first], places[last], middle, bow), ink, 1.5, tip=f"{first} to {last}: {text}"))
        x, y = (places[first] + places[last]) / 2, middle - bow * 0.8 - 4 * side
        labels.append(Words(x, y, shortened(text, 22), "middle", ink, 11))
    for node in nodes:
        x = places[node]
        picture.draw(Dot(x, middle, "text", 11), Words(x, middle + 4, str(node), "middle", "paper"))
    picture.draw(*labels)
    return picture


def _arc(left: float, right: float, y: float, bow: float) -> list[Point]:
    points = []
    for place in range(25):
        angle = math.pi * place / 24
        points.append(((left + right) / 2 - (right - left) / 2 * math.cos(angle), y - 0.8 * bow * math.sin(angle)))
    return points
