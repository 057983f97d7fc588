"""Plain frozen data that crosses every seam: trials, segments, reports and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Failure",
    "Goal",
    "JointScore",
    "Params",
    "Parent",
    "Report",
    "Score",
    "Segment",
    "StateAt",
    "Trial",
    "TrialRow",
    "TrialState",
    "Value",
]

Goal = Literal["minimize", "maximize"]

Value = Any
"""A parameter's value: a bool, int, float, str, None, or a list or mapping of these. Never a NumPy scalar."""

Params = Mapping[str, Value]
"""Flat parameter names (`"optimizer.lr"` for a nested group) to values, in the order of the sweep."""


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state of a trial at the end of an iteration, as what wants to fork the trial names it."""

    trial: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Parent:
    """What a trial was forked from."""

    number: int
    """The other trial's."""
    iteration: int
    """Of the checkpoint; of the state that was asked for where there is none."""
    checkpoint: str | None
    """The newest one that the other trial had at the iteration that was asked for, relative to the study's directory;
    None where there was none, so that nothing was taken over."""
    params: Params = field(default_factory=dict)
    """Of the trial that saved the checkpoint, which may be one that the other trial was forked from itself; flat."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One point of the search space."""

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
    """Iterations that it counts as done when it begins: a fork goes on from there. Its parent's checkpoint has done as
    many or more."""

    @property
    def inherited(self) -> int | None:
        """The iteration of its parent whose state it took over; None where it took over nothing."""
        parent = self.parent
        return parent.iteration if parent is not None and (parent.checkpoint or self.start) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """The unit of work: a trial, from the end of iteration `start` to the end of iteration `end`."""

    trial: int
    start: int
    """Iterations already done, in `checkpoint` but for a fork's first segment; 0 without one."""
    end: int | None
    """Last iteration to run; None where the sweep names no `max_iter`: until the trainable returns."""
    checkpoint: str | None
    """Path of the checkpoint to start from, relative to the study's directory; of a fork without one of its own it is
    its parent's."""
    attempt: int
    """Counts the trial's started segments from 1; each attempt writes to a directory of its own."""
    width: int = 1
    """Workers that run it together."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a trainable said at the end of one iteration."""

    trial: int
    iteration: int
    """From 1."""
    metrics: Mapping[str, float]
    seconds: float
    """Running time of this iteration (of the trainable alone)."""
    lanes: int = field(default=1, compare=False)
    """Trials that were trained as one computation then, of whose time this is a part; no part of a result."""


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


@dataclass(frozen=True, slots=True)
class JointScore:
    """What a trial is judged by where one number isn't enough: several goals, or constraints on outcomes."""

    values: tuple[float, ...]
    """Of each goal, as it was reported."""
    excesses: tuple[float, ...] = ()
    """By how much of its bound each constraint is broken; less than 0 or 0 where it is kept."""

    @property
    def violation(self) -> float:
        """By how much constraints are broken, in all; 0 where they are kept, NaN where one is of NaN."""
        return sum(excess for excess in self.excesses if not excess <= 0)


Score = float | JointScore
"""What a trial is judged by: the value of the only metric that decides, or more."""


class TrialState(StrEnum):
    """Where a trial stands."""

    WAITING = "waiting"
    """Paused between two segments, or to be started again."""
    RUNNING = "running"
    COMPLETE = "complete"
    """Ran all that its scheduler could give it."""
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
    """What it reported at `iterations`, or by the sweep's `metric.scope` the best so far; None when there is none, when
    it holds NaN, and for a failed trial."""
    params: Params
    origin: str
    checkpoint: str | None
    """The state that gave `score`, relative to the study's directory; None where none was written there, or kept."""
    failure: Failure | None
    seconds: float
    """Running time of all that counts."""
    reason: str
    """The scheduler's last decision in words, e.g. `"rung 2: 7th of 9, top 3 go on"`."""
    width: int = 1
    """Workers of its last segment."""
    lanes: int = 1
    """Trials of which it was trained as one computation, at most; it is no part of the result."""
    reverted: str = ""
    """Why it was taken back from more workers, in words; empty where it never was."""
    asynchronous: bool = False
    """Its workers didn't wait for each other: run once more it gives other numbers."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All that was reported at `iterations`, NaN included, of a failed trial too; empty where nothing was."""
    value_iteration: int = 0
    """The iteration that reported `score`."""
    parent: int | None = None
    """The trial that it was forked from."""
    inherited: int | None = None
    """The parent's iteration whose state it took over; None where there was none to take over."""
    start: int = 0
    """Iterations that it counted as done when it began."""
    code: tuple[int, ...] = field(default=(), compare=False)
    """Versions of the trainable's code that its reports are of, from 1; empty where they aren't known."""
    address: str | None = field(default=None, compare=False, repr=False)
    """From where `checkpoint` is read, which may be a file that holds others, too; no part of a result."""

    @property
    def values(self) -> tuple[float, ...]:
        """Those of the metrics that decide, in the order of the sweep; none where it has no score."""
        if self.score is None:
            return ()
        return self.score.values if isinstance(self.score, JointScore) else (self.score,)

    @property
    def value(self) -> float | None:
        """That of the metric that decides, where it is one; None where it has no score, or several decide."""
        return self.values[0] if len(self.values) == 1 else None

    @property
    def feasible(self) -> bool:
        """Whether it keeps the constraints on outcomes; False where it has no score."""
        return self.score is not None and not (isinstance(self.score, JointScore) and self.score.violation)
