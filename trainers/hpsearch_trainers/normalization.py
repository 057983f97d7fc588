"""Batch normalization on several workers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpsearch_comm import SyncBatchNorm

__all__ = ["hold_statistics", "normalizations"]


def normalizations(model: nn.Module) -> Iterator[_BatchNorm]:
    """Give the model's batch normalizations."""
    return (layer for layer in model.modules() if isinstance(layer, _BatchNorm))


def hold_statistics(model: nn.Module, *, local_only: bool = False) -> None:
    """Let batch normalizations use their running statistics and keep them, until the next `train()`.

    Args:
        model: Its layers are changed.
        local_only: Whether synchronized layers go on as they are: in them all workers take part.
    """
    for layer in normalizations(model):
        if not (local_only and isinstance(layer, SyncBatchNorm)):
            layer.eval()
