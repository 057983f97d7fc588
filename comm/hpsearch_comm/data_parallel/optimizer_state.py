"""Giving an optimizer a state as it was saved."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["load_exactly"]


def load_exactly(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Do as `optimizer.load_state_dict`, but keep the dtype of each tensor.

    torch makes all but `step` of a parameter's dtype. What an optimizer keeps in float32 for a parameter in bfloat16,
    as NAdam and ASGD of torch's and many others do, would be rounded, and the training go on otherwise.

    Args:
        optimizer: Of parameters of the dtypes that they had then.
        state: What its `state_dict()` gave.
    """
    optimizer.load_state_dict(dict(state))
    numbers = (number for group in state["param_groups"] for number in group["params"])
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for number, parameter in zip(numbers, parameters, strict=True):
        own, saved = optimizer.state.get(parameter), state["state"].get(number)
        if isinstance(own, MutableMapping) and isinstance(saved, Mapping):
            for name, value in saved.items():
                if _differ(own.get(name), value):
                    own[name] = value.detach().to(own[name].device, copy=True)


def _differ(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype != other.dtype
