"""State that a training can restore."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpsearch_comm.horovod.missing import IN_ELASTIC_STATE, missing_from
from hpsearch_comm.horovod.objects import broadcast_object

__all__ = ["ObjectState", "State"]

__getattr__ = missing_from(__name__, IN_ELASTIC_STATE)


class State:
    """State that a training can restore. Subclass it for your own kind.

    Attributes:
        commits: Number of commits.
    """

    def __init__(self) -> None:
        self.commits = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Add functions that are called when ranks have met again."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """React to ranks that have met again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the current state; call it on every rank at the same point of the training."""
        self.save()
        self.commits += 1

    def check_host_updates(self) -> None:
        """Do nothing: the list of hosts is fixed."""

    def save(self) -> None:
        """Save the current state."""
        raise NotImplementedError(f"{type(self).__name__} must have a method save()")

    def restore(self) -> None:
        """Restore what was saved."""
        raise NotImplementedError(f"{type(self).__name__} must have a method restore()")

    def sync(self) -> None:
        """Copy rank 0's state to every rank, and save it; a collective."""
        raise NotImplementedError(f"{type(self).__name__} must have a method sync()")

    def reset(self) -> None:
        """Prepare for ranks that have met again."""


class ObjectState(State):
    """Python objects, as attributes.

    Args:
        **objects: Become attributes of these names; they must be picklable.
    """

    def __init__(self, **objects: Any) -> None:
        super().__init__()
        self._names = list(objects)
        for name, value in objects.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        ObjectState.save(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        """Save copies of all objects."""
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def restore(self) -> None:
        """Restore all objects."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Copy rank 0's objects to every rank, and save them; a collective."""
        objects = {name: getattr(self, name) for name in self._names}
        for name, value in broadcast_object(objects, name="elastic_state").items():
            setattr(self, name, value)
        ObjectState.save(self)
