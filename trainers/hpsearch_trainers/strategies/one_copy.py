"""Parameters of one model that all workers of a host have in the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, UntypedStorage, nn

from hpsearch_comm import Group, SharedMemory
from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts
from hpsearch_comm.errors import ConfigurationError

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
        start_of_address = {storage.data_ptr(): start for storage, start in zip(storages, starts, strict=True)}
        lines = [
            f"parameter {name} from element {parameter.storage_offset()} of what begins at byte "
            f"{start_of_address.get(parameter.untyped_storage().data_ptr())} of {total}"
            for name, parameter in model.named_parameters()
        ]
        check_agreement(group, "where the model's parameters lie", lines)
        self.memory: SharedMemory = group.share(total, locks)
        octets = self.memory.data.numpy()
        pieces = {
            # Of a storage of its own, so that what is saved within an epoch holds one parameter and not all.
            storage.data_ptr(): torch.from_numpy(octets[start : start + storage.nbytes()]).untyped_storage()
            for storage, start in zip(storages, starts, strict=True)
        }
        if group.rank == 0:
            for storage in storages:
                pieces[storage.data_ptr()].copy_(storage)
        group.barrier()
        _move(model, pieces)
        self._model = model
        self._addresses = {id(parameter): parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def release(self) -> None:
        """Copy the parameters, as they are now, into memory of this worker alone.

        Raises:
            ConfigurationError: One that is trained lies elsewhere, so that the others haven't what this worker has. Of
                others, as slow copies of these, the mean is taken.
        """
        moved = [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and self._addresses.get(id(parameter)) != parameter.untyped_storage().data_ptr()
        ]
        if moved:
            raise ConfigurationError(
                "in an epoch weights must stay in the memory that all workers share, got other memory in the place of "
                f"{', '.join(moved[:3])}{' and more' if len(moved) > 3 else ''}: let the model write into it, as "
                "weight.data.copy_(...) does and weight.data = ... doesn't, or change it between two epochs"
            )
        shared = storages_of(self._model.parameters())
        _move(self._model, {storage.data_ptr(): storage.clone() for storage in shared})  # type: ignore[no-untyped-call]


def _move(model: nn.Module, storages: Mapping[int, UntypedStorage]) -> None:
    """Put a model's tensors into other memory, in place of that at some addresses."""
    for tensor in (*model.parameters(), *model.buffers()):
        storage = storages.get(tensor.untyped_storage().data_ptr())
        if storage is not None:
            empty = tensor.data.new_empty(0)
            tensor.data = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def storages_of(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Return the memory of tensors, each piece once; tensors without elements have none."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel() > 0
    }
    return list(storages.values())
