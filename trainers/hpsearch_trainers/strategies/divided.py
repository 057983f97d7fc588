"""A model and the state of its optimizer, divided among ranks while they train, and whole between two epochs.

All ranks read the same rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state, broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import preserve_buffers
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.strategies.strategy import Options, Strategy, Trained

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
        actual: What it gives.
        expected: What the whole one gives.
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


def of_output_alone(
    loss_of: Callable[[Any], Tensor], elsewhere: Collection[int], strategy: str
) -> Callable[[Any], Tensor]:
    """Return a loss that raises where it reads what other ranks hold: it would find a part of that, or nothing.

    Args:
        loss_of: Gives the loss of the model's output.
        elsewhere: The ids of the parameters that this rank doesn't have whole.
        strategy: That of the trial.
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
    """Return whether a loss is computed of one of these parameters on a way that isn't through the output."""
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
    """Each rank holds a part of the model, and all of them all rows."""

    least: ClassVar[int] = 2

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        assert group is not None
        self._group = group
        self._bytes = 0.0

    @property
    def parts(self) -> int:
        """Return 1: every rank has all rows."""
        return 1

    @property
    def part_index(self) -> int:
        """Return 0, the number of that part."""
        return 0

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch; where the model is divided anew, each rank may need the state of other parameters."""
        if not self.is_bound(trained):
            broadcast_states(trained.optimizer, self._group)
        super().start_epoch(trained, epoch)

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """Return the metrics, and the memory of the rank that has most."""
        return super().synchronize_metrics(metrics) | {"bytes_per_rank": self._bytes}


class Divided:
    """Parameters and buffers, each of which one rank has.

    Args:
        tensors: Gives each with its rank, the same on every rank. A model may have other buffers after each step.
        group: The ranks.
    """

    def __init__(self, tensors: Callable[[], Iterable[tuple[Tensor, int]]], group: Group) -> None:
        self._group = group
        self._tensors = tensors
        # A meta tensor keeps shape and strides, and no memory.
        self._remote = [
            (tensor, torch.empty_like(tensor, device="meta", requires_grad=False))
            for tensor, rank in tensors()
            if rank != group.rank and isinstance(tensor, nn.Parameter)
        ]

    def release(self) -> None:
        """Release the memory of the other ranks' parameters, which have no elements from here on."""
        for tensor, _ in self._remote:
            tensor.data = tensor.new_empty(0)

    def gather(self) -> None:
        """Gather all tensors from their ranks; a collective."""
        for tensor, layout in self._remote:
            tensor.data = torch.empty_like(layout, device=tensor.device)
        tensors = list(self._tensors())
        for root in range(self._group.size):
            broadcast_tensors((tensor for tensor, rank in tensors if rank == root), self._group, root)


def drop_states(optimizer: Optimizer, ranks: Mapping[int, int], rank: int) -> None:
    """Forget the state of the parameters of other ranks.

    Args:
        optimizer: Of parameters.
        ranks: The rank of each, by its id.
        rank: This one.
    """
    for parameter in parameters_of(optimizer):
        if ranks[id(parameter)] != rank:
            optimizer.state.pop(parameter, None)


def gather_states(optimizer: Optimizer, ranks: Mapping[int, int], group: Group) -> None:
    """Gather the state of all parameters on rank 0, which saves it; a collective.

    Args:
        optimizer: Of parameters, the same on every rank.
        ranks: The rank of each, by its id.
        group: The ranks.

    Raises:
        UsageError: A state holds what can't travel.
    """
    parameters = parameters_of(optimizer)
    for root in range(1, group.size):
        local_states: dict[int, Any] = {}
        if group.rank == root:
            indices = (index for index, parameter in enumerate(parameters) if parameter in optimizer.state)
            local_states = {index: optimizer.state[parameters[index]] for index in indices}
        states = broadcast_state(local_states, group, root, parameters[0].device, "the optimizer's state")
        if group.rank == 0:
            optimizer.state.update({parameters[index]: state for index, state in states.items()})


def broadcast_states(optimizer: Optimizer, group: Group) -> None:
    """Broadcast the state of all parameters from rank 0; a collective.

    Args:
        optimizer: Of parameters, the same on every rank.
        group: The ranks.

    Raises:
        UsageError: A state holds what can't travel.
    """
    parameters = parameters_of(optimizer)
    local_states = {
        index: optimizer.state[parameter] for index, parameter in enumerate(parameters) if parameter in optimizer.state
    }
    states = broadcast_state(local_states, group, 0, parameters[0].device, "the optimizer's state")
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    optimizer.state.update({parameters[index]: state for index, state in states.items()})


def clip_by_global_norm(parameters: Iterable[nn.Parameter], limit: float, group: Group) -> None:
    """Scale gradients down to a norm over those of all ranks; a collective.

    Args:
        parameters: Those of other ranks have no gradient here.
        limit: See `Parts.clip_norm`.
        group: The ranks.
    """
    clipped = clippable(parameter for parameter in parameters if parameter.grad is not None)
    norm = nn.utils.get_total_norm(parameter.grad for parameter in clipped if parameter.grad is not None)
    squares = group.allreduce(norm.double().square().cpu(), op="sum")
    nn.utils.clip_grads_with_norm_(clipped, limit, squares.sqrt().to(norm))


def max_bytes(tensors: Iterable[Tensor | None], optimizer: Optimizer, group: Group) -> float:
    """Return how many bytes the rank has that has most of them; a collective.

    Args:
        tensors: Of this rank, each once; without their gradients.
        optimizer: Its state counts as well.
        group: The ranks.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    gradients = [tensor.grad for tensor in present if tensor.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    total = float(sum(_bytes(tensor) for tensor in (*present, *gradients, *states)))
    count = torch.tensor(total, dtype=torch.float64, device="cpu")
    return float(group.allreduce(count, op="max"))


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes
