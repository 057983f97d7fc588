"""Which optimizers of lanes step together: what they have in common, and when they are ready for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from hpsearch_trainers.lanes.optimizers import is_plain, state_names

__all__ = [
    "OTHERWISE",
    "OTHERWISE_AT_ONCE",
    "StepVariant",
    "indices_in",
    "is_ready",
    "kind_at_once",
    "kind_of",
    "variant_of",
]

_MOST_STEPS = 2**23
"""Up to which torch counts in single precision without a loss."""
_COUNTING = (torch.float32, torch.float64)
OTHERWISE_AT_ONCE = ("capturable", "differentiable")
"""Settings of a group by which torch computes something else."""
OTHERWISE = ("fused", "foreach", *OTHERWISE_AT_ONCE)
"""Those by which it computes in other ways."""
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps")


class StepVariant(NamedTuple):
    """What decides what a group's step computes."""

    kind: type[Optimizer]
    amsgrad: bool
    maximize: bool
    nesterov: bool
    momentum: bool
    decoupled: bool
    """Weight decay isn't a part of the gradient."""


def kind_of(optimizer: Optimizer, otherwise: Sequence[str] = OTHERWISE) -> Hashable:
    """Return what optimizers must have in common to step together; None: this one steps by itself.

    Args:
        optimizer: One of a lane.
        otherwise: Settings of a group by which it is computed in another way.
    """
    groups = optimizer.param_groups
    if type(optimizer) not in (SGD, Adam, AdamW) or not is_plain(optimizer):
        return None
    numbers = [group[name] for group in groups for name in _NUMBERS if name in group]
    numbers += [beta for group in groups for beta in group.get("betas", ())]
    is_otherwise = any(group.get(name) for group in groups for name in otherwise)
    if is_otherwise or not all(isinstance(number, int | float) for number in numbers):
        return None
    return tuple(variant_of(optimizer, group) for group in groups)


def variant_of(optimizer: Optimizer, group: Mapping[str, Any]) -> StepVariant:
    """Return what decides what this group's step computes."""
    kind = type(optimizer)
    return StepVariant(
        kind,
        bool(group.get("amsgrad")),
        bool(group["maximize"]),
        bool(group.get("nesterov")),
        bool(group.get("momentum")),
        bool(group.get("decoupled_weight_decay", kind is AdamW)),
    )


def kind_at_once(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Hashable:
    """Do what `kind_of` does where whatever can is to step together, and make what its first step would.

    It follows from this optimizer alone, as who steps with whom must change nothing that rounds.

    Args:
        optimizer: One of a lane, which begins an epoch.
        parameters: Of the lane.
    """
    kind = kind_of(optimizer, OTHERWISE_AT_ONCE)
    if kind is None:
        return None
    of_groups: list[Hashable] = []
    for group in optimizer.param_groups:
        indices = indices_in(group["params"], parameters)
        group_parameters, names = [parameters[index] for index in indices], state_names(group)
        if len(set(indices)) < len(indices) or any(parameter.dtype != torch.float32 for parameter in group_parameters):
            return None
        if names and not any(optimizer.state.get(parameter) for parameter in group_parameters):
            if group.get("dampening"):
                return None  # which a first step leaves out
            for parameter in group_parameters:
                optimizer.state[parameter] = _initial_state(group, names, parameter)
        states = [optimizer.state.get(parameter, {}) for parameter in group_parameters]
        if not is_ready(names, states, group_parameters):
            return None
        of_groups.append(
            (*indices, *{(state["step"].device, state["step"].dtype) for state in states if "step" in state})
        )
    return kind, *of_groups


def _initial_state(group: Mapping[str, Any], names: Sequence[str], parameter: Tensor) -> dict[str, Any]:
    """Return what an optimizer keeps of a parameter before its first step, in the order that torch has."""
    numbers = {name: torch.zeros_like(parameter) for name in names if name != "step"}
    if "step" not in names:
        return numbers
    doubles = torch.get_default_dtype() == torch.float64 and not group["fused"]
    device = parameter.device if group["fused"] else torch.device("cpu")
    return {"step": torch.zeros((), dtype=torch.float64 if doubles else torch.float32, device=device), **numbers}


def indices_in(group: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[int]:
    """Return where the parameters of a group are among all; those that aren't there are frozen."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [numbers[id(parameter)] for parameter in group if id(parameter) in numbers]


def is_ready(names: Sequence[str], states: Sequence[Mapping[str, Any]], parameters: Sequence[Tensor]) -> bool:
    """Whether an optimizer has taken a first step, and as many of each of these parameters."""
    for state, parameter in zip(states, parameters, strict=True):
        numbers = [state.get(name) for name in names if name != "step"]
        if any(one is None or one.shape != parameter.shape or one.dtype != parameter.dtype for one in numbers):
            return False
    counts: list[Any] = [state.get("step") for state in states] if "step" in names else []
    if not all(isinstance(one, Tensor) and one.dtype in _COUNTING and one.dim() == 0 for one in counts):
        return False
    if len({(one.device, one.dtype) for one in counts}) > 1:
        return False
    steps = {*(torch.stack(counts).tolist() if counts else ())}  # of a GPU's, all at once
    return len(steps) < 2 and not any(one > _MOST_STEPS for one in steps)
