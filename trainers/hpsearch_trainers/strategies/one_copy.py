"""Parameters of one model that all workers of a host have in the same memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage, nn

from hpsearch_comm import Group, SharedMemory
from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts

__all__ = ["OneCopy"]

_LINE = 64
"""Bytes of a cache line, at which each piece begins."""


class OneCopy:
    """Moves a model's parameters into memory that all workers share, where they begin with rank 0's; a collective.

    The parameters stay the objects that they were, so an optimizer of them goes on unawares, and so do what shares
    memory with one of them, as another parameter or a buffer may.

    Args:
        model: The same on every worker, on the CPU.
        group: The workers.
        locks: How many the memory is to have.

    Attributes:
        memory: It.

    Raises:
        MismatchError: The workers have built different models.
    """

    def __init__(self, model: nn.Module, group: Group, locks: int) -> None:
        check_agreement(group, "the model's parameters", describe_layouts(model.named_parameters()))
        storages = storages_of(model.parameters())
        starts, total = [], 0
        for storage in storages:
            starts.append(total)
            total += -(-storage.nbytes() // _LINE) * _LINE
        place = {storage.data_ptr(): start for storage, start in zip(storages, starts, strict=True)}
        lines = [
            f"parameter {name} from element {one.storage_offset()} of what begins at byte "
            f"{place.get(one.untyped_storage().data_ptr())} of {total}"
            for name, one in model.named_parameters()
        ]
        check_agreement(group, "where the model's parameters lie", lines)
        self.memory: SharedMemory = group.share(total, locks)
        octets = self.memory.data.numpy()
        pieces = {
            # Of a storage of its own, so that a file that holds one parameter doesn't hold all.
            storage.data_ptr(): torch.from_numpy(octets[start : start + storage.nbytes()])
            for storage, start in zip(storages, starts, strict=True)
        }
        if group.rank == 0:
            for storage in storages:
                pieces[storage.data_ptr()].untyped_storage().copy_(storage)
        group.barrier()
        for tensor in (*model.parameters(), *model.buffers()):
            piece = pieces.get(tensor.untyped_storage().data_ptr())
            if piece is not None:
                tensor.data = tensor.data.new_empty(0).set_(
                    piece.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
                )

    def holds(self, parameters: Iterable[Tensor]) -> bool:
        """Say whether all of them lie in it."""
        start = self.memory.data.data_ptr()
        stop = start + self.memory.data.numel()
        return all(start <= storage.data_ptr() < stop for storage in storages_of(parameters))


def storages_of(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Give the memory of tensors, each piece once; tensors without elements have none."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel() > 0}
    return list(found.values())
