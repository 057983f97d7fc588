"""The memory that a trainer holds, by storages: two that share one hold it once."""

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

__all__ = ["storages_of"]

_HOLDERS = (Trainer, Batches, Dataset, nn.Module, torch.optim.Optimizer)
"""Whose attributes are looked at."""
_MOST = 4096
"""Of a container."""


def storages_of(trainer: Trainer) -> dict[int, int]:
    """Return the bytes of each storage that a trainer holds, by its address.

    They are those of tensors and NumPy arrays: of its model and the average, their gradients, the optimizer's state,
    its data, and attributes of its own. What is mapped from a file isn't held.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting: list[Any] = [trainer]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            if one.layout is torch.strided and one.device.type != "meta":
                storage = one.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
            if one.is_leaf and one.grad is not None:
                waiting.append(one.grad)
        elif isinstance(one, np.ndarray):
            while isinstance(one.base, np.ndarray):
                one = one.base
            if not isinstance(one, np.memmap):
                found.setdefault(one.__array_interface__["data"][0], one.nbytes)
        else:
            waiting += _held_by(one)
    return found


def _held_by(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return itertools.islice(holder.values(), _MOST)
    if isinstance(holder, list | tuple | set | frozenset):
        return itertools.islice(holder, _MOST)
    if isinstance(holder, Parts):
        return [getattr(holder, field.name) for field in dataclasses.fields(holder)]
    return [*getattr(holder, "__dict__", {}).values()] if isinstance(holder, _HOLDERS) else ()
