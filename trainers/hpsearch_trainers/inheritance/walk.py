"""Go through a child's network beside its parent's: chains, residuals, operations and cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.calls import Call
from hpsearch_trainers.architectures.cell_modules import CellStack, EdgeCell, NodeCell
from hpsearch_trainers.architectures.modules import Residual, Zero
from hpsearch_trainers.inheritance.alignment import aligned, distance, same_call
from hpsearch_trainers.inheritance.modules import (
    alike,
    changes_nothing,
    chooses,
    copied,
    fill,
    known,
    left_out,
    silenced,
)
from hpsearch_trainers.inheritance.transfer import ModulePath, Transfer
from hpsearch_trainers.inheritance.units import Flow, Units

__all__ = ["Part", "walk"]

_CELLS = (EdgeCell, NodeCell, CellStack)


@dataclass(frozen=True)
class Part:
    """A part of a network: its path, and the call that made it."""

    place: ModulePath
    call: Call

    def inside(self, name: str, call: Call) -> Part:
        """Return a part of it."""
        return Part(self.place.inside(name), call)


def walk(transfer: Transfer, child: Part, parent: Part | None, flow: Flow, wanted: Units | None = None) -> Flow:
    """Fill a part.

    Args:
        transfer: Receives the weights.
        child: The part.
        parent: Its match; None: it is inserted.
        flow: The input.
        wanted: Units of the output, for modules that can choose them; None: any.
    """
    if parent is not None and parent.call.function is not child.call.function:
        return _replaced(transfer, child, parent, flow, wanted)
    if child.call.function is nn.Sequential:
        return _chain(transfer, _items(child), [] if parent is None else _items(parent), flow, wanted)
    module = child.place.module
    if type(module) in _CELLS:
        return _cells(transfer, child, parent, flow)
    if type(module) is Residual and "body" in child.call.keywords:
        return _residual(transfer, child, parent, flow)
    if known(child.place) and (parent is None or known(parent.place)):
        return fill(transfer, child.place, None if parent is None else parent.place, flow, wanted)
    same = parent is not None and same_call(child.call, parent.call)
    return copied(transfer, child.place, None if parent is None else parent.place, flow, same)


def _chain(
    transfer: Transfer, child: Sequence[Part], parent: Sequence[Part], flow: Flow, wanted: Units | None = None
) -> Flow:
    """Fill parts in sequence."""
    last = max((at for at, part in enumerate(child) if _selects(part)), default=None)

    def cost(one: Part, other: Part) -> float:
        if one.call.function is not other.call.function:
            return 1.0 if alike(one.place, other.place) else distance(one.call, other.call)
        return 0.0 if transfer.by_function else distance(one.call, other.call)

    for at, beside in aligned(child, parent, cost):
        if at is None:
            assert beside is not None
            flow = _passed(transfer, parent[beside], flow)
        else:
            other = None if beside is None else parent[beside]
            flow = walk(transfer, child[at], other, flow, wanted if at == last else None)
    return flow


def _passed(transfer: Transfer, parent: Part, flow: Flow) -> Flow:
    """Skip a part that the child lacks."""
    if parent.call.function is nn.Sequential:
        for part in _items(parent):
            flow = _passed(transfer, part, flow)
        return flow
    return left_out(transfer, parent.place, flow)


def _joined(transfer: Transfer, place: ModulePath, flows: Sequence[Flow], units: Units) -> Flow:
    """Return the flow of a sum or mean; all flows must repeat the same units.

    Args:
        transfer: Records why they don't.
        place: The module that joins them.
        flows: At least one.
        units: The units of the result.
    """
    alike = all(flow.units.equals(units) for flow in flows)
    exact = all(flow.exact for flow in flows)
    if exact and not alike:
        exact = transfer.checked(flows[0], place, {"joins values that repeat other units": True})
    return Flow(units, exact, all(flow.nonnegative for flow in flows))


def _items(part: Part) -> list[Part]:
    """Return the parts of an `nn.Sequential`."""
    return [part.inside(str(at), call) for at, call in enumerate(part.call.arguments)]


def _selects(part: Part) -> bool:
    """Return whether a part's outputs can repeat any units."""
    if part.call.function is nn.Sequential:
        return any(_selects(one) for one in _items(part))
    return known(part.place) and chooses(part.place.module)


def _residual(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    inside = child.inside("body", child.call.keywords["body"])
    if parent is None:
        if _silence(transfer, inside):
            return flow
        return Flow(flow.units, transfer.checked(flow, child.place, {"is new, and adds to what comes": True}))
    body = walk(transfer, inside, parent.inside("body", parent.call.keywords["body"]), flow, flow.units)
    return _joined(transfer, child.place, [flow, body], flow.units)


def _silence(transfer: Transfer, part: Part) -> bool:
    """Make a part's output zero, if that is possible and it can learn from there; return whether it was."""
    if known(part.place):
        return silenced(transfer, part.place)
    return part.call.function is nn.Sequential and len(part.call.arguments) > 0 and _silence(transfer, _items(part)[-1])


def _replaced(transfer: Transfer, child: Part, parent: Part, flow: Flow, wanted: Units | None) -> Flow:
    """Fill a part that replaces another one: exact if one of them is zero or the identity, and the other can be so."""
    if _is_zero(parent):
        if _is_zero(child):
            return Flow(flow.units if wanted is None else wanted, flow.exact, True)
        if _silence(transfer, child):
            return Flow(flow.units if wanted is None else wanted, flow.exact)
    if alike(child.place, parent.place):
        return fill(transfer, child.place, parent.place, flow, wanted)
    if changes_nothing(parent.place, flow.nonnegative) and parent.call.function is not nn.Sequential:
        return walk(transfer, child, None, flow, wanted)
    return walk(transfer, child, None, _passed(transfer, parent, flow), wanted)


def _is_zero(part: Part) -> bool:
    return type(part.place.module) is Zero


def _cells(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Fill a cell whose inputs are all the same, or a stack of cells."""
    if parent is None:
        return _new(transfer, child, None, flow)
    if child.call.function is CellStack:
        return _stack(transfer, child, parent, flow)
    return _cell(transfer, child, parent, [flow])


def _cell(transfer: Transfer, child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell; a single flow is used for all inputs."""
    if child.call.function is EdgeCell:
        return _edges(transfer, child, parent, flows[0])
    return _nodes(transfer, child, parent, flows)


def _edges(transfer: Transfer, child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a cell with operations on edges: all its nodes repeat the units of the input."""
    mine, theirs = _on_edges(child), _on_edges(parent)
    nodes = [flow]
    last, their_last = (max(end for _, end in edges) for edges in (mine, theirs))
    for node in range(1, last + 1):
        terms = [
            _term(transfer, part, theirs.get((start, node)), nodes[start], flow.units)
            for (start, end), part in mine.items()
            if end == node
        ]
        lost = [part for (start, end), part in theirs.items() if end == node and (start, node) not in mine]
        made = _joined(transfer, child.place, terms, flow.units)
        nodes.append(replace(made, exact=_nothing_lost(transfer, lost, made)))
    problems = {"has another number of nodes than the parent's": last != their_last}
    return replace(nodes[-1], exact=transfer.checked(nodes[-1], child.place, problems))


def _on_edges(cell: Part) -> dict[tuple[int, int], Part]:
    """Return the operations by their (start, end) nodes."""
    calls: dict[str, Call] = cell.call.arguments[0]
    parts = {edge: cell.inside(f"operations.{edge}", call) for edge, call in calls.items()}
    return {(int(edge.split("-")[0]), int(edge.split("-")[1])): part for edge, part in parts.items()}


def _term(transfer: Transfer, child: Part, parent: Part | None, flow: Flow, units: Units) -> Flow:
    """Fill an operation of a cell; if the parent has none, its output becomes zero where possible."""
    if parent is not None:
        return walk(transfer, child, parent, flow, units)
    if isinstance(child.place.module, Zero) or _silence(transfer, child):
        return Flow(units, flow.exact, True)
    problems = {"is new, and adds to its node": True}
    return Flow(units, transfer.checked(flow, child.place, problems))


def _nothing_lost(transfer: Transfer, lost: Sequence[Part], flow: Flow) -> bool:
    """Return whether a node is still exact without some operations of the parent's."""
    for part in lost:
        if not isinstance(part.place.module, Zero):
            return transfer.checked(flow, part.place, {"of the parent's was taken out": True})
    return flow.exact


def _nodes(transfer: Transfer, child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell with operations on nodes: all inputs of its nodes repeat the same units."""
    mine: Any = child.place.module
    theirs: Any = parent.place.module
    nodes = list(flows) if len(flows) > 1 else [flows[0]] * mine.inputs
    taken = sorted({start for sources in mine.sources for start in sources if start < mine.inputs})
    units = nodes[taken[0]].units
    if mine.inputs != theirs.inputs:
        transfer.checked(nodes[taken[0]], child.place, {"has another number of inputs than the parent's": True})
        nodes = [replace(node, exact=False) for node in nodes]
    calls, others = child.call.arguments[0], parent.call.arguments[0]
    for number, sides in calls.items():
        against = others.get(number, [])
        terms = []
        for at, (start, call) in enumerate(sides):
            name = f"operations.{number}.{at}"
            other = parent.inside(name, against[at][1]) if at < len(against) else None
            flow = nodes[start]
            if other is not None and against[at][0] != start:
                moved = {"takes another node than the parent's": True}
                flow = replace(flow, exact=transfer.checked(flow, child.inside(name, call).place, moved))
            terms.append(_term(transfer, child.inside(name, call), other, flow, units))
        lost = [
            parent.inside(f"operations.{number}.{at}", call) for at, (_, call) in enumerate(against) if at >= len(sides)
        ]
        made = _joined(transfer, child.place, terms, units)
        nodes.append(replace(made, exact=_nothing_lost(transfer, lost, made)))
    loose = [nodes[number] for number in mine.loose]
    problems = {
        "joins other nodes than the parent's": mine.loose != theirs.loose,
        "joins its nodes otherwise than the parent's": mine.join != theirs.join,
    }
    if mine.join == "mean":
        out = _joined(transfer, child.place, loose, units)
    else:
        exact = all(node.exact for node in loose)
        nonnegative = all(node.nonnegative for node in loose)
        out = Flow(Units.joined([node.units for node in loose]), exact, nonnegative)
    exact = transfer.checked(out, child.place, problems)
    of = parent.place.units[1]
    return replace(out, exact=exact, units=out.units if out.units.of == of else Units.overlapping(out.units.count, of))


def _stack(transfer: Transfer, child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a stack, cell by cell; each takes the outputs of several cells before it."""
    mine, theirs = child.call.arguments[0], parent.call.arguments[0]
    pairs: list[tuple[int | None, int | None]] = [(at, at) for at in range(len(mine))]
    if len(mine) != len(theirs):
        pairs = aligned(mine, theirs, distance)
    outputs = [flow] * max(len(call.arguments[0]) for call in [*mine, *theirs])
    for at, beside in pairs:
        other = None if beside is None else parent.inside(f"steps.{beside}", theirs[beside])
        if at is None:
            assert other is not None
            outputs = _shifted(transfer, other, "of the parent's was taken out", outputs)
            continue
        step = child.inside(f"steps.{at}", mine[at])
        if other is None:
            outputs = _shifted(transfer, step, "is new", outputs)
            outputs.append(_new(transfer, step, None, outputs[-1]))
        else:
            outputs.append(_step(transfer, step, other, outputs))
    return outputs[-1]


def _shifted(transfer: Transfer, step: Part, why: str, outputs: Sequence[Flow]) -> list[Flow]:
    """Record that the cells after a step take other outputs than the parent's."""
    transfer.checked(outputs[-1], step.place, {why: True})
    return [replace(flow, exact=False) for flow in outputs]


def _step(transfer: Transfer, child: Part, parent: Part, outputs: Sequence[Flow]) -> Flow:
    """Fill a cell of a stack and the modules that adapt its inputs.

    All inputs get the same units: those of the first module that can't choose.
    """
    fits, their_fits = child.call.arguments[0], parent.call.arguments[0]
    cell, their_cell = child.call.arguments[1], parent.call.arguments[1]
    if len(fits) != len(their_fits) or cell.function is not their_cell.function:
        return _new(transfer, child, parent, outputs[-1])
    inside, others = child.inside("cell", cell), parent.inside("cell", their_cell)
    parts = [
        (child.inside(f"inputs.{at}", mine), parent.inside(f"inputs.{at}", theirs))
        for at, (mine, theirs) in enumerate(zip(fits, their_fits, strict=True))
    ]
    taken = _taken(inside)
    newest = list(outputs[-len(parts) :])
    filled: dict[int, Flow] = {}
    wanted: Units | None = None
    for at in sorted(range(len(parts)), key=lambda at: (at not in taken, _selects(parts[at][0]), at)):
        filled[at] = walk(transfer, *parts[at], newest[at], wanted)
        wanted = filled[at].units if wanted is None else wanted
    flows = [filled[at] for at in range(len(parts))]
    if cell.function in (EdgeCell, NodeCell):
        return _cell(transfer, inside, others, flows)
    return walk(transfer, inside, others, flows[0])


def _taken(cell: Part) -> set[int]:
    """Return the inputs that a cell uses."""
    made = cell.place.module
    if not isinstance(made, NodeCell):
        return {0}
    return {start for sources in made.sources for start in sources if start < made.inputs}


def _new(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Keep a part's initial weights."""
    exact = transfer.checked(flow, child.place, {"has nothing that answers to it": True})
    before, behind = child.place.units
    of = flow.units.of if parent is None else parent.place.units[1]
    alike = before == behind and of == flow.units.of and flow.units.count == behind
    return Flow(flow.units if alike else Units.overlapping(behind, of), exact)
