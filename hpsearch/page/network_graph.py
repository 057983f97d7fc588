"""Structures as graphs: chains, cells with operations on edges or nodes, and nested structures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpsearch.space import Cell, Choice
from hpsearch.space.choices import Categorical
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.space.structures import RepeatedStructure
from hpsearch.tables.outline import written
from hpsearch.trial import Value

__all__ = ["NONE", "Graph", "Node", "graph_of", "operations_of", "structures_of"]

NONE = frozenset({"none", "zero"})
"""Operations that return zeros: their edges are omitted."""

_MOST_LAYERS = 30
"""Of a chain."""


@dataclass(frozen=True)
class Node:
    """A node: an operation, or a sum of values."""

    name: str
    settings: Sequence[str] = ()
    operation: str = ""
    """Which one; empty where it is none that has a name."""
    is_place: bool = False


@dataclass
class Graph:
    """Edges; sources come before their targets."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, node: Node, *before: int) -> int:
        """Add a node after others; return its index."""
        self.nodes.append(node)
        self.edges += [(source, len(self.nodes) - 1) for source in dict.fromkeys(before)]
        return len(self.nodes) - 1


def structures_of(name: str, holds: object, value: Value) -> Iterator[tuple[str, Value]]:
    """Return the chains, repeats and cells of a parameter's value, with their names; also in groups and choices.

    Args:
        name: The parameter's name.
        holds: Its declaration in the space.
        value: Its value as the trainable sees it.
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
    """Return the names of all operations that there may be in a structure, some of them several times."""
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
    """Return the graph of a structure as a trainable sees it; None where it has nothing to draw."""
    graph = Graph()
    match value:
        case [_, *_]:
            graph.add(Node("output", is_place=True), _chain(graph, value, graph.add(Node("input", is_place=True))))
        case dict() if _has_edges(value):
            _edges(graph, value, graph.add(Node("0: input", is_place=True)), "output")
        case dict() if _has_nodes(value):
            inputs = min(map(int, value))
            _nodes(graph, value, [graph.add(Node(f"{index}: input", is_place=True)) for index in range(inputs)])
        case _:
            return None
    return graph


def _add_part(graph: Graph, value: Value, before: int) -> int:
    """Add a chain or a cell; return the node with its result."""
    match value:
        case list():
            return _chain(graph, value, before)
        case dict() if _has_edges(value):
            return _edges(graph, value, before)
        case dict() if _has_nodes(value):
            nodes = _nodes(graph, value, [before] * min(map(int, value)))
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


def _edges(graph: Graph, cell: Mapping[str, Value], before: int, last_is: str = "") -> int:
    """Add a cell with operations on edges: each node is the sum of what its edges bring."""
    pairs = {edge: (int(edge.split("-")[0]), int(edge.split("-")[1])) for edge in cell}
    indices = {0: before}
    last = max(end for _, end in pairs.values())
    for node in range(1, last + 1):
        edges = sorted((start, edge) for edge, (start, end) in pairs.items() if end == node)
        ends = [_add_part(graph, cell[edge], indices[start]) for start, edge in edges]
        name = f"{node}: {last_is}" if node == last and last_is else str(node)
        indices[node] = graph.add(Node(name, is_place=True), *ends)
    return indices[last]


def _nodes(graph: Graph, cell: Mapping[str, Sequence[Mapping[str, Value]]], inputs: Sequence[int]) -> dict[int, int]:
    """Add a cell with operations on nodes; return their indices, by number."""
    indices, nodes = dict(enumerate(inputs)), {}
    for number in sorted(map(int, cell)):
        ends = [_add_part(graph, side["operation"], indices[side["from"]]) for side in cell[str(number)]]
        nodes[number] = indices[number] = graph.add(Node(str(number), is_place=True), *ends)
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
