"""The memory of trainers by storage, so that shared storages count once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch_trainers.batches import Batches
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

_HOLDERS = (Trainer, Batches, Dataset, nn.Module, torch.optim.Optimizer)
"""Classes whose attributes are searched."""
_MOST = 4096
"""Maximum number of items of a container that are searched."""


def storages_of(trainer: Trainer) -> dict[int, int]:
    """Return the bytes of each storage that a trainer holds, by its address.

    They belong to tensors and NumPy arrays: of the model and its average, the gradients, the optimizer's state, the
    data, and other attributes. Memory-mapped files don't count.
    """
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Any] = [trainer]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.layout is torch.strided and value.device.type != "meta":
                storage = value.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            if value.is_leaf and value.grad is not None:
                pending.append(value.grad)
        elif isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            if not isinstance(value, np.memmap):
                sizes.setdefault(value.__array_interface__["data"][0], value.nbytes)
        else:
            pending += _children_of(value)
    return sizes


def _children_of(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return itertools.islice(holder.values(), _MOST)
    if isinstance(holder, list | tuple | set | frozenset):
        return itertools.islice(holder, _MOST)
    if isinstance(holder, Parts):
        return [getattr(holder, field.name) for field in dataclasses.fields(holder)]
    return [*getattr(holder, "__dict__", {}).values()] if isinstance(holder, _HOLDERS) else ()
