"""Common state of an optimizer: group settings, and state entries that belong to no parameter.

Also the exchange of the workers' own states for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state
from hpsearch_trainers.forks import load_from_other
from hpsearch_trainers.optimizers import parameters_of


def common_entries(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries of an optimizer's `state` whose keys aren't parameters."""
    return {key: value for key, value in state.items() if not isinstance(key, Tensor)}


def broadcast_common_state(optimizer: Optimizer, group: Group, root: int) -> None:
    """Copy the optimizer's common state from one rank to all; a collective.

    Args:
        optimizer: An optimizer with the same groups on every rank.
        group: The ranks.
        root: The rank whose state is copied.

    Raises:
        UsageError: The state has a value of a type that can't be sent.
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
                current.copy_(value)  # in place, because several groups may share the tensor
            else:
                param_group[name] = value
    for key in common_entries(optimizer.state):
        del optimizer.state[key]
    optimizer.state.update(entries)


_CPU = torch.device("cpu")


def gather_worker_states(own_state: Any, group: Group, device: torch.device = _CPU) -> list[Any]:
    """Gather the own states of all workers on rank 0; a collective.

    Args:
        own_state: This worker's state: numbers, strings, tensors, and lists, tuples and dicts of them.
        group: The workers.
        device: Device of the received tensors.

    Returns:
        On rank 0, the states of all ranks in order; on other ranks an empty list.
    """
    states = [own_state] if group.rank == 0 else []
    for rank in range(1, group.size):
        state = broadcast_state(own_state, group, rank, device, "a worker's state")
        if group.rank == 0:
            states.append(state)
    return states


def take_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Restore the parameters' state of a worker's optimizer, as far as the current settings use it.

    Args:
        optimizer: An optimizer of the class that the state is from. Its settings aren't changed.
        state: The optimizer's saved state, by parameter index.
    """
    common = common_entries(optimizer.state)
    optimizer.state.clear()
    optimizer.state.update(common)
    load_from_other(optimizer, {"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
