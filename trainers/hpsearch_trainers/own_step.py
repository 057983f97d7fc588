"""Sees that a trainer whose class has a `step` of its own is trained as its strategy says."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpsearch_comm.errors import ConfigurationError

if TYPE_CHECKING:
    from hpsearch_trainers.trainer import Trainer

__all__ = ["checked"]

_CHECKED: weakref.WeakSet[Callable[[Any], dict[str, float]]] = weakref.WeakSet()


def checked(step: Callable[[Any], dict[str, float]]) -> Callable[[Any], dict[str, float]]:
    """Give a `step` that raises where it would return and no epoch of the strategy has ended in it.

    Args:
        step: Of a class that is derived from Trainer, or of one of its bases; one that was given before stays.
    """
    if step in _CHECKED:
        return step

    @functools.wraps(step)
    def around(self: Trainer) -> dict[str, float]:
        strategy = self._strategy
        before = strategy.epochs
        metrics = step(self)
        if strategy.epochs == before and not strategy.may_be_left_out:
            raise ConfigurationError(
                f"{type(self).__name__}.step must train for an epoch with super().step() under parallel.strategy "
                f"{strategy.name}, but returned without: what it reports would be of a model that each rank trains by "
                "itself. Call super().step() in it; a loop of your own belongs in a class that isn't a Trainer, and "
                "says what ranks exchange"
            )
        return metrics

    _CHECKED.add(around)
    return around
