"""What an optimizer keeps for no parameter in particular: numbers and tensors in its groups, and under other keys.

And what each worker has for itself, which a checkpoint brings back to each.
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


def gather_worker_states(own_state: Any, group: Group) -> list[Any]:
    """Return what all other workers have for themselves, on rank 0, in the order of ranks; a collective.

    Args:
        own_state: This worker's: numbers, strings, tensors, and lists, tuples and dicts of them.
        group: The workers.

    Returns:
        On rank 0, a list of one less than there are workers; elsewhere an empty one.
    """
    states = []
    for rank in range(1, group.size):
        state = broadcast_state(own_state, group, rank, name="a worker's state", device=torch.device("cpu"))
        if group.rank == 0:
            states.append(state)
    return states


def take_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Restore what a worker's optimizer had learned, as far as it suits its settings, which stay.

    Args:
        optimizer: Of the class that it was.
        state: One of those that were gathered.
    """
    common = common_entries(optimizer.state)
    optimizer.state.clear()
    optimizer.state.update(common)
    load_from_other(optimizer, {"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
