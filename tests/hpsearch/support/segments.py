"""What the tests of workers, scripts and guardians share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpsearch.events import Saved
from hpsearch.task import Result
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.worker import Worker

_PATIENCE = 150
"""Seconds that a test waits at most."""

TRIAL = Trial(number=3, params={"lr": 0.1}, seed=11, origin="random")


class Listening:
    """A channel that takes down what it hears, and asks for a cut from an iteration on."""

    def __init__(self, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.reports: list[Report] = []
        self.notes: dict[str, str] = {}
        self.saves: list[tuple[int, str | None, tuple[Report, ...]]] = []

    def reported(self, report: Report) -> None:
        """Take a report down."""
        self.reports.append(report)

    def noted(self, notes: Mapping[str, str]) -> None:
        """Take notes down."""
        self.notes |= notes

    def saved(self, saved: Saved) -> None:
        """Take a checkpoint down."""
        self.saves.append((saved.iteration, saved.checkpoint, saved.reports))

    def cut_requested(self) -> bool:
        """Ask for a cut once the iteration was reported."""
        return self.cut_at is not None and bool(self.reports) and self.reports[-1].iteration >= self.cut_at


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; not for ever, as most tests here then have processes to kill."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited for {_PATIENCE} s in vain"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits to be reaped doesn't."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def segment(start: int, end: int | None, checkpoint: str | None = None, attempt: int = 1) -> Segment:
    """Return a segment of the trial."""
    return Segment(TRIAL.number, start, end, checkpoint, attempt)


def run(worker: Worker, part: Segment, cut_at: int | None = None) -> Result:
    """Run a segment of the trial."""
    return worker.run(TRIAL, part, Listening(cut_at))
