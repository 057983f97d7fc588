"""The record of one trial: its state, its score, its newest checkpoint, and the checkpoints that it still needs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hpsearch.objective import Objective, is_valid
from hpsearch.task import Company
from hpsearch.trainable.addresses import path_of
from hpsearch.trainable.metrics import SECONDS
from hpsearch.trial import Costs, Failure, Report, Score, Segment, Trial, TrialRow, TrialState


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial, from those of its reports that count."""

    iterations: int = 0
    """Highest iteration that counts."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the report at `iterations`."""
    score: Score | None = None
    """Score according to the objective; it may be NaN."""
    value_iteration: int = 0
    """The iteration that reported `score`."""
    value_attempt: int = 0
    """The attempt that reported `score`. Another attempt's checkpoint at that iteration may contain another state."""
    value_checkpoint: str | None = None
    """The checkpoint of the iteration that reported `score`, if it was saved."""
    scored: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the report of `score`."""


@dataclass(frozen=True, slots=True)
class RollbackPoint:
    """State of a trial before it was widened."""

    result: TrialResult
    checkpoint: str | None
    checkpoint_iteration: int
    width: int


_NOTHING = TrialResult()
"""Shared by all trials that have reported nothing."""

DECIDED = frozenset({TrialState.COMPLETE, TrialState.STOPPED})
"""Trials that never run again."""


@dataclass(slots=True, eq=False)  # a sweep has one for every trial
class TrialRecord:
    """One trial's record."""

    trial: Trial
    asynchronous: bool = False
    """Whether its ranks train asynchronously, so that its results aren't reproducible."""
    state: TrialState = TrialState.WAITING
    result: TrialResult = _NOTHING
    checkpoint: str | None = field(init=False)
    """The newest checkpoint; for a fork without its own, the parent's."""
    checkpoint_iteration: int = field(init=False)
    cost: float = 0.0
    """What it has cost, up to the last report that its attempt made count."""
    checkpoint_cost: float = 0.0
    cost_end: float | None = None
    """`Costs.end` of the last started segment."""
    code: tuple[int, ...] = ()
    """Versions of the trainable's code that produced its reports."""
    attempts: int = 0
    failures: int = 0
    """Number of attempts that failed by the trial's own fault since the last retry."""
    losses: int = 0
    """Number of consecutive lost attempts, without a checkpoint or a finished segment between them."""
    seconds: float = 0.0
    """Total wall time in workers, of all attempts that reported their time."""
    bracket: int = 0
    rung: int = 0
    excused: float = 0.0
    """Part of `seconds` that doesn't count toward its timeout: time lost with a worker, or before a retry."""
    former_result: TrialResult = _NOTHING
    """Its result before the reports of the attempt that failed."""
    until: int | None = None
    segment: Segment | None = None
    """The running segment."""
    failure: Failure | None = None
    reason: str = ""
    pruned: str = ""
    """Why it will end after its running segment; empty if it wasn't pruned."""
    width: int = 1
    """Number of workers of the last started segment."""
    lanes: int = 1
    """Largest number of trials that it was trained with as one computation, including itself."""
    sure_width: int | None = None
    """Number of workers with which it last reached a rung normally; None before the first rung."""
    rollback_point: RollbackPoint | None = None
    """Its state before it was widened beyond `sure_width`; None if it wasn't."""
    company: Company = ()
    """Trials, including itself, that it may share a worker with until its segment is complete. Only itself: it needs a
    worker alone. Empty: any trial."""
    narrowest: int = 1
    """Minimum number of workers, since it ran out of memory on fewer."""
    widest: int | None = None
    """Maximum number of workers, since it failed or diverged on more; None: no limit."""
    reverted: str = ""
    """Why it was reverted to fewer workers."""
    continued: TrialState | None = None
    """Its state before a user had it train on; None if no user had. The scheduler observes nothing of it since then."""
    continued_from: str | None = None
    """The checkpoint that it trained on from. It is kept, as the longer training may be the worse one."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Texts that its code noted, by name."""
    _saved: tuple[tuple[int, str], ...] = ()
    """(iteration, checkpoint) in the order of writing, except those returned by `take_superseded`."""

    def __post_init__(self) -> None:
        start = self.trial.start
        if start:
            self.result = TrialResult(start)
        self.checkpoint, self.checkpoint_iteration = self.source, start

    @property
    def alone(self) -> bool:
        """Whether it needs a worker alone."""
        return len(self.company) == 1

    @property
    def source(self) -> str | None:
        """The parent's checkpoint that a fork starts from, and restarts from if its own is damaged."""
        return None if self.trial.parent is None else self.trial.parent.checkpoint

    @property
    def charged(self) -> float:
        """Seconds that count toward its timeout."""
        return self.seconds - self.excused

    @property
    def valid_score(self) -> Score | None:
        """The score that tables show and that trials are compared by; None if it is NaN or the trial has failed."""
        score = self.result.score
        return score if is_valid(score) and self.state is not TrialState.FAILED else None

    @property
    def reached_rung(self) -> bool:
        """Whether it has completed a segment."""
        return self.sure_width is not None

    def on(self, until: int | None, cost_end: float | None = None) -> Segment:
        """Return the segment that resumes the trial from its newest checkpoint.

        Args:
            until: Last iteration to run.
            cost_end: `Costs.end`, if rungs end by costs.
        """
        costs = None if cost_end is None else Costs(self.checkpoint_cost, cost_end)
        attempt = self.attempts + 1
        return Segment(self.trial.number, self.checkpoint_iteration, until, self.checkpoint, attempt, costs=costs)

    def again(self) -> Segment:
        """Return the remaining part of the last started segment."""
        return self.on(self.until, self.cost_end)

    def start(self, segment: Segment) -> None:
        """Record that a segment runs."""
        self.attempts, self.segment, self.until = segment.attempt, segment, segment.end
        self.cost_end = None
        if segment.costs is not None:
            self.cost, self.cost_end = segment.costs.start, segment.costs.end

    def spend(self, reports: Iterable[Report], resource: str) -> None:
        """Count what reports of the running attempt cost."""
        for report in reports:
            self.cost = self.cost + report.seconds if resource == SECONDS else report.metrics[resource]

    def save(self, iteration: int, checkpoint: str) -> None:
        """Record a newer checkpoint. Its cost was counted already; its iteration was, too, or is counted next."""
        self._know(iteration, checkpoint)
        self.checkpoint, self.checkpoint_iteration, self.checkpoint_cost = checkpoint, iteration, self.cost
        if (iteration, self.attempts) == (self.result.value_iteration, self.result.value_attempt):
            self.result = replace(self.result, value_checkpoint=checkpoint)

    def count(self, reports: Iterable[Report], objective: Objective) -> None:
        """Count reports, except those of iterations before the last counted one."""
        iterations, score = self.result.iterations, self.result.score
        last: Report | None = None
        scored: Report | None = None
        for report in reports:
            if report.iteration < iterations:
                continue
            iterations, last = report.iteration, report
            reported = objective.reported(report.metrics)
            if objective.replaces(reported, score):
                score, scored = reported, report
        if scored is not None and last is not None:
            at = scored.iteration
            saved = self.checkpoint if self.checkpoint_iteration == at else None
            self.result = TrialResult(iterations, last.metrics, score, at, self.attempts, saved, scored.metrics)
        elif last is not None:
            self.result = replace(self.result, iterations=iterations, metrics=last.metrics)

    def note(self, notes: Mapping[str, str]) -> None:
        """Record notes; they replace those of the same names."""
        self.notes = {**self.notes, **notes}

    def ran(self, code: int) -> None:
        """Record the version of the code that produces its next reports."""
        if code not in self.code:
            self.code = (*self.code, code)

    def drop_checkpoint(self) -> None:
        """Drop the newest checkpoint, which can't be read. The trial restarts from scratch, or from its parent's."""
        self._saved = tuple(saved for saved in self._saved if saved[1] != self.checkpoint)
        if self.result.value_checkpoint == self.checkpoint:
            self.result = replace(self.result, value_checkpoint=None)
        self.checkpoint, self.checkpoint_iteration, self.checkpoint_cost = self.source, self.trial.start, 0.0
        self.rollback_point = None

    def widen(self, width: int, least: int) -> None:
        """Record its number of workers, and a rollback point if that exceeds the widths that are known to work."""
        self.width = width
        sure = least if self.sure_width is None else self.sure_width
        may_go_back = self.widest is None  # a trial is reverted at most once
        if width > sure and may_go_back and self.rollback_point is None:
            self.rollback_point = RollbackPoint(self.result, self.checkpoint, self.checkpoint_iteration, sure)

    def lose(self, then: str, company: Company) -> None:
        """Record how its segment runs again after a lost attempt: `Lost.then` and `Lost.company`."""
        match then:
            case "halved":
                self.company = company
            case "alone":
                self.company = (self.trial.number,)
            case "wider":
                self.narrowest = 2 * self.width

    def settle(self) -> None:
        """Record that it reached its rung normally."""
        self.sure_width, self.rollback_point, self.company = self.width, None, ()

    def revert(self, reason: str, left_behind: str | None) -> None:
        """Return to its state before it was widened. `left_behind` is a checkpoint that is no longer needed."""
        point = self.rollback_point
        if point is None:
            raise ValueError(f"only a trial that was widened can go back; trial {self.trial.number} was not")
        if left_behind is not None:
            self._know(sys.maxsize, left_behind)
        # Later checkpoints are of iterations that don't count: no trial may be forked from them.
        reached = point.checkpoint_iteration
        self._saved = tuple((at if at <= reached else sys.maxsize, path) for at, path in self._saved)
        self.result = point.result
        self.checkpoint, self.checkpoint_iteration = point.checkpoint, point.checkpoint_iteration
        self.widest, self.rollback_point, self.reverted = point.width, None, reason

    def retry(self) -> None:
        """Return to its state before the attempt that failed, and reset its retries and its time."""
        self.result, self.former_result = self.former_result, _NOTHING
        self.failure, self.reason, self.pruned = None, "", ""
        self.failures = self.losses = 0
        self.excused = self.seconds

    def train_on(self, until: int, iteration: int, checkpoint: str) -> None:
        """Go on from its last checkpoint after its end, with new retries and a new timeout."""
        self._know(iteration, checkpoint)
        self.checkpoint, self.checkpoint_iteration = checkpoint, iteration
        self.until, self.cost_end = until, None
        self.continued, self.continued_from, self.pruned = self.state, checkpoint, ""
        self.failures = self.losses = 0
        self.excused = self.seconds

    def needed(self) -> set[str]:
        """Return its newest checkpoint, those that it may go back to or trained on from, and those of its best values.

        Also the checkpoint that its running segment started from, since its code may still read it.
        """
        checkpoints = [self.checkpoint, self.result.value_checkpoint, self.former_result.value_checkpoint]
        checkpoints.append(self.continued_from)
        if self.segment is not None:
            checkpoints.append(self.segment.checkpoint)
        if self.state not in DECIDED:
            checkpoints.append(self.source)
        if self.rollback_point is not None:
            checkpoints += [self.rollback_point.checkpoint, self.rollback_point.result.value_checkpoint]
        return {checkpoint for checkpoint in checkpoints if checkpoint is not None}

    def checkpoint_at(self, iteration: int) -> tuple[int, str] | None:
        """Return (iteration, checkpoint) of its newest checkpoint at or before an iteration; None if there is none."""
        before = [saved for saved in reversed(self._saved) if saved[0] <= iteration]
        return max(before, key=lambda saved: saved[0], default=None)

    def has(self, checkpoint: str) -> bool:
        """Return whether it wrote this checkpoint, and the checkpoint still exists."""
        return any(saved[1] == checkpoint for saved in self._saved)

    def take_superseded(self, *needed_elsewhere: Collection[str]) -> list[str]:
        """Return, each once, the checkpoints that neither this trial nor `needed_elsewhere` needs any longer."""
        needed = (self.needed(), *needed_elsewhere)
        gone = [path for _, path in self._saved if not any(path in some for some in needed)]
        self._saved = tuple(saved for saved in self._saved if saved[1] not in gone)
        return gone

    def retire(self) -> None:
        """Mark all its checkpoints as no longer needed."""
        self.checkpoint, self.checkpoint_iteration = None, 0
        self.result = replace(self.result, value_checkpoint=None)

    def row(self) -> TrialRow:
        """Return the trial's row in tables."""
        parent, address = self.trial.parent, self.result.value_checkpoint
        return TrialRow(
            number=self.trial.number,
            state=self.state,
            iterations=self.result.iterations,
            score=self.valid_score,
            params=self.trial.params,
            origin=self.trial.origin,
            checkpoint=None if address is None else path_of(address),
            failure=self.failure,
            seconds=self.seconds,
            reason=self.reason,
            width=self.width,
            lanes=self.lanes,
            reverted=self.reverted,
            asynchronous=self.asynchronous,
            metrics=self.result.metrics,
            value_iteration=self.result.value_iteration,
            parent=None if parent is None else parent.number,
            inherited=self.trial.inherited,
            start=self.trial.start,
            code=self.code,
            address=address,
            notes=self.notes,
        )

    def _know(self, iteration: int, checkpoint: str) -> None:
        if (iteration, checkpoint) not in self._saved:
            self._saved = (*self._saved, (iteration, checkpoint))
