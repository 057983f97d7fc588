"""The sweep in TensorBoard: a run per trial, a run for the study, and the HParams dashboard."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpsearch.checks import InvalidKey
from hpsearch.events import Failed, Finished, Lost, Reverted, Saved, Started
from hpsearch.objective import hypervolume, is_valid, values_of
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.event_file import EventFiles
from hpsearch.observers.hparams import HParams
from hpsearch.report.wording import counted
from hpsearch.schedulers.base import RungView
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, Score, Segment, Trial

__all__ = [
    "FRONT_TAG",
    "HYPERVOLUME_TAG",
    "STUDY_RUN",
    "WIDTH_TAG",
    "TensorBoardObserver",
    "best_tag",
    "rung_tag",
    "study_best_tag",
    "trial_run",
]

STUDY_RUN = "study"

FRONT_TAG = "study/trials on the front"
HYPERVOLUME_TAG = "study/hypervolume"
"""Name the study's scalars of several goals, over ended segments."""

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
    end: int | None = None
    """Where the newest segment ends."""
    width: int | None = None
    """Workers of the newest segment; None where it could have no more than one."""
    time: float = 0.0
    """When `written` was reported, in seconds since the epoch."""
    running: bool = True
    """An attempt is open, whose live reports are wanted."""
    last: Score | None = None
    """What was reported at `written`."""
    bests: list[tuple[int, Score]] = field(default_factory=list)
    """(iteration, score) wherever the best so far improved; none where several metrics decide."""

    @property
    def best(self) -> Score | None:
        """The best score so far."""
        return self.bests[-1][1] if self.bests else None

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
    value, and the trials that reached each rung, over the number of ended segments. Where several metrics decide it has
    the best value of each, how many trials the front has, and its hypervolume where each metric has a reference. Trials
    that break constraints on outcomes are no best ones.

    In the HParams dashboard a trial shows `success` when it ran to its end or was stopped by the scheduler,
    and `failure` when it failed. Until then its status is unknown and not `running`, because TensorBoard
    keeps the first status that it reads and would never show another. Of a trial that was forked it shows the parent.

    Times are the journal's: a report's is that of its segment's start and the iterations since, so that what is
    written live and what replay writes say the same.

    Args:
        observed: The study; its folder `tensorboard` is TensorBoard's `--logdir`, and holds nothing else.
    """

    deadline = 300.0  # it may have a whole study to write anew

    def __init__(self, observed: Observed) -> None:
        self._sweep = observed.sweep
        self._created = observed.created
        self._objective = self._sweep.objective
        self._goals = self._objective.goals
        self._best_tag = None if len(self._goals) != 1 else best_tag(self._goals[0].name)
        self._hparams = HParams(self._sweep.parameters, _may_fork(self._sweep))
        self._files = EventFiles(observed.directory / "tensorboard")
        self._curves: dict[int, _Curve] = {}
        self._failed: dict[int, Score | None] = {}
        """Trials that may still be retried, with their scores before: TensorBoard keeps the first status that it reads.
        """
        self._ended_segments = 0
        self._scores: dict[int, Score | None] = {}
        """Each trial's score when its newest segment ended; None of those that have failed."""
        self._front: list[int] = []
        """The trials with the best of these scores."""
        self._shown = False
        """There was a best one."""
        self._rung_counts: Counter[int | None] = Counter()
        self._now = self._created
        """When the newest record was journaled."""

    def seen(self) -> int:
        """Clear what former runs wrote: it is written anew from the first record on."""
        self._files.clear([STUDY_RUN, "trial-[0-9]*"])
        self._files.create(STUDY_RUN, self._created)
        metrics = {name: name for name in self._objective.names}
        if self._best_tag is not None:
            metrics[self._best_tag] = f"best {self._goals[0].name}"
        experiment = self._hparams.experiment(self._sweep.name, metrics, self._created)
        self._files.summary(STUDY_RUN, self._created, experiment)
        self._files.flush()
        return 0

    def observe(self, record: Record) -> None:
        """Take a record; their order is the journal's."""
        event, self._now = record.event, record.time
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
                if not event.retry:
                    self._failed[event.trial] = self._scores.get(event.trial)
                    self._end_segment(event.trial, None)
            case Reverted():
                self._take_back(event.trial, event.iteration)
        if isinstance(event, Finished | Failed | Lost | Reverted):
            self._curves[event.trial].running = False
        for decision in record.decisions:
            if decision.action in ("stop", "complete"):
                self._end(decision.trial, succeeded=decision.trial not in self._failed)
            elif decision.action == "withdraw":
                self._score(decision.trial, self._failed.pop(decision.trial, None))

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
            self._files.scalars(STUDY_RUN, self._now, self._ended_segments, changed)
        self._rung_counts = counts

    def flush(self) -> None:
        """Write out what is held back."""
        self._files.flush()

    def close(self) -> None:
        """Write out what is held back, and which trials have failed; no file is open."""
        for trial in sorted(self._failed):
            self._end(trial, succeeded=False)
        self._files.flush()

    def _start(self, segment: Segment, new: Trial | None, reason: str) -> None:
        if new is not None:
            run = trial_run(new.number)
            self._files.create(run, self._now)
            self._files.summary(run, self._now, self._hparams.session_start(new, self._now))
        curve = self._curves.setdefault(segment.trial, _Curve(segment.start))
        self._take_back(segment.trial, segment.start)
        self._failed.pop(segment.trial, None)
        curve.running, curve.time, curve.end = True, self._now, segment.end
        # A reason is given exactly where it could have had another width.
        curve.width = segment.width if segment.width > 1 or reason else None

    def _write(self, reports: Sequence[Report]) -> None:
        for report in reports:
            curve = self._curves[report.trial]
            if report.iteration <= curve.written:
                continue
            curve.written = report.iteration
            curve.time += report.seconds
            scalars = [(tag, value) for tag, value in report.metrics.items() if tag not in (self._best_tag, WIDTH_TAG)]
            curve.last = self._objective.reported(report.metrics)
            single = not self._objective.several
            if single and is_valid(curve.last) and self._objective.improves(curve.last, curve.best):
                curve.bests.append((report.iteration, curve.last))
            if self._best_tag is not None and self._objective.is_feasible(curve.best):
                scalars.append((self._best_tag, values_of(curve.best)[0]))
            if curve.width is not None:
                scalars.append((WIDTH_TAG, curve.width))
            self._files.scalars(trial_run(report.trial), curve.time, report.iteration, scalars)

    def _finish(self, event: Finished) -> None:
        curve = self._curves[event.trial]
        if event.cut and (curve.end is None or event.iteration < curve.end):
            return
        replaced = self._objective.replaces(curve.last, curve.best)
        self._end_segment(event.trial, curve.last if replaced else curve.best)

    def _end_segment(self, trial: int, score: Score | None) -> None:
        """Write the study's best after a segment; `score` is None where the trial has none, or has failed."""
        self._ended_segments += 1
        self._score(trial, score)
        scores = (self._scores[number] for number in self._front)
        best = [score for score in scores if self._objective.is_feasible(score)]
        if self._shown or best:
            self._shown = True
            self._files.scalars(STUDY_RUN, self._now, self._ended_segments, self._bests(best))

    def _score(self, trial: int, score: Score | None) -> None:
        """Take a trial's score from now on."""
        self._scores[trial] = score
        # All are compared only where the score of one of the best has changed.
        asked = self._scores if trial in self._front else {trial, *self._front}
        self._front = self._objective.front({number: self._scores[number] for number in asked})

    def _bests(self, front: Sequence[Score]) -> list[tuple[str, float]]:
        """Give the study's scalars for a front: the best value of each goal, and what several goals have beside it."""
        columns = zip(*map(values_of, front), strict=True) if front else ((math.nan,) for _ in self._goals)
        scalars = [
            (study_best_tag(goal.name), min(column, key=goal.signed))
            for goal, column in zip(self._goals, columns, strict=True)
        ]
        if self._objective.several:
            scalars.append((FRONT_TAG, len(front)))
            worst = [goal.signed(goal.reference) for goal in self._goals if goal.reference is not None]
            if len(worst) == len(self._goals):
                volume = hypervolume([self._objective.point(score) for score in front], tuple(worst))
                scalars.append((HYPERVOLUME_TAG, volume))
        return scalars

    def _take_back(self, trial: int, iteration: int) -> None:
        """Take back the steps after an iteration, where any were written."""
        curve = self._curves[trial]
        if iteration < curve.written:
            self._files.restart(trial_run(trial), self._now, iteration + 1)
            curve.rewind(iteration)

    def _end(self, trial: int, succeeded: bool) -> None:
        # The scheduler may still rank, and so stop, a trial that has failed: the first end stands.
        if self._curves.pop(trial, None) is not None:
            self._files.summary(trial_run(trial), self._now, self._hparams.session_end(succeeded, self._now))


def _may_fork(sweep: Sweep) -> bool:
    try:
        return sweep.forks
    except InvalidKey:  # a finished study is shown where the code of its searcher is gone, too
        return True
