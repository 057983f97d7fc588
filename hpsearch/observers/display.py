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
"""Of the newest ones those that are shown."""

LONG_WAIT = 2.0
"""Seconds of waiting from which on it is said."""


@dataclass(frozen=True, slots=True)
class Running:
    """A trial that runs."""

    trial: int
    params: Params
    iteration: int
    """The last one that it told of, or the one that its segment began after."""
    until: int | None
    """The last one of its segment; None where it has no bound."""
    metrics: Mapping[str, float]
    """What it reported last in its segment; empty where it didn't yet."""
    width: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a sweep stands, as a person wants to see it."""

    name: str
    objective: Objective
    rungs: Sequence[RungView]
    counts: Mapping[TrialState, int]
    leaders: Sequence[TrialRow]
    """Those that no other one is better than: of one goal the best one."""
    workers: Workers
    iterations: int
    """Iterations that count so far."""
    total: tuple[int, int] | None
    """(trials, iterations) of the whole sweep; None where no bound is known."""
    elapsed: float
    """Seconds of this run."""
    remaining: float | None
    """Seconds, estimated; None where nothing can be said."""
    failures: Sequence[tuple[int, str]] = ()
    """(trial, message) of the newest failures, the newest last."""
    widths: Mapping[int, int] = field(default_factory=dict)
    """Running trials by how many workers each has; empty where none can have more than one."""
    shares: bool = False
    """Whether workers train several trials beside each other."""
    packs: tuple[int, int] = (0, 0)
    """Running trials that were trained as one computation with others when they reported last, and how many packs that
    is."""
    waiting: tuple[str, float] | None = None
    """What the sweep waits for, and for how many seconds now; None while nothing holds it up."""
    running: Sequence[Running] = ()
    """Trials that run, by number; none where the display doesn't show them."""


class Display:
    """Where a sweep shows how it goes. Each kind does what it can of this, and the rest does nothing."""

    most_running = 0
    """Trials that run of which snapshots are to tell: the first ones."""

    def show(self, snapshot: Snapshot) -> None:
        """Show where the sweep stands; called a few times a second."""

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def wait(self, what: str) -> None:
        """Show that the thread of the caller is held up by this, until something else is to be shown."""

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
        """Show where the sweep stands."""
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
