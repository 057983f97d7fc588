"""The screen's seam: what a sweep shows of itself while it runs, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.objective import Objective
from hpsearch.schedulers.base import RungView
from hpsearch.task import Workers
from hpsearch.trial import Params, TrialRow, TrialState

__all__ = ["LONG_WAIT", "MOST_FAILURES", "Display", "Running", "Silent", "Snapshot", "Unfailing"]

MOST_FAILURES = 3
"""Number of the newest ones that are shown."""

LONG_WAIT = 2.0
"""Seconds of waiting after which it is shown."""


@dataclass(frozen=True, slots=True)
class Running:
    """A trial that runs."""

    trial: int
    params: Params
    iteration: int
    """Its last reported iteration, or the start of its segment."""
    until: int | None
    """The last one of its segment; None where it has no bound."""
    metrics: Mapping[str, float]
    """Its last report in the segment; empty without one."""
    width: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sweep's state for displays."""

    name: str
    objective: Objective
    rungs: Sequence[RungView]
    counts: Mapping[TrialState, int]
    leaders: Sequence[TrialRow]
    """Non-dominated trials; with one goal the best one."""
    workers: Workers
    iterations: int
    """Iterations that count so far."""
    total: tuple[int, int] | None
    """(trials, iterations) of the whole sweep; None where no bound is known."""
    elapsed: float
    """Seconds of this run."""
    remaining: float | None
    """Estimated seconds; None if unknown."""
    failures: Sequence[tuple[int, str]] = ()
    """(trial, message) of the newest failures, the newest last."""
    widths: Mapping[int, int] = field(default_factory=dict)
    """Running trials by how many workers each has; empty where none can have more than one."""
    shares: bool = False
    """Whether workers train several trials in parallel."""
    packs: tuple[int, int] = (0, 0)
    """Running trials that were trained as one computation with others when they reported last, and how many packs that
    is."""
    waiting: tuple[str, float] | None = None
    """(what the sweep waits for, seconds so far); None if nothing blocks it."""
    running: Sequence[Running] = ()
    """Trials that run, by number; none where the display doesn't show them."""


class Display:
    """Displays a sweep's progress. Methods that a subclass doesn't override do nothing."""

    most_running = 0
    """Most running trials in a snapshot: the first ones."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the sweep's state; called a few times a second."""

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def wait(self, what: str) -> None:
        """Show what blocks the caller's thread, until the next update."""

    def close(self) -> None:
        """Leave what was shown last, and let go of the terminal."""


class Silent(Display):
    """Shows nothing."""


class Unfailing(Display):
    """Shows on another display until that fails: a screen that is gone (`| head`) is no reason to end a sweep."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.most_running = display.most_running

    def show(self, snapshot: Snapshot) -> None:
        """Show the sweep's state."""
        self._try(lambda display: display.show(snapshot))

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._try(lambda display: display.note(text))

    def wait(self, what: str) -> None:
        """Show what holds the caller up."""
        self._try(lambda display: display.wait(what))

    def close(self) -> None:
        """Leave what was shown last."""
        self._try(lambda display: display.close())

    def _try(self, call: Callable[[Display], None]) -> None:
        try:
            call(self._display)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._display = Silent()
