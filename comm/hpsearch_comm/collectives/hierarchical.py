"""Allreduce in two levels: within each host through shared memory, between the hosts over the network.

Ranks of one host exchange data through memory, not over the network. Let H hosts have at least S ranks each. The tensor
of n bytes is cut into S parts, and each of the first S ranks of a host owns one part. Two hosts, a to d on one and e to
g on the other, so S = 3:

                          a     b     c     d          e     f     g
    reduce within        ab..  ab..  ab..   -         efg   efg   efg       the owners of parts 0, 1 and 2 add up the
                          0     1     2               0     1     2         parts of their host's ranks
    allreduce between     └─────┼─────┼───────────────┘     │     │         a with e, b with f, c with g: each pair one
                                └─────┼─────────────────────┘     │         part, all pairs at once, around a ring or by
                                      └───────────────────────────┘         butterfly
    gather within        all   all   all   all        all   all   all       all ranks copy the parts of the owners

Each host sends and receives 2n(H-1)/H bytes, whatever its number of ranks. A ring through all p ranks would send
2n(p-1)/p bytes, in 2(p-1) steps instead of at most 2(H-1). The host with the fewest ranks determines S. On the other
hosts, ranks beyond S own no part: they only contribute values and copy the result. With S = 1 there is one leader per
host. (Jia et al. 2018, "Highly scalable deep learning training system with mixed-precision", call it hierarchical
all-reduce.)

The sum within a host is in the order of its ranks; the sum over the hosts is in the order of the ring or the butterfly.
One owner finishes each part, and all others get copies, so all ranks get the same bits. Sums of 16-bit numbers stay
float32 until then. Long tensors are reduced in slices, so that ranks without a part never wait long, and so that little
memory is needed if partial sums are wider than the tensor.
"""

from __future__ import annotations

import torch

from hpsearch_comm.collectives import halving_doubling, ring
from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import Reduction, reduction_for
from hpsearch_comm.collectives.shm import direct
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.topology import Topology
from hpsearch_comm.transport.mesh import Mesh

_SLICE = 32 * 1024 * 1024
"""Bytes of partial results that are reduced at a time."""

_STEPS = 1 << 20
"""Step numbers reserved for one slice. Owners and other ranks count differently within a slice; the next one starts at
the same number on all ranks."""


def allreduce(
    shm: ShmSegment,
    mesh: Mesh,
    operation: Operation,
    topology: Topology,
    tensor: torch.Tensor,
    reduction: Reduction,
) -> None:
    """Reduce a tensor over all ranks, in place.

    Args:
        shm: The memory that this host's ranks share.
        mesh: The links to the ranks of other hosts.
        operation: The operation; it runs on every rank.
        topology: Which ranks share a host; the same hosts on every rank.
        tensor: 1-D, contiguous, on the CPU; it has the same length and dtype on every rank.
        reduction: The reduction for the tensor's dtype.
    """
    tensor = reduction.view(tensor)
    length = _SLICE // reduction.accumulate.itemsize
    first = operation.step
    for index, start in enumerate(range(0, max(1, tensor.numel()), length)):
        operation.step = first + index * _STEPS
        _allreduce_slice(shm, mesh, operation, topology, tensor[start : start + length], reduction)


def _allreduce_slice(
    shm: ShmSegment,
    mesh: Mesh,
    operation: Operation,
    topology: Topology,
    tensor: torch.Tensor,
    reduction: Reduction,
) -> None:
    owners = min(len(ranks) for ranks in topology.hosts)
    parts = split(tensor.numel(), owners)
    partial = tensor
    within = reduction
    if reduction.widens:
        partial = reduction.partial(tensor)
        within = reduction_for(reduction.name, reduction.accumulate)
    step = operation.step
    with operation.phase("reduce within the host"):
        direct.reduce_parts(shm, operation, partial, parts, within)
    local_rank = topology.local_rank
    if local_rank < owners:
        start, stop = parts[local_rank]
        mine = partial[start:stop]
        peers = [ranks[local_rank] for ranks in topology.hosts]
        operation.step = step
        with operation.phase("allreduce between hosts"):
            between = halving_doubling if mine.numel() * mine.element_size() <= halving_doubling.SHORT else ring
            between.allreduce(mesh, operation, peers, tensor[start:stop], reduction, mine, topology.size)
    operation.step = step + _STEPS - 1
    with operation.phase("gather within the host"):
        direct.gather_parts(shm, operation, tensor, parts)
