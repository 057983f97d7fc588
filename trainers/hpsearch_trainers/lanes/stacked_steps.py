"""Steps of optimizers of many lanes at once, each with the bits of its own `step()`.

Without `fused`, torch's SGD, Adam and AdamW call up to ten functions for each parameter of each lane. On a small model
that is most of a step's time. Here the same functions are called once for all lanes and all parameters of a group, in
the same order, on numbers that lie side by side. Where a call costs more than what it computes, as on a GPU, that is
done whatever their size, and from their first step on.
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
from hpsearch_trainers.lanes.optimizers import kept_by
from hpsearch_trainers.lanes.step_kinds import Way, is_ready, places_in, way_of

__all__ = ["MOST_NUMBERS", "StackedSteps", "stacked_steps"]

MOST_NUMBERS = 2**16
"""Of a lane's group, up to which calls take longer than what they compute."""
_LARGEST = torch.finfo(torch.float32).max
_Columns = Sequence[Tensor]


def stacked_steps(
    optimizers: Sequence[Optimizer],
    parameters: Sequence[Sequence[Tensor]],
    stacks: Sequence[Tensor],
    most: float = MOST_NUMBERS,
) -> StackedSteps | None:
    """Return what takes the steps of all; None where each must take its own, for now or for good.

    Args:
        optimizers: Of one kind, one of each lane.
        parameters: Of each lane, in the order of the stacks.
        stacks: (lanes, ...), of which the parameters are parts.
        most: Numbers of a lane's group.
    """
    groups: list[_Group] = []
    held: list[_Held] = []
    for of_lanes in zip(*(one.param_groups for one in optimizers), strict=True):
        way = way_of(optimizers[0], of_lanes[0])
        of_each = [places_in(group["params"], given) for group, given in zip(of_lanes, parameters, strict=True)]
        places = of_each[0]
        ours = [stacks[place] for place in places]
        pairs = zip(optimizers, parameters, strict=True)
        own = [[_Held(optimizer, given[place]) for place in places] for optimizer, given in pairs]
        states = [[one.state for one in of_lane] for of_lane in own]
        twice = len(set(places)) < len(places)  # which torch steps one time after the other
        differs = twice or any(one != places for one in of_each)
        kept = kept_by(of_lanes[0])
        if differs or sum(one[0].numel() for one in ours) > most:
            return None
        if any(one.dtype != torch.float32 for one in ours) or not _agrees(way):
            return None
        if not all(is_ready(kept, of_lane, [stack[0] for stack in ours]) for of_lane in states):
            return None
        if places:
            groups.append(_Group(way, of_lanes, places, states, ours))
            held += itertools.chain(*own) if kept else []
    return StackedSteps(groups, held)


class _Held:
    """What an optimizer keeps of a parameter."""

    def __init__(self, optimizer: Optimizer, parameter: Tensor) -> None:
        self._optimizer = optimizer
        self._parameter = parameter
        self.state: dict[str, Any] = optimizer.state.get(parameter, {})
        self._tensors = [*self.state.values()]

    def is_there(self) -> bool:
        now = self._optimizer.state.get(self._parameter, {})
        return now is self.state and [*map(id, now.values())] == [*map(id, self._tensors)]


class StackedSteps:
    """Takes steps of all lanes; what their optimizers keep has memory of its own again at the end."""

    def __init__(self, groups: Sequence[_Group], held: Sequence[_Held]) -> None:
        self._groups = groups
        self._held = held

    def takes(self, gradients: Sequence[Tensor | None]) -> bool:
        """Whether there is a gradient for all that it steps."""
        return all(gradients[place] is not None for group in self._groups for place in group.places)

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step.

        Args:
            gradients: (lanes, ...), of each stack.
        """
        for group in self._groups:
            group.step([gradients[place] for place in group.places])  # type: ignore[misc]

    @torch.no_grad()
    def end(self) -> None:
        """Let the optimizers keep what came of it.

        Raises:
            NotFusible: Something else has been put into its place.
        """
        if not all(one.is_there() for one in self._held) or not all(group.holds() for group in self._groups):
            raise NotFusible("what its optimizer keeps is replaced within an epoch")
        for group in self._groups:
            group.end()


class _Kept:
    """What the optimizers of all lanes keep of each parameter by one name: it lies side by side until the end.

    Their own tensors are parts of it, so that a loss or a schedule that looks at them, or writes to them, finds what is
    there alone.

    Args:
        name: As the optimizers have it.
        states: What each optimizer keeps of each parameter.

    Attributes:
        numbers: (lanes, those of all parameters).
    """

    def __init__(self, name: str, states: Sequence[Sequence[dict[str, Any]]]) -> None:
        of_parameters = [*zip(*states, strict=True)]
        self._own: list[Tensor] = [state[name] for of_lanes in of_parameters for state in of_lanes]
        self._memory = [one.data for one in self._own]
        self.numbers = torch.cat(
            [torch.stack([one[name].view(-1) for one in of_lanes]) for of_lanes in of_parameters], 1
        )
        parts = torch.split(self.numbers, [first[name].numel() for first, *_ in of_parameters], 1)
        each = itertools.chain(*(part.unbind() for part in parts))
        self._parts = [part.view(own.shape) for part, own in zip(each, self._own, strict=True)]
        self._point_to(self._parts)

    def holds(self) -> bool:
        """Whether the optimizers' own tensors still are parts of it."""
        return all(own.data_ptr() == part.data_ptr() for own, part in zip(self._own, self._parts, strict=True))

    def end(self) -> None:
        torch._foreach_copy_(self._memory, self._parts)
        self._point_to(self._memory)

    def _point_to(self, memory: Sequence[Tensor]) -> None:
        for own, part in zip(self._own, memory, strict=True):
            own.data = part


class _Group:
    """One group of parameters of each lane's optimizer.

    Args:
        way: What a step computes.
        groups: Each optimizer's own: its settings are read in each step.
        places: Of its parameters among all.
        states: What each optimizer keeps of each parameter.
        stacks: The parameters, (lanes, ...).

    Attributes:
        kept: What the optimizers keep, by its name there, (lanes, numbers of all parameters).
    """

    def __init__(
        self,
        way: Way,
        groups: Sequence[Mapping[str, Any]],
        places: Sequence[int],
        states: Sequence[Sequence[dict[str, Any]]],
        stacks: Sequence[Tensor],
    ) -> None:
        self.way = way
        self.places = places
        self._groups = groups
        self._lanes = len(groups)
        self._sizes = [one[0].numel() for one in stacks]
        self.stacks = [one.view(self._lanes, size) for one, size in zip(stacks, self._sizes, strict=True)]
        self._kept = {name: _Kept(name, states) for name in kept_by(groups[0])}
        self.kept = {name: one.numbers for name, one in self._kept.items()}
        self._columns: dict[str, tuple[Sequence[Sequence[float]], _Columns]] = {}
        self._steps: Sequence[float] | None = None
        """That each lane has taken, where to read that each time would be to wait for the device."""
        if "step" in self.kept and self.kept["step"].device.type != "cpu":
            self._steps = self.kept["step"][:, 0].tolist()

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step, with a gradient of each stack."""
        own = [one.reshape(self._lanes, size) for one, size in zip(gradients, self._sizes, strict=True)]
        (_sgd if self.way.kind is SGD else _adam)(self, own)

    def columns(self, of_lane: Callable[..., Sequence[float]], *others: Sequence[float]) -> _Columns:
        """Return numbers of each lane, each as (lanes, 1), of its settings and what else is given of it.

        Raises:
            OverflowError: One is too large for single precision, which torch may refuse.
        """
        rows = [of_lane(*given) for given in zip(self._groups, *others, strict=True)]
        before, columns = self._columns.get(of_lane.__name__, (None, ()))
        if rows == before:
            return columns
        of_all = torch.tensor(rows, dtype=torch.float32).t()
        finite = math.isfinite(of_all.sum().item())  # nearly always, and asked in one call
        if not finite and any(_LARGEST < abs(one) < math.inf for row in rows for one in row):
            raise OverflowError("a setting of its optimizer is too large for single precision")
        columns = on_device(of_all, self.stacks[0].device).unsqueeze(2).unbind()
        self._columns[of_lane.__name__] = rows, columns
        return columns

    def counted(self) -> Sequence[float]:
        """Count a step; return how many each lane has taken, the same of all its parameters."""
        counts = self.kept["step"].add_(1)
        self._steps = None if self._steps is None else [one + 1 for one in self._steps]
        return counts[:, 0].tolist() if self._steps is None else self._steps

    def decayed(self, gradients: Sequence[Tensor], decays: Tensor | None) -> Tensor:
        """Return gradients and, where a lane's decay isn't zero, its part of the weights, (lanes, numbers).

        Args:
            gradients: Of each stack.
            decays: Of each lane, (lanes, 1); None: zero.
        """
        if self.way.maximize:
            gradients = [-one for one in gradients]
        decaying = [] if decays is None else [one["weight_decay"] != 0 for one in self._groups]
        if decays is not None and any(decaying):
            given = zip(gradients, self.stacks, strict=True)
            with_weights = [torch.addcmul(gradient, weights, decays) for gradient, weights in given]
            if not all(decaying):
                which = decays != 0
                pairs = zip(with_weights, gradients, strict=True)
                with_weights = [torch.where(which, one, other) for one, other in pairs]
            gradients = with_weights
        return torch.cat([*gradients], 1) if len(gradients) > 1 else gradients[0]

    def holds(self) -> bool:
        """Whether what the optimizers keep lies where its steps find it."""
        return all(one.holds() for one in self._kept.values())

    def parts(self, numbers: Tensor) -> list[Tensor]:
        """Return each parameter's part of these."""
        return [*torch.split(numbers, self._sizes, 1)]

    def end(self) -> None:
        """Let the optimizers keep what came of it.

        Raises:
            NotFusible: Something else has counted their steps.
        """
        if self._steps is not None and self._steps != self.kept["step"][:, 0].tolist():
            raise NotFusible("what its optimizer keeps is changed within an epoch")
        for one in self._kept.values():
            one.end()


def _sgd(group: _Group, gradients: Sequence[Tensor]) -> None:
    """Do what `torch.optim.SGD` does."""
    decays, momentum, taken, rates = group.columns(_of_sgd)
    direction = group.decayed(gradients, decays)
    if group.kept:
        velocity = group.kept["momentum_buffer"].mul_(momentum).addcmul_(direction, taken)
        direction = torch.addcmul(direction, velocity, momentum) if group.way.nesterov else velocity
    for weights, part in zip(group.stacks, group.parts(direction), strict=True):
        weights.addcmul_(part, rates)


def _adam(group: _Group, gradients: Sequence[Tensor]) -> None:
    """Do what `torch.optim.Adam` and `AdamW` do."""
    decays, near, keep, square, root, eps, rates = group.columns(_of_adam, group.counted())
    if group.way.decoupled:
        (left,) = group.columns(_left)
        for weights in group.stacks:
            weights.mul_(left)
    gradient = group.decayed(gradients, None if group.way.decoupled else decays)
    mean = group.kept["exp_avg"].lerp_(gradient, near)
    squares = group.kept["exp_avg_sq"].mul_(keep).addcmul_(gradient * square, gradient)
    if group.way.amsgrad:
        largest = group.kept["max_exp_avg_sq"]
        squares = torch.maximum(largest, squares, out=largest)
    scale = squares.sqrt().div_(root).add_(eps)
    torch._foreach_addcdiv_(group.stacks, group.parts(mean * rates), group.parts(scale))


def _of_sgd(of: Mapping[str, Any]) -> Sequence[float]:
    return of["weight_decay"], of["momentum"], 1 - of["dampening"], -of["lr"]


def _left(of: Mapping[str, Any]) -> Sequence[float]:
    return (1 - of["lr"] * of["weight_decay"] if of["weight_decay"] else 1.0,)


def _of_adam(of: Mapping[str, Any], steps: float) -> Sequence[float]:
    first, second = of["betas"]
    # As torch writes it, so that it is rounded alike.
    rate = of["lr"] / (1 - first**steps)
    root = (1 - second**steps) ** 0.5
    return of["weight_decay"], 1 - first, second, 1 - second, root, of["eps"], -rate


@functools.cache
def _agrees(way: Way) -> bool:
    """Try whether steps of this way have the bits of torch's own, which it may compute otherwise some day."""
    return same_bits(_tried(way, together=True), _tried(way, together=False))


def _tried(way: Way, *, together: bool) -> Any:
    """Return the weights of three optimizers after three steps, and what they keep."""
    generator = torch.Generator().manual_seed(0)
    single = torch.float32
    stacks = [torch.randn(shape, generator=generator, dtype=single) for shape in ((3, 37), (3, 5, 13))]
    parameters = [[nn.Parameter(one) for one in of_lane] for of_lane in zip(*stacks, strict=True)]
    optimizers = [way.kind(own, **_settings(way, lane)) for lane, own in enumerate(parameters)]
    groups = [optimizer.param_groups[0] for optimizer in optimizers]
    for step in range(3):
        gradients = [torch.randn(stack.shape, generator=generator, dtype=single) for stack in stacks]
        if together and step > 0:
            pairs = zip(optimizers, parameters, strict=True)
            states = [[optimizer.state[one] for one in own] for optimizer, own in pairs]
            group = _Group(way, groups, range(len(stacks)), states, stacks)
            group.step(gradients)
            group.end()
            continue
        for optimizer, own, coming in zip(optimizers, parameters, zip(*gradients, strict=True), strict=True):
            for parameter, gradient in zip(own, coming, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return [(own, [optimizer.state[one] for one in own]) for own, optimizer in zip(parameters, optimizers, strict=True)]


def _settings(way: Way, lane: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": 0.1 / (lane + 3), "weight_decay": (0.3, 0.0, 1e-4)[lane]}
    settings["maximize"] = way.maximize
    if way.kind is SGD:
        momentum = 0.9 / (lane + 1) if way.momentum else 0.0
        dampening = 0.0 if way.nesterov else 0.1 * lane
        return settings | {"momentum": momentum, "dampening": dampening, "nesterov": way.nesterov}
    settings |= {"betas": (0.9 / (lane + 1), 0.999 - 0.2 * lane), "amsgrad": way.amsgrad}
    decoupled_adam = way.kind is Adam and way.decoupled
    return settings | ({"decoupled_weight_decay": True} if decoupled_adam else {})
