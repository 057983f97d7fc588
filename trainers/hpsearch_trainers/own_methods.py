"""Check that overrides in a subclass of Trainer call the methods that the trial's strategy needs."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.strategy import Strategy

METHODS = {
    "step": "must train for an epoch with super().step() under parallel.strategy {}, but returned without: what it "
    "reports would be of a model that each rank trains by itself. Call super().step() in it; a loop of your own "
    "belongs in a class that isn't a Trainer, and says what ranks exchange",
    "state_dict": "must call super().state_dict() under parallel.strategy {}, which keeps more than model and "
    "optimizer, but returned without: a trial resumed from it would train differently from one that is never "
    "interrupted. Call it, and add your own entries to what it returns",
    "load_state_dict": "must call super().load_state_dict(state) under parallel.strategy {}, which keeps more than "
    "model and optimizer, but returned without: the trial would train differently from one that is never interrupted. "
    "Call it with what super().state_dict() gave",
}
"""Methods that are checked, with the rest of the error message; the strategy's name is inserted."""

_DROPPED = {
    "state_dict": "must return all that super().state_dict() returns under parallel.strategy {}, which keeps more than "
    "model and optimizer, got a state without its `strategy`: a trial resumed from it would train differently from "
    "one that is never interrupted. Keep that entry as it is, wherever you put it",
    "load_state_dict": "must call super().load_state_dict(state) with all that super().state_dict() gave under "
    "parallel.strategy {}, which keeps more than model and optimizer, got a call without its `strategy`, which the "
    "saved state has: the trial would train otherwise than one that is never interrupted. Put it back",
}
"""The rest of the error message if a state lacks the strategy's entry; the strategy's name is inserted."""

_CHECKED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def checked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an override so that it raises an error if the strategy needs Trainer's method and it didn't call that.

    It also raises an error if a state lacks the strategy's entry. A fork may load any part of another trial's state.

    Args:
        name: One of `METHODS`.
        method: Method of a subclass of Trainer. A method that is already wrapped is returned unchanged.
    """
    if method in _CHECKED:
        return method

    @functools.wraps(method)
    def around(self: Any, *arguments: Any, **keywords: Any) -> Any:
        strategy: Strategy = self._strategy
        before = strategy.calls[name]
        result = method(self, *arguments, **keywords)
        if not strategy.needs(name):
            return result
        if strategy.calls[name] == before:
            raise ConfigurationError(f"{type(self).__name__}.{name} {METHODS[name].format(strategy.name)}")
        saves, loads = name == "state_dict", name == "load_state_dict" and not self._forked
        if (saves and strategy.has_state and not _holds(result, strategy.name)) or (
            loads and not strategy.has_state and _holds([arguments, keywords], strategy.name)
        ):
            raise ConfigurationError(f"{type(self).__name__}.{name} {_DROPPED[name].format(strategy.name)}")
        return result

    _CHECKED.add(around)
    return around


def _holds(state: Any, name: str) -> bool:
    """Return whether a state contains a strategy's entry, at any depth."""
    if isinstance(state, Mapping):
        return (state.get("name") == name and len(state) > 1) or any(_holds(value, name) for value in state.values())
    return isinstance(state, list | tuple) and any(_holds(value, name) for value in state)
