"""The optimizer of a `Trainer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Parts

T = TypeVar("T")


def optimizer_of(parts: Parts, model: nn.Module) -> Optimizer:
    """Return the optimizer of a model, made of it where `parts` have a function for that.

    Args:
        parts: Of the trial.
        model: On its device. An optimizer that was made before the model got there may have state elsewhere, as Adagrad
            allocates its own at once; it is moved.

    Raises:
        ConfigurationError: It is none.
    """
    source = parts.optimizer
    optimizer = source if isinstance(source, Optimizer) else source(model)
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"optimizer must be a torch.optim.Optimizer, or a function that makes one of the model, got one that "
            f"gives {type(optimizer).__name__}"
        )
    move_state(optimizer)
    return optimizer


def move_state(optimizer: Optimizer) -> None:
    """Move an optimizer's state to where its parameters are."""
    if _has_state_elsewhere(optimizer):
        load_exactly(optimizer, optimizer.state_dict())


def _has_state_elsewhere(optimizer: Optimizer) -> bool:
    """Return whether a parameter's state is on another device; single numbers, as counts of steps, may be."""
    return any(
        isinstance(value, Tensor) and value.dim() > 0 and value.device != parameter.device
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, Tensor) and isinstance(state, Mapping)
        for value in state.values()
    )


def check_parameters(optimizer: Optimizer, model: nn.Module, name: str = "optimizer") -> None:
    """Check that an optimizer trains only parameters of a model.

    Raises:
        ConfigurationError: It has parameters that the model hasn't.
    """
    model_ids = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(parameter) not in model_ids for parameter in parameters_of(optimizer))
    if foreign > 0:
        raise ConfigurationError(
            f"{name} must have parameters of the model alone, got {foreign} that it doesn't have, which would "
            "be neither averaged over workers nor saved: make them a part of the model; if you have replaced "
            "layers, give the optimizer the parameters of the new ones"
        )


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters that it trains, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clippable(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors with the gradients of some parameters, for torch to clip, which doesn't take sparse ones.

    In place of a parameter with a sparse gradient comes a tensor whose gradient is that one's values: the rest is zero.
    """
    return [
        _with_values(parameter) if parameter.grad is not None and parameter.grad.is_sparse else parameter
        for parameter in parameters
    ]


def _with_values(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    parameter.grad = parameter.grad.coalesce()
    values = parameter.grad._values()
    holder = values.new_empty(values.shape)
    holder.grad = values
    return holder


def other_optimizers(owner: object, optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers that are attributes of a trainer beside its own one, by name."""
    return {name: value for name, value in attributes_of(owner, Optimizer).items() if value is not optimizer}


def attributes_of(owner: object, kind: type[T]) -> dict[str, T]:
    """Return the attributes of a class, by name; one in a list, tuple or dict by a name such as `optimizers.0`."""
    attributes = {}
    for name, value in vars(owner).items():
        candidates = {name: value}
        if isinstance(value, dict):  # not any mapping: it may be a file
            candidates = {f"{name}.{key}": item for key, item in value.items()}
        elif isinstance(value, list | tuple):
            candidates = {f"{name}.{index}": item for index, item in enumerate(value)}
        attributes.update({key: item for key, item in candidates.items() if isinstance(item, kind)})
    return attributes
