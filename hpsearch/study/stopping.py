"""When a sweep ends automatically: a stopping criterion is met, or too many of its trials have failed.

The criteria are the target (a trial has reached it) and patience (no trial has improved on the best for too long). They
depend only on the journal's events, so they don't depend on interruptions of the study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpsearch.decision import Decision
from hpsearch.errors import TrainableError
from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.objective import Objective, values_of
from hpsearch.sweep.parts import MaxFailures
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, Score

CRITERIA = ("target", "patience")
"""The stopping criteria, as values of `Ended.state`."""

_FIRST_FAILED = 5
"""If this many trials fail before any succeeds, the next one is assumed to fail, too."""

_LEAST_TRIED = 20
"""Number of trials from which on the fraction of failures counts."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A report that reaches all targets."""

    trial: int
    iteration: int
    score: Score


class Target:
    """Finds the first report that reaches the target, among the reports that count.

    If a trial is reverted to fewer workers, its reports after that iteration don't count. Reports of a trial that has
    failed for good don't count until it is retried. The last reports of a failing attempt never count.

    With repeats no report counts, but the score of a configuration, once all its repeats are complete.

    Args:
        objective: Defines the targets.
        standing: With repeats: returns the score of a trial's configuration.
    """

    def __init__(self, objective: Objective, standing: Callable[[int], Score | None] | None = None) -> None:
        self._objective, self._standing = objective, standing
        self._journaled: dict[int, Reached] = {}
        """Trials to their first journaled report that reaches the target, in order of arrival."""
        self._live: dict[int, Reached] = {}
        """Trials to their first live report that reaches the target. It is lost if the attempt is lost."""
        self._failed: set[int] = set()

    @property
    def reached(self) -> Reached | None:
        """The first report that counts; None if there is none."""
        return next((reached for trial, reached in self._journaled.items() if trial not in self._failed), None)

    @property
    def candidate(self) -> Reached | None:
        """The first report that counts, else the first live one, which may count soon; None if there is none."""
        return self.reached or next(iter(self._live.values()), None)

    def report(self, reports: Sequence[Report]) -> None:
        """Process live reports."""
        if self._standing is None:
            self._apply(self._live, reports)

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event and the decisions on it."""
        match event:
            case Finished(trial=trial) if self._standing is not None:
                score = self._standing(trial)
                if score is not None and self._objective.reaches(score):
                    self._journaled[trial] = Reached(trial, event.iteration, score)
            case Saved() | Finished() if self._standing is None:
                self._apply(self._journaled, event.reports)
            case Failed(trial=trial, retry=False) if not any(decision.trial == trial for decision in decisions):
                self._failed.add(trial)
            case Reverted(trial=trial, iteration=last):
                if trial in self._journaled and self._journaled[trial].iteration > last:
                    del self._journaled[trial]
            case Opened() | Ended():
                self._live.clear()
        if isinstance(event, Finished | Failed | Lost | Reverted):
            self._live.pop(event.trial, None)
        self._failed.difference_update(decision.trial for decision in decisions if decision.action == "withdraw")

    def _apply(self, reached: dict[int, Reached], reports: Sequence[Report]) -> None:
        for report in reports:
            score = self._objective.reported(report.metrics)
            if score is not None and self._objective.reaches(score) and report.trial not in reached:
                reached[report.trial] = Reached(report.trial, report.iteration, score)


@dataclass(slots=True)
class _Row:
    """State of `Patience`, computed from its log of values and ended trials."""

    count: int = 0
    """Number of trials that have ended since the last improvement."""
    front: list[tuple[int, Score]] = field(default_factory=list)
    """(trial, score) of the non-dominated scores; with one goal, of the best one."""
    trial: int | None = None
    """The trial of the last improvement."""
    bettered: set[int] = field(default_factory=set)
    """All trials that were an improvement at the time."""


class Patience:
    """Counts the trials that have ended since the last improvement.

    A value is an improvement if it is better than all earlier values; with several goals, if no earlier trial was at
    least as good in all goals.

    A trial's value is compared only when one of its segments is complete, so that cuts and saves don't affect the
    count. The trial of the last improvement isn't counted when it ends. A trial that fails for good has no value, even
    from earlier segments. A trial that runs again hasn't ended.

    Args:
        objective: Defines which value is better.
        score_of: Returns a trial's current score; None if it has none, or NaN.
    """

    def __init__(self, objective: Objective, score_of: Callable[[int], Score | None]) -> None:
        self._objective = objective
        self._score_of = score_of
        self._log: list[tuple[int, Score | None]] = []
        """(trial, score) for each completed segment, and (trial, None) for the end of each trial."""
        self._until: dict[int, int | None] = {}
        """Running trials to the last iteration of their segments."""
        self._ended: set[int] = set()
        self._failed: set[int] = set()
        self._row = _Row()

    @property
    def count(self) -> int:
        """Number of trials that have ended since the last improvement."""
        return self._row.count

    @property
    def front(self) -> Sequence[tuple[int, Score]]:
        """(trial, score) of the non-dominated scores; empty if there are no scores."""
        return self._row.front

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event, after it was applied, and the decisions on it."""
        match event:
            case Started(segment=segment):
                self._until[segment.trial] = segment.end
                self._resume_trial(segment.trial)
            case Finished(trial=trial, iteration=iteration, cut=cut):
                end = self._until.pop(trial)
                score = self._score_of(trial)
                if score is not None and not (cut and (end is None or iteration < end)):
                    self._add(trial, score)
            case Failed(trial=trial, retry=False) if not any(decision.trial == trial for decision in decisions):
                self._failed.add(trial)
                if trial in self._row.bettered:
                    self._count_anew()
                self._end(trial)
        for decision in decisions:
            if decision.action in ("stop", "complete"):
                self._end(decision.trial)
            elif decision.action == "withdraw":
                self._failed.discard(decision.trial)
                self._resume_trial(decision.trial)

    def _end(self, trial: int) -> None:
        if trial not in self._ended:
            self._ended.add(trial)
            self._add(trial, None)

    def _resume_trial(self, trial: int) -> None:
        """Record that an ended trial runs again."""
        if trial in self._ended:
            self._ended.remove(trial)
            self._log.remove((trial, None))
            self._count_anew()

    def _add(self, trial: int, score: Score | None) -> None:
        self._log.append((trial, score))
        self._apply(trial, score)

    def _apply(self, trial: int, score: Score | None) -> None:
        row = self._row
        if score is None:
            row.count += trial != row.trial
        elif trial not in self._failed and self._is_new(score):
            row.front = [member for member in row.front if not self._objective.improves(score, member[1])]
            row.front.append((trial, score))
            row.trial, row.count = trial, 0
            row.bettered.add(trial)

    def _is_new(self, score: Score) -> bool:
        front = [joined for _, joined in self._row.front]
        # The margin by which constraints are met is no goal: scores that differ only in it are equal.
        equal = (values_of(joined) == values_of(score) for joined in front if self._objective.is_feasible(joined))
        return self._objective.extends(score, front) and not any(equal)

    def _count_anew(self) -> None:
        self._row = _Row()
        for trial, score in self._log:
            self._apply(trial, score)


class StoppingCriteria:
    """Decides whether a sweep must end early, by `metric.target` and `limits.patience`.

    Args:
        sweep: The sweep as it is run now: both keys may have changed since the study was created.
        score_of: As for `Patience`.
    """

    def __init__(self, sweep: Sweep, score_of: Callable[[int], Score | None]) -> None:
        self._objective = sweep.objective
        self._limit = sweep.limits.patience
        self._score_of = score_of
        aimed = any(goal.target is not None for goal in self._objective.goals)
        self._target = Target(self._objective, score_of if sweep.repeats.several else None) if aimed else None
        self._patience = None if self._limit is None else Patience(self._objective, score_of)

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event of this run or an earlier one, after it was applied, and the decisions on it."""
        if self._target is not None:
            self._target.observe(event, decisions)
        if self._patience is not None:
            self._patience.observe(event, decisions)

    def report(self, reports: Sequence[Report]) -> None:
        """Process live reports. A report that reaches the target will count unless its attempt is lost."""
        if self._target is not None:
            self._target.report(reports)

    @property
    def met(self) -> str | None:
        """The criterion that ends the sweep, one of `CRITERIA`; None: the sweep continues."""
        if self._target is not None and self._target.candidate is not None:
            return "target"
        if self._patience is not None and self._limit is not None and self._patience.count >= self._limit:
            return "patience"
        return None

    @property
    def reason(self) -> str:
        """Why the sweep ends, as text; empty if it continues."""
        match self.met:
            case "target":
                return self._of_target()
            case "patience":
                return self._of_patience()
            case _:
                return ""

    def _of_target(self) -> str:
        assert self._target is not None
        candidate = self._target.candidate
        assert candidate is not None
        reached = zip(self._objective.goals, values_of(candidate.score), strict=True)
        aimed = [(goal, value) for goal, value in reached if goal.target is not None]
        values = " and ".join(f"{goal.name} {value!r}" for goal, value in aimed)
        targets = ", ".join(repr(goal.target) for goal, _ in aimed)
        text = f"trial {candidate.trial} reached {values} at iteration {candidate.iteration} (metric.target: {targets})"
        if candidate is not self._target.reached or (score := self._score_of(candidate.trial)) == candidate.score:
            return text
        return f"{text}; it went on, and its value is {'none' if score is None else _shown(score)} since"

    def _of_patience(self) -> str:
        assert self._patience is not None
        name, front = self._objective.title, self._patience.front
        if not front:
            lacked = f"any {name}"
        elif self._objective.several:
            lacked = f"one that no other is better than in {name}: {len(front)} are"
        else:
            ((trial, score),) = front
            lacked = f"a better {name} than {_shown(score)} of trial {trial}"
        count = self._patience.count
        ended = "1 trial" if count == 1 else f"{count:,} trials in a row"
        return f"{ended} ended without {lacked} (limits.patience: {self._limit})"


def _shown(score: Score) -> str:
    return ", ".join(map(repr, values_of(score)))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of failed and tried trials."""

    failed: int
    tried: int
    """Number of trials that failed or reached the end of a segment, each counted once."""
    repeats: int = 1
    """Trials of each configuration, which are likely to fail together."""
    avoided: int = 0
    """Of the failed trials, those of a kind that the searcher learns to avoid."""


def too_many(tally: Tally, limit: MaxFailures) -> bool:
    """Return whether too many trials failed, so that the sweep should end."""
    if limit == "none":
        return False
    if limit == "auto":
        failed, tried = tally.failed - tally.avoided, tally.tried - tally.avoided
        least = _FIRST_FAILED if failed == tried else _LEAST_TRIED
        if tried >= least * tally.repeats and 2 * failed >= tried:
            return True
        # There may be nothing else than what the searcher tries to avoid.
        return tally.failed == tally.tried >= _LEAST_TRIED * tally.repeats
    return tally.failed >= limit


def mistake_of(event: Failed, tally: Tally, limit: MaxFailures) -> TrainableError | None:
    """Return the error that ends the sweep after a trial's failure; None: the sweep continues.

    Args:
        event: The failure, which is not retried.
        tally: The counts, including this failure.
        limit: `limits.max_failures`.
    """
    failure = event.failure
    if failure.kind == "contract" and tally.failed == tally.tried:
        # Every trial would break the contract in the same way.
        return TrainableError(failure.message, failure.key)
    if not too_many(tally, limit):
        return None
    traceback = f"\n{failure.traceback.strip()}" if failure.traceback.strip() else ""
    return TrainableError(
        f"{tally.failed} of the {tally.tried} trials that were tried have failed; the last one, trial {event.trial}: "
        f"{failure.message}{traceback}\n"
        "they will run again when the sweep resumes, except those whose rung is decided; to ignore failures: "
        "--set limits.max_failures=none",
        failure.key,
    )
