"""Everyone who watches a sweep run: observers on their threads, and the screen."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hpsearch.events import Failed
from hpsearch.observers.base import Observer, Record
from hpsearch.observers.progress import MOST_FAILURES, Display, Snapshot
from hpsearch.observers.thread import ObserverThread, close_all
from hpsearch.observers.time_left import TimeLeft
from hpsearch.study.state import StudyState
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report

__all__ = ["Watching"]

_RUNGS_SECONDS = 2.0
"""Time between two looks of the observers at the rungs, on the backend's clock."""


class Watching:
    """All who watch, as the orchestrator sees them."""

    def __init__(self, sweep: Sweep, observers: Sequence[Observer], display: Display, spent: float = 0.0) -> None:
        """Join them.

        Args:
            sweep: What is run.
            observers: Each gets a thread.
            display: The screen.
            spent: Seconds that former runs took of `limits.max_time`.
        """
        self._sweep = sweep
        self._display = display
        self._threads = [ObserverThread(observer, self.say) for observer in observers]
        self._failures: deque[tuple[int, str]] = deque(maxlen=MOST_FAILURES)
        self._time_left = TimeLeft(sweep, spent)
        self._next_rungs = 0.0

    def observe(self, record: Record) -> None:
        """Pass a journaled event on."""
        event = record.event
        if isinstance(event, Failed) and not event.retry:
            self._failures.append((event.trial, event.failure.message))
        self._time_left.observe(event)
        for thread in self._threads:
            thread.observe(record)

    def report(self, reports: Sequence[Report]) -> None:
        """Pass live reports on."""
        self._time_left.report(reports)
        for thread in self._threads:
            thread.report(reports)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._display.note(text)

    def look(self, study_state: StudyState, workers: Workers, elapsed: float, last: bool = False) -> None:
        """Redraw the screen, and now and then show the observers the rungs."""
        if last or elapsed >= self._next_rungs:
            self._next_rungs = elapsed + _RUNGS_SECONDS
            for thread in self._threads:
                thread.rungs(study_state.rungs())
        self._display.show(self._snapshot(study_state, workers, elapsed))

    def close(self) -> None:
        """Show the end, and wait until the observers have written everything, each within its deadline."""
        self._display.close()
        close_all(self._threads)

    def _snapshot(self, study_state: StudyState, workers: Workers, elapsed: float) -> Snapshot:
        total, rungs = study_state.total(), study_state.rungs()
        wide = self._sweep.resources.widest > 1
        return Snapshot(
            name=self._sweep.name,
            objective=self._sweep.objective,
            rungs=rungs,
            counts=study_state.counts(),
            leaders=study_state.leaders(),
            workers=workers,
            iterations=study_state.iterations,
            total=total,
            elapsed=elapsed,
            remaining=self._time_left.estimate(rungs, total, workers, elapsed),
            failures=tuple(self._failures),
            widths=Counter(segment.width for segment in study_state.running()) if wide else {},
        )
