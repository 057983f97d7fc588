"""What a pack has read of its lanes at an epoch's beginning holds until its end."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence

from hpsearch_trainers.lanes.dropout import DROPOUT_MODULES
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import modules_of
from hpsearch_trainers.lanes.shape_key import model_key

__all__ = ["Settled"]


class Settled:
    """Sees that losses and schedules leave the models as they are, but for what lies in their tensors.

    Args:
        lanes: Those that have such of the user's, at an epoch's beginning.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._before = [*map(_settings, lanes)]

    def check(self) -> None:
        """Check that nothing has changed.

        Raises:
            NotFusible: It has: alone, what comes after it is computed otherwise.
        """
        moved = [lane.trainer for lane in self._lanes if not lane.is_bound()]
        if moved:
            raise NotFusible("its loss or schedule changes layers, parameters or the optimizer within an epoch", moved)
        pairs = zip(self._lanes, self._before, strict=True)
        changed = [lane.trainer for lane, before in pairs if not _is_still(lane, before)]
        if changed:
            raise NotFusible("its loss or schedule changes settings of its model within an epoch", changed)


def _is_still(lane: Lane, before: Hashable) -> bool:
    with contextlib.suppress(NotFusible):  # it has hooks by now, say
        return _settings(lane) == before
    return False


def _settings(lane: Lane) -> Hashable:
    modules = modules_of(lane.model)
    rates = tuple(module.p for module in modules if isinstance(module, DROPOUT_MODULES))
    return tuple(module.training for module in modules), rates, model_key(lane.model)
