"""What an optimizer keeps for no parameter in particular: numbers and tensors in its groups, and under other keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state
from hpsearch_trainers.optimizers import parameters_of

__all__ = ["of_no_parameter", "spread_common"]


def of_no_parameter(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what lies in an optimizer's `state` under other keys than parameters."""
    return {key: value for key, value in state.items() if not isinstance(key, Tensor)}


def spread_common(optimizer: Optimizer, group: Group, root: int) -> None:
    """Let every rank have it as one rank has; a collective.

    Args:
        optimizer: Of the same groups on every rank.
        group: The ranks.
        root: The one.

    Raises:
        UsageError: It is something that can't travel.
    """
    own = [[_settings(held) for held in optimizer.param_groups], of_no_parameter(optimizer.state)]
    settings, others = broadcast_state(own, group, root, parameters_of(optimizer)[0].device, "the optimizer's state")
    if group.rank != root:
        _take(optimizer, settings, others)


def _settings(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in held.items() if isinstance(value, int | float | Tensor)}


def _take(optimizer: Optimizer, settings: Sequence[Mapping[str, Any]], others: Mapping[Any, Any]) -> None:
    for held, first in zip(optimizer.param_groups, settings, strict=True):
        for name, value in first.items():
            own = held.get(name)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and own.shape == value.shape:
                own.copy_(value)  # which may be that of several groups
            else:
                held[name] = value
    for key in of_no_parameter(optimizer.state):
        del optimizer.state[key]
    optimizer.state.update(others)
