"""Exact loading of an optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def load_exactly(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state like `optimizer.load_state_dict`, but keep each tensor's dtype and leave `state` unchanged.

    torch casts all tensors except `step` to the parameter's dtype. For a bfloat16 parameter, torch's NAdam and ASGD and
    many other optimizers have float32 state, which would be rounded. torch may also use the tensors of `state` without
    a copy. Later steps would then change them, and loading `state` again would not restore the saved values.

    Args:
        optimizer: The optimizer. Its parameters must have the dtypes that they had when the state was saved.
        state: The result of its `state_dict()`.
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
