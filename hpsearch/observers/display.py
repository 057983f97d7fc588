"""The interface of displays: the state of a running sweep, its formatting, and the base class of displays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hpsearch.objective import Objective
from hpsearch.schedulers.base import RungView
from hpsearch.tables.wording import by_state, by_width, counted, duration, front_line
from hpsearch.task import Workers
from hpsearch.trial import Params, TrialRow, TrialState

MOST_FAILURES = 3
"""Number of failures that are shown, the newest ones."""

LONG_WAIT = 2.0
"""Seconds after which a wait is shown."""

_WAIT_PAUSE = 1.0
"""Seconds before the first report of a wait, and between reports."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running trial."""

    trial: int
    params: Params
    iteration: int
    """Last reported iteration, or the start of the segment."""
    until: int | None
    """Last iteration of the segment; None if it has no bound."""
    metrics: Mapping[str, float]
    """Metrics of the last report in the segment; empty if there is none."""
    width: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sweep, for displays."""

    name: str
    objective: Objective
    rungs: Sequence[RungView]
    counts: Mapping[TrialState, int]
    leaders: Sequence[TrialRow]
    """Non-dominated trials; with one goal, the best trial."""
    workers: Workers
    iterations: int
    """Iterations that count so far."""
    total: tuple[int, int] | None
    """(trials, iterations) of the whole sweep; None if there is no known bound."""
    elapsed: float
    """Seconds since the start of this run."""
    remaining: float | None
    """Estimated remaining seconds; None if unknown."""
    failures: Sequence[tuple[int, str]] = ()
    """(trial, message) of the newest failures, the newest last."""
    widths: Mapping[int, int] = field(default_factory=dict)
    """Number of running trials by their number of workers; empty if every trial has one worker."""
    shares: bool = False
    """Whether workers train several trials in parallel."""
    packs: tuple[int, int] = (0, 0)
    """(trials, packs): running trials whose last report was trained as one computation with others, and the number of
    these computations."""
    waiting: tuple[str, float] | None = None
    """(reason, seconds so far) of a wait that blocks the sweep; None if nothing blocks it."""
    running: Sequence[Running] = ()
    """Running trials, by number; empty if the display doesn't show them."""
    resource: str | None = None
    """What rungs end by; None: iterations."""


class Display:
    """Base class of displays of a sweep's progress. Methods that a subclass doesn't override do nothing."""

    most_running = 0
    """Largest number of running trials in a snapshot. Further ones are left out."""

    waiting: WaitReporter | None = None
    """Shows what the calling thread waits for."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the sweep's state. Called a few times a second."""

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def wait(self, reason: str) -> None:
        """Show what the calling thread waits for, until the next update."""

    def end_wait(self) -> None:
        """Stop showing what the calling thread waits for."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.end()

    def close(self) -> None:
        """Keep the last output on the screen, and release the terminal."""


class SilentDisplay(Display):
    """A display that shows nothing."""


class UnfailingDisplay(Display):
    """Wraps a display, and ignores its errors: a closed output (`| head`) doesn't end the sweep."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.most_running = display.most_running

    def show(self, snapshot: Snapshot) -> None:
        """Show the sweep's state."""
        self._try(lambda display: display.show(snapshot))

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._try(lambda display: display.note(text))

    def wait(self, reason: str) -> None:
        """Show what the calling thread waits for."""
        self._try(lambda display: display.wait(reason))

    def close(self) -> None:
        """Keep the last output on the screen."""
        self._try(lambda display: display.close())

    def _try(self, call: Callable[[Display], None]) -> None:
        try:
            call(self._display)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._display = SilentDisplay()


class WaitReporter:
    """Reports a wait once per second, from its own thread. Waits of less than a second aren't reported."""

    def __init__(self, say: Callable[[float], object], pause: float = _WAIT_PAUSE) -> None:
        """Start the thread.

        Args:
            say: Function that receives the seconds so far. It is called until it returns False.
            pause: Seconds before the first call, and between calls.
        """
        self._say = say
        self._pause = pause
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpsearch-waiting", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop reporting."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with suppress(OSError, ValueError):  # a closed output is not an error
            while not self._over.wait(self._pause):
                if self._say(time.monotonic() - self._began) is False:
                    return


def line_of(snapshot: Snapshot) -> str:
    """Format a snapshot as one line."""
    parts = [f"{duration(snapshot.elapsed):>10}", trials_of(snapshot), _busy(snapshot), _iterations(snapshot)]
    if snapshot.leaders:
        parts.append(_leaders_line(snapshot))
    if snapshot.remaining is not None:
        parts.append(f"~{duration(snapshot.remaining)} left")
    return "  ".join(parts)


def _leaders_line(snapshot: Snapshot) -> str:
    objective, first = snapshot.objective, snapshot.leaders[0]
    if objective.several:
        return f"front {front_line(snapshot.leaders, objective)}"
    broken = "" if first.feasible else f", breaks {' and '.join(objective.broken(first.score))}"
    return f"best {objective.title} {first.values[0]:.6g} (trial {first.number}{broken})"


def work_of(snapshot: Snapshot) -> str:
    """Format the progress in iterations, and the busy workers."""
    return f"{_iterations(snapshot)}, {_busy(snapshot)}"


def trials_of(snapshot: Snapshot) -> str:
    """Format the number of trials, and their states."""
    states = by_state(snapshot.counts)
    trials = None if snapshot.total is None else snapshot.total[0]
    return _of("trial", sum(snapshot.counts.values()), trials) + (f" ({states})" if states else "")


def _iterations(snapshot: Snapshot) -> str:
    return _of("iteration", snapshot.iterations, None if snapshot.total is None else snapshot.total[1])


def _busy(snapshot: Snapshot) -> str:
    text = workers_text(snapshot.workers, _sharing(snapshot) if snapshot.shares else "")
    # If workers are shared, one-worker trials don't show how many workers are busy: only wider trials are listed.
    widths = {width: count for width, count in snapshot.widths.items() if width > 1 or not snapshot.shares}
    return f"{text} ({by_width(widths, 'trial')})" if widths else text


def _sharing(snapshot: Snapshot) -> str:
    """Format the number of trials that share workers, and how many of them are trained as one computation."""
    running = snapshot.counts.get(TrialState.RUNNING, 0)
    fused, packs = snapshot.packs
    which = "" if fused == running else f", {fused:,}"
    together = f"{which} in {counted(packs, 'pack')}" if fused else ""
    return f" with {counted(running, 'trial')}{together}"


def workers_text(workers: Workers, sharing: str = "") -> str:
    """Format how many workers are busy, and how many trials share them."""
    text = f"{workers.busy} of {counted(workers.ready, 'worker')} busy{sharing}"
    return text if workers.ready >= workers.wanted else f"{text}, {workers.wanted} wanted"


def _of(unit: str, done: int, total: int | None) -> str:
    if total is None or done > total:
        return counted(done, unit) + ("" if total is None else f" ({total:,} planned)")
    return f"{done:,} of {counted(total, unit)}"
