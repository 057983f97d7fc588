"""Broadcast down a tree, in chunks: a rank forwards one chunk while it receives the next.

The ranks are numbered from the root on. A short tensor is sent down a binomial tree: the parent of rank r is r with its
lowest set bit cleared, and the depth of r is its number of set bits. Eight ranks:

                    0
              ┌───┬─┴─────┐
              4   2       1                 step 1: 0 sends to 4, 2 and 1
            ┌─┤   │
            6 5   3                         step 2: 4 sends to 6 and 5, 2 to 3
            │
            7                               step 3: 6 sends to 7

This takes at most log2 p steps, but the root sends everything log2 p times. A long tensor is sent down a chain, where
each rank sends each byte only once:

            0 → 1 → 2 → ... → 7             step t: rank d sends chunk t-d-1 to rank d+1

In both, a chunk that leaves depth 0 at step c leaves depth d at step c+d. So with C chunks of n/C bytes the last rank
at depth D has everything after step C+D-1. The chain takes C+p-2 steps and the time of n(1 + (p-2)/C) bytes, which
approaches n with many chunks; the tree needs n log2 p.

Before that, in step 0, each rank receives a header from the rank before it. Otherwise, if two ranks both called with
themselves as root, both would send and return without detecting the mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

CHUNK = 256 * 1024
"""Bytes of a chunk."""


def broadcast(mesh: Mesh, operation: Operation, members: Sequence[int], tensor: torch.Tensor, root: int) -> None:
    """Copy the root's tensor to every other member, in place.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: The ranks, including this one and the root; the same on every member.
        tensor: 1-D, contiguous, on the CPU; it has the same length and dtype on every member.
        root: The rank whose tensor is copied.
    """
    size = len(members)
    if size == 1:
        return
    index, first = members.index(operation.rank), members.index(root)
    operation.step += 1
    mesh.exchange(operation, [(members[(index + 1) % size], tensor[:0])], [(members[index - 1], tensor[:0], None)])
    number = (index - first) % size
    chunks = torch.split(tensor, max(1, CHUNK // tensor.element_size()))
    if size > 2 and len(chunks) >= size:
        depth, above, below = number, number - 1, [number + 1] if number + 1 < size else []
    else:
        depth, above, below = number.bit_count(), number & (number - 1), _children(number, size)
    parent = members[(first + above) % size]
    children = [members[(first + child) % size] for child in below]
    start = operation.step + 1
    for step in range(max(0, depth - 1), len(chunks) + depth - (0 if children else 1)):
        coming, leaving = step - depth + 1, step - depth
        operation.step = start + step
        mesh.exchange(
            operation,
            [(child, chunks[leaving]) for child in children] if leaving >= 0 else [],
            [(parent, chunks[coming], None)] if depth and coming < len(chunks) else [],
        )


def _children(number: int, size: int) -> list[int]:
    """Return the children of a rank in the binomial tree, the child with the largest subtree first."""
    bits = (number & -number or 1 << size.bit_length()).bit_length() - 1
    children = [number + (1 << bit) for bit in reversed(range(bits))]
    return [child for child in children if child < size]
