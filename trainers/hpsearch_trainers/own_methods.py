"""Sees that methods of a trainer's own class leave what its strategy does, and keeps, to those of Trainer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpsearch_comm.errors import ConfigurationError

if TYPE_CHECKING:
    from hpsearch_trainers.trainer import Trainer

__all__ = ["METHODS", "checked"]

METHODS = {
    "step": "must train for an epoch with super().step() under parallel.strategy {}, but returned without: what it "
    "reports would be of a model that each rank trains by itself. Call super().step() in it; a loop of your own "
    "belongs in a class that isn't a Trainer, and says what ranks exchange",
    "state_dict": "must call super().state_dict() under parallel.strategy {}, which keeps more than model and "
    "optimizer, but returned without: a trial that goes on from it would train otherwise than one that is never "
    "interrupted. Call it, and put what you keep beside what it gives",
    "load_state_dict": "must call super().load_state_dict(state) under parallel.strategy {}, which keeps more than "
    "model and optimizer, but returned without: the trial would train otherwise than one that is never interrupted. "
    "Call it with what super().state_dict() gave",
}
"""What must hold of each, given the strategy's name."""

_CHECKED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def checked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method that raises where it would return, and Trainer's hasn't been called in it, which was needed.

    Args:
        name: One of `METHODS`.
        method: Of a class that is derived from Trainer, or of one of its bases; one that was given before stays.
    """
    if method in _CHECKED:
        return method

    @functools.wraps(method)
    def around(self: Trainer, *arguments: Any, **named: Any) -> Any:
        strategy = self._strategy
        before = strategy.calls[name]
        given = method(self, *arguments, **named)
        if strategy.calls[name] == before and strategy.needs(name):
            raise ConfigurationError(f"{type(self).__name__}.{name} {METHODS[name].format(strategy.name)}")
        return given

    _CHECKED.add(around)
    return around
