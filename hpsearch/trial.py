"""Plain frozen data that crosses every seam: trials, segments, reports and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Goal = Literal["minimize", "maximize"]

Value = Any
"""A parameter's value: a bool, int, float, str, None, or a list or mapping of these. Never a NumPy scalar."""

Params = Mapping[str, Value]
"""Flat parameter names (`"optimizer.lr"` for a nested group) to values, in the order of the sweep."""


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state of a trial at the end of an iteration, as a fork names it."""

    trial: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Parent:
    """What a trial was forked from."""

    number: int
    """The other trial's."""
    iteration: int
    """Of the checkpoint; without one, of the state that was requested."""
    checkpoint: str | None
    """The newest one that the other trial had at the requested iteration, relative to the study's directory; None if
    there was none, so that the fork started from zero."""
    params: Params = field(default_factory=dict)
    """Of the trial that saved the checkpoint, which may be an ancestor of the other trial; flat."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration of the search space, and its seed."""

    number: int
    """Position in the order of creation, from 0."""
    params: Params
    """Flat names to values."""
    seed: int
    """Derived from (sweep seed, trial number) alone; 0 <= seed < 2**32."""
    origin: str
    """Where the params come from: the name of a method, `"points_to_try"`, `"stand_in"`, `"retry"`, `"added"`, or what
    a searcher of one's own calls it."""
    parent: Parent | None = None
    """The trial that it was forked from."""
    start: int = 0
    """Iterations that count as done when it begins: a fork continues from there. Its parent's checkpoint has as many or
    more."""

    @property
    def inherited(self) -> int | None:
        """The parent's iteration whose state it took over; None if it took over none."""
        parent = self.parent
        return parent.iteration if parent is not None and (parent.checkpoint or self.start) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """The unit of work: a trial, from the end of iteration `start` to the end of iteration `end`."""

    trial: int
    start: int
    """Iterations done before it, contained in `checkpoint` except in a fork's first segment; 0 without one."""
    end: int | None
    """Last iteration to run; None where the sweep names no `max_iter`: until the trainable returns."""
    checkpoint: str | None
    """Path of the checkpoint to start from, relative to the study's directory; a fork starts from its parent's until it
    has its own."""
    attempt: int
    """Counts the trial's started segments from 1; each attempt writes to a directory of its own."""
    width: int = 1
    """Workers that run it together."""


@dataclass(frozen=True, slots=True)
class Report:
    """The metrics that a trainable reported at the end of an iteration."""

    trial: int
    iteration: int
    """From 1."""
    metrics: Mapping[str, float]
    seconds: float
    """Running time of this iteration, of the trainable alone."""
    lanes: int = field(default=1, compare=False)
    """Trials that were trained together in this iteration and share its time; not part of a result."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    kind: Literal["raised", "timeout", "died", "contract", "checkpoint", "storage", "peer", "memory"]
    """What went wrong.

    `raised`: the trainable raised, or its command exited non-zero; `timeout`: it ran over `trial_timeout`; `died`: its
    worker died, or its script was ended from outside, again and again without progress; `contract`: it broke the
    sweep's contract (the metric was never reported, a checkpoint was refused); `memory`: an allocator refused, also
    where it had a worker for itself and as many as it may have. Not the trial's fault are `checkpoint`: the one to
    start from is missing or damaged, which fails a trial only where it is its parent's; `storage`: the study's
    directory can't be written or read; and `peer`: another worker of its gang was lost, or the gang didn't come
    together.
    """
    message: str
    """One line."""
    traceback: str
    """Whole text, empty where there is none."""
    key: str = ""
    """The sweep's key that it concerns, as `TrainableError` has it."""


@dataclass(frozen=True, slots=True)
class JointScore:
    """Score of a trial with several goals, or with constraints on outcomes."""

    values: tuple[float, ...]
    """Value of each goal, as reported."""
    excesses: tuple[float, ...] = ()
    """By how much of its bound each constraint is violated; 0 or less where it holds."""

    @property
    def violation(self) -> float:
        """Total violation of the constraints; 0 if all hold, NaN if one is of NaN."""
        return sum(excess for excess in self.excesses if not excess <= 0)


Score = float | JointScore
"""Score of a trial: the value of its only deciding metric, or a `JointScore`."""


class TrialState(StrEnum):
    """State of a trial."""

    WAITING = "waiting"
    """Paused between two segments, or to be started again."""
    RUNNING = "running"
    COMPLETE = "complete"
    """Ran to the end of its last rung."""
    STOPPED = "stopped"
    """Terminated early by the scheduler."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial as tables, exports and best_trial show it."""

    number: int
    state: TrialState
    iterations: int
    """Highest finished iteration that counts."""
    score: Score | None
    """Score at `iterations`, or the best so far, depending on `metric.scope`; None without one, with NaN, and for a
    failed trial."""
    params: Params
    origin: str
    checkpoint: str | None
    """Checkpoint of the iteration of `score`, relative to the study's directory; None if none was written or kept."""
    failure: Failure | None
    seconds: float
    """Running time of all iterations that count."""
    reason: str
    """The scheduler's last decision in words, e.g. `"rung 2: 7th of 9, top 3 go on"`."""
    width: int = 1
    """Workers of its last segment."""
    lanes: int = 1
    """Most trials that were trained together with it; not part of the result."""
    reverted: str = ""
    """Why it was rolled back to fewer workers; empty if it never was."""
    asynchronous: bool = False
    """Its workers didn't wait for each other: a rerun gives other numbers."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics reported at `iterations`, NaN included, also of a failed trial; empty without a report."""
    value_iteration: int = 0
    """The iteration that reported `score`."""
    parent: int | None = None
    """The trial that it was forked from."""
    inherited: int | None = None
    """The parent's iteration whose state it took over; None if it took over none."""
    start: int = 0
    """Iterations that it counted as done when it began."""
    code: tuple[int, ...] = field(default=(), compare=False)
    """Versions of the trainable's code that its reports come from, from 1; empty if unknown."""
    address: str | None = field(default=None, compare=False, repr=False)
    """Address that `checkpoint` is read from, which may be a file of several; not part of a result."""

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the deciding metrics, in the order of the sweep; empty without a score."""
        if self.score is None:
            return ()
        return self.score.values if isinstance(self.score, JointScore) else (self.score,)

    @property
    def value(self) -> float | None:
        """Value of the deciding metric; None without a score, or if several decide."""
        return self.values[0] if len(self.values) == 1 else None

    @property
    def feasible(self) -> bool:
        """Whether it satisfies the constraints on outcomes; False without a score."""
        return self.score is not None and not (isinstance(self.score, JointScore) and self.score.violation)
