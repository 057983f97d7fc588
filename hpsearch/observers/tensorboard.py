"""The sweep in TensorBoard: a run per trial, a run for the study, and the HParams dashboard."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpsearch.events import Event, Failed, Finished, Lost, Reverted, Saved, Started
from hpsearch.observers.base import Observer
from hpsearch.observers.domains import Domain
from hpsearch.observers.event_file import EventFiles
from hpsearch.observers.hparams import HParams
from hpsearch.report.wording import counted
from hpsearch.schedulers.base import Decision, RungView
from hpsearch.trial import Goal, Report, Segment, Trial

__all__ = ["STUDY_RUN", "WIDTH_TAG", "TensorBoardObserver", "best_tag", "rung_tag", "study_best_tag", "trial_run"]

STUDY_RUN = "study"

WIDTH_TAG = "hpsearch/width"
"""Names the scalar that holds the workers of a trial, over iterations."""


def trial_run(number: int) -> str:
    """Name a trial's run: `trial-00012`."""
    return f"trial-{number:05d}"


def best_tag(metric: str) -> str:
    """Name the scalar that holds a trial's best value so far, over iterations."""
    return f"best/{metric}"


def study_best_tag(metric: str) -> str:
    """Name the scalar that holds the study's best value so far, over ended segments.

    Not the trials' tag: TensorBoard draws one chart per tag, and these have other steps.
    """
    return f"study/best {metric}"


def rung_tag(until: int | None) -> str:
    """Name the study's scalar that counts the trials that ran until this iteration."""
    return "study/trials per rung/end" if until is None else f"study/trials per rung/{counted(until, 'iteration')}"


@dataclass(slots=True)
class _Curve:
    """What the event file of a trial that hasn't ended holds."""

    written: int
    """Highest iteration that stands there."""
    end: int | None
    """Where the newest segment ends."""
    width: int | None
    """Workers of the newest segment; None where it could have no more than one."""
    running: bool = True
    """An attempt is open, whose live reports are wanted."""
    last: float = math.nan
    """The metric at `written`."""
    bests: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, value) wherever the best so far improved."""

    def rewind(self, start: int) -> None:
        """Forget all after iteration `start`."""
        self.written = start
        while self.bests and self.bests[-1][0] > start:
            self.bests.pop()


class TensorBoardObserver(Observer):
    """Writes TensorBoard's event files below a directory, clearing what was there: replay rebuilds it.

    Each trial is a run with its metrics over iterations and the best value so far. Live reports are written
    as they come; when a later attempt starts before an iteration that was written, the steps after its start
    are taken back, so that a reader sees each step once; so are those of a trial that went wrong on more workers.
    Where a trial can have more than one, their number is a scalar, too. `study` is a run of its own: the best
    value, and the trials that reached each rung, over the number of ended segments.

    In the HParams dashboard a trial shows `success` when it ran to its end or was stopped by the scheduler,
    and `failure` when it failed. Until then its status is unknown and not `running`, because TensorBoard
    keeps the first status that it reads and would never show another.

    Args:
        directory: Of this study alone; TensorBoard's `--logdir`.
        domains: What each parameter may be, in the order of the sweep.
        metric: Name that every report holds.
        goal: Which of two values is better.
        name: The sweep's name.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        domains: Mapping[str, Domain],
        metric: str,
        goal: Goal,
        name: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metric = metric
        self._best_tag = best_tag(metric)
        self._own_tags = (self._best_tag, WIDTH_TAG)
        self._sign = 1.0 if goal == "maximize" else -1.0
        self._clock = clock
        self._hparams = HParams(domains)
        self._files = EventFiles(directory, clock)
        self._curves: dict[int, _Curve] = {}
        self._ended_segments = 0
        self._best = math.nan
        self._rung_counts: Counter[int | None] = Counter()

        self._files.clear([STUDY_RUN, "trial-[0-9]*"])
        self._files.create(STUDY_RUN)
        metrics = {metric: metric, self._best_tag: f"best {metric}"}
        self._files.summary(STUDY_RUN, self._hparams.experiment(name, metrics, clock()))
        self._files.flush()

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take an event that was journaled, and what the scheduler decided on it."""
        match event:
            case Started():
                self._start(event.segment, event.new, event.reason)
            case Saved():
                self._write(event.reports)
            case Finished():
                self._write(event.reports)
                self._finish(event)
            case Failed():
                self._write(event.reports)
                self._pause(event.trial)
                if not event.retry:
                    self._ended_segments += 1
                    self._end(event.trial, succeeded=False)
            case Lost():
                self._pause(event.trial)
            case Reverted():
                self._pause(event.trial)
                self._take_back(event.trial, event.iteration)
        for decision in decisions:
            if decision.action != "promote":
                self._end(decision.trial, succeeded=True)

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports of attempts that run now."""
        for report in reports:
            curve = self._curves.get(report.trial)
            # After a gap the rest waits for the event that brings them all: steps are written in order.
            if curve is not None and curve.running and report.iteration == curve.written + 1:
                self._write((report,))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Write how many trials ran until each rung's iteration, over all brackets, where that changed."""
        counts: Counter[int | None] = Counter()
        for rung in rungs:
            counts[rung.until] += rung.finished
        changed = [(rung_tag(until), n) for until, n in counts.items() if n != self._rung_counts[until]]
        if changed:
            self._files.scalars(STUDY_RUN, self._ended_segments, changed)
        self._rung_counts = counts

    def flush(self) -> None:
        """Write out what is held back."""
        self._files.flush()

    def close(self) -> None:
        """Write out what is held back; no file is open."""
        self._files.flush()

    def _start(self, segment: Segment, new: Trial | None, reason: str) -> None:
        # A reason is given exactly where it could have had another width.
        width = segment.width if segment.width > 1 or reason else None
        curve = self._curves.get(segment.trial)
        if curve is None:
            curve = self._curves[segment.trial] = _Curve(segment.start, segment.end, width)
            if new is not None:
                run = trial_run(new.number)
                self._files.create(run)
                self._files.summary(run, self._hparams.session_start(new.params, self._clock()))
        self._take_back(segment.trial, segment.start)
        curve.running = True
        curve.end, curve.width = segment.end, width

    def _write(self, reports: Sequence[Report]) -> None:
        for report in reports:
            curve = self._curves.get(report.trial)
            if curve is None or report.iteration <= curve.written:
                continue
            curve.written = report.iteration
            scalars = [(tag, value) for tag, value in report.metrics.items() if tag not in self._own_tags]
            curve.last = report.metrics.get(self._metric, math.nan)
            if self._improves(curve.last, curve.bests[-1][1] if curve.bests else math.nan):
                curve.bests.append((report.iteration, curve.last))
            if curve.bests:
                scalars.append((self._best_tag, curve.bests[-1][1]))
            if curve.width is not None:
                scalars.append((WIDTH_TAG, curve.width))
            self._files.scalars(trial_run(report.trial), report.iteration, scalars)

    def _finish(self, event: Finished) -> None:
        curve = self._curves.get(event.trial)
        if curve is None:
            return
        curve.running = False
        if event.cut and (curve.end is None or event.iteration < curve.end):
            return
        self._ended_segments += 1
        if self._improves(curve.last, self._best):
            self._best = curve.last
        if not math.isnan(self._best):
            self._files.scalars(STUDY_RUN, self._ended_segments, [(study_best_tag(self._metric), self._best)])

    def _take_back(self, trial: int, iteration: int) -> None:
        """Take back the steps after an iteration, where any were written."""
        curve = self._curves.get(trial)
        if curve is not None and iteration < curve.written:
            self._files.restart(trial_run(trial), iteration + 1)
            curve.rewind(iteration)

    def _pause(self, trial: int) -> None:
        curve = self._curves.get(trial)
        if curve is not None:
            curve.running = False

    def _end(self, trial: int, succeeded: bool) -> None:
        # The scheduler may still rank, and so stop, a trial that has failed: the first end stands.
        if self._curves.pop(trial, None) is not None:
            self._files.summary(trial_run(trial), self._hparams.session_end(succeeded, self._clock()))

    def _improves(self, value: float, best: float) -> bool:
        return not math.isnan(value) and (math.isnan(best) or self._sign * value > self._sign * best)
