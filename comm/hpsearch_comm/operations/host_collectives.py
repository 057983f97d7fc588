"""Collectives of CPU tensors: the choice of the algorithm for each operation.

Within one host, all operations use shared memory (`direct`). Between hosts, an allreduce is hierarchical if some host
has several ranks. Otherwise it is a butterfly for short tensors or a power of two of ranks, and else a ring.
The other operations use links: a tree for broadcast, rings for allgather and reduce_scatter, pairs for alltoall. The
choice depends only on the operation and the topology, so it is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

import torch
from torch.autograd.graph import increment_version

from hpsearch_comm.collectives import halving_doubling, hierarchical, naive, pairwise, ring, tree
from hpsearch_comm.collectives.parts import Part, parts_of
from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm import direct
from hpsearch_comm.collectives.shm.direct_allreduce import Carry, bind
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.work_queue import Turn
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.topology import Topology
from hpsearch_comm.transport.mesh import Mesh

T = TypeVar("T")

_OVER_LINKS = {"ring": ring.allreduce, "butterfly": halving_doubling.allreduce, "naive": naive.allreduce}
_OTHERS = {
    "broadcast": "tree",
    "allgather": "ring",
    "reduce_scatter": "ring",
    "alltoall": "pairwise",
    "barrier": "pairwise",
}
_FAR = 1 << 32
"""More steps than a broadcast has. Its ranks count different numbers of steps, and continue at a multiple of this."""


def algorithms_among(hosts: Sequence[Sequence[int]]) -> set[str]:
    """Return the names of the algorithms that can run an allreduce.

    Args:
        hosts: The ranks of each host that share memory.
    """
    among = {"ring", "butterfly", "naive"}
    if len(hosts) == 1:
        among.add("direct")
    if any(len(ranks) > 1 for ranks in hosts):
        among.add("hierarchical")
    return among


class HostCollectives:
    """The `Way` for CPU tensors: the algorithms, with the shared memory and links that they use.

    Args:
        topology: Which ranks share memory: those of one host.
        shm: The shared segment of this host's ranks.
        mesh: The links to all peers.
        forced: The algorithm of every allreduce, or auto.

    Raises:
        ConfigurationError: The forced algorithm can't be used with these hosts.
    """

    stream = None
    """No stream: results belong to the caller as soon as they are created."""

    def __init__(self, topology: Topology, shm: ShmSegment, mesh: Mesh, forced: str) -> None:
        self.topology = topology
        self.shm = shm
        self._mesh = mesh
        self._members = range(topology.size)
        self._forced = forced
        self._available = algorithms_among(topology.hosts)
        if forced != "auto" and forced not in self._available:
            raise ConfigurationError(
                f"algorithm must be one of auto, {', '.join(sorted(self._available))} for ranks on hosts "
                f"{[list(ranks) for ranks in topology.hosts]}, got {forced!r}: direct needs all ranks on one host, and "
                "hierarchical a host with more than one rank"
            )

    def algorithm(self, operation: str, nbytes: int) -> str:
        """Return the name of the algorithm for an operation on a tensor of this size."""
        one_host = "direct" in self._available
        if operation != "allreduce":
            return "direct" if one_host and self._forced in ("auto", "direct") else _OTHERS[operation]
        if self._forced != "auto":
            return self._forced
        if one_host:
            return "direct"
        if "hierarchical" in self._available:
            return "hierarchical"
        # With a power of two, a butterfly sends no more than a ring, in fewer steps; otherwise, twice the tensor more.
        even = self.topology.size.bit_count() == 1
        return "butterfly" if even or nbytes <= halving_doubling.SHORT else "ring"

    def bind_allreduce(self, algorithm: str, reduction: Reduction, numel: int) -> Carry:
        """Return a function that reduces 1-D contiguous tensors of this dtype and length into every rank's `out`."""
        if algorithm == "direct":
            return bind(self.shm, reduction, numel)
        mesh, members = self._mesh, self._members

        def over_links(operation: Operation, tensor: torch.Tensor, out: torch.Tensor) -> None:
            if out is not tensor:
                out.copy_(tensor)
            if algorithm == "hierarchical":
                hierarchical.allreduce(self.shm, mesh, operation, self.topology, out, reduction)
            else:
                _OVER_LINKS[algorithm](mesh, operation, members, out, reduction)

        return over_links

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """See `Way`."""
        getattr(self, turn.call.operation)(turn, tensor, out, detail)

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, _detail: None) -> None:
        """Reduce the ranks' tensors into every rank's `out`."""
        allreduce(tensor, out, None, turn)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, _out: torch.Tensor, root: int) -> None:
        """Copy the root's tensor to all ranks, in place."""
        mine = flat(tensor)
        if turn.call.algorithm == "direct":
            direct.broadcast(self.shm, turn, mine, root)
        else:
            tree.broadcast(self._mesh, turn, self._members, mine, root)
            turn.step = (turn.step // _FAR + 1) * _FAR
        if root != turn.rank:
            put_back(mine, tensor)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """Reduce the ranks' tensors, and write each rank's part to its `out`."""
        reduction, mine, to = turn.reduction, flat(tensor), _room(out)
        if turn.call.algorithm == "direct":
            direct.reduce_scatter(self.shm, turn, mine, parts, reduction, to)
        else:
            partial = reduction.partial(mine)
            if partial.data_ptr() == tensor.data_ptr():
                partial = partial.clone()
            ring.reduce_scatter(self._mesh, turn, self._members, partial, parts, reduction)
            start, stop = parts[turn.rank]
            reduction.finish(partial[start:stop], self.topology.size)
            reduction.view(to).copy_(partial[start:stop])
        put_back(to, out)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """Copy the ranks' tensors into every rank's `out`."""
        everything = _room(out)
        start, stop = parts[turn.rank]
        copy(everything[start:stop], flat(tensor))  # the tensor may be anywhere in `out`
        self._fill(turn, turn.call.algorithm, everything, parts)
        put_back(everything, out)

    def alltoall(self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, counts: Sequence[Sequence[int]]) -> None:
        """Send rows to each rank, and receive rows from each in `out`. Rank i sends `counts[i][j]` rows to rank j."""
        width, rank = prod(rows.shape[1:]), self.topology.rank
        sends = torch.split(flat(rows), [count * width for count in counts[rank]])
        receives = torch.split(out.view(-1), [line[rank] * width for line in counts])
        if turn.call.algorithm == "direct":
            direct.alltoall(self.shm, turn, sends, receives, max(map(max, counts)) * width)
        else:
            pairwise.alltoall(self._mesh, turn, self._members, sends, receives)

    def allgather_numbers(self, operation: Operation, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of all ranks, with an allgather. Every rank passes the same count of numbers."""
        size, count = self.topology.size, len(numbers)
        table = torch.zeros(size * count, dtype=torch.int64, device="cpu")
        start = operation.rank * count
        table[start : start + count] = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        parts = parts_of([count] * size, 1)
        self._fill(operation, self.algorithm("allgather", table.nbytes), table, parts)
        values = table.tolist()
        return [values[start:stop] for start, stop in parts]

    def barrier(self, operation: Operation, algorithm: str) -> None:
        """Wait until every rank has called `barrier`."""
        if algorithm == "direct":
            self.shm.meet(operation)
        else:
            pairwise.barrier(self._mesh, operation, self._members)

    def _fill(self, operation: Operation, algorithm: str, tensor: torch.Tensor, parts: Sequence[Part]) -> None:
        """Copy part i of rank i's tensor to every rank, for all i. Tensors are 1-D and contiguous."""
        if algorithm == "direct":
            direct.allgather(self.shm, operation, [tensor[start:stop] for start, stop in parts])
        else:
            ring.allgather(self._mesh, operation, self._members, tensor, parts)


def allreduce(tensor: torch.Tensor, out: torch.Tensor, result: T, turn: Turn) -> T:
    """Reduce the ranks' CPU tensors into every rank's `out`, and return `result`."""
    carry = turn.call.carry
    assert carry is not None
    mine = flat(tensor)
    to = mine if out is tensor else flat(out)
    carry(turn, mine, to)
    if to is out:
        increment_version(out)
    else:
        put_back(to, out)
    return result


def _room(out: torch.Tensor) -> torch.Tensor:
    """Return 1-D memory for the elements of `out`, to use with `put_back`: its own memory if it is plain."""
    return out.view(-1) if is_plain(out) else out.new_empty(out.numel())
