"""Run one segment of one trial in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hpsearch.attempt import Attempt, attempt_directory
from hpsearch.command import CommandRunner
from hpsearch.in_process import InProcess
from hpsearch.running_trial import Assignment, nest
from hpsearch.trial import Failure, Report, Segment, Trial

__all__ = ["Channel", "CommandLine", "Job", "SegmentResult", "Worker", "attempt_directory"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A script of any kind as a trainable."""

    program: str | None
    """The sweep file's `program`."""
    command: tuple[str, ...]
    """Words with W&B's macros, e.g. `("${env}", "${interpreter}", "${program}", "${args}")`."""
    directory: str
    """Working directory of the script: the folder where `hpsearch` was started."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all segments of a study share; it must survive cloudpickle."""

    study: str
    """Absolute path of the study's directory, as the driver sees it."""
    name: str
    """The sweep's name."""
    trainable: str | Callable[..., Any] | CommandLine
    """An import path `package.module:name`, the function or class itself, or a command."""
    search_path: tuple[str, ...]
    """Folders put in front of `sys.path` before the import path is followed."""
    metric: str
    """Name that every report must hold."""
    save_every: int | None
    """Iterations between checkpoints inside a segment; None: only at its end."""
    max_iter: int | None
    threads: int
    """torch's intra-op threads: `cpus_per_worker`."""
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flat parameter names to where the sweep's groups hold them; a name that is missing is at the top."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """How an attempt ended by itself."""

    iteration: int
    """Last iteration that it reported; the segment's start when there was none."""
    checkpoint: str | None
    """At `iteration`, relative to the study's directory; None where the trainable saves none or it failed."""
    reports: tuple[Report, ...]
    """Those since the last checkpoint that the channel was told of."""
    cut: bool
    """It ended early because the channel asked for it."""
    seconds: float
    """Wall time of the attempt."""
    failure: Failure | None


class Channel(Protocol):
    """What a running segment tells the outside as it goes on, from the thread that runs it."""

    def reported(self, report: Report) -> None:
        """Take a provisional report."""

    def saved(self, iteration: int, checkpoint: str, reports: tuple[Report, ...]) -> None:
        """Take note of a checkpoint inside the segment, and of the reports since the last one."""

    def cut_requested(self) -> bool:
        """Say whether the segment should end at this report."""


class Worker:
    """Runs segments of one study, one at a time, and keeps the last trial's object warm.

    Args:
        job: What all segments share.
        root: Where attempts write and checkpoints are read: the study's directory, or what stands for it on a
            machine that doesn't see that.

    Raises:
        TrainableError: The trainable can't be imported, or has another shape.
    """

    def __init__(self, job: Job, root: Path) -> None:
        self._job = job
        self._root = root.absolute()
        self._in_process: InProcess | None = None
        self._script: CommandRunner | None = None
        if isinstance(job.trainable, CommandLine):
            self._script = CommandRunner(job.trainable, job.threads)
        else:
            self._in_process = InProcess(job.trainable, job.search_path, job.threads)

    def run(self, trial: Trial, segment: Segment, channel: Channel) -> SegmentResult:
        """Run one segment. Output goes to `output.log` in the attempt's directory.

        The user's mistakes are failures in the result, never exceptions; KeyboardInterrupt passes through, and so
        does what the channel raises.
        """
        began = time.perf_counter()
        directory = self._root / attempt_directory(segment)
        directory.mkdir(parents=True, exist_ok=True)
        assignment = self._assignment(trial, segment, directory)
        attempt = Attempt(segment, channel)
        log = directory / "output.log"
        if self._in_process is not None:
            failure = self._in_process.run(assignment, attempt, log)
        else:
            assert self._script is not None
            failure = self._script.run(trial.params, assignment, attempt, log)
        if attempt.channel_error is not None:
            raise attempt.channel_error
        return SegmentResult(
            iteration=attempt.iteration,
            checkpoint=None if failure else attempt.checkpoint,
            reports=tuple(attempt.reports),
            cut=attempt.cut and failure is None,
            seconds=time.perf_counter() - began,
            failure=failure,
        )

    def close(self) -> None:
        """Let go of the warm object, and give back what was taken of the process."""
        for runner in (self._in_process, self._script):
            if runner is not None:
                runner.close()

    def _assignment(self, trial: Trial, segment: Segment, directory: Path) -> Assignment:
        return Assignment(
            number=trial.number,
            params=nest(trial.params, self._job.paths),
            seed=trial.seed,
            directory=str(directory),
            start=segment.start,
            end=segment.end,
            checkpoint=None if segment.checkpoint is None else str(self._root / segment.checkpoint),
            metric=self._job.metric,
            save_every=self._job.save_every,
        )
