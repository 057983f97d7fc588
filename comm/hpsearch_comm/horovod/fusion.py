"""Which tensors travel together: small ones of a kind in one collective, as each costs about the same."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hpsearch_comm.header import dtype_named
from hpsearch_comm.horovod.request import ReduceOp, Request

__all__ = ["SMALL_BYTES", "Place", "plan_batches"]

Place = tuple[int, int]
"""A request, by its place among those that are ready, and one of its tensors."""

SMALL_BYTES = 1 << 17
"""Above this, copying a tensor to where it travels with others takes longer than a collective of its own."""


def plan_batches(requests: Sequence[Request], limit: int) -> list[list[Place]]:
    """Share the tensors of some allreduces out to collectives; the same on every rank.

    Args:
        requests: What is to be reduced now, the same in the same order on every rank.
        limit: Bytes that travel together at most; 0 lets each tensor travel alone.

    Returns:
        Batches of tensors of one dtype and kind of device, reduced in the same way. Each tensor is in one of them.
    """
    batches: list[list[Place]] = []
    filling: dict[tuple[object, ...], tuple[list[Place], int]] = {}
    for number, request in enumerate(requests):
        for which, (dtype, shape) in enumerate(request.tensors):
            nbytes = prod(shape) * dtype_named(dtype).itemsize
            key = dtype, request.device, request.op, request.prescale_factor, request.postscale_factor
            if nbytes > min(SMALL_BYTES, limit) or request.op is ReduceOp.ADASUM:  # whose result depends on the whole
                batches.append([(number, which)])
                continue
            batch, filled = filling.get(key, ([], limit))
            if filled + nbytes > limit or not batch:
                batch, filled = [], 0
                batches.append(batch)
            batch.append((number, which))
            filling[key] = batch, filled + nbytes
    return batches
