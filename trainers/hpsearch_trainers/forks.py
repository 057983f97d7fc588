"""Load the moving average and the optimizer state of a trial, or, for a fork, of another trial.

A fork uses the other trial's velocities and moments with its own optimizer settings.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.moving_average import MovingAverage
from hpsearch_trainers.rates import VELOCITY_RATE


def load_average(average: MovingAverage, state: Mapping[str, Any], *, forked: bool) -> None:
    """Load a saved moving average. If a fork's source has none, the average starts from the saved model.

    Args:
        average: The newly created moving average.
        state: The trainer's `state_dict()`.
        forked: Whether the state may be another trial's.

    Raises:
        ConfigurationError: The state is the trial's own and has no moving average.
    """
    if "average" in state:
        average.load_state_dict(state["average"])
    elif forked:
        average.module.load_state_dict(state["model"])
    else:
        raise ConfigurationError(
            "a trainer's load_state_dict must call super().load_state_dict(state) with all that super().state_dict() "
            "gave, got a state without its `average`, which would begin anew: keep that entry"
        )


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, forked: bool, verbose: bool) -> None:
    """Load the optimizer state from a trainer's saved state.

    Args:
        optimizer: The newly created optimizer.
        state: The trainer's `state_dict()`.
        forked: Whether the state may be another trial's.
        verbose: Whether to print how many parameters start without state.

    Raises:
        ConfigurationError: The state is the trial's own, and the saved optimizer is of another class.
    """
    class_name = type(optimizer).__qualname__
    saved_class = state.get("optimizer_class", class_name)
    if forked:
        fresh = load_from_other(optimizer, state["optimizer"], same_class=saved_class == class_name)
        if fresh > 0 and verbose:
            print(
                f"the optimizer's state begins anew for {fresh} parameters: the {saved_class} forked from had another"
            )
    elif saved_class == class_name:
        load_exactly(optimizer, state["optimizer"])
    else:
        raise ConfigurationError(
            f"a trial's optimizer must be of the class that its state was saved with, {saved_class}, got {class_name}: "
            "put that one back in build, or start the trial from zero"
        )


def load_from_other(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, same_class: bool = True) -> int:
    """Load velocities and moments of another trial's optimizer, but keep the settings of this optimizer.

    The state of a parameter is loaded if it has every entry that this optimizer keeps for the parameter. Entries that
    this optimizer doesn't use are dropped. A parameter starts without state if this optimizer keeps more entries
    (`amsgrad`, `centered`, ...), is of another class, or has other parameter groups.

    Args:
        optimizer: The newly created optimizer.
        state: The other optimizer's `state_dict()`.
        same_class: Whether the other optimizer is of the same class. If not, entries of equal name may differ in
            meaning, and nothing is loaded.

    Returns:
        The number of parameters whose saved state isn't loaded.
    """
    groups, saved_groups = optimizer.param_groups, state["param_groups"]
    if not same_class or [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved_groups]:
        return len(state["state"])
    states, fresh = dict(optimizer.state_dict()["state"]), 0  # some optimizers have a state before their first step
    for group, saved_group in zip(groups, saved_groups, strict=True):
        for parameter, number in zip(group["params"], saved_group["params"], strict=True):
            if number in state["state"]:
                suitable = _suitable(state["state"][number], _expected_state(optimizer, group, parameter))
                if suitable is None:
                    fresh += 1
                else:
                    states[number] = suitable
    settings = [
        {**group, "params": saved_group["params"], **_of_velocities(saved_group)}
        for group, saved_group in zip(groups, saved_groups, strict=True)
    ]
    load_exactly(optimizer, {"state": states, "param_groups": settings})
    return fresh


def _suitable(saved: Mapping[str, Any], expected: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if expected is None:
        return dict(saved)
    if any(name not in saved or _shape(saved[name]) != _shape(value) for name, value in expected.items()):
        return None
    return {name: _of_dtype(saved[name], value) for name, value in expected.items()}


def _of_dtype(saved: Any, expected: Any) -> Any:
    return saved.to(expected.dtype) if isinstance(saved, Tensor) and isinstance(expected, Tensor) else saved


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else torch.Size()


def _expected_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor
) -> dict[str, Any] | None:
    """Return the state that an optimizer keeps for a parameter.

    A copy of the optimizer takes a step with a zero tensor of the parameter's shape.

    Returns:
        The state after the step, or None if the step fails, as with an optimizer for sparse gradients only.
    """
    twin = torch.zeros_like(parameter, requires_grad=True)
    twin.grad = torch.zeros_like(parameter)
    probe: Any = object.__new__(type(optimizer))
    probe.__dict__.update(optimizer.__dict__)
    probe.state, probe.param_groups = defaultdict(dict), [{**group, "params": [twin]}]
    probe._optimizer_step_pre_hooks, probe._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    try:
        type(optimizer).step(probe)
    except Exception:
        return None
    return dict(probe.state[twin])


def _of_velocities(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting with the learning rate that a group's velocities contain, if it has one."""
    return {VELOCITY_RATE: group[VELOCITY_RATE]} if VELOCITY_RATE in group else {}
