"""What has to be between every two ranks: alltoall in pairs, and a barrier in rounds of whispering.

Alltoall: with p ranks there are p-1 steps, and in step s rank i sends to i+s and receives from i-s (mod p). Four ranks:

    step 1       a → b   b → c   c → d   d → a
    step 2       a → c   b → d   c → a   d → b
    step 3       a → d   b → a   c → b   d → c

Everybody sends to one and receives from one other at a time, so no link and no rank is crowded (Thakur, Rabenseifner &
Gropp 2005). A rank sends each byte once, which is the least there is: n(p-1)/p of n bytes, if they are
spread evenly. A rank with little to send and receive doesn't take turns: p-1 messages at once, and one wait for all.

Barrier: in round k = 0, 1, ... rank i tells i + 2^k that it is there, and hears from i - 2^k. After round k everyone
has heard, through others, of the 2^(k+1) - 1 ranks before it, and after ceil(log2 p) rounds of all (Hensgen, Finkel &
Manber 1988, "Two algorithms for barrier synchronization"). The messages are headers without payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

LITTLE = 64 * 1024
"""Bytes to send and to receive, together, up to which a rank doesn't take turns."""


def alltoall(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    sends: Sequence[torch.Tensor],
    receives: Sequence[torch.Tensor],
) -> None:
    """Send every member the tensor that each other has for it.

    Args:
        mesh: The links to the other members.
        operation: Under way on every member.
        members: The ranks, this one among them; the same on every member.
        sends: What member i gets: 1-D, contiguous, on the CPU, of any length, 0 too.
        receives: Where that of member i goes: as long as what it sends to this rank. Shares no memory with `sends`.
    """
    index, size = members.index(operation.rank), len(members)
    receives[index].copy_(sends[index])
    # Whether a rank takes turns is its own affair: between two ranks there is one message each way, with one number.
    operation.step += 1
    pairs = [((index + step) % size, (index - step) % size) for step in range(1, size)]
    if sum(tensor.numel() * tensor.element_size() for tensor in (*sends, *receives)) <= LITTLE:
        mesh.exchange(
            operation,
            [(members[to], sends[to]) for to, _ in pairs],
            [(members[source], receives[source], None) for _, source in pairs],
        )
        return
    for to, source in pairs:
        mesh.exchange(operation, [(members[to], sends[to])], [(members[source], receives[source], None)])


def barrier(mesh: Mesh, operation: Operation, members: Sequence[int]) -> None:
    """Wait until every member has called it.

    Args:
        mesh: The links to the other members.
        operation: Under way on every member.
        members: The ranks, this one among them; the same on every member.
    """
    index, size = members.index(operation.rank), len(members)
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    distance = 1
    while distance < size:
        operation.step += 1
        mesh.exchange(
            operation,
            [(members[(index + distance) % size], nothing)],
            [(members[index - distance], nothing, None)],
        )
        distance *= 2
