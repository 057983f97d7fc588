"""Whether a split model computes what the whole one does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import buffers_kept

__all__ = ["alike", "check_same_output", "gradients_alike", "output_of", "tensors_of", "training_pass"]

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference, as a share of the largest output; of other dtypes `_COARSE`."""
_COARSE = 0.05


def output_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors in a model's output for some inputs, in eval mode; nothing in the model changes.

    Gradients are recorded: without them, torch takes ways within some modules that pass by their layers.
    """
    with torch.enable_grad(), buffers_kept(model), _evaluating(model):
        return [tensor.detach() for tensor in tensors_of(model(inputs))]


def training_pass(model: nn.Module, inputs: Any, *, with_gradients: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the tensors in a model's output, and each parameter's gradient of a sum of them; nothing in it changes.

    Args:
        model: In the mode that it is to be in. On the CPU each pass draws the same random numbers.
        inputs: Of some rows.
        with_gradients: Give these; else None for each parameter.
    """
    parameters = list(model.parameters())
    # A model may change by itself what isn't trained.
    kept = [(one, one.detach().clone()) for one in parameters if not one.requires_grad]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # Named, as torch warns where several GPUs are seen and none is named.
    gpus = {parameter.device for parameter in parameters if parameter.is_cuda}
    with torch.enable_grad(), torch.random.fork_rng(gpus), buffers_kept(model):
        outputs = tensors_of(model(inputs))
        reached = [one for one in outputs if one.requires_grad and with_gradients]
        sums = list(map(_weights_of, reached))
        found = torch.autograd.grad(reached, trained, sums, allow_unused=True) if reached else (None,) * len(trained)
    for parameter, value in kept:
        if not torch.equal(parameter, value):
            parameter.data.copy_(value)
    of_trained = iter(found)
    gradients = [next(of_trained) if parameter.requires_grad else None for parameter in parameters]
    return [one.detach() for one in outputs], [one.to_dense() if one is not None else None for one in gradients]


def _weights_of(output: Tensor) -> Tensor:
    """Return what makes a sum of an output in which each number counts otherwise."""
    return torch.arange(1, output.numel() + 1).sin().to(output).view(output.shape)


def gradients_alike(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Return whether gradients are the same to rounding, beside each one's own size and, far less, that of all."""
    largest = max((_largest(one) for one in expected if one is not None), default=0.0)
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            if one is not other:
                return False
            continue
        share = _ROUNDING.get(other.dtype, _COARSE)
        limit = share * _largest(other) + share / 1000 * largest
        if not torch.allclose(one, other, rtol=share, atol=limit, equal_nan=True):
            return False
    return True


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


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
    if not alike(found, expected):
        raise ConfigurationError(
            f"{what} must compute what the model does, got another output for the first rows, beyond rounding: {advice}"
        )


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return whether outputs are the same to rounding."""
    return len(found) == len(expected) and all(map(_alike, found, expected))


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    share = _ROUNDING.get(other.dtype, _COARSE)
    return torch.allclose(one, other, rtol=share, atol=share * _largest(other), equal_nan=True)


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors in an output, in order."""
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
