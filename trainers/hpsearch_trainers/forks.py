"""What a trial takes over from a saved state, its own or, in a fork, another trial's: its average and its optimizer's.

Another trial's velocities and moments go on under settings of its own.
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
    """Load a saved moving average; that of a fork from a trial without one begins with the model.

    Args:
        average: As it was made.
        state: The trainer's `state_dict()`.
        forked: It may be another trial's.

    Raises:
        ConfigurationError: It is the trial's own, and the average isn't in it.
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
    """Load the state that a trainer has saved into an optimizer.

    Args:
        optimizer: As it was made.
        state: The trainer's `state_dict()`.
        forked: It may be another trial's.
        verbose: Print what isn't taken over.

    Raises:
        ConfigurationError: It is the trial's own, and its optimizer was of another class.
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
    """Load the state of another trial's optimizer, whose velocities and moments go on under this one's settings.

    That of a parameter is taken over where it is what this optimizer keeps for it. Else the parameter begins without:
    where the optimizer is of another class, keeps more under its settings (`amsgrad`, `centered`, ...), or has its
    parameters in other groups. What the settings no longer use is dropped.

    Args:
        optimizer: As it was made.
        state: The other one's `state_dict()`.
        same_class: Whether the other one is of the same class. Equal names may mean another thing in another one.

    Returns:
        For how many parameters there was a state that isn't taken over.
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
    """Return what an optimizer keeps for a parameter after a step: a copy takes one, with a twin of the parameter.

    None where that can't be seen, as of an optimizer for sparse gradients alone.
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
    """Return the rate that velocities have in them: they are the other optimizer's."""
    return {VELOCITY_RATE: group[VELOCITY_RATE]} if VELOCITY_RATE in group else {}
