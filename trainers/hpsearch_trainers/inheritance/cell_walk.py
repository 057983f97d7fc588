"""Go through a child's cells, and its stacks of them, beside its parent's: by node, by edge, by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpsearch_trainers.architectures.calls import Call
from hpsearch_trainers.architectures.cell_modules import CellStack, EdgeCell, NodeCell
from hpsearch_trainers.architectures.modules import Zero
from hpsearch_trainers.inheritance.alignment import aligned, distance
from hpsearch_trainers.inheritance.transfer import Transfer
from hpsearch_trainers.inheritance.units import Flow, Units
from hpsearch_trainers.inheritance.walk import Part, joined, selects, silence, walk

__all__ = ["walk_cells"]


def walk_cells(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Fill a cell, all of whose inputs are the same, or a stack of cells."""
    if parent is None:
        return _new(transfer, child, None, flow)
    if child.call.function is CellStack:
        return _stack(transfer, child, parent, flow)
    return _cell(transfer, child, parent, [flow])


def _cell(transfer: Transfer, child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell; a single flow stands for all inputs."""
    if child.call.function is EdgeCell:
        return _edges(transfer, child, parent, flows[0])
    return _nodes(transfer, child, parent, flows)


def _edges(transfer: Transfer, child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a cell with operations on edges: all of its nodes repeat the units that come in."""
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
        made = joined(transfer, child.place, terms, flow.units)
        nodes.append(replace(made, exact=_nothing_lost(transfer, lost, made)))
    problems = {"has another number of nodes than the parent's": last != their_last}
    return replace(nodes[-1], exact=transfer.checked(nodes[-1], child.place, problems))


def _on_edges(cell: Part) -> dict[tuple[int, int], Part]:
    """Give the operations by the nodes between which they stand."""
    calls: dict[str, Call] = cell.call.arguments[0]
    parts = {edge: cell.inside(f"operations.{edge}", call) for edge, call in calls.items()}
    return {(int(edge.split("-")[0]), int(edge.split("-")[1])): part for edge, part in parts.items()}


def _term(transfer: Transfer, child: Part, parent: Part | None, flow: Flow, units: Units) -> Flow:
    """Fill an operation of a cell; where the parent has none, it is to bring zeros."""
    if parent is not None:
        return walk(transfer, child, parent, flow, units)
    if isinstance(child.place.module, Zero) or silence(transfer, child):
        return Flow(units, flow.exact, True)
    problems = {"is new, and adds to its node": True}
    return Flow(units, transfer.checked(flow, child.place, problems))


def _nothing_lost(transfer: Transfer, lost: Sequence[Part], flow: Flow) -> bool:
    """Say whether a node is still exact without some operations of the parent's."""
    for part in lost:
        if not isinstance(part.place.module, Zero):
            return transfer.checked(flow, part.place, {"of the parent's was taken out": True})
    return flow.exact


def _nodes(transfer: Transfer, child: Part, parent: Part, flows: Sequence[Flow]) -> Flow:
    """Fill a cell with operations on nodes: all that its nodes take repeats the same units."""
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
        made = joined(transfer, child.place, terms, units)
        nodes.append(replace(made, exact=_nothing_lost(transfer, lost, made)))
    loose = [nodes[number] for number in mine.loose]
    problems = {
        "joins other nodes than the parent's": mine.loose != theirs.loose,
        "joins its nodes otherwise than the parent's": mine.join != theirs.join,
    }
    if mine.join == "mean":
        out = joined(transfer, child.place, loose, units)
    else:
        exact = all(node.exact for node in loose)
        nonnegative = all(node.nonnegative for node in loose)
        out = Flow(Units.joined([node.units for node in loose]), exact, nonnegative)
    exact = transfer.checked(out, child.place, problems)
    of = parent.place.units[1]
    return replace(out, exact=exact, units=out.units if out.units.of == of else _overlapping(out.units, of))


def _overlapping(units: Units, of: int) -> Units:
    return Units.overlapping(units.count, of)


def _stack(transfer: Transfer, child: Part, parent: Part, flow: Flow) -> Flow:
    """Fill a stack, cell by cell; each takes the outputs of some before it."""
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
    """Take note that cells behind a place take the outputs of others than the parent's do."""
    transfer.checked(outputs[-1], step.place, {why: True})
    return [replace(flow, exact=False) for flow in outputs]


def _step(transfer: Transfer, child: Part, parent: Part, outputs: Sequence[Flow]) -> Flow:
    """Fill a cell of a stack, and what fits its inputs: all to the same units, those of what can't choose first."""
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
    for at in sorted(range(len(parts)), key=lambda at: (at not in taken, selects(parts[at][0]), at)):
        filled[at] = walk(transfer, *parts[at], newest[at], wanted)
        wanted = filled[at].units if wanted is None else wanted
    flows = [filled[at] for at in range(len(parts))]
    if cell.function in (EdgeCell, NodeCell):
        return _cell(transfer, inside, others, flows)
    return walk(transfer, inside, others, flows[0])


def _taken(cell: Part) -> set[int]:
    """Give the inputs that a cell takes."""
    made = cell.place.module
    if not isinstance(made, NodeCell):
        return {0}
    return {start for sources in made.sources for start in sources if start < made.inputs}


def _new(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    """Leave a part as it was made."""
    exact = transfer.checked(flow, child.place, {"has nothing that answers to it": True})
    before, behind = child.place.units
    of = flow.units.of if parent is None else parent.place.units[1]
    alike = before == behind and of == flow.units.of and flow.units.count == behind
    return Flow(flow.units if alike else Units.overlapping(behind, of), exact)
