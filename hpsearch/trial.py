"""Plain frozen dataclasses that all interfaces share: trials, segments, reports and results."""

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
    """Reference to the state of a trial at the end of an iteration; a fork names its parent's state with it."""

    trial: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Parent:
    """The trial and the state that another trial was forked from."""

    number: int
    """Number of the parent trial."""
    iteration: int
    """Iteration of the checkpoint; without a checkpoint, of the state that was requested."""
    checkpoint: str | None
    """Newest checkpoint that the parent trial had at the requested iteration, relative to the study's directory; None
    if it had none, so that the fork started from scratch."""
    params: Params = field(default_factory=dict)
    """Flat params of the trial that saved the checkpoint, which may be an ancestor of the parent trial."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration of the search space, and its seed."""

    number: int
    """Position in the order of creation, from 0."""
    params: Params
    """Flat names to values."""
    seed: int
    """Derived only from the sweep's seed and the trial's number, or that of its repeat; 0 <= seed < 2**32."""
    origin: str
    """Where the params come from: the name of a method, `"points_to_try"`, `"stand_in"`, `"retry"`, `"added"`, or a
    custom searcher's own word."""
    parent: Parent | None = None
    """The trial that it was forked from."""
    start: int = 0
    """Iterations that count as done when the trial starts: a fork continues after them. The parent's checkpoint has at
    least as many iterations."""
    configuration: int | None = None
    """Index of its configuration in a sweep with repeats, in the order of creation, from 0; None without repeats."""
    repeat: int = 0
    """Which repeat of its configuration it is, from 0."""

    @property
    def inherited(self) -> int | None:
        """The parent's iteration whose state the trial inherited; None if it inherited none."""
        parent = self.parent
        return parent.iteration if parent is not None and (parent.checkpoint or self.start) else None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a trial has cost in the sweep's resource, such as `tokens` or `seconds`, counted from the trial's start."""

    start: float
    """Before the segment."""
    end: float
    """The segment ends with the first report at or above this."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The unit of work: a trial, from the end of iteration `start` to the end of iteration `end`."""

    trial: int
    start: int
    """Iterations done before the segment, which `checkpoint` contains except in a fork's first segment; 0 without a
    checkpoint."""
    end: int | None
    """Last iteration to run; None if there is none, as the sweep has no `max_iter`, or rungs end by costs."""
    checkpoint: str | None
    """Path of the checkpoint to start from, relative to the study's directory. A fork starts from its parent's
    checkpoint until it has one itself."""
    attempt: int
    """Number of the attempt, counting the trial's started segments from 1; each attempt writes to its own directory."""
    width: int = 1
    """Number of workers that run the segment together."""
    costs: Costs | None = None
    """None if rungs end by iterations, or there are none."""


@dataclass(frozen=True, slots=True)
class Report:
    """The metrics that a trainable reported at the end of an iteration."""

    trial: int
    iteration: int
    """From 1."""
    metrics: Mapping[str, float]
    seconds: float
    """Running time of this iteration, in the trainable only."""
    lanes: int = field(default=1, compare=False)
    """Number of trials that were trained together in this iteration and share its time; not part of a result."""


CAPACITY = ("memory", "timeout")
"""Kinds of failures of configurations that need too much."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    kind: Literal["raised", "timeout", "died", "contract", "checkpoint", "storage", "peer", "memory"]
    """What went wrong.

    `raised`: the trainable raised, or its command exited non-zero. `timeout`: the trial exceeded `trial_timeout`.
    `died`: the worker died, or the script was ended from outside, repeatedly without progress. `contract`: the trial
    broke the sweep's contract (the metric was never reported, a checkpoint was refused). `memory`: memory ran out, even
    on whole workers and on as many as the trial may have.

    Three kinds are not the trial's fault. `checkpoint`: the checkpoint to start from is missing or damaged; this fails
    a trial only if it is the parent's checkpoint. `storage`: the study's directory can't be written or read. `peer`:
    another worker of the gang was lost, or the gang didn't start.
    """
    message: str
    """The error message, on one line."""
    traceback: str
    """The full traceback; empty if there is none."""
    key: str = ""
    """The key of the sweep that the failure is about, as in `TrainableError`."""

    @property
    def is_of_capacity(self) -> bool:
        """Whether a smaller configuration would not have failed. An exception says nothing about other ones."""
        return self.kind in CAPACITY


@dataclass(frozen=True, slots=True)
class JointScore:
    """Score of a trial with several goals, or with constraints on outcomes."""

    values: tuple[float, ...]
    """Value of each goal, as reported."""
    excesses: tuple[float, ...] = ()
    """By how much each constraint is violated, as a share of its bound; 0 or less if the constraint holds."""

    @property
    def violation(self) -> float:
        """Total violation of the constraints; 0 if all hold, NaN if any excess is NaN."""
        return sum(excess for excess in self.excesses if not excess <= 0)


Score = float | JointScore
"""Score of a trial: the value of its only deciding metric, or a `JointScore`."""


class TrialState(StrEnum):
    """State of a trial."""

    WAITING = "waiting"
    """Paused between two segments, or waiting for a restart."""
    RUNNING = "running"
    COMPLETE = "complete"
    """Ran to the end of its last rung."""
    STOPPED = "stopped"
    """Terminated early by the scheduler."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Repeated:
    """The configuration that a trial belongs to in a sweep with repeats, and the results of its repeats so far."""

    configuration: int
    """Index of the configuration, from 0."""
    repeat: int
    """Which repeat the trial is, from 0."""
    score: Score | None
    """Score of the configuration, by which it is ranked; None unless all its repeats are complete with a score."""
    statistic: str
    """What `values` are: `mean` or `quantile`."""
    values: tuple[float, ...]
    """Mean of each goal over the repeats that are complete with a score, or the sweep's quantile; empty if there is
    none."""
    deviations: tuple[float | None, ...]
    """Sample standard deviation of each goal over the same repeats; None for fewer than two."""
    n: int
    """Number of these repeats."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial as shown by tables, exports and `best_trial`."""

    number: int
    state: TrialState
    iterations: int
    """Highest finished iteration that counts."""
    score: Score | None
    """Score at `iterations`, or the best score so far, depending on `metric.scope`; None without a report, for NaN, and
    for a failed trial."""
    params: Params
    origin: str
    checkpoint: str | None
    """Checkpoint of the iteration of `score`, relative to the study's directory; None if none was written or kept."""
    failure: Failure | None
    seconds: float
    """Running time of all iterations that count."""
    reason: str
    """The scheduler's last decision as text, e.g. `"rung 2: 7th of 9, top 3 go on"`."""
    width: int = 1
    """Number of workers of the trial's last segment."""
    lanes: int = 1
    """Maximum number of trials that were trained together, this one included; not part of the result."""
    reverted: str = ""
    """Why the trial was rolled back to fewer workers; empty if it never was."""
    asynchronous: bool = False
    """The trial's workers were asynchronous: a rerun gives different numbers."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics reported at `iterations`, NaN included, also of a failed trial; empty without a report."""
    value_iteration: int = 0
    """The iteration that reported `score`."""
    parent: int | None = None
    """The trial that it was forked from."""
    inherited: int | None = None
    """The parent's iteration whose state the trial inherited; None if it inherited none."""
    start: int = 0
    """Iterations that counted as done when the trial started."""
    repeated: Repeated | None = None
    """Its configuration in a sweep with repeats; None without repeats."""
    code: tuple[int, ...] = field(default=(), compare=False)
    """Versions of the trainable's code that produced the trial's reports, from 1; empty if unknown."""
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Texts that the trial's code noted, by name; not part of a result."""
    address: str | None = field(default=None, compare=False, repr=False)
    """Address of `checkpoint`: its directory, or an entry of a file with several checkpoints; not part of a result."""

    @property
    def standing(self) -> Score | None:
        """Score by which the trial is ranked: its own, or with repeats that of its configuration."""
        return self.score if self.repeated is None else self.repeated.score

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the metrics that rank trials, in the order of the sweep; empty without a score."""
        if self.score is None:
            return ()
        return self.score.values if isinstance(self.score, JointScore) else (self.score,)

    @property
    def value(self) -> float | None:
        """Value of the metric that ranks trials; None without a score, or if there are several such metrics."""
        return self.values[0] if len(self.values) == 1 else None

    @property
    def feasible(self) -> bool:
        """Whether the trial satisfies the outcome constraints; False without a score."""
        return self.score is not None and not (isinstance(self.score, JointScore) and self.score.violation)
