"""A study's current state, updated by new entries of its journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import HpsearchError
from hpsearch.events import Ended, Entry, Failed, Opened, Started, Steered, trial_of
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import BEGINNING, Journal
from hpsearch.observers.time_left import TimeLeft
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.standing import Standing
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import TrialRow

LOOK_SECONDS = 1.0
"""Seconds between two polls."""


DONE: Mapping[str, str] = {
    "pause": "paused: running trials end at their next reports, and nothing new starts",
    "resume": "resumed",
    "stop": "stopping at the next reports of its trials",
    "cancel": "cancelled",
    "prune": "pruned: what runs of it ends at its next report",
    "retry": "failed trials run again as soon as workers are free",
    "extend": "extended",
    "add": "added: the next new trials use these configurations",
}
"""By verb, the message to the user once a request was carried out."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of one poll."""

    entries: Sequence[Entry]
    holder: str | None
    """Process that runs the study, as `user@host:pid`; None if none does."""
    record: Mapping[str, Any] | None = None
    """The study's record, if the poll returns all entries: at the first poll, or if the journal was replaced."""


class Tail:
    """Reads the new entries of a journal. The journal is closed between polls, so that it blocks no other process."""

    def __init__(self, study_dir: StudyDirectory) -> None:
        self._study_dir = study_dir
        self._position = BEGINNING
        self._has_read = False

    def look(self) -> Looked:
        """Read new entries.

        Raises:
            JournalError: The journal is missing or can't be read.
        """
        before = self._study_dir.holder()
        with Journal.read(self._study_dir.journal) as journal:
            added = journal.added(self._position) if self._has_read else None
            record = None
            if added is None:
                record, added = journal.study(), journal.added()
                assert added is not None, "all events follow the beginning"
            entries, self._position = added
        self._has_read = True
        # If the study was locked before or after reading, no process was killed. Only the last entries may be missing.
        return Looked(entries, before or self._study_dir.holder(), record)

    def begin_anew(self) -> None:
        """Make the next poll return all entries."""
        self._has_read = False


class Looking:
    """Polls a journal in its own thread, so that a hanging file system doesn't block the app."""

    def __init__(
        self, tail: Tail, receive: Callable[[Looked | HpsearchError], object], pause: float = LOOK_SECONDS
    ) -> None:
        """Create the poller.

        Args:
            tail: Reads the journal. From now on, only the thread may use it.
            receive: Called in the thread with each result or error.
            pause: Seconds between two polls.
        """
        self._tail = tail
        self._receive = receive
        self._pause = pause
        self._over, self._now = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpsearch-watch", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def soon(self, anew: bool = False) -> None:
        """Poll at once. If `anew` is True, read all entries."""
        if anew:
            self._tail.begin_anew()
        self._now.set()

    def end(self) -> None:
        """Stop polling. A hanging poll is abandoned."""
        self._over.set()
        self._now.set()

    def _work(self) -> None:
        while not self._over.is_set():
            self._now.wait(self._pause)
            self._now.clear()
            try:
                result: Looked | HpsearchError = self._tail.look()
            except HpsearchError as error:
                result = error
            if not self._over.is_set():
                self._receive(result)


class LiveStudy:
    """The current state of a study.

    Args:
        looked: Result of the first poll.

    Raises:
        JournalError: The journal has an impossible event.
    """

    def __init__(self, looked: Looked) -> None:
        self.rows: list[TrialRow] = []
        """All trials, by number."""
        self.holder: str | None = None
        """Process that runs the study, as `user@host:pid`; None if none does."""
        self.answers: dict[int, Steered] = {}
        """Results of requests, by number."""
        self.failure: tuple[int, str] | None = None
        """(trial, message) of the newest failure."""
        self.take(looked)

    def _begin(self, record: Mapping[str, Any]) -> None:
        sweep = Sweep.from_json(record["sweep"])
        self.journaled = JournaledState(sweep)
        """Trials and totals."""
        self._records = self.journaled.records
        self._standing = Standing(sweep)
        self._time_left = TimeLeft(sweep)
        self._opened: Opened | None = None
        self._runs = 0
        self._began = self._last = 0.0
        self._most_busy = 0
        self.rows.clear()
        self.answers.clear()
        self.failure = None

    def take(self, looked: Looked) -> set[int]:
        """Apply new entries, and return the trials that changed.

        Raises:
            JournalError: The journal has an impossible event.
        """
        if looked.record is not None:
            self._begin(looked.record)
        changed: set[int] = set()
        for entry in looked.entries:
            changed |= self._touched(entry)
            for _ in self.journaled.read((entry,)):
                self._follow(entry)
        self.holder = looked.holder
        if not self.is_live and not self.is_ask_tell and self._records.running:
            changed |= self._records.running
            self.journaled.leave(self.ended)
        self.rows += [self._records.row(trial) for trial in range(len(self.rows), len(self._records))]
        for trial in changed:
            self.rows[trial] = self._records.row(trial)
        return changed

    def _touched(self, entry: Entry) -> set[int]:
        """Return the trials whose rows an entry changes."""
        event, decided = entry.event, {decision.trial for decision in entry.followed.decisions}
        if isinstance(event, Opened | Ended | Steered):
            return decided | self._records.running
        trial = trial_of(event)
        return decided if trial is None else decided | {trial}

    def _follow(self, entry: Entry) -> None:
        event = entry.event
        self._standing.take(entry)
        self._last = max(self._last, entry.time)
        match event:
            case Opened():
                self._opened, self._began, self._last, self._most_busy = event, entry.time, entry.time, 0
                self._runs += 1
            case Started():
                self._most_busy = max(self._most_busy, self._busy)
            case Failed(trial=trial, failure=failure, retry=False):
                self.failure = trial, failure.message
            case Steered(request=int(number)):
                self.answers[number] = event
        self._time_left.observe(event, self._last - self._began)

    @property
    def sweep(self) -> Sweep:
        """The sweep, including its extensions."""
        return self._standing.sweep

    @property
    def is_live(self) -> bool:
        """Whether a process runs the study."""
        return self.holder is not None

    @property
    def is_ask_tell(self) -> bool:
        """Whether it is an ask/tell study, whose trials run elsewhere."""
        return self.journaled.is_ask_tell

    @property
    def ended(self) -> Ended:
        """State of the study; see `Standing`."""
        return self._standing.ended(self.is_live)

    @property
    def _busy(self) -> int:
        return sum(segment.width for segment in self._records.segments())

    @property
    def workers(self) -> Workers:
        """Number of workers; if unknown, the largest number that were busy at once."""
        count = None if self._opened is None else self._opened.workers
        if count is not None and self.sweep.resources.lanes > 1:
            return Workers(count, min(count, self._busy), count)
        ready = self._most_busy if count is None else max(count, self._busy)
        return Workers(ready, self._busy, ready)

    @property
    def workers_are_known(self) -> bool:
        """Whether the run's number of workers is known."""
        return self._opened is not None and self._opened.workers is not None

    def remaining(self, now: float | None = None) -> float | None:
        """Return the estimated remaining seconds; None if unknown.

        For a resumed study this is unknown, as the journal doesn't contain the limits that it was resumed with.

        Args:
            now: Time in seconds since the epoch; None: the current time.
        """
        virtual = self._opened is not None and self._opened.backend == "simulated"
        shared = self.sweep.resources.lanes > 1  # the journal doesn't record how many workers are busy
        if self.ended.state != "running" or self._runs != 1 or virtual or shared:
            return None
        elapsed = max(time.time() if now is None else now, self._last) - self._began
        return self._time_left.estimate(self.journaled.rungs(), self.journaled.total, self.workers, elapsed)
