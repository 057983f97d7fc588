"""Pairwise alltoall, and a dissemination barrier.

Alltoall: with p ranks there are p-1 steps. In step s, rank i sends to i+s and receives from i-s (mod p). Four ranks:

    step 1       a → b   b → c   c → d   d → a
    step 2       a → c   b → d   c → a   d → b
    step 3       a → d   b → a   c → b   d → c

Each rank sends to one rank and receives from one rank at a time, so no link and no rank is overloaded (Thakur,
Rabenseifner & Gropp 2005). Each byte is sent once, which is optimal: n(p-1)/p of n bytes if they are evenly spread. A
rank with little data skips the steps: it starts all p-1 messages at once and waits for all of them.

Barrier: in round k = 0, 1, ... rank i sends a message to i + 2^k and receives one from i - 2^k. After round k a rank
knows, directly or through others, that the 2^(k+1) - 1 ranks before it have arrived. After ceil(log2 p) rounds it knows
that all have (Hensgen, Finkel & Manber 1988, "Two algorithms for barrier synchronization"). Messages have no payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh

LITTLE = 64 * 1024
"""Sum of bytes sent and received up to which a rank starts all messages at once."""


def alltoall(
    mesh: Mesh,
    operation: Operation,
    members: Sequence[int],
    sends: Sequence[torch.Tensor],
    receives: Sequence[torch.Tensor],
) -> None:
    """Send a tensor to every member, and receive one from every member.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: The ranks, including this one; the same on every member.
        sends: The tensor to send to each member: 1-D, contiguous, on the CPU, of any length, also 0.
        receives: The tensor for the data of each member, as long as that member's message. It must share no memory with
            `sends`.
    """
    index, size = members.index(operation.rank), len(members)
    receives[index].copy_(sends[index])
    # Each rank chooses on its own: in both cases there is one message each way between two ranks, with the same step.
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
    """Wait until every member has called `barrier`.

    Args:
        mesh: The links to the other members.
        operation: The operation; it runs on every member.
        members: The ranks, including this one; the same on every member.
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
