"""Go through a child's network beside its parent's: chains, residuals and operations; cells are in cell_walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from hpsearch_trainers.inheritance.transfer import Place, Transfer
from hpsearch_trainers.inheritance.units import Flow, Units

__all__ = ["Part", "joined", "selects", "silence", "walk"]

_CELLS = (EdgeCell, NodeCell, CellStack)


@dataclass(frozen=True)
class Part:
    """A place in a network, and the call that made what stands there."""

    place: Place
    call: Call

    def inside(self, name: str, call: Call) -> Part:
        """Give a part of it."""
        return Part(self.place.inside(name), call)


def walk(transfer: Transfer, child: Part, parent: Part | None, flow: Flow, wanted: Units | None = None) -> Flow:
    """Fill a part.

    Args:
        transfer: Takes the weights.
        child: The part.
        parent: What answers to it; None: it is inserted.
        flow: What comes in.
        wanted: Units that must go out, where something can choose them; None: any.
    """
    if parent is not None and parent.call.function is not child.call.function:
        return _replaced(transfer, child, parent, flow, wanted)
    if child.call.function is nn.Sequential:
        return _chain(transfer, _items(child), [] if parent is None else _items(parent), flow, wanted)
    module = child.place.module
    if type(module) in _CELLS:
        from hpsearch_trainers.inheritance.cell_walk import walk_cells  # cells hold whatever stands in chains

        return walk_cells(transfer, child, parent, flow)
    if type(module) is Residual and "body" in child.call.keywords:
        return _residual(transfer, child, parent, flow)
    if known(child.place) and (parent is None or known(parent.place)):
        return fill(transfer, child.place, None if parent is None else parent.place, flow, wanted)
    same = parent is not None and same_call(child.call, parent.call)
    return copied(transfer, child.place, None if parent is None else parent.place, flow, same)


def _chain(
    transfer: Transfer, child: Sequence[Part], parent: Sequence[Part], flow: Flow, wanted: Units | None = None
) -> Flow:
    """Fill what stands one behind the other."""
    last = max((at for at, part in enumerate(child) if selects(part)), default=None)

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
    """Leave out what the parent has and the child hasn't."""
    if parent.call.function is nn.Sequential:
        for part in _items(parent):
            flow = _passed(transfer, part, flow)
        return flow
    return left_out(transfer, parent.place, flow)


def joined(transfer: Transfer, place: Place, flows: Sequence[Flow], units: Units) -> Flow:
    """Sum flows, or take their mean; all must repeat the same units.

    Args:
        transfer: Is told why not.
        place: Where they meet.
        flows: One at least.
        units: What they are to repeat.
    """
    alike = all(flow.units.equals(units) for flow in flows)
    exact = all(flow.exact for flow in flows)
    if exact and not alike:
        exact = transfer.checked(flows[0], place, {"joins values that repeat other units": True})
    return Flow(units, exact, all(flow.nonnegative for flow in flows))


def _items(part: Part) -> list[Part]:
    """Give what stands in a chain; a network's linear layer is one, and no chain of calls."""
    return [part.inside(str(at), call) for at, call in enumerate(part.call.arguments)]


def selects(part: Part) -> bool:
    """Say whether a part's outputs can repeat whichever units are wanted."""
    if part.call.function is nn.Sequential:
        return any(selects(one) for one in _items(part))
    return known(part.place) and chooses(part.place.module)


def _residual(transfer: Transfer, child: Part, parent: Part | None, flow: Flow) -> Flow:
    inside = child.inside("body", child.call.keywords["body"])
    if parent is None:
        if silence(transfer, inside):
            return flow
        return Flow(flow.units, transfer.checked(flow, child.place, {"is new, and adds to what comes": True}))
    body = walk(transfer, inside, parent.inside("body", parent.call.keywords["body"]), flow, flow.units)
    return joined(transfer, child.place, [flow, body], flow.units)


def silence(transfer: Transfer, part: Part) -> bool:
    """Make a part give zeros, if that is possible and it can learn from there."""
    if known(part.place):
        return silenced(transfer, part.place)
    return part.call.function is nn.Sequential and len(part.call.arguments) > 0 and silence(transfer, _items(part)[-1])


def _replaced(transfer: Transfer, child: Part, parent: Part, flow: Flow, wanted: Units | None) -> Flow:
    """Fill what stands in another's place: exact where one of them is nothing, and the other can begin so."""
    if _is_zero(parent):
        if _is_zero(child):
            return Flow(flow.units if wanted is None else wanted, flow.exact, True)
        if silence(transfer, child):
            return Flow(flow.units if wanted is None else wanted, flow.exact)
    if alike(child.place, parent.place):
        return fill(transfer, child.place, parent.place, flow, wanted)
    if changes_nothing(parent.place, flow.nonnegative) and parent.call.function is not nn.Sequential:
        return walk(transfer, child, None, flow, wanted)
    return walk(transfer, child, None, _passed(transfer, parent, flow), wanted)


def _is_zero(part: Part) -> bool:
    return type(part.place.module) is Zero
