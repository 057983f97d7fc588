"""Allreduce through sums in shared memory to which the ranks of one host add one after the other.

For long tensors in memory that the other ranks can't reach. Three ranks; the numbers are those of chunks:

    step      rank 0    rank 1    rank 2    all
    0         0                             rank 0 copies its values into a slot of shared memory
    1         1         0                   rank 1 adds its own to them
    2         2         1         0         and the last rank, whose sum is complete, finishes it
    3         3         2         1     0   everybody copies the result out
    ...                                     count + p steps, with a barrier between each two

Each rank reads and writes n bytes on the way in and n on the way out, 2n in all, where two shots through staging memory
take n (3 - 1/p). What is between costs no pass of its own: while a rank streams its tensor in from memory, adding to a
sum that lies in the cache takes no longer than copying. In exchange there are p more steps than chunks, in which some
ranks have nothing to do. That costs time where ranks have cores of their own, and nothing where they share them.

The values of an element are combined in the order of ranks, so the bits are those of the other ways.

A slot is written again p + 1 chunks later: chunk c is copied out in step c + p, and the slot's next one is begun in
step c + p + 1, on the other side of a barrier. That holds across operations too, of which each begins with a barrier.
"""

from __future__ import annotations

import torch

from hpsearch_comm.algorithms.pieces import Pieces
from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.memory.copying import copy
from hpsearch_comm.memory.slots import SLOT
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import Reduction

__all__ = ["Chain", "pays"]

_FILLED = 4
"""Chunks for each rank from which on the steps that fill and empty the chain are few beside the others."""


def pays(size: int, cores: int, nbytes: int) -> bool:
    """Say whether an allreduce goes through a chain.

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
        arena: The host's.
        operation: Under way.
        tensor: 1-D, contiguous, on the CPU.
        reduction: The operator.
        out: Like the tensor; it may be the tensor.
    """

    def __init__(
        self, arena: Arena, operation: Operation, tensor: torch.Tensor, reduction: Reduction, out: torch.Tensor
    ) -> None:
        self._arena = arena
        self._operation = operation
        self._tensor = tensor
        self._reduction = reduction
        self._out = out
        self._length = SLOT // reduction.accumulate.itemsize
        self._count = -(-tensor.numel() // self._length)
        self._turn = arena.slots.turn
        arena.slots.turn += self._count
        self._pieces = Pieces(arena, operation, reduction.accumulate.itemsize, SLOT)

    def first(self) -> None:
        """Do the first step."""
        if self._arena.index == 0:
            self._add(0)

    def run(self) -> None:
        """Do all the other steps."""
        arena, operation, size = self._arena, self._operation, self._arena.size
        steps = self._count + size
        with operation.phase("chain"):
            for step in range(1, steps):
                if step >= size:
                    self._copy_out(step - size)
                if 0 <= step - arena.index < self._count:
                    self._add(step - arena.index)
                if step < steps - 1:
                    arena.barrier.wait(operation, arena.compare)

    def _add(self, number: int) -> None:
        """Bring this rank's values of a chunk into its sum."""
        reduction, index = self._reduction, self._arena.index
        mine = self._chunk(self._tensor, number)
        total = self._sum(number, mine.numel())
        if index == 0:
            self._copy(total, mine)
            return
        last = index == self._arena.size - 1
        for cut in self._pieces.cut(mine.numel(), reduction):
            piece = total[cut]
            reduction.combine(piece, mine[cut])
            if last:
                reduction.finish(piece, self._arena.size)

    def _copy_out(self, number: int) -> None:
        chunk = self._chunk(self._out, number)
        self._copy(chunk, self._sum(number, chunk.numel()))

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if not self._reduction.widens:
            copy(to, source)
            return
        for cut in self._pieces.cut(to.numel(), self._reduction):
            to[cut].copy_(source[cut])

    def _chunk(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor[number * self._length : (number + 1) * self._length]

    def _sum(self, number: int, numel: int) -> torch.Tensor:
        return self._arena.slots.view(self._turn + number, self._reduction.accumulate, numel)
