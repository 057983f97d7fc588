"""Broadcast down a tree, chunk after chunk, so that a rank passes one chunk on while the next one comes in.

The ranks are numbered from the root on. A short tensor goes down a binomial tree, whose rank r has the parent that is
left of r when its lowest bit is cleared; it lies as deep as r has bits. Eight ranks:

                    0
              ┌───┬─┴─────┐
              4   2       1                 step 1: 0 sends to 4, 2 and 1
            ┌─┤   │
            6 5   3                         step 2: 4 sends to 6 and 5, 2 to 3
            │
            7                               step 3: 6 sends to 7

At most log2 p steps, but the root sends everything log2 p times. A long tensor goes down a chain, where nobody sends
anything twice:

            0 → 1 → 2 → ... → 7             step t: rank d passes chunk t-d-1 on to rank d+1

In both, a chunk that leaves depth 0 at step c leaves depth d at step c+d, so with C chunks of n/C bytes the last rank
at depth D has everything after step C+D-1: C+p-2 steps and n(1 + (p-2)/C) bytes' time for the chain, which comes close
to n for many chunks, where the tree needs n log2 p.

Before, in step 0, everybody hears from the rank before it what that one is doing. Otherwise two ranks that each take
themselves for the root would send, hear nothing of the other, and return.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

CHUNK = 256 * 1024
"""Bytes that are passed on at a time."""


def broadcast(mesh: Mesh, operation: Operation, members: Sequence[int], tensor: torch.Tensor, root: int) -> None:
    """Copy the root's tensor into that of every other member.

    Args:
        mesh: The links to the other members.
        operation: Under way on every member.
        members: The ranks, this one and the root among them; the same on every member.
        tensor: 1-D, contiguous, on the CPU; of the same length and dtype on every member.
        root: The rank whose tensor it is.
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
    """Return the children of a rank in the binomial tree, the one with the most below it first."""
    bits = (number & -number or 1 << size.bit_length()).bit_length() - 1
    children = [number + (1 << bit) for bit in reversed(range(bits))]
    return [child for child in children if child < size]
