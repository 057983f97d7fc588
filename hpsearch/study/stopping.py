"""When a sweep ends on its own: a stopping criterion is met, or too many of its trials have failed.

The criteria are the target (a trial has reached it) and patience (no better trial has come for long enough). They
follow from the journal's events alone, so that a resumed study counts as one that wasn't interrupted.
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
"""The stopping criteria: how sweeps end that meet one, as `Ended.state` names it."""

_FIRST_FAILED = 5
"""Trials that fail before any other comes through say that the next one would fail, too."""

_LEAST_TRIED = 20
"""Trials from which on a share of failures says something."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A report that is as good as all targets, or better."""

    trial: int
    iteration: int
    score: Score


class Target:
    """The first report that reached the target, of those that weren't taken back.

    Taken back are those of a trial that went back to fewer workers, beyond where it went back to, and those of a trial
    that has failed for good, until it is retried. What a failing attempt reported last never counts.

    Args:
        objective: Says what reaches it.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._journaled: dict[int, Reached] = {}
        """Trials to their first such reports, in the order in which they came."""
        self._live: dict[int, Reached] = {}
        """Likewise of running attempts, which may be lost before they count."""
        self._failed: set[int] = set()

    @property
    def reached(self) -> Reached | None:
        """The first that counts."""
        return next((reached for trial, reached in self._journaled.items() if trial not in self._failed), None)

    @property
    def candidate(self) -> Reached | None:
        """The first that counts, or may count soon."""
        return self.reached or next(iter(self._live.values()), None)

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports."""
        self._apply(self._live, reports)

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event and the decisions on it."""
        match event:
            case Saved() | Finished():
                self._apply(self._journaled, event.reports)
            case Failed(trial=trial, retry=False):
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
    """What a log of values and ends amounts to."""

    count: int = 0
    """Trials that have ended since one last gave what no other had."""
    front: list[tuple[int, Score]] = field(default_factory=list)
    """(trial, what it gave) that nothing given since was better than: of one goal the best one."""
    trial: int | None = None
    """The one that last joined it."""
    bettered: set[int] = field(default_factory=set)
    """Trials that joined it, at their time."""


class Patience:
    """Counts the trials that have ended since one last gave a better value than any before.

    With several goals that is one which no trial before was as good as in all of them.

    A trial's value is looked at wherever a segment of it comes to its end, and only there: how often it was cut or
    saved on the way changes nothing. The trial that gave the best value isn't counted when it ends itself. A trial that
    fails for good has no value, not of former segments either; one that runs again hasn't ended.

    Args:
        objective: Says what is better.
        score_of: Gives a trial's score as it stands; None where it has none, or NaN.
    """

    def __init__(self, objective: Objective, score_of: Callable[[int], Score | None]) -> None:
        self._objective = objective
        self._score_of = score_of
        self._log: list[tuple[int, Score | None]] = []
        """Trials with the scores that their segments gave, and with None where they ended."""
        self._until: dict[int, int | None] = {}
        """Of running trials: where their segments end."""
        self._ended: set[int] = set()
        self._failed: set[int] = set()
        self._row = _Row()

    @property
    def count(self) -> int:
        """Trials that have ended since a better value came."""
        return self._row.count

    @property
    def front(self) -> Sequence[tuple[int, Score]]:
        """(trial, what it gave) that nothing given since was better than; empty where nothing was given."""
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
            case Failed(trial=trial, retry=False):
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
        """Record that a trial which had ended runs again."""
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
        # By how much constraints are kept is no goal: whoever differs in that alone is as good.
        equal = (values_of(joined) == values_of(score) for joined in front if self._objective.is_feasible(joined))
        return self._objective.extends(score, front) and not any(equal)

    def _count_anew(self) -> None:
        self._row = _Row()
        for trial, score in self._log:
            self._apply(trial, score)


class StoppingCriteria:
    """Says whether a sweep is to end early, by `metric.target` and `limits.patience`.

    Args:
        sweep: As it is to be run now: both may have changed since the study was made.
        score_of: As for `Patience`.
    """

    def __init__(self, sweep: Sweep, score_of: Callable[[int], Score | None]) -> None:
        self._objective = sweep.objective
        self._limit = sweep.limits.patience
        self._score_of = score_of
        aimed = any(goal.target is not None for goal in self._objective.goals)
        self._target = Target(self._objective) if aimed else None
        self._patience = None if self._limit is None else Patience(self._objective, score_of)

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event of this run or an earlier one, after it was applied, and the decisions on it."""
        if self._target is not None:
            self._target.observe(event, decisions)
        if self._patience is not None:
            self._patience.observe(event, decisions)

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports: one that reaches the target will count, if its attempt isn't lost."""
        if self._target is not None:
            self._target.report(reports)

    @property
    def met(self) -> str | None:
        """The criterion that ends the sweep, one of `CRITERIA`; None: it goes on."""
        if self._target is not None and self._target.candidate is not None:
            return "target"
        if self._patience is not None and self._limit is not None and self._patience.count >= self._limit:
            return "patience"
        return None

    @property
    def reason(self) -> str:
        """Why it ends, in words; empty where it goes on."""
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
    """How many trials failed."""

    failed: int
    tried: int
    """Those that failed or reached the end of a segment, each once."""


def too_many(tally: Tally, limit: MaxFailures) -> bool:
    """Return whether so many trials failed that the sweep should end."""
    if limit == "none":
        return False
    if limit == "auto":
        least = _FIRST_FAILED if tally.failed == tally.tried else _LEAST_TRIED
        return tally.tried >= least and 2 * tally.failed >= tally.tried
    return tally.failed >= limit


def mistake_of(event: Failed, tally: Tally, limit: MaxFailures) -> TrainableError | None:
    """Return the mistake for which a sweep ends, now that a trial has failed; None: it goes on.

    Args:
        event: The failure, for good.
        tally: With this failure.
        limit: `limits.max_failures`.
    """
    failure = event.failure
    if failure.kind == "contract" and tally.failed == tally.tried:
        # Every trial would break it the same way.
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
