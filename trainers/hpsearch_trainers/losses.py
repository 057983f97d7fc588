"""The loss of a batch, as a `Trainer` differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hpsearch_comm.errors import ConfigurationError

__all__ = ["loss_of"]


def loss_of(loss: Callable[[Any, Any], Tensor], output: Any, targets: Any) -> Tensor:
    """Return the mean loss of a batch's rows.

    Raises:
        ConfigurationError: It isn't a tensor of one number.
    """
    result: Any = loss(output, targets)
    if not isinstance(result, Tensor):
        raise ConfigurationError(
            f"loss must give a tensor, which is differentiated, got {type(result).__name__}: leave .item(), float() "
            "and NumPy out"
        )
    if result.dim() > 0:
        raise ConfigurationError(
            f"loss must give one number, the mean over a batch's rows, got the shape {list(result.shape)}: "
            "end it with .mean(), or reduction='mean'"
        )
    return result
