"""Allreduce by halving and doubling: log2 p rounds there, log2 p back, each with another partner.

Each of p ranks has a tensor of n bytes. In round k a rank meets the one whose number differs from its own in bit k.
Four ranks, a to d, numbered 0 to 3, and the tensor's quarters 0 to 3:

                        a          b          c          d
    halving
      round 0       keeps 0 1 | keeps 2 3  keeps 0 1 | keeps 2 3     a ↔ b and c ↔ d: each sends the half that the
                                                                     other keeps, and adds what comes to its own half
      round 1        keeps 0     keeps 2    keeps 1     keeps 3      a ↔ c and b ↔ d: half of that half
    doubling
      round 1        has 0 1     has 2 3    has 0 1     has 2 3      a ↔ c and b ↔ d: the finished quarters go back
      round 0          all         all        all         all        a ↔ b and c ↔ d: and the halves

In 2 log2 p steps a rank sends, and receives, 2(n/2 + n/4 + ... + n/p) = 2n(p-1)/p bytes: as few as around the ring, in
far fewer steps. (Rabenseifner's algorithm, in Thakur, Rabenseifner & Gropp 2005, "Optimization of collective
communication operations in MPICH". The near partner comes first, where the halves are longest.)

A short tensor costs what its messages cost, whatever is in them: there a rank sends all it has in every round, and both
partners add the same two sums, that of the lower ranks first (recursive doubling):

      round 0       a+b = b's sum        c+d = d's sum               log2 p steps, n log2 p bytes
      round 1       (a+b) + (c+d) on all four

Where p is no power of two, the first 2(p-q) ranks (q the largest power of two in p) pair up: before the rounds the odd
one gives its tensor to the even one, which stands for both, and gets the result after them. That costs a step and n
bytes on each side of the rounds.

The sums are taken over neighbours, then neighbours of those: a tree in the order of the ranks, always the same. While
halving, each element ends with one owner, which finishes it, and the others get copies; where all is sent, each rank
adds the same numbers in the same order. So every rank has the same bits. Partial sums of 16-bit numbers travel as
float32, finished ones in their own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

SHORT = 128 * 1024
"""Bytes of partial results up to which all is sent in every round."""

_SLICE = 64 * 1024 * 1024
"""Bytes at a time: ranks that stand aside wait through all rounds, and a wait without progress has its limit."""


def allreduce(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    tensor: torch.Tensor,
    reduction: Reduction,
    partial: torch.Tensor | None = None,
    count: int | None = None,
) -> None:
    """Reduce a tensor over the members, in place; all as for `ring.allreduce`.

    The order of the members is that of their numbers above.
    """
    tensor = reduction.view(tensor)
    partial = reduction.partial(tensor) if partial is None else partial
    count = count or len(members)
    longest = max(1, _SLICE // partial.element_size())
    # Nobody stands aside among a power of two; and slicing takes microseconds, which a short tensor would feel.
    if partial.numel() <= longest or not _pairs(len(members)):
        _allreduce_slice(mesh, operation, members, partial, tensor, reduction, count)
        return
    for start in range(0, partial.numel(), longest):
        here = slice(start, start + longest)
        _allreduce_slice(mesh, operation, members, partial[here], tensor[here], reduction, count)


def _allreduce_slice(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    partial: torch.Tensor,
    tensor: torch.Tensor,
    reduction: Reduction,
    count: int,
) -> None:
    size, index = len(members), members.index(operation.rank)
    pairs = _pairs(size)
    rounds = (size - pairs).bit_length() - 1
    short = partial.numel() * partial.element_size() <= SHORT
    first = operation.step + 1
    last = first + 1 + (rounds if short else 2 * rounds)
    operation.step = first
    if index < 2 * pairs and index % 2:
        neighbour = members[index - 1]
        mesh.exchange(operation, [(neighbour, partial)], [])
        operation.step = last
        mesh.exchange(operation, [], [(neighbour, tensor, None)])
        return
    if index < 2 * pairs:
        mesh.exchange(operation, [], [(members[index + 1], partial, reduction.combine)])
    number = index // 2 if index < 2 * pairs else index - pairs
    partners = [*members[: 2 * pairs : 2], *members[2 * pairs :]] if pairs else members
    if short:
        _double_whole(mesh, operation, partners, number, partial, reduction)
        reduction.finish(partial, count)
        if reduction.widens:
            tensor.copy_(partial)
    else:
        _halve_and_double(mesh, operation, partners, number, partial, tensor, reduction, count)
    if index < 2 * pairs:
        operation.step = last
        mesh.exchange(operation, [(members[index + 1], tensor)], [])
    operation.step = last


def _double_whole(
    mesh: Mesh,
    operation: Operation,
    partners: Sequence[int],
    number: int,
    partial: torch.Tensor,
    reduction: Reduction,
) -> None:
    """Add up the tensor of all partners on each of them, the lower half of the numbers first."""
    theirs = torch.empty_like(partial)
    bit = 1
    while bit < len(partners):
        peer = partners[number ^ bit]
        operation.step += 1
        mesh.exchange(operation, [(peer, partial)], [(peer, theirs, None)])
        if number & bit:
            reduction.into(theirs, partial, partial)
        else:
            reduction.combine(partial, theirs)
        bit *= 2


def _halve_and_double(
    mesh: Mesh,
    operation: Operation,
    partners: Sequence[int],
    number: int,
    partial: torch.Tensor,
    tensor: torch.Tensor,
    reduction: Reduction,
    count: int,
) -> None:
    """Reduce one part of the tensor on each of the partners, and give each all parts."""
    start, stop = 0, partial.numel()
    halvings: list[tuple[int, slice, slice]] = []
    with operation.phase("halving"):
        bit = 1
        while bit < len(partners):
            peer = partners[number ^ bit]
            middle = (start + stop) // 2
            lower, upper = slice(start, middle), slice(middle, stop)
            own_half, sent_half = (upper, lower) if number & bit else (lower, upper)
            operation.step += 1
            mesh.exchange(operation, [(peer, partial[sent_half])], [(peer, partial[own_half], reduction.combine)])
            halvings.append((peer, own_half, sent_half))
            start, stop = own_half.start, own_half.stop
            bit *= 2
    own_part = partial[start:stop]
    reduction.finish(own_part, count)
    if reduction.widens:
        tensor[start:stop].copy_(own_part)
    with operation.phase("doubling"):
        for peer, own_half, sent_half in reversed(halvings):
            operation.step += 1
            mesh.exchange(operation, [(peer, tensor[own_half])], [(peer, tensor[sent_half], None)])


def _pairs(size: int) -> int:
    """Return the number of ranks beyond the largest power of two: as many pairs are made before the rounds."""
    return size - (1 << (size.bit_length() - 1))
