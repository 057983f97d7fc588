"""Whether a split model computes what the whole one does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import buffers_kept

__all__ = ["check_same_output", "output_of", "tensors_of"]

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference, as a share of the largest output; of other dtypes `_COARSE`."""
_COARSE = 0.05


def output_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Give the tensors in a model's output for some inputs, in eval mode; nothing in the model changes.

    Gradients are recorded: without them, torch takes ways within some modules that pass by their layers.
    """
    with torch.enable_grad(), buffers_kept(model), _evaluating(model):
        return [tensor.detach() for tensor in tensors_of(model(inputs))]


def check_same_output(found: Sequence[Tensor], expected: Sequence[Tensor], what: str, advice: str) -> None:
    """See that a split model computes what the whole one does.

    Args:
        found: What it gives.
        expected: What the whole one gives.
        what: Was to do that, for the error.
        advice: What to do.

    Raises:
        ConfigurationError: They differ by more than rounding.
    """
    if len(found) != len(expected) or not all(map(_alike, found, expected)):
        raise ConfigurationError(
            f"{what} must compute what the model does, got another output for the first rows, beyond rounding: {advice}"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    share = _ROUNDING.get(other.dtype, _COARSE)
    largest = other.abs().nan_to_num(0.0, 0.0, 0.0).max() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=share, atol=share * float(largest), equal_nan=True)


def tensors_of(output: Any) -> list[Tensor]:
    """Give the tensors in an output, in order."""
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [tensor for value in values for tensor in tensors_of(value)]


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
