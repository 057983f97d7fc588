"""Weights for a child whose parent's architecture is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["of_same_name_and_shape"]


def of_same_name_and_shape(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parent's weights of equal name and shape.

    Args:
        own: The child's `state_dict()`.
        weights: The parent's.
    """
    return {
        name: weights[name] for name, value in own.items() if name in weights and weights[name].shape == value.shape
    }
