"""Giving an optimizer a state as it was saved."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def load_exactly(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Do as `optimizer.load_state_dict`, but keep the dtype of each tensor, and the state as it is.

    torch makes all but `step` of a parameter's dtype. What an optimizer keeps in float32 for a parameter in bfloat16,
    as NAdam and ASGD of torch's and many others do, would be rounded, and the training go on otherwise. And it takes
    the state's own tensors, which steps then change: who loads it once more would begin elsewhere.

    Args:
        optimizer: Of parameters of the dtypes that they had then.
        state: What its `state_dict()` gave.
    """
    optimizer.load_state_dict(dict(state))
    numbers = (number for group in state["param_groups"] for number in group["params"])
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for number, parameter in zip(numbers, parameters, strict=True):
        current, saved = optimizer.state.get(parameter), state["state"].get(number)
        if isinstance(current, MutableMapping) and isinstance(saved, Mapping):
            for name in current.keys() & saved.keys():
                current[name] = _as_saved(saved[name], current[name])


def _as_saved(value: Any, loaded: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(loaded, torch.Tensor):
        return loaded
    is_copied = loaded is not value and loaded.dtype == value.dtype
    return loaded if is_copied else value.detach().to(loaded.device, copy=True)
