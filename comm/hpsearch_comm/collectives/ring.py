"""Allreduce around a ring: a reduce-scatter and an allgather, each of which moves every part once around.

Each of p ranks has a tensor of n bytes, cut into p parts, and sends only to its right neighbour. Four ranks, a to d:

    part               0       1       2       3
    reduce-scatter
      step 0         b → c   c → d   d → a   a → b     b sends its part 0; c adds its own to it
      step 1         c → d   d → a   a → b   b → c     c sends the sum of two; d adds its own
      step 2         d → a   a → b   b → c   c → d     a adds its own: part 0 is summed, and a owns it
    allgather
      step 3         a → b   b → c   c → d   d → a     a sends the finished part 0; b keeps a copy
      step 4         b → c   c → d   d → a   a → b     and passes it on
      step 5         c → d   d → a   a → b   b → c     until the last rank has it

A column shows the way of one part, a row shows one step. In each step every rank sends one part and receives another,
so all links are always busy. In 2(p-1) steps a rank sends, and receives,

    2(p-1) parts of n/p bytes  =  2n(p-1)/p bytes,

which is the minimum for an allreduce (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations"; introduced to deep learning by Gibiansky 2017, "Bringing HPC techniques to deep learning").
The number of steps grows with p: for short tensors the butterfly is faster.

Part k is summed in the order k+1, k+2, ..., k, always the same. Only its owner finishes it, and all others get copies,
so all ranks get the same bits. Partial sums of 16-bit numbers are sent as float32, finished parts in their own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.link import Combine
from hpsearch_comm.transport.mesh import Mesh

Parts = Sequence[tuple[int, int]]


def allreduce(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    tensor: torch.Tensor,
    reduction: Reduction,
    partial: torch.Tensor | None = None,
    count: int | None = None,
) -> None:
    """Reduce a tensor over the members, in place.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: The ranks in the order of the ring, including this one; the same on every member.
        tensor: 1-D, contiguous, on the CPU; it has the same length and dtype on every member.
        reduction: The reduction for the tensor's dtype.
        partial: Values to reduce instead of the tensor's, such as sums over several ranks. Its dtype is
            `reduction.accumulate`. If that is the tensor's dtype, it must be the tensor's own memory; otherwise it is
            left in an undefined state.
        count: Number of ranks whose values are in the result, by which a mean divides; by default that of the members.
    """
    tensor = reduction.view(tensor)
    partial = reduction.partial(tensor) if partial is None else partial
    parts = split(partial.numel(), len(members))
    with operation.phase("reduce-scatter"):
        reduce_scatter(mesh, operation, members, partial, parts, reduction)
    start, stop = parts[members.index(operation.rank)]
    own_part = partial[start:stop]
    reduction.finish(own_part, count or len(members))
    if reduction.widens:
        tensor[start:stop].copy_(own_part)
    with operation.phase("allgather"):
        allgather(mesh, operation, members, tensor, parts)


def reduce_scatter(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    tensor: torch.Tensor,
    parts: Parts,
    reduction: Reduction,
) -> None:
    """Reduce part i of the tensor on member i. The other parts are left in an undefined state.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: As for `allreduce`.
        tensor: As for `allreduce`, but with dtype `reduction.accumulate`, as `reduction.partial` returns it.
        parts: (start, stop) for each member, of any lengths.
        reduction: The reduction for the tensor's dtype. The caller has to `finish` the part.
    """
    assert tensor.dtype is reduction.accumulate
    index = members.index(operation.rank)
    _pass_on(mesh, operation, members, tensor, parts, index - 1, reduction.combine)


def allgather(mesh: Mesh, operation: Operation, members: Sequence[int], tensor: torch.Tensor, parts: Parts) -> None:
    """Copy part i of member i's tensor to every member, for all i.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: As for `allreduce`.
        tensor: 1-D, contiguous, on the CPU, of any dtype. On member i, part i is already filled.
        parts: (start, stop) for each member, of any lengths.
    """
    _pass_on(mesh, operation, members, tensor, parts, members.index(operation.rank), None)


def _pass_on(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    tensor: torch.Tensor,
    parts: Parts,
    first: int,
    combine: Combine | None,
) -> None:
    """Send part `first` to the right and receive the part before it from the left; then send that one, and so on."""
    index, size = members.index(operation.rank), len(members)
    right, left = members[(index + 1) % size], members[index - 1]
    for step in range(size - 1):
        sent, received = parts[(first - step) % size], parts[(first - step - 1) % size]
        operation.step += 1
        mesh.exchange(
            operation, [(right, tensor[sent[0] : sent[1]])], [(left, tensor[received[0] : received[1]], combine)]
        )
