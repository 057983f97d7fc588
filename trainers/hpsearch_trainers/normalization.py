"""Batch normalization on several workers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpsearch_comm import Group, SyncBatchNorm, convert_sync_batchnorm

__all__ = ["hold_statistics", "normalizations", "synchronize"]


def normalizations(model: nn.Module) -> Iterator[_BatchNorm]:
    """Return the model's batch normalizations."""
    return (layer for layer in model.modules() if isinstance(layer, _BatchNorm))


def synchronize(model: nn.Module, group: Group | None) -> bool:
    """Synchronize batch normalizations over the rows of all workers; a collective if some weren't yet.

    Args:
        model: Its layers stay the same objects.
        group: The workers; None where each is to normalize by its own rows.

    Returns:
        Whether a layer normalizes by the rows of all.
    """
    layers = list(normalizations(model))
    if group is not None and not all(isinstance(layer, SyncBatchNorm) for layer in layers):
        convert_sync_batchnorm(model, group)
    return any(isinstance(layer, SyncBatchNorm) for layer in layers)


def hold_statistics(model: nn.Module, *, local_only: bool = False) -> None:
    """Make batch normalizations use their running statistics without updating them, until the next `train()`.

    Args:
        model: Its layers are changed.
        local_only: Whether synchronized layers go on as they are: in them all workers take part.
    """
    for layer in normalizations(model):
        if not (local_only and isinstance(layer, SyncBatchNorm)):
            layer.eval()
