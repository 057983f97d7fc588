"""Forwards a run's events to observers on their threads, to callbacks, to the run's times and to the display."""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from hpsearch.errors import StopSearch
from hpsearch.events import NO_MEMORY, Event, Failed, Finished, Lost, Opened, Reverted, Started
from hpsearch.observers.base import Observers, Record
from hpsearch.observers.display import MOST_FAILURES, Display, Running, Snapshot
from hpsearch.observers.thread import ObserverThread, close_all
from hpsearch.observers.time_left import TimeLeft
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import duration, shortened
from hpsearch.task import Workers
from hpsearch.trial import Report, Segment, TrialRow

_RUNGS_SECONDS = 2.0
"""Seconds between two updates of the rungs for observers, on the backend's clock."""

Callback = Callable[[TrialRow], object]
"""Function that receives the row of an ended trial. It may raise `StopSearch` to end the sweep."""


class Callbacks:
    """Calls the user's callbacks, in order, on the thread that runs the sweep."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        row_of: Callable[[int], TrialRow],
        stop: Callable[[], object],
        say: Callable[[str], None],
    ) -> None:
        """Create the observer.

        Args:
            callbacks: The user's callbacks.
            row_of: Returns the current row of a trial.
            stop: Called if a callback raises `StopSearch`.
            say: Called once for each callback that raises another exception.
        """
        self._callbacks = list(callbacks)
        self._row_of = row_of
        self._stop = stop
        self._say = say

    def observe(self, record: Record) -> None:
        """Call all callbacks for each trial that ended with this record, if the record is from this run."""
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
                    f"the callback {name} raised {type(error).__name__}: {error} at trial {trial}, and is not called "
                    "again; the sweep continues"
                )


class Times:
    """Records the start of a run's first segment and the end of its last one."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Create it without times.

        Args:
            clock: Returns seconds since the epoch.
        """
        self._clock = clock
        self._first: float | None = None
        self._last: float | None = None

    def observe(self, event: Event) -> None:
        """Receive an event. Events of earlier runs, before this run's `Opened`, don't count."""
        match event:
            case Opened():
                self._first = self._last = None
            case Started() if self._first is None:
                self._first = self._last = self._clock()
            case Finished() | Failed() | Lost() | Reverted() if self._first is not None:
                self._last = self._clock()

    def text(self, began: float) -> str:
        """Return the run's times as text; empty if no segment ran.

        Args:
            began: Start time of the process, in seconds since the epoch.
        """
        if self._first is None or self._last is None:
            return ""
        now = self._clock()
        parts = f"{duration(self._first - began)} to start, {duration(self._last - self._first)} searching"
        return f"took {duration(now - began)}: {parts}, {duration(now - self._last)} to end"


class ObserverHub(Observers):
    """Forwards a sweep's events, reports and state to observers, callbacks and the display."""

    def __init__(
        self,
        sweep: Sweep,
        threads: Sequence[ObserverThread],
        display: Display,
        spent: float = 0.0,
        times: Times | None = None,
        verbose: bool = False,
        callbacks: Callbacks | None = None,
    ) -> None:
        """Create the hub.

        Args:
            sweep: The running sweep.
            threads: The observers' threads.
            display: The display.
            spent: Seconds of `limits.max_time` that earlier runs used.
            times: Receives every event.
            verbose: Whether each decision is shown with its reason.
            callbacks: Called as trials end.
        """
        self._sweep = sweep
        self._display = display
        self._threads = list(threads)
        self._failures: deque[tuple[int, str]] = deque(maxlen=MOST_FAILURES)
        self._time_left = TimeLeft(sweep, spent)
        self._times = times or Times()
        self._verbose = verbose
        self._callbacks = callbacks
        self._looked = False
        self._waiting: tuple[str, float] | None = None  # (reason, since when)
        self._next_rungs = self._elapsed = 0.0
        self._shares = sweep.resources.lanes > 1
        self._newest: dict[int, Report] = {}  # by running trial, if the display shows them

    def observe(self, record: Record) -> None:
        """Pass a journaled event on."""
        event = record.event
        if isinstance(event, Failed) and not event.retry:
            self._failures.append((event.trial, event.failure.message))
        self._time_left.observe(event, self._elapsed)
        self._times.observe(event)
        if self._looked:  # records before the first update are from earlier runs
            for line in _event_lines(record) if self._verbose else ():
                self.say(line)
            if self._callbacks is not None:
                self._callbacks.observe(record)
        for thread in self._threads:
            thread.observe(record)

    def report(self, reports: Sequence[Report]) -> None:
        """Pass live reports on."""
        self._time_left.report(reports)
        if self._display.most_running or self._shares:
            self._newest.update((report.trial, report) for report in reports)
        for thread in self._threads:
            thread.report(reports)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._display.note(text)

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool = False) -> None:
        """Update the display, and pass the rungs to observers every few seconds."""
        self._looked = True
        self._elapsed = elapsed
        if last or elapsed >= self._next_rungs:
            self._next_rungs = elapsed + _RUNGS_SECONDS
            for thread in self._threads:
                thread.rungs(sweep_state.rungs())
        self._display.show(self._snapshot(sweep_state, workers, elapsed))

    def close(self) -> None:
        """Wait until the observers have written everything, each within its deadline, and close the display."""
        if self._threads:
            self._display.wait(f"waiting for {' and '.join(thread.name for thread in self._threads)}")
        close_all(self._threads)
        self._display.close()

    def _waits(self, sweep_state: SweepState, workers: Workers, elapsed: float) -> tuple[str, float] | None:
        """Return (reason, seconds so far) of a wait that blocks the sweep; None if nothing blocks it."""
        reason = ""
        if not workers.ready:
            reason = "waiting for workers, which start and import the trainable"
        elif sweep_state.is_searching and workers.busy < workers.ready:
            reason = "waiting for suggestions"
        if self._waiting is None or self._waiting[0] != reason:
            self._waiting = reason, elapsed
        return (reason, elapsed - self._waiting[1]) if reason else None

    def _running(self, sweep_state: SweepState) -> list[Running]:
        """Return the first running trials, with their last reports."""
        running = []
        for segment in sweep_state.running()[: self._display.most_running]:
            newest = self._of_segment(segment)
            at, metrics = (segment.start, {}) if newest is None else (newest.iteration, newest.metrics)
            params = sweep_state.record(segment.trial).trial.params
            running.append(Running(segment.trial, params, at, segment.end, metrics, segment.width))
        return running

    def _packs(self, sweep_state: SweepState) -> tuple[int, int]:
        """Return (trials, packs) of the running trials that were trained as one computation with others."""
        of_each = [newest.lanes for segment in sweep_state.running() if (newest := self._of_segment(segment))]
        fused = [lanes for lanes in of_each if lanes > 1]
        packs = round(
            sum(1 / lanes for lanes in fused)
        )  # not exactly whole while some trials of a pack haven't reported yet
        return len(fused), max(packs, 1) if fused else 0

    def _of_segment(self, segment: Segment) -> Report | None:
        """Return the last report of a segment."""
        newest = self._newest.get(segment.trial)
        return newest if newest is not None and newest.iteration > segment.start else None

    def _snapshot(self, sweep_state: SweepState, workers: Workers, elapsed: float) -> Snapshot:
        total, rungs = sweep_state.total(), sweep_state.rungs()
        wide = self._sweep.resources.widest > 1
        numbers = {segment.trial for segment in sweep_state.running()}
        self._newest = {trial: report for trial, report in self._newest.items() if trial in numbers}
        return Snapshot(
            name=self._sweep.name,
            objective=self._sweep.objective,
            rungs=rungs,
            counts=sweep_state.counts(),
            leaders=sweep_state.leaders(),
            workers=workers,
            iterations=sweep_state.iterations,
            total=total,
            elapsed=elapsed,
            remaining=self._time_left.estimate(rungs, total, workers, elapsed),
            failures=tuple(self._failures),
            waiting=self._waits(sweep_state, workers, elapsed),
            running=self._running(sweep_state),
            widths=Counter(segment.width for segment in sweep_state.running()) if wide else {},
            shares=self._shares,
            packs=self._packs(sweep_state) if self._shares else (0, 0),
            resource=self._sweep.resource,
        )


_AGAIN = {
    "": "lost its worker and runs again",
    "halved": "lost its worker and runs again with half of the trials that were lost with it",
    "alone": "lost its worker and runs again with one for itself",
    "wider": "runs again on twice as many workers",
}
_WORDS = {"promote": "goes on", "stop": "stopped", "complete": "complete", "withdraw": "runs again"}


def _event_lines(record: Record) -> Iterator[str]:
    """Format an event and its decisions, for verbose output."""
    event = record.event
    if isinstance(event, Failed) and event.retry:
        yield f"trial {event.trial} failed and is tried again: {shortened(event.failure.message, 200)}"
    if isinstance(event, Lost) and not event.reason.startswith(NO_MEMORY):  # that reason is always shown
        yield f"trial {event.trial} {_AGAIN[event.then]}: {shortened(event.reason, 200)}"
    for decision in record.decisions:
        yield f"trial {decision.trial} {_WORDS[decision.action]}: {decision.reason}"
