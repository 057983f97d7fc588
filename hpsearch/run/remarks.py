"""Messages of a run about its trials, each only once."""

from __future__ import annotations

from hpsearch.events import Started
from hpsearch.observers.base import Observers
from hpsearch.searchers.first_trials import STAND_IN
from hpsearch.tables.wording import counted
from hpsearch.task import Result
from hpsearch.trial import Trial

__all__ = ["Remarks"]


class Remarks:
    """Keeps track of the messages.

    Args:
        observers: Receive the messages.
        module_changes_stay: Consequence of a change of the trainable's modules; empty: there is no message.
    """

    def __init__(self, observers: Observers, module_changes_stay: str = "") -> None:
        self._observers = observers
        self._module_changes_stay = module_changes_stay
        self._told: set[str] = set()  # settings that trials changed, and values of modules
        self._told_ignored = False
        self._stand_ins = 0

    def start(self, event: Started, trial: Trial) -> None:
        """Report a fork that starts without its parent's checkpoint."""
        self._stand_ins += event.new is not None and event.new.origin == STAND_IN
        parent = None if event.new is None else event.new.parent
        if parent is not None and parent.checkpoint is None:
            self._observers.say(
                f"trial {trial.number} starts from zero: there is no checkpoint of trial {parent.number} at "
                f"iteration {parent.iteration}, from which it was to be forked"
            )

    def end(self, result: Result) -> None:
        """Remark on a segment that ended: what it changed of its process, and a checkpoint without use."""
        self._settings(result)
        if result.ignored_checkpoint and not self._told_ignored:
            self._told_ignored = True
            self._observers.say(
                f"trial {result.trial} went on from a checkpoint without a look at trial.checkpoint: if it trained "
                "from zero, what it reported isn't of the iterations that it counts for. Load the checkpoint before "
                "the loop, or report without one: then each promotion starts from zero"
            )

    def _settings(self, result: Result) -> None:
        trial = result.trial
        new = [setting for setting in result.changed if setting not in self._told]
        self._told.update(new)
        if new:
            which = "; such changes are put back after each segment, and named in its output.log"
            self._observers.say(f"trial {trial} changed its whole process: {', '.join(new)}{which}")
        changes = [name for name in result.module_changes if name not in self._told]
        if changes and self._module_changes_stay:
            self._told.update(changes)
            self._observers.say(f"{', '.join(changes)} changed while trial {trial} ran: {self._module_changes_stay}")
        if result.stuck:
            self._observers.say(f"trial {trial} changed what couldn't be put back: {', '.join(result.stuck)}")

    def stand_ins(self) -> None:
        """Return how many trials took a random point for want of a suggestion."""
        if self._stand_ins:
            self._observers.say(
                f"{counted(self._stand_ins, 'trial')} took a random point, as no suggestion was ready when a worker "
                "was free; with search.ahead: false workers wait for suggestions"
            )
