"""The optimizer of a `Trainer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Parts

T = TypeVar("T")


def optimizer_of(parts: Parts, model: nn.Module) -> Optimizer:
    """Return the optimizer in `parts`, or create it if `parts.optimizer` is a function of the model.

    Args:
        parts: The trial's parts.
        model: The model, on its device. If the optimizer was created before the model was moved, its state may be on
            another device (Adagrad allocates it at once). The state is moved as well.

    Raises:
        ConfigurationError: The function doesn't return an optimizer.
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
    """Move an optimizer's state to the devices of its parameters."""
    if optimizer.state:
        load_exactly(optimizer, optimizer.state_dict())


def check_parameters(optimizer: Optimizer, model: nn.Module, name: str = "optimizer") -> None:
    """Check that an optimizer trains only parameters of a model.

    Raises:
        ConfigurationError: It has parameters that aren't the model's.
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
    """Return an optimizer's parameters, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clippable(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors that torch can clip in place of the parameters; torch doesn't support sparse gradients.

    A parameter with a sparse gradient is replaced by a tensor whose gradient is the values of the sparse gradient.
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
    """Return the optimizers that are attributes of a trainer, by name, except `optimizer`."""
    return {name: value for name, value in attributes_of(owner, Optimizer).items() if value is not optimizer}


def attributes_of(owner: object, kind: type[T]) -> dict[str, T]:
    """Return the attributes that are instances of a class, by name; items of containers are named `optimizers.0`."""
    attributes = {}
    for name, value in vars(owner).items():
        candidates = {name: value}
        if isinstance(value, dict):  # not any Mapping: iterating over it could read a file
            candidates = {f"{name}.{key}": item for key, item in value.items()}
        elif isinstance(value, list | tuple):
            candidates = {f"{name}.{index}": item for index, item in enumerate(value)}
        attributes.update({key: item for key, item in candidates.items() if isinstance(item, kind)})
    return attributes
