"""The steps of a pack's optimizers in an epoch: of many at once where that has the bits of each, else one by one."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from hpsearch_trainers.lanes.averages import Averages
from hpsearch_trainers.lanes.clipping import Clipping
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.stacked_steps import MOST_NUMBERS, StackedSteps, stacked_steps
from hpsearch_trainers.lanes.step_kinds import OTHERWISE, OTHERWISE_AT_ONCE, kind_at_once, kind_of

__all__ = ["Updates"]

_MOST_COPIED = 2**17
"""Numbers of all lanes' gradients up to which a copy takes less time than to take them apart."""


class Updates:
    """Takes steps of lanes that have begun an epoch.

    Args:
        lanes: The lanes. Neighbours whose optimizers are of one kind step together.
        stacks: Of the parameters that are trained, (lanes or more, ...): after these come free places.
        averages: What takes all lanes' models into their averages; none: each lane does by itself.
        at_once: As in `Pack`: whatever can step together does, however large, also a single lane.
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
        given = zip(self._optimizers, (lane.trained for lane in lanes), strict=True)
        kinds = itertools.starmap(kind_at_once, given) if at_once else self._kinds
        first = 0
        for kind, run in itertools.groupby(zip(kinds, lanes, strict=True), operator.itemgetter(0)):
            alike = [lane for _, lane in run]
            places = slice(first, first + len(alike))
            own = [stack.detach()[places] for stack in stacks]
            can_be_stacked = kind is not None and (at_once or len(alike) > 1)
            self._runs.append((places, _Run(alike, own, can_be_stacked=can_be_stacked, at_once=at_once)))
            first = places.stop

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step of each lane, and then its average.

        Args:
            gradients: Of the stacks; None where there is none.
        """
        if self._clipping is not None:
            self._clipping(gradients)
        for places, run in self._runs:
            run.step([None if one is None else one[places] for one in gradients])
        for averages in self._averages:
            averages()

    def end(self) -> None:
        """Let each optimizer keep what came of the steps.

        Raises:
            NotFusible: Something within the epoch has made another kind of one, or replaced what it keeps.
        """
        for _, run in self._runs:
            run.end()
        for averages in self._averages:
            averages.end()
        for lane in self._lanes:
            lane.end_steps()
        found = zip(self._lanes, self._groups, self._groups_now(), self._kinds, self._kinds_now(), strict=True)
        changed = [
            lane.trainer
            for lane, groups, groups_now, kind, kind_now in found
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
        self._tries = 2 if can_be_stacked else 0  # a first step makes what an optimizer keeps
        self._last: Sequence[Tensor | None] = []
        self._all_steady = all(lane.is_steady for lane in lanes)
        self._averaged = [lane for lane in lanes if lane.average is not None and not at_once]
        self._clips = not at_once and any(lane.trainer.parts.clip_norm is not None for lane in lanes)
        self._memory: list[Tensor] = []
        self._in_memory: Sequence[Sequence[Tensor | None]] = []
        if sum(stack.numel() for stack in stacks) <= _MOST_COPIED and all(lane.keeps_no_gradients for lane in lanes):
            self._memory = [torch.empty_like(stack) for stack in stacks]
            self._in_memory = self._of_each(self._memory)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        if self._together is None and self._tries > 0:
            self._tries -= 1
            optimizers = [lane.trainer.optimizer for lane in self._lanes]
            trained = [lane.trained for lane in self._lanes]
            self._together = stacked_steps(optimizers, trained, self._stacks, self._most)
        if self._together is not None and self._together.takes(gradients):
            self._clip(gradients)
            self._together(gradients)
        else:
            self._apart()
            for lane, own in zip(self._lanes, self._taken_apart(gradients), strict=True):
                lane.update(own)
        for lane in self._averaged:
            lane.take_average()
        self._last = gradients
        if not self._all_steady:
            self._leave(last=False)

    def end(self) -> None:
        self._apart()
        self._leave(last=True)

    def _apart(self) -> None:
        """Go on with steps of each by itself."""
        if self._together is not None:
            self._together.end()
            self._together, self._tries = None, 0

    def _leave(self, *, last: bool) -> None:
        for lane, own in zip(self._lanes, self._of_each(self._last), strict=True):
            lane.leave(own, last=last)

    def _clip(self, gradients: Sequence[Tensor | None]) -> None:
        if self._clips:
            for lane, own in zip(self._lanes, self._of_each(gradients), strict=True):
                lane.clip(own)

    def _taken_apart(self, gradients: Sequence[Tensor | None]) -> Sequence[Sequence[Tensor | None]]:
        """Set the gradients of each lane, where nothing keeps them in the very same memory in each step."""
        given = [one for one in gradients if one is not None]
        if not self._memory or len(given) < len(self._memory):
            return self._of_each(gradients)
        torch._foreach_copy_(self._memory, given)
        return self._in_memory

    def _of_each(self, gradients: Sequence[Tensor | None]) -> Sequence[Sequence[Tensor | None]]:
        """Set the gradients of each lane."""
        lanes = len(self._lanes)
        unstacked = [[None] * lanes if one is None else one.unbind() for one in gradients]
        return [*zip(*unstacked, strict=True)] if unstacked else [()] * lanes
