"""The steps of a pack's optimizers in an epoch: joint if the results equal each alone bit for bit, else one by one.

Gradients are clipped before, with a separate norm for each lane.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import on_device
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.losses import sums
from hpsearch_trainers.lanes.optimizers import OTHERWISE, OTHERWISE_AT_ONCE, kind_at_once, kind_of
from hpsearch_trainers.lanes.stacked_steps import MOST_NUMBERS, StackedSteps, stacked_steps
from hpsearch_trainers.optimizers import parameters_of


class Averages:
    """Updates all lanes' moving averages, equal to `MovingAverage.update_parameters` up to rounding.

    Args:
        lanes: Lanes with averages, within an epoch.
        averages: The stacks of their averages' tensors, (lanes or more, ...): the parameters first, then the buffers.
        models: The stacks of their models' tensors, in the same order.
    """

    def __init__(self, lanes: Sequence[Lane], averages: Sequence[Tensor], models: Sequence[Tensor]) -> None:
        self._steps = 0
        self._pairs = [
            (average.detach()[: len(lanes)], model.detach()[: len(lanes)])
            for average, model in zip(averages, models, strict=True)
        ]
        device = models[0].device if models else torch.device("cpu")
        self._averages = [lane.average for lane in lanes if lane.average is not None]
        self._weights = on_device(torch.tensor([average.model_weight for average in self._averages]), device)
        is_first = [int(average.n_averaged) == 0 for average in self._averages]
        self._first = on_device(torch.tensor(is_first), device) if any(is_first) else None

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the averages with the models after a step."""
        first, self._first = self._first, None
        self._steps += 1
        for average, model in self._pairs:
            if not (model.is_floating_point() or model.is_complex()):
                average.copy_(model)
                continue
            dims = [-1, *(1 for _ in model.shape[1:])]
            mixed = torch.lerp(average, model, self._weights.to(model.dtype).view(dims))
            is_equal = average == model  # for example infinities in a mask
            average.copy_(torch.where(is_equal if first is None else is_equal | first.view(dims), model, mixed))

    def end(self) -> None:
        """Add the steps of the epoch to each lane's average."""
        for average in self._averages:
            average.n_averaged += self._steps


_NEVER_ZERO = 1e-6
"""The constant that torch adds to a norm before it divides by the norm."""


class Clipping:
    """Clips each lane's gradients by their norm, equal to `torch.nn.utils.clip_grad_norm_` up to rounding.

    Args:
        lanes: Lanes within an epoch.
        device: Device of the lanes.
    """

    def __init__(self, lanes: Sequence[Lane], device: torch.device) -> None:
        self._lanes = len(lanes)
        norms = [lane.trainer.parts.clip_norm for lane in lanes]
        self._clips = any(norm is not None for norm in norms)
        self._norms = on_device(torch.tensor([[0.0 if norm is None else norm] for norm in norms]), device)
        of_lanes = []
        for lane, norm in zip(lanes, norms, strict=True):
            stepped = {id(parameter) for parameter in parameters_of(lane.trainer.optimizer)}
            of_lanes.append([norm is not None and id(parameter) in stepped for parameter in lane.trained])
        of_stacks = [*zip(*of_lanes, strict=True)]
        self._all = [all(of_stack) for of_stack in of_stacks]
        """For each stack, whether the parts of all lanes are clipped."""
        masks = torch.tensor(of_stacks, dtype=torch.bool).view(len(of_stacks), self._lanes, 1)
        self._masks = on_device(masks, device).unbind()

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Clip gradients in place.

        Args:
            gradients: Gradient of each stack, (lanes or more, ...), or None.
        """
        present = [
            (one[: self._lanes].view(self._lanes, -1), mask, of_all)
            for one, mask, of_all in zip(gradients, self._masks, self._all, strict=True)
            if one is not None
        ]
        if not self._clips or not present:
            return
        counted = [gradient if of_all else torch.where(mask, gradient, 0) for gradient, mask, of_all in present]
        norms = sums(torch.cat(counted, 1).square_()).sqrt_().unsqueeze(1)
        scale = (self._norms / (norms + _NEVER_ZERO)).clamp_(max=1.0)
        for gradient, mask, of_all in present:
            gradient.mul_(scale if of_all else torch.where(mask, scale, 1.0))


_MOST_COPIED = 2**17
"""Numbers of all lanes' gradients up to which copying them is faster than splitting them."""


class Updates:
    """Takes the optimizer steps of lanes within an epoch.

    Args:
        lanes: The lanes. Adjacent lanes with optimizers of one kind step jointly.
        stacks: Stacks of the trained parameters, (lanes or more, ...); free places follow the lanes.
        averages: Updates the averages of all lanes; None: each lane updates its own.
        at_once: See `Pack`. All possible steps are joint, for any size and also for a single lane.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        stacks: Sequence[Tensor],
        averages: Sequence[Averages] = (),
        *,
        at_once: bool = False,
    ) -> None:
        self._lanes = lanes
        self._runs = []
        self._averages = averages
        self._clipping = Clipping(lanes, lanes[0].trainer.device) if at_once else None
        self._otherwise = OTHERWISE_AT_ONCE if at_once else OTHERWISE
        self._optimizers = [lane.trainer.optimizer for lane in lanes]
        self._kinds = self._kinds_now()
        self._groups = self._groups_now()
        pairs = zip(self._optimizers, (lane.trained for lane in lanes), strict=True)
        kinds = itertools.starmap(kind_at_once, pairs) if at_once else self._kinds
        first = 0
        for kind, run in itertools.groupby(zip(kinds, lanes, strict=True), operator.itemgetter(0)):
            same_kind = [lane for _, lane in run]
            positions = slice(first, first + len(same_kind))
            run_stacks = [stack.detach()[positions] for stack in stacks]
            can_be_stacked = kind is not None and (at_once or len(same_kind) > 1)
            self._runs.append((positions, _Run(same_kind, run_stacks, can_be_stacked=can_be_stacked, at_once=at_once)))
            first = positions.stop

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step of each lane, then update its average.

        Args:
            gradients: Gradient of each stack, or None.
        """
        if self._clipping is not None:
            self._clipping(gradients)
        for positions, run in self._runs:
            run.step([None if gradient is None else gradient[positions] for gradient in gradients])
        for averages in self._averages:
            averages()

    def end(self) -> None:
        """Store the results of the steps in each optimizer.

        Raises:
            NotFusible: During the epoch, an optimizer's kind changed or its state was replaced.
        """
        for _, run in self._runs:
            run.end()
        for averages in self._averages:
            averages.end()
        for lane in self._lanes:
            lane.end_steps()
        before_and_now = zip(self._lanes, self._groups, self._groups_now(), self._kinds, self._kinds_now(), strict=True)
        changed = [
            lane.trainer
            for lane, groups, groups_now, kind, kind_now in before_and_now
            if kind != kind_now or [*map(id, groups)] != [*map(id, groups_now)]
        ]
        if changed:
            raise NotFusible("its optimizer's settings change within an epoch", changed)

    def _kinds_now(self) -> Sequence[Hashable]:
        return [kind_of(one, self._otherwise) for one in self._optimizers]

    def _groups_now(self) -> Sequence[Sequence[object]]:
        return [[*optimizer.param_groups] for optimizer in self._optimizers]


class _Run:
    def __init__(self, lanes: Sequence[Lane], stacks: Sequence[Tensor], *, can_be_stacked: bool, at_once: bool) -> None:
        self._lanes = lanes
        self._stacks = stacks
        self._most = math.inf if at_once else MOST_NUMBERS
        self._together: StackedSteps | None = None
        self._tries = 2 if can_be_stacked else 0  # the first step creates an optimizer's state
        self._last: Sequence[Tensor | None] = []
        self._all_steady = all(lane.is_steady for lane in lanes)
        self._averaged = [(lane.average, lane.model) for lane in lanes if lane.average is not None and not at_once]
        self._clips = not at_once and any(lane.trainer.parts.clip_norm is not None for lane in lanes)
        self._memory: list[Tensor] = []
        self._in_memory: Sequence[Sequence[Tensor | None]] = []
        if sum(stack.numel() for stack in stacks) <= _MOST_COPIED and all(lane.releases_gradients for lane in lanes):
            self._memory = [torch.empty_like(stack) for stack in stacks]
            self._in_memory = self._split(self._memory)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        if self._together is None and self._tries > 0:
            self._tries -= 1
            optimizers = [lane.trainer.optimizer for lane in self._lanes]
            trained = [lane.trained for lane in self._lanes]
            self._together = stacked_steps(optimizers, trained, self._stacks, self._most)
        if self._together is not None and self._together.accepts(gradients):
            self._clip(gradients)
            self._together(gradients)
        else:
            self._unstack()
            for lane, lane_gradients in zip(self._lanes, self._split_in_memory(gradients), strict=True):
                lane.update(lane_gradients)
        for average, model in self._averaged:
            average.update_parameters(model)
        self._last = gradients
        if not self._all_steady:
            self._set_gradients(last=False)

    def end(self) -> None:
        self._unstack()
        self._set_gradients(last=True)

    def _unstack(self) -> None:
        """Switch to separate steps of each lane."""
        if self._together is not None:
            self._together.end()
            self._together, self._tries = None, 0

    def _set_gradients(self, *, last: bool) -> None:
        for lane, lane_gradients in zip(self._lanes, self._split(self._last), strict=True):
            lane.set_gradients(lane_gradients, last=last)

    def _clip(self, gradients: Sequence[Tensor | None]) -> None:
        if self._clips:
            for lane, lane_gradients in zip(self._lanes, self._split(gradients), strict=True):
                lane.clip(lane_gradients)

    def _split_in_memory(self, gradients: Sequence[Tensor | None]) -> Sequence[Sequence[Tensor | None]]:
        """Return the gradients of each lane, copied to the same memory in each step where possible."""
        present = [gradient for gradient in gradients if gradient is not None]
        if not self._memory or len(present) < len(self._memory):
            return self._split(gradients)
        torch._foreach_copy_(self._memory, present)
        return self._in_memory

    def _split(self, gradients: Sequence[Tensor | None]) -> Sequence[Sequence[Tensor | None]]:
        """Return the gradients of each lane."""
        lanes = len(self._lanes)
        unstacked = [[None] * lanes if gradient is None else gradient.unbind() for gradient in gradients]
        return [*zip(*unstacked, strict=True)] if unstacked else [()] * lanes
