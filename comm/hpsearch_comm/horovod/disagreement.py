"""What ranks that announce something under one name must agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpsearch_comm.horovod.request import ReduceOp, Request

__all__ = ["find_disagreement"]

_OWN_ROWS = frozenset(("allgather", "alltoall"))
"""Kinds in which each rank may have another number of rows."""
_ADDING = frozenset((ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM))
"""Operators to which zeros add nothing."""
_SHARES_ROWS = _OWN_ROWS | {"reducescatter"}


def find_disagreement(requests: Mapping[int, Request], joined: Sequence[int]) -> str | None:
    """Return why what the ranks have announced under one name can't be carried out; None if it can.

    Args:
        requests: By rank, the lowest first. Ranks that have joined needn't have announced anything.
        joined: The ranks that have.
    """
    first_rank, first = next(iter(requests.items()))
    for rank, request in requests.items():
        for what, ours, theirs in _aspects(first, request):
            if ours != theirs:
                return (
                    f"the ranks disagree on {first.name}: its {what} must be the same on every rank, but is {ours} on "
                    f"rank {first_rank} and {theirs} on rank {rank}"
                )
    absent = [rank for rank in joined if rank not in requests]
    if absent and not (first.kind == "allreduce" and first.op in _ADDING):
        what = first.kind if first.op is None or first.kind != "allreduce" else f"allreduce with op={first.op}"
        return (
            f"{first.name} can't be carried out while rank {absent[0]} has joined: it could only give zeros, which "
            f"mean nothing in {what}. Call it before the first rank joins, or after all have"
        )
    if first.kind in _SHARES_ROWS and any(not shape for _, shape in first.tensors):
        return f"{first.name} must be of tensors with at least one dimension, along which it works, got one without"
    return None


def _aspects(first: Request, other: Request) -> list[tuple[str, Any, Any]]:
    """Pair what two requests say; what comes first is what a user should hear of first."""
    return [
        ("operation", first.kind, other.kind),
        ("number of tensors", len(first.tensors), len(other.tensors)),
        ("dtype", _of_all(dtype for dtype, _ in first.tensors), _of_all(dtype for dtype, _ in other.tensors)),
        ("shape", _shapes(first), _shapes(other)),
        ("device", first.device, other.device),
        ("op", first.op, other.op),
        ("root" if first.kind == "broadcast" else "ranks", _of_all(first.numbers), _of_all(other.numbers)),
        ("prescale_factor", first.prescale_factor, other.prescale_factor),
        ("postscale_factor", first.postscale_factor, other.postscale_factor),
    ]


def _shapes(request: Request) -> str:
    own_rows = request.kind in _OWN_ROWS
    shapes = [("any", *shape[1:]) if own_rows and shape else shape for _, shape in request.tensors]
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


def _of_all(values: Any) -> Any:
    """Return the one value, or the list of several."""
    values = list(values)
    return values[0] if len(values) == 1 else values
