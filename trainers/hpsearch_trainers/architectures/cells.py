"""Cells, and stacks of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from hpsearch_trainers.architectures.calls import Call, Planned
from hpsearch_trainers.architectures.cell_modules import EdgeCell, NodeCell
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.plan import named, operation_named
from hpsearch_trainers.architectures.shapes import Shape, halved

__all__ = ["Plan", "inputs_of", "is_cell", "plan_cell", "used_nodes"]

Plan = Callable[[Any, Shape, str], Planned]
"""Plans any value, for an input shape, at its path."""

_OF_A_CELL = re.compile(r"\d+(-\d+)?")
_EDGE = re.compile(r"(0|[1-9]\d*)-([1-9]\d*)")
_NODE = re.compile(r"[1-9]\d*")


def is_cell(value: object) -> bool:
    """Return whether a value is a cell and not an operation: whether keys are a number, or two as in "0-1"."""
    return isinstance(value, Mapping) and any(_OF_A_CELL.fullmatch(str(key)) for key in value)


def plan_cell(
    cell: Mapping[Any, Any], shape: Shape, path: str, plan: Plan, *, join: str = "mean", reduces: bool = False
) -> Planned:
    """Plan a cell.

    Args:
        cell: Edges to operations, or nodes to their inputs.
        shape: The shape of all its inputs.
        path: Its location.
        plan: Plans the operations.
        join: How the nodes without a successor become the output, "mean" or "concat". A cell of edges has one output.
        reduces: Whether the operations on inputs have a stride of 2.
    """
    keys = {str(key): value for key, value in cell.items()}
    if all(_EDGE.fullmatch(key) for key in keys):
        return _edges(keys, shape, path, plan, reduces)
    if all(_NODE.fullmatch(key) for key in keys):
        return _nodes(keys, shape, path, plan, join, reduces)
    raise ArchitectureError(
        path, f"a cell must have edges such as '0-1' or nodes such as '2', and not both, got {', '.join(keys)}"
    )


def inputs_of(cell: Mapping[Any, Any]) -> int:
    """Return the number of inputs of a cell."""
    return min(int(str(key)) for key in cell) if all(_NODE.fullmatch(str(key)) for key in cell) else 1


def used_nodes(cell: Mapping[Any, Any]) -> set[int]:
    """Return the nodes with a successor, of a cell that was planned."""
    if all(_EDGE.fullmatch(str(key)) for key in cell):
        return {int(str(edge).split("-")[0]) for edge in cell}
    return {int(side["from"]) for sides in cell.values() for side in sides}


def _edges(edges: Mapping[str, Any], shape: Shape, path: str, plan: Plan, reduces: bool) -> Planned:
    inside = halved(shape) if reduces else shape
    pairs = {edge: (int(edge.split("-")[0]), int(edge.split("-")[1])) for edge in edges}
    for edge, (start, end) in pairs.items():
        if start >= end:
            raise ArchitectureError(path, f"an edge must lead to a later node, got {edge}")
    last = max(end for _, end in pairs.values())
    for node in range(1, last + 1):
        if all(end != node for _, end in pairs.values()):
            raise ArchitectureError(path, f"an edge must lead to each node from 1 to {last}, got none to {node}")
    calls = {}
    for edge, value in edges.items():
        strided = reduces and pairs[edge][0] == 0
        calls[edge] = _inside(value, shape if strided else inside, inside, f"{path}.{edge}", plan, strided)
    return Planned(Call(EdgeCell, (calls,)), inside)


def _nodes(nodes: Mapping[str, Any], shape: Shape, path: str, plan: Plan, join: str, reduces: bool) -> Planned:
    inside = halved(shape) if reduces else shape
    numbers = sorted(map(int, nodes))
    inputs = numbers[0]
    if numbers != list(range(inputs, inputs + len(numbers))):
        raise ArchitectureError(path, f"nodes must be numbered without a gap, got {', '.join(map(str, numbers))}")
    calls = {}
    for number in numbers:
        sides = nodes[str(number)]
        if not isinstance(sides, list | tuple) or not sides:
            raise ArchitectureError(f"{path}.{number}", f"a node must be a list of its inputs, got {sides!r}")
        calls[str(number)] = [
            _side(side, number, inputs, shape, inside, f"{path}.{number}[{index}]", plan, reduces)
            for index, side in enumerate(sides)
        ]
    loose = len(numbers) - sum(start >= inputs for start in {start for sides in calls.values() for start, _ in sides})
    if join == "mean":
        return Planned(Call(NodeCell, (calls,)), inside)
    axis, wide = (2, (*inside[:-1], loose * inside[-1])) if len(inside) == 2 else (1, (loose * inside[0], *inside[1:]))
    return Planned(Call(NodeCell, (calls,), {"join": join, "axis": axis}), wide)


def _side(
    side: Any, number: int, inputs: int, shape: Shape, inside: Shape, path: str, plan: Plan, reduces: bool
) -> tuple[int, Call]:
    if not isinstance(side, Mapping) or set(side) != {"from", "operation"}:
        raise ArchitectureError(path, f"must be {{'from': a node, 'operation': ...}}, got {side!r}")
    start = side["from"]
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < number:
        raise ArchitectureError(f"{path}.from", f"must be a node from 0 to {number - 1}, got {start!r}")
    strided = reduces and start < inputs
    return start, _inside(side["operation"], shape if strided else inside, inside, path, plan, strided)


def _inside(value: Any, shape: Shape, expected: Shape, path: str, plan: Plan, strided: bool) -> Call:
    """Plan an operation of a cell. Its output must have the `expected` shape, that of its node's other operations."""
    if strided:
        value = _with_stride(value, path)
    planned = plan(value, shape, path)
    if planned.shape != expected:
        name = f".{named(value, path)[0]}" if isinstance(value, str) or _is_operation(value) else ""
        requirement = "halve the sides, to" if strided else "keep the shape in a cell,"
        raise ArchitectureError(path + name, f"must {requirement} {expected}, got {planned.shape}")
    return planned.call


def _is_operation(value: Any) -> bool:
    return isinstance(value, Mapping) and not is_cell(value)


def _with_stride(value: Any, path: str) -> dict[str, Any]:
    hint = "take one that has, or a reduction that isn't a cell"
    if not isinstance(value, str) and not _is_operation(value):
        raise ArchitectureError(path, f"must be a single operation at a reduction cell's input, got {value!r}")
    name, params = named(value, path)
    if name == "cells" or "stride" not in inspect.signature(operation_named(name, path)).parameters:
        raise ArchitectureError(
            f"{path}.{name}", f"must have a parameter 'stride' at a reduction cell's input, and has none: {hint}"
        )
    if "stride" in params:
        raise ArchitectureError(f"{path}.{name}", f"must not give 'stride' at a reduction cell's input, got {params}")
    return {name: {**params, "stride": 2}}
