"""Model parallelism: model and optimizer state are divided among the ranks during an epoch, and gathered after it.

All ranks read the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_optimizer_state
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import preserve_buffers, preserve_modes
from hpsearch_trainers.optimizers import clippable
from hpsearch_trainers.strategies.strategy import Options, Strategy, Trained

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Tolerance by dtype, relative to the largest output; `_COARSE` for other dtypes."""
_COARSE = 0.05


def output_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors in a model's output for some inputs, in eval mode. The model isn't changed.

    Gradients are enabled, because without them some torch modules use fast paths that don't call their layers.
    """
    with torch.enable_grad(), preserve_buffers(model), preserve_modes(model):
        model.eval()
        return [tensor.detach() for tensor in tensors_of(model(inputs))]


def training_pass(model: nn.Module, inputs: Any, *, with_gradients: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the tensors in a model's output, and the gradients of a weighted sum of them. The model isn't changed.

    Args:
        model: The model, in its current mode. On the CPU, each call draws the same random numbers.
        inputs: The model's inputs.
        with_gradients: Whether to compute the gradients; otherwise None is returned for each parameter.
    """
    parameters = list(model.parameters())
    # A model's forward pass may change untrained parameters.
    frozen = [(tensor, tensor.detach().clone()) for tensor in parameters if not tensor.requires_grad]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # List the GPUs, because fork_rng warns if several are visible and none is listed.
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
    """Return a different weight for each element of an output, for a weighted sum."""
    return torch.arange(1, output.numel() + 1).sin().to(output).view(output.shape)


def gradients_match(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Return whether gradients are equal up to rounding, relative to each gradient and, less, to the largest one."""
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
        subject: What is compared, for the error message.
        advice: How to fix it, for the error message.

    Raises:
        ConfigurationError: The outputs differ by more than rounding.
    """
    if not outputs_match(actual, expected):
        raise ConfigurationError(
            f"{subject} must compute what the model does, got another output for the first rows, beyond rounding: "
            f"{advice}"
        )


def outputs_match(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return whether outputs are equal up to rounding."""
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


def of_output_alone(
    loss_of: Callable[[Any], Tensor], elsewhere: Collection[int], strategy: str
) -> Callable[[Any], Tensor]:
    """Wrap a loss so that it raises an error if it reads parameters that this rank doesn't hold completely.

    Args:
        loss_of: Returns the loss for the model's output.
        elsewhere: The ids of the parameters that this rank doesn't hold completely.
        strategy: Name of the trial's strategy.
    """

    def checked(output: Any) -> Tensor:
        loss = loss_of(output)
        if _reaches(loss, tensors_of(output), elsewhere):
            raise ConfigurationError(
                f"under parallel.strategy {strategy} a loss must be computed of the model's output and the targets "
                "alone, got one that reads weights by itself, of which other ranks hold a part: leave a penalty on "
                "weights to the optimizer, as weight_decay, or take another strategy"
            )
        return loss

    return checked


def _reaches(loss: Tensor, output: Collection[Tensor], parameters: Collection[int]) -> bool:
    """Return whether a loss depends on one of these parameters other than through the output."""
    seen: set[Any] = {None, *(tensor.grad_fn for tensor in output)}
    reached: set[Any] = {loss.grad_fn} - seen
    while reached:
        node = reached.pop()
        if id(getattr(node, "variable", None)) in parameters:
            return True
        seen.add(node)
        reached |= {after for after, _ in node.next_functions} - seen
    return False


class DividedModel(Strategy):
    """Base class of strategies in which each rank holds a part of the model and reads all rows."""

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        assert group is not None
        self._group = group
        self._bytes = 0.0
        self.parts, self.part_index, self.stream = 1, 0, 0  # every rank reads all rows

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's weights, buffers and optimizer state."""
        broadcast_optimizer_state(trained.optimizer, self._group)
        super().prepare(trained)

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """Return the metrics and `bytes_per_rank`, the memory of the rank that has most."""
        return super().synchronize_metrics(metrics) | {"bytes_per_rank": self._bytes}


def clip_by_global_norm(parameters: Iterable[nn.Parameter], limit: float, group: Group) -> None:
    """Clip gradients by their norm over all ranks; a collective.

    Args:
        parameters: Parameters; those of other ranks have no gradient here.
        limit: See `Parts.clip_norm`.
        group: The ranks.
    """
    clipped = clippable(parameter for parameter in parameters if parameter.grad is not None)
    norm = nn.utils.get_total_norm(parameter.grad for parameter in clipped if parameter.grad is not None)
    squares = group.allreduce(norm.double().square().cpu(), op="sum")
    nn.utils.clip_grads_with_norm_(clipped, limit, squares.sqrt().to(norm))


def max_bytes(tensors: Iterable[Tensor], optimizer: Optimizer, group: Group) -> float:
    """Return the number of bytes on the rank that has most; a collective.

    Args:
        tensors: This rank's tensors, each once; gradients don't count.
        optimizer: An optimizer, whose state counts as well.
        group: The ranks.
    """
    present = list(tensors)
    gradients = [tensor.grad for tensor in present if tensor.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    total = float(sum(_bytes(tensor) for tensor in (*present, *gradients, *states)))
    count = torch.tensor(total, dtype=torch.float64, device="cpu")
    return float(group.allreduce(count, op="max"))


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes
