"""Plain functions that are called as trials end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from hpsearch.errors import StopSearch
from hpsearch.events import Failed
from hpsearch.observers.base import Record
from hpsearch.trial import TrialRow

__all__ = ["Callback", "Callbacks"]

Callback = Callable[[TrialRow], object]
"""Called with the row of a trial that has ended; raises `StopSearch` to end the sweep."""


class Callbacks:
    """Calls functions, in their order, on the thread that runs the sweep."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        row_of: Callable[[int], TrialRow],
        stop: Callable[[], object],
        say: Callable[[str], None],
    ) -> None:
        """Create the observer.

        Args:
            callbacks: The functions.
            row_of: Returns a trial's current row.
            stop: Called if a callback requests the sweep's end.
            say: Called once per callback that raised.
        """
        self._callbacks = list(callbacks)
        self._row_of = row_of
        self._stop = stop
        self._say = say

    def observe(self, record: Record) -> None:
        """Call all functions for each trial that ended with a record of this run."""
        event = record.event
        if isinstance(event, Failed) and not event.retry:
            self._call(event.trial)
        for decision in record.decisions:
            if decision.action in ("stop", "complete"):
                self._call(decision.trial)

    def _call(self, trial: int) -> None:
        for callback in list(self._callbacks):
            try:
                # A copy: a callback must not change the sweep's params.
                callback(copy.deepcopy(self._row_of(trial)))
            except StopSearch:
                self._stop()
            except Exception as error:
                self._callbacks.remove(callback)
                name = getattr(callback, "__name__", type(callback).__name__)
                self._say(
                    f"the callback {name} raised {type(error).__name__}: {error} at trial {trial}, and is called no "
                    "more; the sweep goes on"
                )
