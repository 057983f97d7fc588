"""What each worker has for itself, such as an optimizer's state, and a checkpoint brings back to each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state
from hpsearch_trainers.forks import load_from_other
from hpsearch_trainers.strategies.common_state import common_entries

__all__ = ["gather_worker_states", "take_state"]


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
