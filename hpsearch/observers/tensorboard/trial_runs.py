"""The runs of a study's trials: metrics over iterations, the best value so far, and the records for HParams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.events import Entry, Failed, Finished, Lost, Reverted, Saved, Started
from hpsearch.objective import is_valid, values_of
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.hparams import HParams, Known
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, Score, Segment, Trial, TrialState

_OWN = "hpsearch/"

ITERATIONS_TAG, SECONDS_TAG, WIDTH_TAG = "hpsearch/iterations", "hpsearch/seconds", "hpsearch/width"
"""Tags of a trial's iterations, running time and number of workers, over iterations."""

LANES_TAG = "hpsearch/lanes"
"""Tag of the number of trials that were trained as one computation in each segment."""

_OWN_TAGS = frozenset({ITERATIONS_TAG, SECONDS_TAG, WIDTH_TAG, LANES_TAG})

_LEAST_DIGITS = 3

_DECIDED = {TrialState.COMPLETE, TrialState.STOPPED}


def trial_run(number: int, trials: int | None = None) -> str:
    """Return a trial's run name, which sorts by number: `012`.

    Args:
        number: The trial's number.
        trials: Maximum number of trials; None if unknown.
    """
    return f"{number:0{max(_LEAST_DIGITS, len(str((trials or 1) - 1)))}d}"


def best_tag(metric: str) -> str:
    """Return the tag of a trial's best value so far, over iterations."""
    return f"best/{metric}"


def repeat_tags(sweep: Sweep) -> list[str]:
    """Return the tags of a configuration's mean and spread for each goal, and of their number; none without repeats."""
    if not sweep.repeats.several:
        return []
    goals = sweep.objective.goals
    suffixes = [f" {goal.name}" if len(goals) > 1 else "" for goal in goals]
    statistics = (sweep.repeats.statistic, "std")
    return [*(f"{_OWN}{name}{suffix}" for suffix in suffixes for name in statistics), f"{_OWN}n"]


def metrics_of(sweep: Sweep) -> dict[str, str]:
    """Return the metrics that HParams shows for a sweep's trials: each tag with its name in the table."""
    goals = sweep.objective.goals
    metrics = {name: name for name in sweep.objective.names}
    if len(goals) == 1:
        metrics[best_tag(goals[0].name)] = f"best {goals[0].name}"
    metrics |= {ITERATIONS_TAG: "iterations", SECONDS_TAG: "seconds"}
    metrics |= {tag: tag.removeprefix(_OWN) for tag in repeat_tags(sweep)}
    if sweep.resources.widest > 1:
        metrics[WIDTH_TAG] = "width"
    if sweep.resources.lanes > 1:
        metrics[LANES_TAG] = "lanes"
    return metrics


@dataclass(slots=True)
class _Curve:
    """The state of a trial's event file."""

    written: int
    """Highest iteration in the file."""
    width: int | None = None
    """Workers of the newest segment; None if only one worker was possible."""
    time: float = 0.0
    """Time at which iteration `written` was reported, in seconds since the epoch."""
    running: bool = True
    """Whether an attempt is running. Its live reports are written."""
    ended: bool = False
    """Whether the trial's status is written."""
    bests: list[tuple[int, Score]] = field(default_factory=list)
    """(iteration, score) of each improvement of the best so far; empty with several goals."""
    spent: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, running time in seconds until then) of the reports."""

    @property
    def best(self) -> Score | None:
        """The best score so far."""
        return self.bests[-1][1] if self.bests else None

    @property
    def seconds(self) -> float:
        """Running time at the last report, in seconds."""
        return self.spent[-1][1] if self.spent else 0.0

    def rewind(self, start: int) -> None:
        """Drop all data after iteration `start`."""
        self.written = start
        for values in (self.bests, self.spent):
            while values and values[-1][0] > start:
                values.pop()

    def compact(self) -> None:
        """Drop all data that isn't needed to continue the trial. Ended trials rarely continue."""
        del self.bests[:-1], self.spent[:-1]


class TrialRuns:
    """Reads a study's events, and writes the runs of its trials.

    If a later attempt starts before an iteration that was written, the steps after its start are revoked, so that
    TensorBoard shows each step once. Steps of a trial that was reverted to fewer workers are also revoked.

    HParams shows `success` if a trial completed or was stopped by the scheduler, and `failure` if it failed.
    TensorBoard keeps the first status and the first params that it reads. So a trial that hasn't ended has no status,
    and its params are written together with its further data.

    Args:
        files: The event files.
        sweep: The sweep.
        hparams: The HParams columns.
        run_of: Returns the name of a trial's run; None if the trial has no run.
        study: The study's name, if there are several.
    """

    def __init__(
        self,
        files: EventFiles,
        sweep: Sweep,
        hparams: HParams,
        run_of: Callable[[int], str | None],
        study: str | None = None,
    ) -> None:
        self._files, self._hparams, self._run_of, self._study = files, hparams, run_of, study
        self._objective, self._has_lanes = sweep.objective, sweep.resources.lanes > 1
        self._repeat_tags = repeat_tags(sweep)
        goals = self._objective.goals
        self._best_tag = best_tag(goals[0].name) if len(goals) == 1 else None
        self._curves: dict[int, _Curve] = {}
        self._failed: set[int] = set()
        """Failed trials that may still be retried."""
        self._started: dict[int, tuple[Trial, float, int | None]] = {}
        """(trial, start in seconds since the epoch, bracket) of trials whose params aren't written yet."""
        self._now = 0.0

    def take(self, entry: Entry) -> None:
        """Apply the next entry of the journal."""
        event, self._now = entry.event, entry.time
        match event:
            case Started():
                self._start(event.segment, event.new, event.reason, event.bracket)
            case Saved() | Finished():
                self._write(event.reports)
                if isinstance(event, Finished) and self._has_lanes:
                    self._write_lanes(event)
            case Failed():
                self._write(event.reports)
                if not event.retry:
                    self._failed.add(event.trial)
            case Reverted():
                self._take_back(event.trial, event.iteration)
        if isinstance(event, Finished | Failed | Lost | Reverted) and event.trial in self._curves:
            self._curves[event.trial].running = False
        for decision in entry.followed.decisions:
            if decision.action in ("stop", "complete"):
                self._end(decision.trial, succeeded=decision.trial not in self._failed)
            elif decision.action == "withdraw":
                self._failed.discard(decision.trial)

    def report(self, reports: Sequence[Report]) -> None:
        """Receive live reports of running attempts."""
        for report in reports:
            curve = self._curves.get(report.trial)
            # Steps are written in order. After a gap, the rest is written with the event that contains all reports.
            if curve is not None and curve.running and report.iteration == curve.written + 1:
                self._write((report,))

    def settle(self) -> None:
        """Write the status of failed trials, which can no longer be retried."""
        for trial in sorted(self._failed):
            self._end(trial, succeeded=False)

    def flush(self, journaled: JournaledState) -> None:
        """Write the params of trials that have begun, and the status of those that have ended.

        Args:
            journaled: The trials' states.
        """
        for number, (trial, began, bracket) in self._started.items():
            state = journaled.records.of(number).state
            ended = state in _DECIDED or (state is TrialState.FAILED and self._curves[number].ended)
            facts = Known(self._study, str(state) if ended else None, bracket)
            if (run := self._run_of(number)) is not None:
                self._files.summary(run, began, self._hparams.session_start(trial, began, facts))
        self._started.clear()

    def compare(self, journaled: JournaledState, trial: int) -> None:
        """Write the mean and spread of a trial's configuration to the runs of its complete repeats.

        Args:
            journaled: The trials' states.
            trial: A trial that completed.
        """
        configuration = journaled.records.of(trial).trial.configuration
        if configuration is None:
            return
        for record in journaled.records.repeats(configuration):
            number = record.trial.number
            curve, run = self._curves.get(number), self._run_of(number)
            repeated = journaled.records.row(number).repeated
            if curve is None or run is None or repeated is None or record.state is not TrialState.COMPLETE:
                continue
            pairs = zip(repeated.values, repeated.deviations, strict=True)
            values = [*(value for pair in pairs for value in pair), repeated.n] if repeated.n else []
            scalars = [(tag, value) for tag, value in zip(self._repeat_tags, values, strict=False) if value is not None]
            if scalars and curve.written:
                self._files.scalars(run, self._now, curve.written, scalars)

    def _start(self, segment: Segment, new: Trial | None, reason: str, bracket: int | None) -> None:
        if (run := self._run_of(segment.trial)) is None:
            return
        if new is not None:
            self._files.create(run, self._now)
            self._started[new.number] = new, self._now, bracket
        curve = self._curves.setdefault(segment.trial, _Curve(segment.start))
        self._take_back(segment.trial, segment.start)
        self._failed.discard(segment.trial)
        curve.running, curve.time = True, self._now
        # A segment has a reason if and only if another width was possible.
        curve.width = segment.width if segment.width > 1 or reason else None

    def _write(self, reports: Sequence[Report]) -> None:
        for report in reports:
            curve, run = self._curves.get(report.trial), self._run_of(report.trial)
            if curve is None or run is None or report.iteration <= curve.written:
                continue
            curve.written = report.iteration
            curve.time += report.seconds
            curve.spent.append((report.iteration, curve.seconds + report.seconds))
            scalars = self._reported(report.metrics)
            score = self._objective.reported(report.metrics)
            single = not self._objective.several
            if single and is_valid(score) and self._objective.improves(score, curve.best):
                curve.bests.append((report.iteration, score))
            if self._best_tag is not None and self._objective.is_feasible(curve.best):
                scalars.append((self._best_tag, values_of(curve.best)[0]))
            scalars += [(ITERATIONS_TAG, report.iteration), (SECONDS_TAG, curve.seconds)]
            if curve.width is not None:
                scalars.append((WIDTH_TAG, curve.width))
            self._files.scalars(run, curve.time, report.iteration, scalars)

    def _write_lanes(self, event: Finished) -> None:
        """Write the number of trials that were trained together, at a segment's end."""
        curve, run = self._curves.get(event.trial), self._run_of(event.trial)
        if curve is not None and run is not None and curve.written:
            self._files.scalars(run, curve.time, curve.written, [(LANES_TAG, event.lanes)])

    def _reported(self, metrics: Mapping[str, float]) -> list[tuple[str, float]]:
        """Return the reported metrics, except those that would hide one of our scalars."""
        own = {self._best_tag, *_OWN_TAGS, *self._repeat_tags}
        return [(tag, value) for tag, value in metrics.items() if tag not in own]

    def _take_back(self, trial: int, iteration: int) -> None:
        """Revoke the steps after an iteration, if any were written."""
        curve, run = self._curves.get(trial), self._run_of(trial)
        if curve is not None and run is not None and iteration < curve.written:
            self._files.restart(run, self._now, iteration + 1)
            curve.rewind(iteration)

    def _end(self, trial: int, succeeded: bool) -> None:
        curve, run = self._curves.get(trial), self._run_of(trial)
        # The scheduler may rank a failed trial later, and stop it: the first end counts.
        if curve is not None and run is not None and not curve.ended:
            curve.ended = True
            curve.compact()
            self._files.summary(run, self._now, self._hparams.session_end(succeeded, self._now))
