"""What a child takes over of its parent's weights, where the two models may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Inherited", "inherit_weights"]


@dataclass(frozen=True, slots=True)
class Inherited:
    """What was taken over."""

    taken: tuple[str, ...]
    """Names of the child's parameters and buffers that are the parent's."""
    left: tuple[str, ...]
    """Those that begin as the child made them."""


def inherit_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Inherited:
    """Give a model the weights of another one where they fit: those of the same name and shape.

    Args:
        model: As it was made; changed in place.
        weights: The other one's `state_dict()`.
    """
    own = model.state_dict()
    taken = tuple(name for name, value in own.items() if name in weights and weights[name].shape == value.shape)
    with torch.no_grad():
        for name in taken:
            own[name].copy_(weights[name])
    return Inherited(taken, tuple(name for name in own if name not in taken))
