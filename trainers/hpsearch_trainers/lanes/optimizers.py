"""Steps of a lane's optimizer from given gradients: its own `step()`, or an equivalent faster computation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.optimizers import parameters_of


def stepper(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> Stepper:
    """Return a stepper whose steps equal a backward pass and `optimizer.step()` bit for bit.

    On small models, a step with `fused` computes for a few microseconds and spends several times that on bookkeeping.
    The stepper calls the fused kernel directly.

    Args:
        optimizer: An optimizer of these parameters, or of some of them. A stepper is valid for one epoch.
        parameters: The parameters, in the order of the gradients.
        clip: Maximum norm of the gradients of the optimizer's parameters; None for no clipping.
    """
    ids = {id(parameter) for parameter in parameters}
    all_trained = all(id(parameter) in ids for parameter in parameters_of(optimizer))  # otherwise some are frozen
    is_fused = clip is None and all_trained and _is_plain_fused(optimizer)
    return (_FusedStep if is_fused else Stepper)(optimizer, parameters, clip)


class Stepper:
    """Takes the steps of an epoch for any optimizer: sets the gradients and calls `optimizer.step()`.

    Attributes:
        releases_gradients: Whether the gradients' memory may be reused after a step.
    """

    releases_gradients = False

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._clip = clip
        self._trained = parameters_of(optimizer)

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step with the gradient of each parameter, which may be None."""
        self._set_gradients(gradients)
        self._clip_gradients()
        self._optimizer.step()
        self._set_gradients([None] * len(self._parameters))

    def clip(self, gradients: Sequence[Tensor | None]) -> None:
        """Clip gradients in place, as a step does."""
        self._set_gradients(gradients)
        self._clip_gradients()
        self._set_gradients([None] * len(self._parameters))

    def end(self) -> None:
        """Check that what was assumed constant hasn't changed during the epoch.

        Raises:
            NotFusible: It has changed.
        """

    def _clip_gradients(self) -> None:
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's `step` is torch's own, without hooks."""
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


class _FusedStep(Stepper):
    """Calls the fused kernel of a plain optimizer directly, once its state exists and if all gradients are present."""

    releases_gradients = True

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float | None) -> None:
        super().__init__(optimizer, parameters, clip)
        indices = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._run = _FUSED[type(optimizer)]
        self._indices = [[indices[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
        self._states = self._find_states()
        self._last_gradients: Sequence[Tensor | None] | None = None
        self._of_groups: Sequence[tuple[list[Any], Sequence[list[Tensor]]]] = ()
        """Each group's gradients and state from the last step; reused if gradients are in the same memory."""

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        if gradients is not self._last_gradients:
            if self._states is None or len([grad for grad in gradients if grad is not None]) < len(gradients):
                super().__call__(gradients)
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
        """Return the optimizer's state of each group's parameters, or None if some doesn't exist yet."""
        states = []
        state = self._optimizer.state  # a defaultdict: use `get`, because indexing would add entries
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
    """Return the names of the state entries of torch's SGD, Adam and AdamW for a parameter of a group."""
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


_MOST_STEPS = 2**23
"""Step count up to which a count in single precision is exact, with a margin."""
_COUNTING = (torch.float32, torch.float64)
OTHERWISE_AT_ONCE = ("capturable", "differentiable")
"""Settings of a group with which torch computes something else."""
OTHERWISE = ("fused", "foreach", *OTHERWISE_AT_ONCE)
"""Settings of a group with which torch uses another implementation."""
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps")


class StepVariant(NamedTuple):
    """The settings that determine what a group's step computes."""

    kind: type[Optimizer]
    amsgrad: bool
    maximize: bool
    nesterov: bool
    momentum: bool
    decoupled: bool
    """Whether weight decay is decoupled from the gradient (AdamW)."""


def kind_of(optimizer: Optimizer, otherwise: Sequence[str] = OTHERWISE) -> Hashable:
    """Return a key that is equal for optimizers that can step together; None if this one must step alone.

    Args:
        optimizer: A lane's optimizer.
        otherwise: Names of group settings that must be off.
    """
    groups = optimizer.param_groups
    if type(optimizer) not in (SGD, Adam, AdamW) or not is_plain(optimizer):
        return None
    numbers = [group[name] for group in groups for name in _NUMBERS if name in group]
    numbers += [beta for group in groups for beta in group.get("betas", ())]
    is_otherwise = any(group.get(name) for group in groups for name in otherwise)
    if is_otherwise or not all(isinstance(number, int | float) for number in numbers):
        return None
    return tuple(variant_of(optimizer, group) for group in groups)


def variant_of(optimizer: Optimizer, group: Mapping[str, Any]) -> StepVariant:
    """Return the settings that determine what this group's step computes."""
    kind = type(optimizer)
    return StepVariant(
        kind,
        bool(group.get("amsgrad")),
        bool(group["maximize"]),
        bool(group.get("nesterov")),
        bool(group.get("momentum")),
        bool(group.get("decoupled_weight_decay", kind is AdamW)),
    )


def kind_at_once(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Hashable:
    """Like `kind_of`, for packs in which all possible steps are joint. Also create the state of a first step.

    The result depends only on this optimizer, so that rounding doesn't depend on the other lanes.

    Args:
        optimizer: A lane's optimizer at the start of an epoch.
        parameters: The lane's parameters.
    """
    kind = kind_of(optimizer, OTHERWISE_AT_ONCE)
    if kind is None:
        return None
    of_groups: list[Hashable] = []
    for group in optimizer.param_groups:
        indices = indices_in(group["params"], parameters)
        group_parameters, names = [parameters[index] for index in indices], state_names(group)
        if len(set(indices)) < len(indices) or any(parameter.dtype != torch.float32 for parameter in group_parameters):
            return None
        if names and not any(optimizer.state.get(parameter) for parameter in group_parameters):
            if group.get("dampening"):
                return None  # a first step doesn't apply dampening
            for parameter in group_parameters:
                optimizer.state[parameter] = _initial_state(group, names, parameter)
        states = [optimizer.state.get(parameter, {}) for parameter in group_parameters]
        if not is_ready(names, states, group_parameters):
            return None
        of_groups.append(
            (*indices, *{(state["step"].device, state["step"].dtype) for state in states if "step" in state})
        )
    return kind, *of_groups


def _initial_state(group: Mapping[str, Any], names: Sequence[str], parameter: Tensor) -> dict[str, Any]:
    """Return an optimizer's state of a parameter before its first step, in torch's order."""
    numbers = {name: torch.zeros_like(parameter) for name in names if name != "step"}
    if "step" not in names:
        return numbers
    doubles = torch.get_default_dtype() == torch.float64 and not group["fused"]
    device = parameter.device if group["fused"] else torch.device("cpu")
    return {"step": torch.zeros((), dtype=torch.float64 if doubles else torch.float32, device=device), **numbers}


def indices_in(group: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[int]:
    """Return the indices of a group's parameters among all trained ones; frozen parameters are skipped."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [numbers[id(parameter)] for parameter in group if id(parameter) in numbers]


def is_ready(names: Sequence[str], states: Sequence[Mapping[str, Any]], parameters: Sequence[Tensor]) -> bool:
    """Return whether an optimizer has state for all these parameters, with equal step counts."""
    for state, parameter in zip(states, parameters, strict=True):
        numbers = [state.get(name) for name in names if name != "step"]
        if any(one is None or one.shape != parameter.shape or one.dtype != parameter.dtype for one in numbers):
            return False
    counts: list[Any] = [state.get("step") for state in states] if "step" in names else []
    if not all(isinstance(one, Tensor) and one.dtype in _COUNTING and one.dim() == 0 for one in counts):
        return False
    if len({(one.device, one.dtype) for one in counts}) > 1:
        return False
    steps = {*(torch.stack(counts).tolist() if counts else ())}  # one copy from a GPU
    return len(steps) < 2 and not any(one > _MOST_STEPS for one in steps)
