"""Linear layers that are split among the ranks.

As in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3), the weight matrix of a linear layer is split

- by its outputs (`colwise`): every rank has all inputs and computes some of the outputs;
- by its inputs (`rowwise`): every rank has some of the inputs, and the ranks' contributions to all outputs are summed.

If there are only elementwise functions between two layers, the first is split by its outputs and the second by its
inputs. Then only the sum of the second layer is exchanged, and in backward the sum of the first layer's gradient. Any
other layer is split by its outputs, which are then gathered (`gathered`), or by its inputs, which every rank has
(`summed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.nearest import nearest

STYLES = ("colwise", "rowwise", "gathered", "summed", "dropout")

_DIMENSIONS = {
    "colwise": {"weight": 0, "bias": 0},
    "gathered": {"weight": 0, "bias": 0},
    "rowwise": {"weight": 1},
    "summed": {"weight": 1},
}

_OF_SINGLE_NUMBERS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid),
    *(nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Identity),
)


def plan_of(model: nn.Module, named: Mapping[str, str] | None, size: int) -> dict[str, str]:
    """Return how layers are split, one of `STYLES` by the layer's name in the model.

    Args:
        model: An nn.Sequential, which may be nested; with `named`, any model.
        named: See `Parts.tensor`.
        size: Number of ranks.

    Raises:
        ConfigurationError: No layer can be split, or `named` can't be used.
    """
    if named is not None:
        _check(model, named, size)
        return dict(named)
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise ConfigurationError(
            "parallel.strategy tensor takes an nn.Sequential, or a model whose layers Parts.tensor names, got "
            f"{type(model).__name__}: give Parts(tensor={{name: style}}), styles being {', '.join(STYLES)}"
        )
    plan = _automatic_plan(model, size)
    if not plan:
        raise ConfigurationError(
            "parallel.strategy tensor splits linear layers of a Sequential whose outputs or inputs are a multiple of "
            f"{size} workers, got none that are: change the layers' widths or resources.workers_per_trial"
        )
    return plan


def split_dimensions(style: str) -> dict[str, int]:
    """Return the dimension along which each split parameter of a layer is split, by the parameter's name."""
    return dict(_DIMENSIONS.get(style, {}))


def shard_of(tensor: Tensor, dimension: int, group: Group) -> Tensor:
    """Return a copy of this rank's part of a tensor."""
    return tensor.tensor_split(group.size, dimension)[group.rank].clone(memory_format=torch.contiguous_format)


def gathered(shard: Tensor, dimension: int, group: Group) -> Tensor:
    """Return the tensor of which each rank has a part; a collective."""
    whole = group.allgather(shard.movedim(dimension, 0).contiguous()).movedim(0, dimension)
    return whole.clone(memory_format=torch.contiguous_format)  # never a view, which can't be modified in place


def forward_of(layer: Any, style: str, group: Group) -> Callable[[Tensor], Tensor]:
    """Return a forward function for a layer whose parameters are this rank's parts.

    Args:
        layer: The layer.
        style: How it is split.
        group: The ranks.
    """
    return partial(_dropout, layer, group) if style == "dropout" else partial(_linear, layer, style, group)


def _linear(layer: nn.Linear, style: str, group: Group, inputs: Tensor) -> Tensor:
    own_part = partial(shard_of, dimension=-1, group=group)
    all_parts = partial(gathered, dimension=-1, group=group)
    total = partial(_total, group=group)
    if style in ("colwise", "gathered"):
        output = functional.linear(_exchanged(inputs, _same, total), layer.weight, layer.bias)
        return output if style == "colwise" else _exchanged(output, all_parts, own_part)
    if style == "summed":
        inputs = _exchanged(inputs, own_part, all_parts)
    # Each rank adds a share of the bias, but every rank has its whole gradient.
    bias = None if layer.bias is None else _exchanged(layer.bias, lambda whole: whole / group.size, _same)
    return _exchanged(functional.linear(inputs, layer.weight, bias), total, _same)


class _Exchange(torch.autograd.Function):
    """Applies a function to a tensor in the forward pass, and another one to its gradient in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, change: Callable[[Tensor], Tensor], change_gradient: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.change_gradient = change_gradient
        return change(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.change_gradient(gradient), None, None


_exchanged: Callable[[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], Tensor] = _Exchange.apply


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _total(tensor: Tensor, group: Group) -> Tensor:
    """Return the sum of the ranks' tensors; a collective."""
    return group.allreduce(tensor.clone(memory_format=torch.contiguous_format), op="sum")


def _dropout(layer: nn.Dropout, group: Group, inputs: Tensor) -> Tensor:
    """Apply the dropout of a single process: all ranks draw the same mask for all features and use their part."""
    if not layer.training or layer.p == 0.0:
        return inputs
    features = inputs.shape[-1]
    mask = functional.dropout(inputs.new_ones(*inputs.shape[:-1], group.size * features), layer.p)
    return inputs * mask.narrow(-1, group.rank * features, features)


def _automatic_plan(model: nn.Sequential, size: int) -> dict[str, str]:
    plan: dict[str, str] = {}
    shared = _shared(model)
    first = ""  # a layer split by its outputs, if the next layer may use these without gathering
    between: list[str] = []  # the dropout layers after it
    for name, layer in _layers_in_order(model):
        if _is_plain_linear(layer) and not shared.intersection(map(id, layer.parameters())):
            if first:
                plan |= {first: "colwise", name: "rowwise"} | dict.fromkeys(between, "dropout")
                first = ""
            elif layer.out_features % size == 0:
                plan[name] = "gathered"
                first, between = name, []
            elif layer.in_features % size == 0:
                plan[name] = "summed"
        elif type(layer) is nn.Dropout and id(layer) not in shared:
            between.append(name)
        elif type(layer) not in _OF_SINGLE_NUMBERS:
            first = ""
    return plan


def _layers_in_order(model: nn.Sequential) -> Iterator[tuple[str, Any]]:
    """Yield all layers in the order in which they are called. A layer that is called twice is yielded twice."""
    for name, layer in model._modules.items():
        if type(layer) is nn.Sequential:
            yield from ((f"{name}.{inner_name}", inner_layer) for inner_name, inner_layer in _layers_in_order(layer))
        else:
            yield name, layer


def _is_plain_linear(layer: Any) -> bool:
    """Return whether a layer is an nn.Linear, not a subclass, with a plain parameter `weight`."""
    return type(layer) is nn.Linear and isinstance(layer._parameters.get("weight"), nn.Parameter)


def _shared(model: nn.Module) -> set[int]:
    """Return the ids of modules and parameters that occur more than once in a model."""
    named = (*model.named_modules(remove_duplicate=False), *model.named_parameters(remove_duplicate=False))
    counts = Counter(id(value) for _, value in named)
    return {value for value, count in counts.items() if count > 1}


def _check(model: nn.Module, named: Mapping[str, str], size: int) -> None:
    modules, shared = dict(model.named_modules()), _shared(model)
    for name, style in named.items():
        if style not in STYLES:
            raise ConfigurationError(
                f"Parts.tensor must give each layer one of {', '.join(STYLES)}, got {style!r} for {name}"
                f"{nearest(style, STYLES)}"
            )
        if name not in modules:
            hint = nearest(name, modules)
            raise ConfigurationError(
                f"Parts.tensor must name modules of the model, got {name!r}, which it hasn't{hint}"
            )
        layer: Any = modules[name]
        if type(layer) is not nn.Dropout if style == "dropout" else not _is_plain_linear(layer):
            kind = "an nn.Dropout" if style == "dropout" else "an nn.Linear"
            raise ConfigurationError(
                f"Parts.tensor must name {kind} to be {style}, got {name}, of class {type(layer).__name__}"
            )
        if shared.intersection(map(id, (layer, *layer.parameters()))):
            raise ConfigurationError(
                f"Parts.tensor must name layers that occur once in the model and share no parameters, got {name}"
            )
        if style == "dropout":
            continue
        by_inputs = "bias" not in _DIMENSIONS[style]
        features = layer.in_features if by_inputs else layer.out_features
        if features % size:
            kind = "inputs" if by_inputs else "outputs"
            raise ConfigurationError(
                f"a layer is split into equal parts, so its {kind} must be a multiple of {size} workers, got "
                f"{features} for {name}: change its width or resources.workers_per_trial"
            )
