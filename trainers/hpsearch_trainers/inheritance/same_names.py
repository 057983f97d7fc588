"""What a child takes over of a parent of which nothing is known but its weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["of_same_name_and_shape"]


def of_same_name_and_shape(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights that fit.

    Args:
        own: The child's `state_dict()`.
        weights: The parent's.
    """
    return {
        name: weights[name] for name, value in own.items() if name in weights and weights[name].shape == value.shape
    }
