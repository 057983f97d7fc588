"""Allreduce through sums in shared memory to which the ranks of one host add one after the other.

For long tensors in memory that the other ranks can't reach. Three ranks; the numbers are those of chunks:

    rank 0    rank 1    rank 2    all
    0                             rank 0 copies its values into a slot of shared memory
    1         0                   rank 1 adds its own to them
    2         1         0         and the last rank, whose sum is complete, finishes it
    3         2         1     0   everybody copies the result out
    ...

Each rank reads and writes n bytes on the way in and n on the way out, 2n in all, where two shots through staging memory
take n (3 - 1/p). What is between costs no pass of its own: while a rank streams its tensor in from memory, adding to a
sum that lies in the cache takes no longer than copying. There are no barriers but the one at the beginning: a rank goes
on as far as the others let it (see `Slots`). In exchange the last rank begins p - 1 chunks later than the first, which
costs time where ranks have cores of their own, and nothing where they share them.

The values of an element are combined in the order of ranks, so the bits are those of the other ways.
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
"""Chunks for each rank from which on those in which the chain fills and empties are few beside the others."""


def pays(size: int, cores: int, nbytes: int) -> bool:
    """Return whether an allreduce goes through a chain.

    Args:
        size: Number of ranks.
        cores: How many cores they have together.
        nbytes: Of a tensor, in the dtype in which it is summed up.
    """
    least = size if size > cores else _FILLED * size
    return nbytes >= least * SLOT


class Chain:
    """One allreduce on its way through the chain.

    Args:
        shm: The host's.
        operation: Under way.
        tensor: 1-D, contiguous, on the CPU.
        reduction: The operator.
        out: Like the tensor; it may be the tensor.
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
        """Do what can be done before the ranks have met: the slot may still be needed by the chain before."""
        if self._shm.index == 0 and self._slots.may_add(self._turn):
            self._add(0)

    def run(self) -> None:
        """Do the rest."""
        slots, turn, count = self._slots, self._turn, self._count
        slots.turn += count  # not before: where all tensors lie in a shared buffer, no rank comes here
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
        """Bring this rank's values of a chunk into its sum."""
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
        """Cut both into pieces that one call may take."""
        if to.numel() <= self._piece:
            return [(to, source)]
        return zip(torch.split(to, self._piece), torch.split(source, self._piece), strict=True)

    def _sum(self, number: int, numel: int) -> torch.Tensor:
        return self._shm.slots.view(self._turn + number, self._reduction.accumulate, numel)
