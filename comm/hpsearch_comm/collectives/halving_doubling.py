"""Allreduce by halving and doubling (butterfly): log2 p rounds of each, every round with another partner.

Each of p ranks has a tensor of n bytes. In round k a rank's partner is the rank whose number differs in bit k.
Four ranks, a to d, numbered 0 to 3, and the tensor's quarters 0 to 3:

                        a          b          c          d
    halving
      round 0       keeps 0 1 | keeps 2 3  keeps 0 1 | keeps 2 3     a ↔ b and c ↔ d: each sends the half that the
                                                                     other keeps, and adds the received half to its own
      round 1        keeps 0     keeps 2    keeps 1     keeps 3      a ↔ c and b ↔ d: half of that half
    doubling
      round 1        has 0 1     has 2 3    has 0 1     has 2 3      a ↔ c and b ↔ d: the finished quarters go back
      round 0          all         all        all         all        a ↔ b and c ↔ d: and the halves

In 2 log2 p steps a rank sends, and receives, 2(n/2 + n/4 + ... + n/p) = 2n(p-1)/p bytes: as few as with a ring, in far
fewer steps. (Rabenseifner's algorithm, in Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication
operations in MPICH". The nearest partner comes first, when the halves are longest.)

For a short tensor, the number of messages determines the time, not their size. So a rank sends its whole partial sum
in every round, and both partners add the same two sums, that of the lower ranks first (recursive doubling):

      round 0       a+b = b's sum        c+d = d's sum               log2 p steps, n log2 p bytes
      round 1       (a+b) + (c+d) on all four

If p isn't a power of two, the first 2(p-q) ranks (q is the largest power of two below p) form pairs. Before the rounds
the odd rank of a pair sends its tensor to the even rank, which represents both, and receives the result after the
rounds. That costs one step and n bytes before the rounds, and the same after them.

The sums form a tree in the order of the ranks, always the same. With halving, each element has one owner, which
finishes it, and the others get copies. With recursive doubling, each rank adds the same numbers in the same order. So
all ranks get the same bits. Partial sums of 16-bit numbers are sent as float32, finished values in their own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

SHORT = 128 * 1024
"""Bytes of partial results up to which recursive doubling is used."""

_SLICE = 64 * 1024 * 1024
"""Bytes that are reduced at a time: the odd ranks of pairs wait through all rounds, and must not reach the timeout."""


def allreduce(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    tensor: torch.Tensor,
    reduction: Reduction,
    partial: torch.Tensor | None = None,
    count: int | None = None,
) -> None:
    """Reduce a tensor over the members, in place. The arguments are the same as for `ring.allreduce`.

    The ranks' numbers in the scheme above are the members' indices.
    """
    tensor = reduction.view(tensor)
    partial = reduction.partial(tensor) if partial is None else partial
    count = count or len(members)
    longest = max(1, _SLICE // partial.element_size())
    # With a power of two there are no pairs. Slicing takes microseconds, which would slow down a short tensor.
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
    """Add up the tensors of all partners on each partner, those of the lower numbers first."""
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
    """Reduce one part of the tensor on each partner, and copy all parts to every partner."""
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
    """Return the number of pairs before the rounds: the number of ranks beyond the largest power of two."""
    return size - (1 << (size.bit_length() - 1))
