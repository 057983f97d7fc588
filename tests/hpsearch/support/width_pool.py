"""A pool of workers for the tests of widths: counted, not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpsearch.decision import Decision
from hpsearch.events import Finished, Saved, Started
from hpsearch.sweep.parts import Resources
from hpsearch.trial import Report, Segment
from hpsearch.widths.widths import Widths


class Pool:
    """Workers, and the widths of what runs on them; each call does what the orchestrator and a backend would."""

    def __init__(self, workers: int, restart: float = 0.0, **resources: object) -> None:
        given: dict[str, object] = {"max_workers_per_trial": workers, **resources}
        self.capped: dict[int, int] = {}
        self.brackets: dict[int, int] = {}
        asked = Resources(**given)  # type: ignore[arg-type]
        self.least, self.most = asked.workers_per_trial, asked.widest
        self.widths = Widths(self.least, self.most, self.capped.get, restart)
        self.free = workers
        self.running: dict[int, Segment] = {}
        self.reached: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self.reasons: dict[int, str] = {}

    def start(self, *trials: int, end: int | None = 9, waiting: int = 0) -> list[int]:
        """Start trials where they stand; return their widths."""
        starts = []
        for trial in trials:
            self.attempts[trial] = self.attempts.get(trial, 0) + 1
            at = self.reached.setdefault(trial, 0)
            segment = Segment(trial, at, end, None, self.attempts[trial])
            starts.append(Started(segment, None, bracket=self.brackets.get(trial, 0), rung=0))
        assigned = self.widths.assign(starts, self.free, waiting)
        assert [start.segment.trial for start in assigned] == list(trials)
        for start in assigned:
            self.widths.observe(start, ())
            self.free -= start.segment.width
            self.running[start.segment.trial] = start.segment
            self.reasons[start.segment.trial] = start.reason
        assert self.free >= 0
        return [start.segment.width for start in assigned]

    def run(self, trial: int, iterations: int, seconds: float | Callable[[int], float] = 1.0) -> tuple[Report, ...]:
        """Let a trial run on, and tell of it live."""
        width, at = self.running[trial].width, self.reached[trial]
        each = seconds(width) if callable(seconds) else seconds
        self.reached[trial] = at + iterations
        reports = tuple(Report(trial, i, {"loss": 1.0}, each) for i in range(at + 1, at + iterations + 1))
        self.widths.report(reports)
        return reports

    def save(self, trial: int) -> None:
        """Let a trial write a checkpoint where it stands."""
        segment = self.running[trial]
        self.widths.observe(Saved(trial, segment.attempt, self.reached[trial], "checkpoint", ()), ())

    def finish(
        self,
        trial: int,
        cut: bool = False,
        seconds: float = 0.0,
        reports: Sequence[Report] = (),
        decisions: Sequence[Decision] = (),
        checkpoint: str | None = "checkpoint",
    ) -> None:
        """End a trial's segment where it stands."""
        segment = self.running.pop(trial)
        self.free += segment.width
        at = self.reached[trial]
        finished = Finished(trial, segment.attempt, at, checkpoint, tuple(reports), cut, seconds)
        self.widths.observe(finished, decisions)

    def cut(self, waiting: int = 0) -> list[int]:
        """Return the trials that are to be cut."""
        cuts = self.widths.cuts(self.free, waiting, self.free + sum(one.width for one in self.running.values()))
        assert all(self.running[trial].attempt == attempt for trial, attempt in cuts)
        return [trial for trial, _ in cuts]

    def width(self, trial: int) -> int:
        return self.running[trial].width
