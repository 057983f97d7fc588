"""Walk a child's network together with its parent's: chains, residuals, operations and cells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from hpsearch_trainers.architectures.calls import Call
from hpsearch_trainers.architectures.cell_modules import CellStack, EdgeCell, NodeCell
from hpsearch_trainers.architectures.modules import Residual, Zero
from hpsearch_trainers.inheritance.modules import (
    can_choose_units,
    copy_weights,
    fill,
    has_rules,
    is_identity,
    same_types,
    silence,
    skip,
)
from hpsearch_trainers.inheritance.transfer import ModulePath
from hpsearch_trainers.inheritance.units import Flow, Units

_Item = TypeVar("_Item")

_FAR = 10.0
"""A distance larger than that of a deletion and an insertion."""


def same_call(first: Any, second: Any) -> bool:
    """Return whether two calls have the same function and parameters. Input shapes are ignored."""
    if isinstance(first, Call) and isinstance(second, Call):
        return first.function is second.function and same_call(_arguments(first), _arguments(second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_call(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(same_call(*pair) for pair in zip(first, second, strict=True))
    return bool(first == second)


def _arguments(call: Call) -> dict[str, Any]:
    """Return a call's arguments with defaults, without an operation's input shape."""
    if inspect.isclass(call.function):
        return {"": list(call.arguments), **call.keywords}
    _, *parameters = inspect.signature(call.function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters} | dict(call.keywords)


def distance(first: Call, second: Call) -> float:
    """Return the distance of two calls: 0 if they are the same, 2 or more if they can't be matched."""
    if first.function is not second.function:
        return _FAR
    if same_call(first, second):
        return 0.0
    if first.function is nn.Sequential:
        edits = _table(first.arguments, second.arguments, distance)[0][0]
        return min(1.5, edits / max(len(first.arguments), len(second.arguments)))
    first_arguments, second_arguments = _arguments(first), _arguments(second)
    return min(
        1.5, 0.25 * sum(not same_call(value, second_arguments.get(key)) for key, value in first_arguments.items())
    )


def align(
    child: Sequence[_Item], parent: Sequence[_Item], cost: Callable[[_Item, _Item], float]
) -> list[tuple[int | None, int | None]]:
    """Match two sequences by a shortest edit script.

    Among several shortest scripts, the one with the earliest pairs is chosen. So a layer that is inserted next to a
    similar one comes after it, where more is known about its input.

    Args:
        child: The child's layers.
        parent: The parent's layers.
        cost: The distance of two layers. An insertion or a deletion costs 1.

    Returns:
        Pairs of indices in the child and in the parent; None for a layer without a match.
    """
    costs = _table(child, parent, cost)
    pairs: list[tuple[int | None, int | None]] = []
    index, parent_index = 0, 0
    while index < len(child) or parent_index < len(parent):
        remaining_cost = costs[index][parent_index]
        both_remain = index < len(child) and parent_index < len(parent)
        if (
            both_remain
            and remaining_cost == cost(child[index], parent[parent_index]) + costs[index + 1][parent_index + 1]
        ):
            pairs.append((index, parent_index))
            index, parent_index = index + 1, parent_index + 1
        elif parent_index < len(parent) and remaining_cost == 1 + costs[index][parent_index + 1]:
            pairs.append((None, parent_index))
            parent_index += 1
        else:
            pairs.append((index, None))
            index += 1
    return pairs


def _table(child: Sequence[_Item], parent: Sequence[_Item], cost: Callable[[_Item, _Item], float]) -> list[list[float]]:
    """Return the edit distance (Wagner and Fischer, 1974) of the suffixes that start at each pair of indices."""
    rows, columns = len(child), len(parent)
    costs = [
        [float(rows - index + columns - parent_index) for parent_index in range(columns + 1)]
        for index in range(rows + 1)
    ]
    for index in reversed(range(rows)):
        for parent_index in reversed(range(columns)):
            costs[index][parent_index] = min(
                cost(child[index], parent[parent_index]) + costs[index + 1][parent_index + 1],
                1 + costs[index][parent_index + 1],
                1 + costs[index + 1][parent_index],
            )
    return costs


_CELLS = (EdgeCell, NodeCell, CellStack)


@dataclass(frozen=True)
class Part(ModulePath):
    """A part of a network, with the call that made it."""

    call: Call

    def part(self, name: str, call: Call) -> Part:
        """Return a part of it."""
        return Part(self.transfer, self.side, self.inside(name).path, call)


def walk(child: Part, parent: Part | None, flow: Flow, out_units: Units | None = None) -> Flow:
    """Fill a part.

    Args:
        child: The part.
        parent: Its match; None if the part is inserted.
        flow: The input.
        out_units: Units of the output, for modules that can choose them; None: any.
    """
    if parent is not None and parent.call.function is not child.call.function:
        return _replaced(child, parent, flow, out_units)
    if child.call.function is nn.Sequential:
        return _chain(_items(child), [] if parent is None else _items(parent), flow, out_units)
    module = child.module
    if type(module) in _CELLS:
        return _cells(child, parent, flow)
    if type(module) is Residual and "body" in child.call.keywords:
        return _residual(child, parent, flow)
    if has_rules(child) and (parent is None or has_rules(parent)):
        return fill(child, parent, flow, out_units)
    is_same_call = parent is not None and same_call(child.call, parent.call)
    return copy_weights(child, parent, flow, is_same_call)


def _chain(child: Sequence[Part], parent: Sequence[Part], flow: Flow, out_units: Units | None = None) -> Flow:
    """Fill parts in sequence."""
    last = max((index for index, part in enumerate(child) if _can_choose_units(part)), default=None)

    def cost(first: Part, second: Part) -> float:
        if first.call.function is not second.call.function:
            return 1.0 if same_types(first, second) else distance(first.call, second.call)
        return 0.0 if first.transfer.by_function else distance(first.call, second.call)

    for index, parent_index in align(child, parent, cost):
        if index is None:
            assert parent_index is not None
            flow = _passed(parent[parent_index], flow)
        else:
            parent_part = None if parent_index is None else parent[parent_index]
            flow = walk(child[index], parent_part, flow, out_units if index == last else None)
    return flow


def _passed(parent: Part, flow: Flow) -> Flow:
    """Skip a part that the child lacks."""
    if parent.call.function is nn.Sequential:
        for part in _items(parent):
            flow = _passed(part, flow)
        return flow
    return skip(parent, flow)


def _joined(module_path: ModulePath, flows: Sequence[Flow], units: Units) -> Flow:
    """Return the flow of a sum or mean; all flows must repeat the same units.

    Args:
        module_path: The module that computes the sum or mean.
        flows: One or more flows.
        units: The units of the result.
    """
    same_units = all(flow.units.equals(units) for flow in flows)
    exact = all(flow.exact for flow in flows)
    if exact and not same_units:
        exact = module_path.check_exact(flows[0], {"joins values that repeat other units": True})
    return Flow(units, exact, all(flow.nonnegative for flow in flows))


def _items(part: Part) -> list[Part]:
    """Return the parts of an `nn.Sequential`."""
    return [part.part(str(index), call) for index, call in enumerate(part.call.arguments)]


def _can_choose_units(part: Part) -> bool:
    """Return whether a part's outputs can repeat any units."""
    if part.call.function is nn.Sequential:
        return any(_can_choose_units(item) for item in _items(part))
    return has_rules(part) and can_choose_units(part.module)


def _residual(child: Part, parent: Part | None, flow: Flow) -> Flow:
    inside = child.part("body", child.call.keywords["body"])
    if parent is None:
        if _silence(inside):
            return flow
        return Flow(flow.units, child.check_exact(flow, {"is new, and adds to what comes": True}))
    body = walk(inside, parent.part("body", parent.call.keywords["body"]), flow, flow.units)
    return _joined(child, [flow, body], flow.units)


def _silence(part: Part) -> bool:
    """Make a part's output zero, if this is possible and the part can still learn; return whether it was possible."""
    if has_rules(part):
        return silence(part)
    return part.call.function is nn.Sequential and len(part.call.arguments) > 0 and _silence(_items(part)[-1])


def _replaced(child: Part, parent: Part, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a part that replaces another: exact if one is zero or the identity, and the other can be the same."""
    if _is_zero(parent):
        if _is_zero(child):
            return Flow(flow.units if out_units is None else out_units, flow.exact, True)
        if _silence(child):
            return Flow(flow.units if out_units is None else out_units, flow.exact)
    if same_types(child, parent):
        return fill(child, parent, flow, out_units)
    if is_identity(parent, flow.nonnegative) and parent.call.function is not nn.Sequential:
        return walk(child, None, flow, out_units)
    return walk(child, None, _passed(parent, flow), out_units)


def _is_zero(part: Part) -> bool:
    return type(part.module) is Zero


def _cells(child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Fill a cell whose inputs are all the same, or a stack of cells."""
    if parent is None:
        return _new(child, None, flow)
    return _stack(child, parent, flow) if child.call.function is CellStack else _cell(child, parent, [flow])


def _cell(child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell; a single flow is used for all inputs."""
    return _edges(child, parent, flows[0]) if child.call.function is EdgeCell else _nodes(child, parent, flows)


def _edges(child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a cell with operations on edges: all its nodes repeat the units of the input."""
    operations, parent_operations = _on_edges(child), _on_edges(parent)
    nodes = [flow]
    last, parent_last = (max(end for _, end in edges) for edges in (operations, parent_operations))
    for node in range(1, last + 1):
        terms = [
            _term(part, parent_operations.get((start, node)), nodes[start], flow.units)
            for (start, end), part in operations.items()
            if end == node
        ]
        lost = [
            part for (start, end), part in parent_operations.items() if end == node and (start, node) not in operations
        ]
        nodes.append(_without(lost, _joined(child, terms, flow.units)))
    problems = {"has another number of nodes than the parent's": last != parent_last}
    return child.checked(nodes[-1], problems)


def _on_edges(cell: Part) -> dict[tuple[int, int], Part]:
    """Return the operations by their (start, end) nodes."""
    calls: dict[str, Call] = cell.call.arguments[0]
    parts = {edge: cell.part(f"operations.{edge}", call) for edge, call in calls.items()}
    return {(int(edge.split("-")[0]), int(edge.split("-")[1])): part for edge, part in parts.items()}


def _term(child: Part, parent: Part | None, flow: Flow, units: Units) -> Flow:
    """Fill an operation of a cell; if the parent has none, its output becomes zero where possible."""
    if parent is not None:
        return walk(child, parent, flow, units)
    if isinstance(child.module, Zero) or _silence(child):
        return Flow(units, flow.exact, True)
    problems = {"is new, and adds to its node": True}
    return Flow(units, child.check_exact(flow, problems))


def _without(lost: Sequence[Part], flow: Flow) -> Flow:
    """Return the flow of a node without some operations of the parent, which is exact if they were zero."""
    for part in lost:
        if not isinstance(part.module, Zero):
            return part.checked(flow, {"of the parent's was taken out": True})
    return flow


def _nodes(child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell with operations on nodes: all inputs of its nodes repeat the same units."""
    child_cell: Any = child.module
    parent_cell: Any = parent.module
    nodes = list(flows) if len(flows) > 1 else [flows[0]] * child_cell.inputs
    first_used = nodes[min(_used_inputs(child))]
    units = first_used.units
    if child_cell.inputs != parent_cell.inputs:
        child.check_exact(first_used, {"has another number of inputs than the parent's": True})
        nodes = [replace(node, exact=False) for node in nodes]
    calls, parent_calls = child.call.arguments[0], parent.call.arguments[0]
    for number, sides in calls.items():
        parent_sides = parent_calls.get(number, [])
        terms = []
        for index, (start, call) in enumerate(sides):
            name = f"operations.{number}.{index}"
            parent_part = parent.part(name, parent_sides[index][1]) if index < len(parent_sides) else None
            flow = nodes[start]
            if parent_part is not None and parent_sides[index][0] != start:
                moved = {"takes another node than the parent's": True}
                flow = child.part(name, call).checked(flow, moved)
            terms.append(_term(child.part(name, call), parent_part, flow, units))
        lost = [
            parent.part(f"operations.{number}.{index}", call)
            for index, (_, call) in enumerate(parent_sides)
            if index >= len(sides)
        ]
        nodes.append(_without(lost, _joined(child, terms, units)))
    loose = [nodes[number] for number in child_cell.loose]
    problems = {
        "joins other nodes than the parent's": child_cell.loose != parent_cell.loose,
        "joins its nodes otherwise than the parent's": child_cell.join != parent_cell.join,
    }
    if child_cell.join == "mean":
        out = _joined(child, loose, units)
    else:
        exact = all(node.exact for node in loose)
        nonnegative = all(node.nonnegative for node in loose)
        out = Flow(Units.joined([node.units for node in loose]), exact, nonnegative)
    out, of = child.checked(out, problems), parent.units[1]
    return out if out.units.of == of else replace(out, units=Units.overlapping(out.units.count, of))


def _stack(child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a stack, cell by cell. A cell's inputs are the outputs of several earlier cells."""
    steps, parent_steps = child.call.arguments[0], parent.call.arguments[0]
    pairs: list[tuple[int | None, int | None]] = [(index, index) for index in range(len(steps))]
    if len(steps) != len(parent_steps):
        pairs = align(steps, parent_steps, distance)
    outputs = [flow] * max(len(call.arguments[0]) for call in [*steps, *parent_steps])
    for index, parent_index in pairs:
        parent_step = None if parent_index is None else parent.part(f"steps.{parent_index}", parent_steps[parent_index])
        if index is None:
            assert parent_step is not None
            outputs = _shifted(parent_step, "of the parent's was taken out", outputs)
            continue
        step = child.part(f"steps.{index}", steps[index])
        if parent_step is None:
            outputs = _shifted(step, "is new", outputs)
            outputs.append(_new(step, None, outputs[-1]))
        else:
            outputs.append(_step(step, parent_step, outputs))
    return outputs[-1]


def _shifted(step: Part, reason: str, outputs: Sequence[Flow]) -> list[Flow]:
    """Record that the cells after a step use the outputs of other cells than in the parent."""
    step.check_exact(outputs[-1], {reason: True})
    return [replace(flow, exact=False) for flow in outputs]


def _step(child: Part, parent: Part, outputs: Sequence[Flow]) -> Flow:
    """Fill a cell of a stack and the modules that adapt its inputs.

    All inputs get the same units: those of the first module that can't choose.
    """
    fits, parent_fits = child.call.arguments[0], parent.call.arguments[0]
    cell, parent_cell = child.call.arguments[1], parent.call.arguments[1]
    if len(fits) != len(parent_fits) or cell.function is not parent_cell.function:
        return _new(child, parent, outputs[-1])
    child_part, parent_part = child.part("cell", cell), parent.part("cell", parent_cell)
    parts = [
        (child.part(f"inputs.{index}", fit), parent.part(f"inputs.{index}", parent_fit))
        for index, (fit, parent_fit) in enumerate(zip(fits, parent_fits, strict=True))
    ]
    used = _used_inputs(child_part)
    last_outputs = list(outputs[-len(parts) :])
    filled: dict[int, Flow] = {}
    out_units: Units | None = None
    for index in sorted(
        range(len(parts)), key=lambda index: (index not in used, _can_choose_units(parts[index][0]), index)
    ):
        filled[index] = walk(*parts[index], last_outputs[index], out_units)
        out_units = filled[index].units if out_units is None else out_units
    flows = [filled[index] for index in range(len(parts))]
    if cell.function in (EdgeCell, NodeCell):
        return _cell(child_part, parent_part, flows)
    return walk(child_part, parent_part, flows[0])


def _used_inputs(cell: Part) -> set[int]:
    """Return the inputs that a cell uses."""
    module = cell.module
    if not isinstance(module, NodeCell):
        return {0}
    return {start for sources in module.sources for start in sources if start < module.inputs}


def _new(child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Keep a part's initial weights."""
    exact = child.check_exact(flow, {"has nothing that answers to it": True})
    before, behind = child.units
    of = flow.units.of if parent is None else parent.units[1]
    same_units = before == behind and of == flow.units.of and flow.units.count == behind
    return Flow(flow.units if same_units else Units.overlapping(behind, of), exact)
