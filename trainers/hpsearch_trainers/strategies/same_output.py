"""Whether a split model computes what the whole one does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import preserve_buffers

__all__ = ["check_same_output", "gradients_match", "output_of", "outputs_match", "tensors_of", "training_pass"]

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference, as a share of the largest output; of other dtypes `_COARSE`."""
_COARSE = 0.05


def output_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors in a model's output for some inputs, in eval mode; nothing in the model changes.

    Gradients are recorded: without them, torch takes ways within some modules that pass by their layers.
    """
    with torch.enable_grad(), preserve_buffers(model), _evaluating(model):
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
    frozen = [(tensor, tensor.detach().clone()) for tensor in parameters if not tensor.requires_grad]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # Named, as torch warns where several GPUs are seen and none is named.
    gpus = {parameter.device for parameter in parameters if parameter.is_cuda}
    with torch.enable_grad(), torch.random.fork_rng(gpus), preserve_buffers(model):
        outputs = tensors_of(model(inputs))
        reached = [tensor for tensor in outputs if tensor.requires_grad and with_gradients]
        sums = list(map(_weights_of, reached))
        trained_gradients = (
            torch.autograd.grad(reached, trained, sums, allow_unused=True) if reached else (None,) * len(trained)
        )
    for parameter, value in frozen:
        if not torch.equal(parameter, value):
            parameter.data.copy_(value)
    of_trained = iter(trained_gradients)
    gradients = [next(of_trained) if parameter.requires_grad else None for parameter in parameters]
    return [tensor.detach() for tensor in outputs], [
        tensor.to_dense() if tensor is not None else None for tensor in gradients
    ]


def _weights_of(output: Tensor) -> Tensor:
    """Return what makes a sum of an output in which each number counts otherwise."""
    return torch.arange(1, output.numel() + 1).sin().to(output).view(output.shape)


def gradients_match(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Return whether gradients are the same to rounding, beside each one's own size and, far less, that of all."""
    largest = max((_largest(gradient) for gradient in expected if gradient is not None), default=0.0)
    for gradient, reference in zip(actual, expected, strict=True):
        if gradient is None or reference is None:
            if gradient is not reference:
                return False
            continue
        tolerance = _ROUNDING.get(reference.dtype, _COARSE)
        limit = tolerance * _largest(reference) + tolerance / 1000 * largest
        if not torch.allclose(gradient, reference, rtol=tolerance, atol=limit, equal_nan=True):
            return False
    return True


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def check_same_output(actual: Sequence[Tensor], expected: Sequence[Tensor], subject: str, advice: str) -> None:
    """Check that a split model computes the same as the whole model.

    Args:
        actual: Outputs of the split model.
        expected: Outputs of the whole model.
        subject: Was to do that, for the error.
        advice: What to do.

    Raises:
        ConfigurationError: They differ by more than rounding.
    """
    if not outputs_match(actual, expected):
        raise ConfigurationError(
            f"{subject} must compute what the model does, got another output for the first rows, beyond rounding: "
            f"{advice}"
        )


def outputs_match(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return whether outputs are the same to rounding."""
    return len(actual) == len(expected) and all(map(_tensors_match, actual, expected))


def _tensors_match(actual: Tensor, expected: Tensor) -> bool:
    if actual.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return torch.equal(actual, expected)
    tolerance = _ROUNDING.get(expected.dtype, _COARSE)
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * _largest(expected), equal_nan=True)


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
