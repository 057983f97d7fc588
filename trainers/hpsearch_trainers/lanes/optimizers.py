"""A step of a lane's optimizer, from gradients: its own `step()`, or what that comes to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.optimizers import parameters_of

__all__ = ["Stepper", "clip_gradients", "is_plain", "state_names", "stepper"]


class Stepper(Protocol):
    """Takes the steps of an epoch.

    Attributes:
        releases_gradients: Whether it is of no consequence what becomes of the gradients' memory behind a step.
    """

    releases_gradients: bool

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step, with a gradient for each parameter, None for one that has none."""

    def end(self) -> None:
        """Check that nothing changed in the epoch that was assumed constant.

        Raises:
            NotFusible: Something has changed.
        """


def stepper(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> Stepper:
    """Return what takes one step, to the bit as a backward pass and `optimizer.step()` do.

    On small models a step with `fused` is a few microseconds of work and several times as many of bookkeeping, so it is
    called without that.

    Args:
        optimizer: Of these parameters, or of some of them. What a stepper has found in its state holds for an epoch.
        parameters: In the order of the gradients.
        clip: Norm above which the gradients of the optimizer's parameters are scaled down to it.
    """
    ids = {id(parameter) for parameter in parameters}
    all_trained = all(id(parameter) in ids for parameter in parameters_of(optimizer))  # else some are frozen
    optimizer_step = _OptimizerStep(optimizer, parameters, clip)
    return (
        _FusedStep(optimizer, parameters, optimizer_step)
        if clip is None and all_trained and _is_plain_fused(optimizer)
        else optimizer_step
    )


class _OptimizerStep:
    """What a backward pass and `optimizer.step()` do, whatever that is."""

    releases_gradients = False

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._clip = clip
        self._trained = parameters_of(optimizer)

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        _set_gradients(self._parameters, gradients)
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        self._optimizer.step()
        _set_gradients(self._parameters, [None] * len(self._parameters))

    def end(self) -> None:
        pass


def clip_gradients(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], clip: float
) -> None:
    """Scale gradients in place, as a stepper does; arguments as there."""
    _set_gradients(parameters, gradients)
    torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), clip)
    _set_gradients(parameters, [None] * len(parameters))


def _set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
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


def _is_plain_fused(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer) not in _FUSED or not is_plain(optimizer):
        return False
    groups = optimizer.param_groups
    of_tensors = any(isinstance(value, Tensor) for group in groups for value in (group["lr"], *group.get("betas", ())))
    as_adamw = type(optimizer) is torch.optim.Adam and any(group.get("decoupled_weight_decay") for group in groups)
    return all(group["fused"] for group in groups) and not of_tensors and not as_adamw


class _FusedStep:
    """What a plain optimizer computes with `fused`, once it keeps what it will, and where each gradient is there."""

    releases_gradients = True

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], step: Stepper) -> None:
        indices = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._step = step
        self._optimizer = optimizer
        self._run = _FUSED[type(optimizer)]
        self._indices = [[indices[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
        self._states = self._find_states()
        self._last_gradients: Sequence[Tensor | None] | None = None
        self._of_groups: Sequence[tuple[list[Any], Sequence[list[Tensor]]]] = ()
        """Of what was given, which may come again in the same memory: each group's gradients, and what is kept."""

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        if gradients is not self._last_gradients:
            if self._states is None or len([grad for grad in gradients if grad is not None]) < len(gradients):
                self._step(gradients)
                self._states = self._find_states()
                return
            of_groups = [[gradients[index] for index in indices] for indices in self._indices]
            self._of_groups = [*zip(of_groups, self._states, strict=True)]
            self._last_gradients = gradients
        for group, (group_gradients, states) in zip(self._optimizer.param_groups, self._of_groups, strict=True):
            self._run(group, group_gradients, *states)

    def end(self) -> None:
        if not _is_plain_fused(self._optimizer) or (
            self._states is not None and _ids(self._states) != _ids(self._find_states())
        ):
            raise NotFusible("its optimizer's settings, or what it keeps, change within an epoch")

    def _find_states(self) -> Sequence[Sequence[list[Tensor]]] | None:
        """Return what the optimizer keeps of each group's parameters, or None where some isn't there yet."""
        states = []
        state = self._optimizer.state  # which makes a place for what is asked of it by index
        for group in self._optimizer.param_groups:
            names = state_names(group)
            group_states = [[state.get(parameter, {}).get(name) for parameter in group["params"]] for name in names]
            if any(value is None for of_name in group_states for value in of_name):
                return None
            states.append(group_states)
        return states


def _ids(states: Sequence[Sequence[list[Tensor]]] | None) -> Sequence[int]:
    return [id(tensor) for of_group in states or () for of_name in of_group for tensor in of_name]


def state_names(group: Mapping[str, Any]) -> Sequence[str]:
    """Return what torch's SGD, Adam and AdamW keep of each parameter of a group."""
    if "betas" in group:
        return ("exp_avg", "exp_avg_sq", "step", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _sgd(group: Mapping[str, Any], gradients: list[Any], velocities: Sequence[Tensor] = ()) -> None:
    torch._fused_sgd_(
        group["params"],
        gradients,
        [*velocities],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=False,
    )


def _adam(
    run: Callable[..., None],
    group: Mapping[str, Any],
    gradients: list[Any],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    largest: Sequence[Tensor] = (),
) -> None:
    torch._foreach_add_(steps, 1)
    first, second = group["betas"]
    run(
        group["params"],
        gradients,
        means,
        squares,
        [*largest],
        steps,
        amsgrad=group["amsgrad"],
        lr=group["lr"],
        beta1=first,
        beta2=second,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )


_FUSED: Mapping[type[torch.optim.Optimizer], Callable[..., None]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: functools.partial(_adam, torch._fused_adam_),
    torch.optim.AdamW: functools.partial(_adam, torch._fused_adamw_),
}
