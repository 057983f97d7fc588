"""Whether parts that a user names compute what the model does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import buffers_kept

__all__ = ["check_same_output"]

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference, as a share of the largest output; of other dtypes `_COARSE`."""
_COARSE = 0.05


def check_same_output(model: nn.Module, parts: nn.Module, inputs: Any, named: str) -> None:
    """See that both give the same for some inputs, in eval mode.

    Args:
        model: The user's.
        parts: Another way to compute it, with the same parameters.
        inputs: Of some rows.
        named: What names them: `Parts.pipeline`.

    Raises:
        ConfigurationError: They differ by more than rounding.
    """
    with torch.no_grad(), buffers_kept(model), _evaluating(model, parts):
        expected, found = _tensors(model(inputs)), _tensors(parts(inputs))
    if len(found) != len(expected) or not all(map(_alike, found, expected)):
        raise ConfigurationError(
            f"what {named} names must compute what the model does, got another output for the first rows, beyond "
            "rounding: see that every step of the model's forward is in it, in order"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    share = _ROUNDING.get(other.dtype, _COARSE)
    largest = other.abs().nan_to_num(0.0, 0.0, 0.0).max() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=share, atol=share * float(largest), equal_nan=True)


def _tensors(output: Any) -> list[Tensor]:
    """Give the tensors in an output, in order."""
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [tensor for value in values for tensor in _tensors(value)]


@contextlib.contextmanager
def _evaluating(*models: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
