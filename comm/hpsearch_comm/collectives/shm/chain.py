"""Chain allreduce: the ranks of one host add to sums in shared memory, one rank after the other.

It is used for long tensors in memory that the other ranks can't access. Three ranks; the numbers are chunks:

    rank 0    rank 1    rank 2    all
    0                             rank 0 copies its values into a slot of shared memory
    1         0                   rank 1 adds its own to them
    2         1         0         the last rank completes the sum and finishes it
    3         2         1     0   all ranks copy the result out
    ...

Each rank reads and writes n bytes for the sum and n bytes for the copy, 2n in total; two shots through staging memory
take n (3 - 1/p). The addition needs no further pass: while a rank reads its tensor from memory, adding to a sum in the
cache takes no longer than copying. There is only one barrier, at the start: then a rank continues as soon as the chunks
it needs are ready (see `Slots`). The drawback: the last rank starts p - 1 chunks later than the first. That costs time
if each rank has its own core, but not if ranks share cores.

The values of an element are combined in the order of ranks, so the bits are the same as with the other algorithms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm.chunks import piece_length
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.shm.slots import SLOT

_FILLED = 4
"""Minimum number of chunks for each rank. With as many, the time to fill and empty the chain is small."""


def pays(size: int, cores: int, nbytes: int) -> bool:
    """Return whether an allreduce uses a chain.

    Args:
        size: Number of ranks.
        cores: Number of cores of all ranks together.
        nbytes: Size of the tensor in bytes, in the dtype in which it is summed.
    """
    least = size if size > cores else _FILLED * size
    return nbytes >= least * SLOT


class Chain:
    """One allreduce through the chain.

    Args:
        shm: The host's shared memory.
        operation: The running operation.
        tensor: 1-D, contiguous, on the CPU.
        reduction: The reduction for the tensor's dtype.
        out: The result, like the tensor; it may be the tensor.
    """

    def __init__(
        self, shm: ShmSegment, operation: Operation, tensor: torch.Tensor, reduction: Reduction, out: torch.Tensor
    ) -> None:
        self._shm = shm
        self._operation = operation
        self._reduction = reduction
        length = SLOT // reduction.accumulate.itemsize
        self._inputs = torch.split(tensor, length)
        self._outputs = self._inputs if out is tensor else torch.split(out, length)
        self._count = len(self._inputs)
        self._slots = shm.slots
        self._turn = shm.slots.turn
        self._added = self._copied = 0
        self._piece = piece_length(shm, operation, reduction, SLOT)

    def first(self) -> None:
        """Add the first chunk on rank 0, before the barrier, unless the previous chain still uses the slot."""
        if self._shm.index == 0 and self._slots.may_add(self._turn):
            self._add(0)

    def run(self) -> None:
        """Run the chain after the barrier."""
        slots, turn, count = self._slots, self._turn, self._count
        slots.turn += count  # not earlier: if all tensors are in a shared buffer, no rank calls run()
        with self._operation.phase("chain"):
            while self._copied < count:
                moved = False
                if self._added < count and slots.may_add(turn + self._added):
                    self._add(self._added)
                    moved = True
                if slots.may_copy(turn + self._copied):
                    self._copy_out(self._copied)
                    moved = True
                if not moved:
                    to_add = turn + self._added if self._added < count else None
                    slots.wait(self._operation, to_add, turn + self._copied)

    def _add(self, number: int) -> None:
        """Add this rank's values to the sum of a chunk."""
        reduction, index = self._reduction, self._shm.index
        mine = self._inputs[number]
        total = self._sum(number, mine.numel())
        if index == 0:
            self._copy(total, mine)
        else:
            last = index == self._shm.size - 1
            for piece, values in self._cut(total, mine):
                reduction.combine(piece, values)
                if last:
                    reduction.finish(piece, self._shm.size)
        self._slots.tell_added(self._turn + number)
        self._added += 1

    def _copy_out(self, number: int) -> None:
        chunk = self._outputs[number]
        self._copy(chunk, self._sum(number, chunk.numel()))
        self._slots.tell_copied(self._turn + number)
        self._copied += 1

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if not self._reduction.widens:
            copy(to, source)
            return
        for piece, values in self._cut(to, source):
            piece.copy_(values)

    def _cut(self, to: torch.Tensor, source: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Split both tensors into pieces for one call of torch each."""
        if to.numel() <= self._piece:
            return [(to, source)]
        return zip(torch.split(to, self._piece), torch.split(source, self._piece), strict=True)

    def _sum(self, number: int, numel: int) -> torch.Tensor:
        return self._shm.slots.view(self._turn + number, self._reduction.accumulate, numel)
