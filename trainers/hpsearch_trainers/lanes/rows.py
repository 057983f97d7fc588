"""The rows that each lane reads, from data that are mostly the same tensors for all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor

__all__ = ["Rows"]


class Rows:
    """Reads inputs and targets of all lanes.

    Args:
        columns: Inputs and targets of each lane.
        generators: A random generator of each lane.
    """

    def __init__(self, columns: Sequence[Sequence[Tensor]], generators: Generators) -> None:
        self.inputs, self.targets = ([of_lane[number] for of_lane in columns] for number in range(2))
        self._generators = generators

    @property
    def roles(self) -> list[object]:
        """What another pack has others of, in the same order."""
        return [*self.inputs, *self.targets]

    def __call__(self, rows: Tensor) -> tuple[LaneTensor, LaneTensor]:
        """Return inputs and targets of rows, (lanes, n)."""
        flat = rows[0] if rows.stride(0) == 0 else rows.reshape(-1)
        return self._gather(self.inputs, rows, flat), self._gather(self.targets, rows, flat)

    def _gather(self, tensors: Sequence[Tensor], rows: Tensor, flat: Tensor) -> LaneTensor:
        """Gather each lane's rows of its tensor; of one that all share, at once."""
        first = tensors[0]
        if any(tensor is not first and not _same_memory(tensor, first) for tensor in tensors):
            parts = [tensor.index_select(0, chosen) for tensor, chosen in zip(tensors, rows, strict=True)]
            return LaneTensor.of_slices(parts, self._generators)
        stack = first.index_select(0, flat)
        if rows.stride(0) == 0:  # the same rows for all
            stack = stack.expand(len(rows), *stack.shape)
        else:
            stack = stack.view(*rows.shape, *stack.shape[1:])
        return LaneTensor.of_stack(stack, self._generators)


def _same_memory(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are one memory, read alike."""
    return first.data_ptr() == second.data_ptr() and first.stride() == second.stride() and first.shape == second.shape
