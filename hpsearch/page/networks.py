"""Pictures of the best trials' structures as graphs. An operation has the same colour in all graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpsearch.page.charts.picture import SERIES, Area, Ink, Line, Picture, Point, Shape, Words, width_of
from hpsearch.page.html import Section, SectionTable
from hpsearch.page.layered import Layout, layered
from hpsearch.results.study import Study
from hpsearch.space import Cell, Choice, Space
from hpsearch.space.choices import Categorical
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.space.structures import RepeatedStructure
from hpsearch.tables.outline import written
from hpsearch.tables.wording import number, shortened
from hpsearch.trial import Params, TrialRow, Value

_MOST = 3
"""Largest number of trials that are drawn: the best ones with different structures."""
_HOW = (
    "Of the best trials whose structures differ. An operation has the same colour in all of them; one that gives zeros "
    "has none, and a dashed border."
)

_WIDTH = 760.0
_EDGE, _APART = 20.0, 36.0
_NAME, _SETTING = 13.0, 11.0
_LINE = 15.0
_MOST_LETTERS, _MOST_LINES = 26, 4
"""Largest number of characters and lines in a box. The section's text has the complete settings."""
_LEAST_WIDTH = 64.0
_ROUND = 5.0
_HEAD = 5.0
"""Size of an arrow's head, in pixels."""


@dataclass(frozen=True)
class Look:
    """The colour and border of an operation's boxes."""

    ink: Ink = "muted"
    dashed: bool = False


@dataclass(frozen=True)
class Drawn:
    """A graph and its title."""

    title: str
    lines: Sequence[str]
    """Lines below the title."""
    graph: Graph


def looks_in(studies: Iterable[Study]) -> dict[str, Look]:
    """Return the look of each operation in the studies' spaces, so that it is the same on the whole page."""
    spaces = [study.sweep.parameters for study in studies]
    return looks_of([name for space in spaces for declared in space.declared for name in operations_of(declared.holds)])


def networks(study: Study, looks: Mapping[str, Look] | None = None) -> list[Section]:
    """Draw the structures of the best trials in common pictures. Return no sections if there are no structures.

    Args:
        study: The study.
        looks: Looks by operation, shared by all studies on the page; None: the page has only this study.
    """
    space = study.sweep.parameters
    if not any(isinstance(declared.holds, Structure) for declared in space.declared):
        return []  # without reading thousands of trials
    best = _best(study)
    looks = looks_in([study]) if looks is None else looks
    sections = []
    for name in dict.fromkeys(name for _, structures in best for name in structures):
        drawn, rows = [], []
        for row, structures in best:
            if (graph := graph_of(structures.get(name))) is not None:
                pairs = zip(study.sweep.objective.goals, row.values, strict=True)
                values = [f"{goal.name} {number(value)}" for goal, value in pairs]
                drawn.append(Drawn(f"Trial {row.number}", values, graph))
                rows.append((str(row.number), ", ".join(values), written(structures[name])))
        if drawn:
            title = f"Best networks: {name}"
            description = "; ".join(f"trial {trial}, {values}: {network}" for trial, values, network in rows)
            picture = network_picture(drawn, looks, title, description)
            table = SectionTable(("trial", "values", name), rows)
            sections.append(Section(title, [_HOW], picture, table, folded=True))
    return sections


def _best(study: Study) -> list[tuple[TrialRow, Mapping[str, Value]]]:
    """Return the best trials with different structures, and their structures."""
    best: list[tuple[TrialRow, Mapping[str, Value]]] = []
    for row in study.ranked:
        structures = _structures(study.sweep.parameters, row.params) if row.values else {}
        if structures and all(structures != other for _, other in best):
            best.append((row, structures))
        if len(best) == _MOST:
            break
    return best


def _structures(space: Space, params: Params) -> dict[str, Value]:
    holds = {".".join(declared.path): declared.holds for declared in space.declared}
    return {
        name: value
        for top, is_whole, is_structure in space.top_level(params)
        if is_structure
        for name, value in structures_of(top, holds[top], is_whole)
    }


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """Assign looks to operations: six colours, then the same with dashed borders. Further operations have no entry.

    Args:
        names: Names of the operations. The same names in the same order get the same looks.
    """
    there_are = [name for name in dict.fromkeys(names) if name not in NONE]
    looks = [Look(ink, dashed) for dashed in (False, True) for ink in SERIES]
    return dict(zip(there_are, looks, strict=False))


def network_picture(graphs: Sequence[Drawn], looks: Mapping[str, Look], title: str, description: str) -> Picture:
    """Draw graphs in rows, with as many per row as fit.

    Args:
        graphs: Graphs to draw, at least one. Each has a node.
        looks: Looks by operation. Other operations are grey.
        title: The picture's title.
        description: Description of the picture, for screen readers.
    """
    used = {node.operation for drawn in graphs for node in drawn.graph.nodes} - {""}
    key, (width, y) = _key([*(name for name in looks if name in used), *sorted(used - set(looks))], looks)
    placed: list[Shape] = list(key)
    x, below = _EDGE, y
    for drawn in graphs:
        shapes, size = _graph(drawn, looks, (x, y))
        if x > _EDGE and x + size[0] > _WIDTH - _EDGE:
            x, y = _EDGE, below + _APART
            shapes, size = _graph(drawn, looks, (x, y))
        placed += shapes
        x, below = x + size[0] + _APART, max(below, y + size[1])
        width = max(width, x - _APART + _EDGE)
    picture = Picture(width, below + _EDGE, title, description)
    picture.draw(*placed)
    return picture


def _key(names: Sequence[str], looks: Mapping[str, Look]) -> tuple[list[Shape], Point]:
    """Draw the legend. Return its shapes, and the (width, height) that it needs."""
    shapes: list[Shape] = []
    x, y, width = _EDGE, _EDGE, 0.0
    for name in names:
        text = shortened(name, _MOST_LETTERS)
        room = 26 + width_of(text, 12) + 18
        if x > _EDGE and x + room - 18 > _WIDTH - _EDGE:
            x, y = _EDGE, y + 20
        shapes += _card((x + 9, y + 2), (18, 13), looks.get(name, Look(dashed=name in NONE)), name not in NONE)
        shapes.append(Words(x + 26, y + 6, text))
        x += room
        width = max(width, x - 18 + _EDGE)
    return shapes, (width, y + (34 if names else 0))


def _graph(drawn: Drawn, looks: Mapping[str, Look], corner: Point) -> tuple[list[Shape], Point]:
    """Draw a graph below its title. Return the shapes, and the (width, height) of both."""
    graph = drawn.graph
    layout = layered([_size(node) for node in graph.nodes], graph.edges)
    top = 30 + _LINE * len(drawn.lines)
    titles = max([width_of(drawn.title, 14), *(width_of(text, 12) for text in drawn.lines)])
    wide = max(layout.width, titles)
    shapes: list[Shape] = [Words(corner[0], corner[1] + 12, drawn.title, size=14)]
    for index, text in enumerate(drawn.lines, 1):
        shapes.append(Words(corner[0], corner[1] + 13 + _LINE * index, text, ink="muted"))
    left, above = corner[0] + (wide - layout.width) / 2, corner[1] + top
    shapes += _edges(graph, layout, (left, above))
    for node, (x, y) in zip(graph.nodes, layout.positions, strict=True):
        shapes += _node(node, (x + left, y + above), looks)
    return shapes, (wide, top + layout.height)


def _edges(graph: Graph, layout: Layout, corner: Point) -> Iterator[Shape]:
    absent = {number for number, node in enumerate(graph.nodes) if node.operation in NONE}
    routes = [
        ([(x + corner[0], y + corner[1]) for x, y in route], bool({first, last} & absent))
        for (first, last), route in zip(graph.edges, layout.routes, strict=True)
    ]
    for points, dashed in sorted(routes, key=lambda one: not one[1]):  # in a shared lane, a solid line is on top
        yield Line(points, "muted", 1.4, dashed)
        x, y = points[-1]
        yield Line([(x - _HEAD * 0.7, y - _HEAD), (x, y), (x + _HEAD * 0.7, y - _HEAD)], "muted", 1.4)


def _node(node: Node, middle: Point, looks: Mapping[str, Look]) -> Iterator[Shape]:
    x, y = middle
    width, height = _size(node)
    if node.is_place:
        yield from _card(middle, (width, height), Look("text"), False, height / 2)
        yield Words(x, y + 4, _short(node.name), "middle", size=12)
        return
    is_none = node.operation in NONE
    yield from _card(middle, (width, height), looks.get(node.operation, Look(dashed=is_none)), not is_none)
    lines = _lines(node)
    yield Words(x, y - _LINE * len(lines) / 2 + 4.5, _short(node.name), "middle", "muted" if is_none else "text", _NAME)
    for index, text in enumerate(lines, 1):
        yield Words(x, y - _LINE * len(lines) / 2 + 3.5 + _LINE * index, text, "middle", "muted", _SETTING)


def _card(middle: Point, size: Point, look: Look, filled: bool, corner: float = _ROUND) -> Iterator[Shape]:
    (x, y), (width, height) = middle, size
    corner = min(corner, height / 2)
    outline = [
        (
            x + side * (width / 2 - corner) + corner * math.cos(angle),
            y + end * (height / 2 - corner) + corner * math.sin(angle),
        )
        for quarter, (side, end) in enumerate([(1, 1), (-1, 1), (-1, -1), (1, -1)])
        for angle in ((quarter + step / 4) * math.pi / 2 for step in range(5))
    ]
    if filled:
        yield Area(outline, look.ink)
    yield Line([*outline, outline[0]], look.ink, 1.5, look.dashed)


def _size(node: Node) -> Point:
    name = width_of(_short(node.name), 12 if node.is_place else _NAME)
    if node.is_place:
        return max(name + 20, 26), 24
    lines = _lines(node)
    return max(_LEAST_WIDTH, *(16 + wide for wide in [name, *(width_of(text, _SETTING) for text in lines)])), 28 + (
        _LINE * len(lines)
    )


def _lines(node: Node) -> list[str]:
    """Wrap a node's settings into lines."""
    lines: list[str] = []
    for text in map(_short, node.settings):
        if lines and len(lines[-1]) + 2 + len(text) <= _MOST_LETTERS:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "…"]


def _short(text: str) -> str:
    return shortened(text, _MOST_LETTERS)


NONE = frozenset({"none", "zero"})
"""Operations that return zeros. Their edges aren't drawn."""

_MOST_LAYERS = 30
"""Largest number of layers of a chain that are drawn."""


@dataclass(frozen=True)
class Node:
    """A node: an operation, or a sum of values."""

    name: str
    settings: Sequence[str] = ()
    operation: str = ""
    """Name of the operation; empty if there is none."""
    is_place: bool = False


@dataclass
class Graph:
    """A directed acyclic graph. In its order of nodes, sources come before their targets."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, node: Node, *before: int) -> int:
        """Add a node with edges from other nodes, and return its index."""
        self.nodes.append(node)
        self.edges += [(source, len(self.nodes) - 1) for source in dict.fromkeys(before)]
        return len(self.nodes) - 1


def structures_of(name: str, holds: object, value: Value) -> Iterator[tuple[str, Value]]:
    """Return (name, structure) pairs of a parameter's value: chains, repeats and cells, also in groups and choices.

    Args:
        name: Name of the parameter.
        holds: Declaration of the parameter in the space.
        value: Value of the parameter, as the trainable receives it.
    """
    inside: Sequence[Declared] = ()
    match holds:
        case RepeatedStructure() | Cell():
            yield name, value
        case ParameterGroup():
            inside = holds.declared
        case Choice():
            ((branch, value),) = value.items()
            name, inside = f"{name}.{branch}", holds.branches[branch]
    for declared in inside:
        value_inside = value
        for part in declared.path:
            value_inside = value_inside.get(part) if isinstance(value_inside, Mapping) else None
        if value_inside is not None:
            yield from structures_of(".".join((name, *declared.path)), declared.holds, value_inside)


def operations_of(holds: object) -> Iterator[str]:
    """Return the names of all possible operations of a structure. Names may repeat."""
    inside: Sequence[Declared] = ()
    match holds:
        case RepeatedStructure(block=inside) | Cell(operations=inside):
            for declared in inside:
                match declared.holds:
                    case Categorical(values=values) if not declared.path:
                        yield from (value for value in values if isinstance(value, str))
                    case Choice(branches=branches) if not declared.path:
                        yield from branches
        case Structure():
            inside = [declared for _, group in holds.every_group() for declared in group]
    for declared in inside:
        yield from operations_of(declared.holds)


def graph_of(value: Value) -> Graph | None:
    """Return the graph of a structure, given as the trainable receives it; None if there is nothing to draw."""
    graph = Graph()
    match value:
        case [_, *_]:
            graph.add(Node("output", is_place=True), _chain(graph, value, graph.add(Node("input", is_place=True))))
        case dict() if _has_edges(value):
            _add_edges(graph, value, graph.add(Node("0: input", is_place=True)), "output")
        case dict() if _has_nodes(value):
            inputs = min(map(int, value))
            _add_nodes(graph, value, [graph.add(Node(f"{index}: input", is_place=True)) for index in range(inputs)])
        case _:
            return None
    return graph


def _add_part(graph: Graph, value: Value, before: int) -> int:
    """Add a chain or a cell. Return the index of the node with its result."""
    match value:
        case list():
            return _chain(graph, value, before)
        case dict() if _has_edges(value):
            return _add_edges(graph, value, before)
        case dict() if _has_nodes(value):
            nodes = _add_nodes(graph, value, [before] * min(map(int, value)))
            used = {side["from"] for sides in value.values() for side in sides}
            loose = [node for number, node in nodes.items() if number not in used]
            return graph.add(Node("of the cell", is_place=True), *loose)
        case {"residual": {"body": body, **more}} if len(value) == 1:
            body_node = _add_part(graph, body, before)
            return graph.add(Node("residual", ("sum", *_settings(more)), "residual"), before, body_node)
        case dict() if len(value) == 1 and all(isinstance(settings, dict) for settings in value.values()):
            ((name, settings),) = value.items()
            return graph.add(Node(name, _settings(settings), name), before)
        case dict() if value:
            return graph.add(Node(_settings(value)[0], _settings(value)[1:]), before)
    return graph.add(Node(written(value), (), value if isinstance(value, str) else ""), before)


def _settings(settings: Mapping[Any, Value]) -> list[str]:
    return [f"{name} {written(value)}" for name, value in settings.items()]


def _chain(graph: Graph, layers: Sequence[Value], before: int) -> int:
    for layer in layers[:_MOST_LAYERS]:
        before = _add_part(graph, layer, before)
    more = len(layers) - _MOST_LAYERS
    return graph.add(Node(f"and {more} more", is_place=True), before) if more > 0 else before


def _add_edges(graph: Graph, cell: Mapping[str, Value], before: int, last_is: str = "") -> int:
    """Add a cell with operations on edges. Each node is the sum of its incoming edges."""
    pairs = {edge: (int(edge.split("-")[0]), int(edge.split("-")[1])) for edge in cell}
    indices = {0: before}
    last = max(end for _, end in pairs.values())
    for node in range(1, last + 1):
        edges = sorted((start, edge) for edge, (start, end) in pairs.items() if end == node)
        ends = [_add_part(graph, cell[edge], indices[start]) for start, edge in edges]
        name = f"{node}: {last_is}" if node == last and last_is else str(node)
        indices[node] = graph.add(Node(name, is_place=True), *ends)
    return indices[last]


def _add_nodes(
    graph: Graph, cell: Mapping[str, Sequence[Mapping[str, Value]]], inputs: Sequence[int]
) -> dict[int, int]:
    """Add a cell with operations on nodes. Return the nodes' indices by number."""
    indices, nodes = dict(enumerate(inputs)), {}
    for index in sorted(map(int, cell)):
        ends = [_add_part(graph, side["operation"], indices[side["from"]]) for side in cell[str(index)]]
        nodes[index] = indices[index] = graph.add(Node(str(index), is_place=True), *ends)
    return nodes


def _has_edges(value: Mapping[str, Value]) -> bool:
    ends = [edge.split("-") for edge in value]
    return bool(ends) and all(
        len(two) == 2 and all(end.isdecimal() for end in two) and int(two[0]) < int(two[1]) for two in ends
    )


def _has_nodes(value: Mapping[str, Value]) -> bool:
    if not value or not all(number.isdecimal() for number in value):
        return False
    inputs = range(min(map(int, value)))
    return all(
        isinstance(sides, list)
        and all(
            isinstance(side, dict)
            and {"from", "operation"} == set(side)
            and (side["from"] in inputs or (str(side["from"]) in value and side["from"] < int(number)))
            for side in sides
        )
        for number, sides in value.items()
    )
