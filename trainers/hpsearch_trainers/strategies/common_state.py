"""What an optimizer keeps for no parameter in particular: numbers and tensors in its groups, and under other keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state
from hpsearch_trainers.optimizers import parameters_of

__all__ = ["broadcast_common_state", "common_entries"]


def common_entries(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what lies in an optimizer's `state` under other keys than parameters."""
    return {key: value for key, value in state.items() if not isinstance(key, Tensor)}


def broadcast_common_state(optimizer: Optimizer, group: Group, root: int) -> None:
    """Copy the optimizer's common state from one rank to all; a collective.

    Args:
        optimizer: Of the same groups on every rank.
        group: The ranks.
        root: The rank that is copied.

    Raises:
        UsageError: It is something that can't travel.
    """
    state = [[_settings(param_group) for param_group in optimizer.param_groups], common_entries(optimizer.state)]
    settings, entries = broadcast_state(state, group, root, parameters_of(optimizer)[0].device, "the optimizer's state")
    if group.rank != root:
        _load(optimizer, settings, entries)


def _settings(param_group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in param_group.items() if isinstance(value, int | float | Tensor)}


def _load(optimizer: Optimizer, settings: Sequence[Mapping[str, Any]], entries: Mapping[Any, Any]) -> None:
    for param_group, first in zip(optimizer.param_groups, settings, strict=True):
        for name, value in first.items():
            current = param_group.get(name)
            if isinstance(current, Tensor) and isinstance(value, Tensor) and current.shape == value.shape:
                current.copy_(value)  # which may be that of several groups
            else:
                param_group[name] = value
    for key in common_entries(optimizer.state):
        del optimizer.state[key]
    optimizer.state.update(entries)
