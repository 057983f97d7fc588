"""A step of a lane's optimizer, from gradients: its own `step()`, or what that comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from hpsearch_trainers.optimizers import parameters_of

__all__ = ["Stepper", "clip_gradients", "is_plain", "stepper"]

Stepper = Callable[[Sequence[Tensor | None]], None]
"""Takes a gradient for each parameter, None for one that has none."""


def stepper(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> Stepper:
    """Give what takes one step, to the bit as a backward pass and `optimizer.step()` do.

    On small models the step of a fused SGD is a few microseconds of work and several times as many of bookkeeping, so
    it is called without that.

    Args:
        optimizer: Of these parameters, or of some of them. What a stepper has found in its state holds for an epoch.
        parameters: In the order of the gradients.
        clip: Norm above which the gradients of the optimizer's parameters are scaled down to it.
    """
    trained = parameters_of(optimizer)

    def step(gradients: Sequence[Tensor | None]) -> None:
        _give(parameters, gradients)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        _give(parameters, [None] * len(parameters))

    given = {id(parameter) for parameter in parameters}
    all_given = all(id(parameter) in given for parameter in trained)  # else some are frozen
    if clip is None and all_given and _is_plain_fused_sgd(optimizer):
        return _FusedSGD(optimizer, parameters, step)
    return step


def clip_gradients(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], clip: float
) -> None:
    """Scale gradients in place, as a stepper does; arguments as there."""
    _give(parameters, gradients)
    torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), clip)
    _give(parameters, [None] * len(parameters))


def _give(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether nothing has been added to a step of this optimizer."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
    return not any(hooks) and "step" not in vars(optimizer) and not scaled


def _is_plain_fused_sgd(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer) is not torch.optim.SGD or not is_plain(optimizer):
        return False
    return all(group["fused"] and not isinstance(group["lr"], Tensor) for group in optimizer.param_groups)


class _FusedSGD:
    """What `torch.optim.SGD(fused=True).step()` computes, after its first step and where every gradient is there."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], step: Stepper) -> None:
        place = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._step = step
        self._optimizer = optimizer
        self._places = [[place[id(one)] for one in group["params"]] for group in optimizer.param_groups]
        self._velocities: list[list[Tensor]] | None = None

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        if self._velocities is None or len([one for one in gradients if one is not None]) < len(gradients):
            self._step(gradients)
            self._velocities = self._found()
            return
        for group, places, velocities in zip(self._optimizer.param_groups, self._places, self._velocities, strict=True):
            torch._fused_sgd_(
                group["params"],
                [gradients[place] for place in places],  # type: ignore[misc]
                velocities,
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                is_first_step=False,
            )

    def _found(self) -> list[list[Tensor]] | None:
        """Give the velocities that the optimizer keeps, or None where some aren't there yet."""
        found = []
        for group in self._optimizer.param_groups:
            kept: list[Any] = []
            if group["momentum"] != 0:
                state = self._optimizer.state  # which makes a place for what is asked of it by index
                kept = [state.get(one, {}).get("momentum_buffer") for one in group["params"]]
            if any(one is None for one in kept):
                return None
            found.append(kept)
        return found
