"""Batch normalization on several workers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpsearch_comm import Group, SyncBatchNorm

__all__ = ["average_statistics", "hold_statistics", "normalizations"]


def normalizations(model: nn.Module) -> Iterator[_BatchNorm]:
    """Give the model's batch normalizations."""
    return (layer for layer in model.modules() if isinstance(layer, _BatchNorm))


@torch.no_grad()
def average_statistics(model: nn.Module, group: Group) -> None:
    """Make the running statistics the mean over the workers', each of which has seen its own rows; a collective.

    The same for those of a moving average of the model. Of synchronized layers they are equal already.
    """
    for layer in normalizations(model):
        if isinstance(layer, SyncBatchNorm):
            continue
        for statistic in (layer.running_mean, layer.running_var):
            if statistic is not None:
                group.allreduce(statistic, op="mean")


def hold_statistics(model: nn.Module, *, local_only: bool = False) -> None:
    """Let batch normalizations use their running statistics and keep them, until the next `train()`.

    Args:
        model: Its layers are changed.
        local_only: Whether synchronized layers go on as they are: in them all workers take part.
    """
    for layer in normalizations(model):
        if not (local_only and isinstance(layer, SyncBatchNorm)):
            layer.eval()
