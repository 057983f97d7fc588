"""The record of one trial: its state, its score, its newest checkpoint, and which of its checkpoints may go."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hpsearch.objective import Objective, is_valid
from hpsearch.task import Company
from hpsearch.trainable.addresses import path_of
from hpsearch.trial import Failure, Report, Score, Segment, Trial, TrialRow, TrialState


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial has to show: of its reports, those that count."""

    iterations: int = 0
    """Highest iteration that counts."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All that was reported at `iterations`."""
    score: Score | None = None
    """As the objective has it, NaN included."""
    value_iteration: int = 0
    """The iteration that reported `score`."""
    value_attempt: int = 0
    """The attempt that did: another one's checkpoint at that iteration may hold another state."""
    value_checkpoint: str | None = None
    """The state that gave `score`, where it was saved."""


@dataclass(frozen=True, slots=True)
class RollbackPoint:
    """Where a trial stood before it was widened."""

    result: TrialResult
    checkpoint: str | None
    checkpoint_iteration: int
    width: int


_NOTHING = TrialResult()
"""Shared by all trials that have reported nothing."""

DECIDED = frozenset({TrialState.COMPLETE, TrialState.STOPPED})
"""Trials that never run again."""


@dataclass(slots=True, eq=False)  # a sweep holds one for every trial that it ever made
class TrialRecord:
    """One trial's record."""

    trial: Trial
    asynchronous: bool = False
    """Its ranks don't wait for each other: run once more it gives other numbers."""
    state: TrialState = TrialState.WAITING
    result: TrialResult = _NOTHING
    checkpoint: str | None = field(init=False)
    """The newest; a fork's first is its parent's."""
    checkpoint_iteration: int = field(init=False)
    code: tuple[int, ...] = ()
    """Versions of the trainable's code that its reports are of."""
    attempts: int = 0
    failures: int = 0
    """Attempts that failed by the trial's own fault, since it was last retried."""
    losses: int = 0
    """Attempts lost in a row, without a checkpoint or a finished segment between them."""
    seconds: float = 0.0
    """Wall time in workers, of all attempts that reported it."""
    bracket: int = 0
    rung: int = 0
    excused: float = 0.0
    """Those of `seconds` that don't count towards its timeout: lost with a worker, or before it was retried."""
    former_result: TrialResult = _NOTHING
    """Where it stood before the reports of the attempt by which it failed."""
    until: int | None = None
    segment: Segment | None = None
    """What runs now."""
    failure: Failure | None = None
    reason: str = ""
    pruned: str = ""
    """Why it is to go no further once nothing of it runs; empty: nobody pruned it."""
    width: int = 1
    """Workers of the segment that was started last."""
    lanes: int = 1
    """Trials of which it was trained as one computation, at most."""
    sure_width: int | None = None
    """Workers of the last rung that it reached normally; None before the first."""
    rollback_point: RollbackPoint | None = None
    """Where it stood before it went beyond `sure_width`; None where it hasn't."""
    company: Company = ()
    """Those that it may share a worker with until its segment has come to its end, itself among them; if it is the only
    one, it has a worker for itself. Empty: any."""
    narrowest: int = 1
    """Workers that it needs, as there wasn't memory enough on fewer."""
    widest: int | None = None
    """Workers that it may have at most, since it went wrong on more."""
    reverted: str = ""
    """Why it was taken back from more workers."""
    _saved: tuple[tuple[int, str], ...] = ()
    """Checkpoints with their iterations, in the order of writing, except those returned as superseded."""

    def __post_init__(self) -> None:
        start = self.trial.start
        if start:
            self.result = TrialResult(start)
        self.checkpoint, self.checkpoint_iteration = self.source, start

    @property
    def alone(self) -> bool:
        """Whether it has a worker for itself."""
        return len(self.company) == 1

    @property
    def source(self) -> str | None:
        """The parent's checkpoint that a fork began with, and goes back to where its own is damaged."""
        return None if self.trial.parent is None else self.trial.parent.checkpoint

    @property
    def charged(self) -> float:
        """Seconds that count towards its timeout."""
        return self.seconds - self.excused

    @property
    def valid_score(self) -> Score | None:
        """The score as tables show it and trials are compared by: none where it is NaN, or the trial has failed."""
        score = self.result.score
        return score if is_valid(score) and self.state is not TrialState.FAILED else None

    @property
    def reached_rung(self) -> bool:
        """Whether a segment of it came to its end."""
        return self.sure_width is not None

    def on(self, until: int | None) -> Segment:
        """Return the segment that carries the trial on from its newest checkpoint."""
        return Segment(self.trial.number, self.checkpoint_iteration, until, self.checkpoint, self.attempts + 1)

    def again(self) -> Segment:
        """Return the rest of the segment that was started last."""
        return self.on(self.until)

    def save(self, iteration: int, checkpoint: str) -> None:
        """Take a newer checkpoint, of an iteration that was reported already or is counted next."""
        self._know(iteration, checkpoint)
        self.checkpoint, self.checkpoint_iteration = checkpoint, iteration
        if (iteration, self.attempts) == (self.result.value_iteration, self.result.value_attempt):
            self.result = replace(self.result, value_checkpoint=checkpoint)

    def count(self, reports: Iterable[Report], objective: Objective) -> None:
        """Count reports, those whose iteration hasn't been passed before."""
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
            self.result = TrialResult(iterations, last.metrics, score, at, self.attempts, saved)
        elif last is not None:
            self.result = replace(self.result, iterations=iterations, metrics=last.metrics)

    def ran(self, code: int) -> None:
        """Record which version of the code its newest reports are of."""
        if code not in self.code:
            self.code = (*self.code, code)

    def drop_checkpoint(self) -> None:
        """Forget the newest checkpoint: it can't be read, and the trial starts again from where it began."""
        self._saved = tuple(saved for saved in self._saved if saved[1] != self.checkpoint)
        if self.result.value_checkpoint == self.checkpoint:
            self.result = replace(self.result, value_checkpoint=None)
        self.checkpoint, self.checkpoint_iteration = self.source, self.trial.start
        self.rollback_point = None

    def widen(self, width: int, least: int) -> None:
        """Record that it runs on so many workers, and where it stood if that is more than is known to go well."""
        self.width = width
        sure = least if self.sure_width is None else self.sure_width
        may_go_back = self.widest is None  # it does so once
        if width > sure and may_go_back and self.rollback_point is None:
            self.rollback_point = RollbackPoint(self.result, self.checkpoint, self.checkpoint_iteration, sure)

    def lose(self, then: str, company: Company) -> None:
        """Record how its segment is to run after an attempt of it was lost: `Lost.then` and `Lost.company`."""
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
        """Go back to where it stood before it was widened; `left_behind` is a checkpoint that nothing needs."""
        point = self.rollback_point
        if point is None:
            raise ValueError(f"only a trial that was widened can go back; trial {self.trial.number} was not")
        if left_behind is not None:
            self._know(sys.maxsize, left_behind)
        # What it saved since is of no iteration that counts: nobody may be forked from there.
        reached = point.checkpoint_iteration
        self._saved = tuple((at if at <= reached else sys.maxsize, path) for at, path in self._saved)
        self.result = point.result
        self.checkpoint, self.checkpoint_iteration = point.checkpoint, point.checkpoint_iteration
        self.widest, self.rollback_point, self.reverted = point.width, None, reason

    def retry(self) -> None:
        """Go back to where it stood before the attempt by which it failed, with all its retries and all its time."""
        self.result, self.former_result = self.former_result, _NOTHING
        self.failure, self.reason, self.pruned = None, "", ""
        self.failures = self.losses = 0
        self.excused = self.seconds

    def needed(self) -> set[str]:
        """Return the checkpoints that it stands at or may have to go back to, and those of its value there.

        And the one that its segment began with: its code may look at that as long as it runs.
        """
        checkpoints = [self.checkpoint, self.result.value_checkpoint, self.former_result.value_checkpoint]
        if self.segment is not None:
            checkpoints.append(self.segment.checkpoint)
        if self.state not in DECIDED:
            checkpoints.append(self.source)
        if self.rollback_point is not None:
            checkpoints += [self.rollback_point.checkpoint, self.rollback_point.result.value_checkpoint]
        return {checkpoint for checkpoint in checkpoints if checkpoint is not None}

    def checkpoint_at(self, iteration: int) -> tuple[int, str] | None:
        """Return its newest checkpoint of this or an earlier iteration, with its iteration."""
        before = [saved for saved in reversed(self._saved) if saved[0] <= iteration]
        return max(before, key=lambda saved: saved[0], default=None)

    def has(self, checkpoint: str) -> bool:
        """Return whether it wrote this checkpoint, and the checkpoint is still there."""
        return any(saved[1] == checkpoint for saved in self._saved)

    def take_superseded(self, *needed_elsewhere: Collection[str]) -> list[str]:
        """Return the checkpoints that are no longer needed, each once, neither here nor in `needed_elsewhere`."""
        needed = (self.needed(), *needed_elsewhere)
        gone = [path for _, path in self._saved if not any(path in some for some in needed)]
        self._saved = tuple(saved for saved in self._saved if saved[1] not in gone)
        return gone

    def retire(self) -> None:
        """Need no checkpoint any more."""
        self.checkpoint, self.checkpoint_iteration = None, 0
        self.result = replace(self.result, value_checkpoint=None)

    def row(self) -> TrialRow:
        """Return the trial as tables show it."""
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
        )

    def _know(self, iteration: int, checkpoint: str) -> None:
        if (iteration, checkpoint) not in self._saved:
            self._saved = (*self._saved, (iteration, checkpoint))
