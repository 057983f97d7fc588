"""Joint optimizer steps of many lanes, equal bit for bit to each optimizer's own `step()`.

Without `fused`, torch's SGD, Adam and AdamW call up to ten functions for each parameter of each lane. On a small model
that is most of a step's time. Here the same functions are called once for all lanes and all parameters of a group, in
the same order, on contiguous memory. If kernel launches dominate, as on a GPU, this is done for any size, and from the
first step on.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from hpsearch_trainers.lanes.algorithms import on_device
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.optimizers import StepVariant, indices_in, is_ready, state_names, variant_of

MOST_NUMBERS = 2**16
"""Numbers in a lane's group up to which the overhead of calls dominates."""
_LARGEST = torch.finfo(torch.float32).max
_Columns = Sequence[Tensor]


def stacked_steps(
    optimizers: Sequence[Optimizer],
    parameters: Sequence[Sequence[Tensor]],
    stacks: Sequence[Tensor],
    most: float = MOST_NUMBERS,
) -> StackedSteps | None:
    """Return the joint steps of optimizers, or None if each must step alone, at the moment or permanently.

    Args:
        optimizers: The optimizer of each lane, all of one kind.
        parameters: The parameters of each lane, in the order of the stacks.
        stacks: Stacks (lanes, ...) of the parameters.
        most: Maximum numbers in a lane's group.
    """
    groups: list[_Group] = []
    parameter_states: list[_ParameterState] = []
    for of_lanes in zip(*(one.param_groups for one in optimizers), strict=True):
        variant = variant_of(optimizers[0], of_lanes[0])
        lane_indices = [
            indices_in(group["params"], lane_parameters)
            for group, lane_parameters in zip(of_lanes, parameters, strict=True)
        ]
        indices = lane_indices[0]
        ours = [stacks[index] for index in indices]
        pairs = zip(optimizers, parameters, strict=True)
        own = [
            [_ParameterState(optimizer, lane_parameters[index]) for index in indices]
            for optimizer, lane_parameters in pairs
        ]
        states = [[one.state for one in of_lane] for of_lane in own]
        twice = len(set(indices)) < len(indices)  # torch steps a repeated parameter twice in sequence
        differs = twice or any(of_lane != indices for of_lane in lane_indices)
        names = state_names(of_lanes[0])
        if differs or sum(one[0].numel() for one in ours) > most:
            return None
        if any(one.dtype != torch.float32 for one in ours) or not _agrees(variant):
            return None
        if not all(is_ready(names, of_lane, [stack[0] for stack in ours]) for of_lane in states):
            return None
        if indices:
            groups.append(_Group(variant, of_lanes, indices, states, ours))
            parameter_states += itertools.chain(*own) if names else []
    return StackedSteps(groups, parameter_states)


class _ParameterState:
    """An optimizer's state of a parameter."""

    def __init__(self, optimizer: Optimizer, parameter: Tensor) -> None:
        self._optimizer = optimizer
        self._parameter = parameter
        self.state: dict[str, Any] = optimizer.state.get(parameter, {})
        self._tensors = [*self.state.values()]

    def is_current(self) -> bool:
        now = self._optimizer.state.get(self._parameter, {})
        return now is self.state and [*map(id, now.values())] == [*map(id, self._tensors)]


class StackedSteps:
    """Joint steps of all lanes. At the end, the optimizers' states get separate memory again."""

    def __init__(self, groups: Sequence[_Group], parameter_states: Sequence[_ParameterState]) -> None:
        self._groups = groups
        self._parameter_states = parameter_states

    def accepts(self, gradients: Sequence[Tensor | None]) -> bool:
        """Return whether all stepped parameters have a gradient."""
        return all(gradients[index] is not None for group in self._groups for index in group.indices)

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step.

        Args:
            gradients: Gradient of each stack, (lanes, ...).
        """
        for group in self._groups:
            group.step([gradients[index] for index in group.indices])  # type: ignore[misc]

    @torch.no_grad()
    def end(self) -> None:
        """Store the results in the optimizers.

        Raises:
            NotFusible: A state entry of an optimizer was replaced.
        """
        if not all(state.is_current() for state in self._parameter_states) or not all(
            group.is_intact() for group in self._groups
        ):
            raise NotFusible("what its optimizer keeps is replaced within an epoch")
        for group in self._groups:
            group.end()


class _StackedState:
    """One entry of all lanes' optimizer states, for all parameters, in contiguous memory until the end.

    The optimizers' own tensors are views of it, so that a loss or a schedule can read and write them as in a trainer
    alone.

    Args:
        name: Name of the entry.
        states: State of each parameter in each optimizer.

    Attributes:
        numbers: (lanes, numbers of all parameters).
    """

    def __init__(self, name: str, states: Sequence[Sequence[dict[str, Any]]]) -> None:
        of_parameters = [*zip(*states, strict=True)]
        self._optimizer_tensors: list[Tensor] = [state[name] for of_lanes in of_parameters for state in of_lanes]
        self._memory = [one.data for one in self._optimizer_tensors]
        self.numbers = torch.cat(
            [torch.stack([one[name].view(-1) for one in of_lanes]) for of_lanes in of_parameters], 1
        )
        parts = torch.split(self.numbers, [first[name].numel() for first, *_ in of_parameters], 1)
        each = itertools.chain(*(part.unbind() for part in parts))
        self._parts = [part.view(tensor.shape) for part, tensor in zip(each, self._optimizer_tensors, strict=True)]
        self._point_to(self._parts)

    def is_intact(self) -> bool:
        """Return whether the optimizers' own tensors are still views of it."""
        return all(
            tensor.data_ptr() == part.data_ptr()
            for tensor, part in zip(self._optimizer_tensors, self._parts, strict=True)
        )

    def end(self) -> None:
        torch._foreach_copy_(self._memory, self._parts)
        self._point_to(self._memory)

    def _point_to(self, memory: Sequence[Tensor]) -> None:
        for tensor, part in zip(self._optimizer_tensors, memory, strict=True):
            tensor.data = part


class _Group:
    """One group of parameters of each lane's optimizer.

    Args:
        variant: The settings that determine what a step computes.
        groups: Each optimizer's parameter group; its settings are read in each step.
        indices: Indices of the group's parameters among all.
        states: State of each parameter in each optimizer.
        stacks: Stacks of the parameters, (lanes, ...).

    Attributes:
        states: The optimizers' states by name, (lanes, numbers of all parameters).
    """

    def __init__(
        self,
        variant: StepVariant,
        groups: Sequence[Mapping[str, Any]],
        indices: Sequence[int],
        states: Sequence[Sequence[dict[str, Any]]],
        stacks: Sequence[Tensor],
    ) -> None:
        self.variant = variant
        self.indices = indices
        self._groups = groups
        self._lanes = len(groups)
        self._sizes = [stack[0].numel() for stack in stacks]
        self.stacks = [stack.view(self._lanes, size) for stack, size in zip(stacks, self._sizes, strict=True)]
        self._stacked_states = {name: _StackedState(name, states) for name in state_names(groups[0])}
        self.states = {name: state.numbers for name, state in self._stacked_states.items()}
        self._columns: dict[str, tuple[Sequence[Sequence[float]], _Columns]] = {}
        self._steps: Sequence[float] | None = None
        """Step count of each lane, cached if reading it would wait for the device."""
        if "step" in self.states and self.states["step"].device.type != "cpu":
            self._steps = self.states["step"][:, 0].tolist()

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step with the gradient of each stack."""
        flat_gradients = [
            gradient.reshape(self._lanes, size) for gradient, size in zip(gradients, self._sizes, strict=True)
        ]
        (_sgd if self.variant.kind is SGD else _adam)(self, flat_gradients)

    def columns(self, of_lane: Callable[..., Sequence[float]], *values: Sequence[float]) -> _Columns:
        """Return numbers of each lane as columns (lanes, 1), from its settings and other values.

        Raises:
            OverflowError: A number is too large for single precision, which torch may refuse.
        """
        rows = [of_lane(*arguments) for arguments in zip(self._groups, *values, strict=True)]
        before, columns = self._columns.get(of_lane.__name__, (None, ()))
        if rows == before:
            return columns
        of_all = torch.tensor(rows, dtype=torch.float32).t()
        finite = math.isfinite(of_all.sum().item())  # nearly always true, and a single call
        if not finite and any(_LARGEST < abs(number) < math.inf for row in rows for number in row):
            raise OverflowError("a setting of its optimizer is too large for single precision")
        columns = on_device(of_all, self.stacks[0].device).unsqueeze(2).unbind()
        self._columns[of_lane.__name__] = rows, columns
        return columns

    def count_step(self) -> Sequence[float]:
        """Increment the step counts; return that of each lane, which is equal for all its parameters."""
        counts = self.states["step"].add_(1)
        self._steps = None if self._steps is None else [step + 1 for step in self._steps]
        return counts[:, 0].tolist() if self._steps is None else self._steps

    def with_weight_decay(self, gradients: Sequence[Tensor], decays: Tensor | None) -> Tensor:
        """Return gradients plus weight decay times weights, for lanes whose decay isn't zero, (lanes, numbers).

        Args:
            gradients: Gradient of each stack.
            decays: Weight decay of each lane, (lanes, 1); None: zero.
        """
        if self.variant.maximize:
            gradients = [-gradient for gradient in gradients]
        decaying = [] if decays is None else [group["weight_decay"] != 0 for group in self._groups]
        if decays is not None and any(decaying):
            pairs = zip(gradients, self.stacks, strict=True)
            with_weights = [torch.addcmul(gradient, weights, decays) for gradient, weights in pairs]
            if not all(decaying):
                is_decaying = decays != 0
                pairs = zip(with_weights, gradients, strict=True)
                with_weights = [torch.where(is_decaying, decayed, gradient) for decayed, gradient in pairs]
            gradients = with_weights
        return torch.cat([*gradients], 1) if len(gradients) > 1 else gradients[0]

    def is_intact(self) -> bool:
        """Return whether the optimizers' states are still views of the stacked states."""
        return all(state.is_intact() for state in self._stacked_states.values())

    def parts(self, numbers: Tensor) -> list[Tensor]:
        """Return each parameter's part of stacked numbers."""
        return [*torch.split(numbers, self._sizes, 1)]

    def end(self) -> None:
        """Store the results in the optimizers.

        Raises:
            NotFusible: Other code has changed the step counts.
        """
        if self._steps is not None and self._steps != self.states["step"][:, 0].tolist():
            raise NotFusible("what its optimizer keeps is changed within an epoch")
        for state in self._stacked_states.values():
            state.end()


def _sgd(group: _Group, gradients: Sequence[Tensor]) -> None:
    """Take the step of `torch.optim.SGD`."""
    decays, momentum, gain, rates = group.columns(_sgd_settings)
    direction = group.with_weight_decay(gradients, decays)
    if group.states:
        velocity = group.states["momentum_buffer"].mul_(momentum).addcmul_(direction, gain)
        direction = torch.addcmul(direction, velocity, momentum) if group.variant.nesterov else velocity
    for weights, part in zip(group.stacks, group.parts(direction), strict=True):
        weights.addcmul_(part, rates)


def _adam(group: _Group, gradients: Sequence[Tensor]) -> None:
    """Take the step of `torch.optim.Adam` or `AdamW`."""
    decays, near, keep, square, root, eps, rates = group.columns(_adam_settings, group.count_step())
    if group.variant.decoupled:
        (factor,) = group.columns(_decay_factor)
        for weights in group.stacks:
            weights.mul_(factor)
    gradient = group.with_weight_decay(gradients, None if group.variant.decoupled else decays)
    mean = group.states["exp_avg"].lerp_(gradient, near)
    squares = group.states["exp_avg_sq"].mul_(keep).addcmul_(gradient * square, gradient)
    if group.variant.amsgrad:
        largest = group.states["max_exp_avg_sq"]
        squares = torch.maximum(largest, squares, out=largest)
    scale = squares.sqrt().div_(root).add_(eps)
    torch._foreach_addcdiv_(group.stacks, group.parts(mean * rates), group.parts(scale))


def _sgd_settings(group: Mapping[str, Any]) -> Sequence[float]:
    return group["weight_decay"], group["momentum"], 1 - group["dampening"], -group["lr"]


def _decay_factor(group: Mapping[str, Any]) -> Sequence[float]:
    return (1 - group["lr"] * group["weight_decay"] if group["weight_decay"] else 1.0,)


def _adam_settings(group: Mapping[str, Any], steps: float) -> Sequence[float]:
    first, second = group["betas"]
    # The same expression as in torch, for equal rounding.
    rate = group["lr"] / (1 - first**steps)
    root = (1 - second**steps) ** 0.5
    return group["weight_decay"], 1 - first, second, 1 - second, root, group["eps"], -rate


@functools.cache
def _agrees(variant: StepVariant) -> bool:
    """Test whether joint steps equal torch's bit for bit, because torch's implementation may change."""
    return same_bits(_try_steps(variant, together=True), _try_steps(variant, together=False))


def _try_steps(variant: StepVariant, *, together: bool) -> Any:
    """Return the weights and states of three optimizers after three steps."""
    generator = torch.Generator().manual_seed(0)
    single = torch.float32
    stacks = [torch.randn(shape, generator=generator, dtype=single) for shape in ((3, 37), (3, 5, 13))]
    parameters = [[nn.Parameter(parameter) for parameter in of_lane] for of_lane in zip(*stacks, strict=True)]
    optimizers = [
        variant.kind(lane_parameters, **_settings(variant, lane)) for lane, lane_parameters in enumerate(parameters)
    ]
    groups = [optimizer.param_groups[0] for optimizer in optimizers]
    for step in range(3):
        gradients = [torch.randn(stack.shape, generator=generator, dtype=single) for stack in stacks]
        if together and step > 0:
            pairs = zip(optimizers, parameters, strict=True)
            states = [
                [optimizer.state[parameter] for parameter in lane_parameters] for optimizer, lane_parameters in pairs
            ]
            group = _Group(variant, groups, range(len(stacks)), states, stacks)
            group.step(gradients)
            group.end()
            continue
        for optimizer, lane_parameters, lane_gradients in zip(
            optimizers, parameters, zip(*gradients, strict=True), strict=True
        ):
            for parameter, gradient in zip(lane_parameters, lane_gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return [
        (lane_parameters, [optimizer.state[parameter] for parameter in lane_parameters])
        for lane_parameters, optimizer in zip(parameters, optimizers, strict=True)
    ]


def _settings(variant: StepVariant, lane: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": 0.1 / (lane + 3), "weight_decay": (0.3, 0.0, 1e-4)[lane]}
    settings["maximize"] = variant.maximize
    if variant.kind is SGD:
        momentum = 0.9 / (lane + 1) if variant.momentum else 0.0
        dampening = 0.0 if variant.nesterov else 0.1 * lane
        return settings | {"momentum": momentum, "dampening": dampening, "nesterov": variant.nesterov}
    settings |= {"betas": (0.9 / (lane + 1), 0.999 - 0.2 * lane), "amsgrad": variant.amsgrad}
    decoupled_adam = variant.kind is Adam and variant.decoupled
    return settings | ({"decoupled_weight_decay": True} if decoupled_adam else {})
