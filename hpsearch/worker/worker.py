"""Run one segment of one trial in this process."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from hpsearch.errors import BackendError, StorageError, UnwritableError
from hpsearch.journal.directory import OUTPUT_AT_HAND
from hpsearch.task import Result
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.storage import writing
from hpsearch.trial import Params, Segment, Trial
from hpsearch.worker.attempt import Attempt, AttemptLog, attempt_directory
from hpsearch.worker.child_process import environment
from hpsearch.worker.command import CommandRunner
from hpsearch.worker.gang import GangListener, GangStore, RankInfo
from hpsearch.worker.gpus import check_gpus, free_shared_gpu, part_of_gpu, without_gpus
from hpsearch.worker.in_process import InProcess
from hpsearch.worker.job import Channel, CommandLine, Job
from hpsearch.worker.lanes import AroundBuild, Lanes, why_whole

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_cublas_knows = False
"""Whether the variable was set when CUDA was first used in this process."""


class Worker:
    """Runs segments of one study: one at a time, with the last trial's object kept warm, or in parallel as lanes.

    Args:
        job: What all segments share.
        root: Directory that attempts write to and read checkpoints from: the study's directory, or its stand-in on a
            machine that can't access it.
        log: A shared file for output, so that an attempt's directory is created only when it is needed.
        node: Name of the machine for gangs: workers with the same name share memory. Empty: HPSEARCH_COMM_HOST, or
            else the machine.
        interface: Interface, address or network by which other machines reach this one. None:
            HPSEARCH_COMM_INTERFACE, or else routing.
        around_build: Returns a context for the build of a lane, given the seconds that it may take.

    Raises:
        TrainableError: The trainable can't be imported, or isn't a trainable.
    """

    def __init__(
        self,
        job: Job,
        root: Path,
        log: Path | None = None,
        node: str = "",
        interface: str | None = None,
        around_build: AroundBuild = contextlib.nullcontext,
    ) -> None:
        self._job = job
        self._root = root.absolute()
        node = node or os.environ.get("HPSEARCH_COMM_HOST", "")
        interface = interface or os.environ.get("HPSEARCH_COMM_INTERFACE") or None
        self._runner: CommandRunner | InProcess
        with ExitStack() as settings:
            if isinstance(job.trainable, CommandLine):
                if not job.gpus:
                    settings.enter_context(environment({"CUDA_VISIBLE_DEVICES": ""}))
                self._log = AttemptLog(None)
                store = GangStore(node, interface) if job.widest > 1 else None
                self._runner = settings.enter_context(closing(CommandRunner(job.trainable, job.threads, store)))
            else:
                self._log = AttemptLog(log)
                settings.enter_context(_mkl(job.mkl_cbwr))  # before torch computes anything
                if job.rounded:
                    settings.enter_context(_cublas())
                if not job.gpus:
                    settings.enter_context(without_gpus())
                elif job.gpus < 1:
                    settings.enter_context(part_of_gpu(job.gpus))
                runner = InProcess(job.trainable, job.search_path, job.threads, GangListener(node, interface))
                self._runner = settings.enter_context(closing(runner))
                check_gpus(runner.target, job.gpus, job.strategies)
            self._settings = settings.pop_all()
        self._lanes: Lanes | None = None
        self.why_whole: str | None = None
        """Why segments run one at a time although the job requests lanes."""
        if job.lanes > 1:
            self._make_lanes(log or self._root / "trials" / f"{OUTPUT_AT_HAND}{uuid.uuid4().hex}", around_build)

    @property
    def address(self) -> str:
        """Address of this worker for the next gang, new after each wide segment; empty if no segment is wide.

        Raises:
            BackendError: The interface can't be used.
        """
        if self._job.widest == 1:
            return ""
        from hpsearch_comm import ConfigurationError

        try:
            return self._runner.address
        except ConfigurationError as error:
            raise BackendError(str(error)) from error

    def run(
        self,
        trial: Trial,
        segment: Segment,
        channel: Channel,
        rank_info: RankInfo | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run one segment. Output goes to `output.log` in the attempt's directory.

        The user's mistakes are failures in the result, never exceptions. `Interrupted` passes through, and so do
        exceptions of the channel.

        Args:
            trial: The trial.
            segment: Its segment.
            channel: Receives its messages. In a gang, only rank 0's receives reports and checkpoints, and may request
                a cut.
            rank_info: This worker's rank in the gang of a wide segment. Rank 1 writes to `rank-1` within the attempt's
                directory, and so on.
            timeout: Seconds after which it is cut at its next report; None: no limit.
        """
        if self._lanes is not None and self._job.rounded and rank_info is None:
            self.enter(trial, segment, channel, timeout)
            while not (results := self.round()):  # it is the only lane
                pass
            return results[0]
        began = time.perf_counter()
        assert segment.width == (1 if rank_info is None else rank_info.width), (
            "a wide segment takes a gang of its width"
        )
        rank = 0 if rank_info is None else rank_info.rank
        assignment = _assignment_of(self._job, self._root, trial, segment, rank)
        directory = assignment.directory
        attempt = Attempt(segment, channel, rank, timeout, lambda: time.perf_counter() - began, self._job.resource)
        beside = contextlib.nullcontext() if self._lanes is None else self._lanes.beside_another()
        try:
            with beside, writing(f"the attempt's directory {directory}"):  # exceptions of the trainable are failures
                log = self._log.begin(directory)
                failure = self._runner.run(trial, assignment, attempt, log, rank_info)
                self._log.end()
                free_shared_gpu(self._job.gpus)
        except (StorageError, UnwritableError) as error:
            failure = failure_of(error)
        if attempt.channel_error is not None:
            raise attempt.channel_error
        return attempt.result(time.perf_counter() - began, failure)

    @property
    def lanes(self) -> int:
        """Number of lanes, which run by `enter` and `round`; 1: segments run one at a time, by `run`."""
        return 1 if self._lanes is None else self._job.lanes

    def enter(self, trial: Trial, segment: Segment, channel: Channel, timeout: float | None) -> None:
        """Add a segment as a lane, which begins with the next round.

        Args:
            trial: The trial.
            segment: Its segment.
            channel: Receives its messages.
            timeout: Limit of its seconds: its build, and its part of each epoch; None: no limit.
        """
        assert self._lanes is not None, "segments run one at a time"
        self._runner.close_object(None)  # building a lane may change values that the warm object uses
        self._lanes.enter(_assignment_of(self._job, self._root, trial, segment), segment, channel, timeout)

    def round(self) -> list[Result]:
        """Train each lane for an epoch; return the results of those that have ended.

        The user's mistakes are failures in the results, never exceptions. `Interrupted` passes through, and so do
        exceptions of a channel.
        """
        assert self._lanes is not None, "segments run one at a time"
        results = self._lanes.round()
        if results:
            free_shared_gpu(self._job.gpus)
        return results

    def build(self, trial: Trial) -> Any:
        """Build a trial's object as its first segment does, to inspect it.

        Raises:
            BaseException: Whatever the build raises.
        """
        assert isinstance(self._runner, InProcess), "a script has no object"
        assignment = _assignment_of(self._job, self._root, trial, Segment(trial.number, 0, None, None, 1))
        return self._runner.build(assignment)

    @property
    def closes(self) -> bool:
        """Whether objects of this trainable have a `close()`: the backend then calls `close_object`."""
        return self._runner.closes

    def close_object(self, unless: int | None) -> None:
        """Close the object of the last trial, unless it is this trial's.

        Otherwise the next segment closes it. The time counts toward the trial that ended, and only the backend can
        limit it. Output and errors of `close` go to that trial's log.
        """
        self._runner.close_object(unless)

    def file_log(self) -> None:
        """Move a running attempt's output to its directory, so that it can be read; called from another thread."""
        with contextlib.suppress(OSError):  # if it still fails at the attempt's end, it is reported then
            self._log.file()

    def close(self) -> None:
        """Close the warm object, and restore the process."""
        self._log.close()
        if self._lanes is not None:
            self._lanes.close()
        self._settings.close()

    def _make_lanes(self, at_hand: Path, around_build: AroundBuild) -> None:
        """Enable lanes, if the trainable supports them."""
        if not isinstance(self._runner, InProcess):
            self.why_whole = "a script has a process of its own"
            return
        target = self._runner.target
        self.why_whole = why_whole(target, self._job.threads, self._job.gpus, rounded=self._job.rounded)
        if self.why_whole is None:
            self._lanes = Lanes(self._runner, self._job, self._root, at_hand, around_build)


@contextlib.contextmanager
def _mkl(mode: str | None) -> Iterator[None]:
    """Set MKL_CBWR to the study's value; MKL reads it at torch's first multiplication in a process."""
    import torch

    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if mode is None or not has_mkl:
        yield
        return
    with environment({"MKL_CBWR": mode}):
        yield


@contextlib.contextmanager
def _cublas() -> Iterator[None]:
    """Make matrix products on a GPU reproducible to the bit; do nothing if cuBLAS was configured otherwise.

    cuBLAS reads the variable at its first use in a process, and torch checks only the variable. So it isn't set too
    late: torch then refuses, and each trial trains alone.
    """
    global _cublas_knows
    import torch

    if torch.cuda.is_initialized() and not _cublas_knows:  # type: ignore[no-untyped-call]
        yield
        return
    with environment({_CUBLAS: ":4096:8"}):
        try:
            yield
        finally:
            _cublas_knows = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _assignment_of(job: Job, root: Path, trial: Trial, segment: Segment, rank: int = 0) -> Assignment:
    """Return the assignment of a trainable.

    Args:
        job: What all segments share.
        root: Absolute path of the directory that attempts write to and read checkpoints from.
        trial: The trial.
        segment: Its segment.
        rank: This worker's rank in the segment's gang.
    """
    path = None if segment.checkpoint is None else str(root / segment.checkpoint)
    parent = trial.parent
    if parent is not None and (path is None or parent.checkpoint != segment.checkpoint):
        parent = None  # the parent has no checkpoint, or the trial has its own
    return Assignment(
        number=trial.number,
        params=copy.deepcopy(dict(trial.params)) if job.parameters is None else job.parameters.nest(trial.params),
        seed=trial.seed,
        directory=f"{root}/{attempt_directory(segment, rank)}",  # a Path for each attempt would be slow
        start=segment.start,
        end=segment.end,
        checkpoint=path if parent is None or segment.start > 0 else None,
        objective=job.objective,
        save_every=job.save_every,
        rank=rank,
        world_size=segment.width,
        scaling=dict(job.scaling),
        parallel={} if job.strategies is None else job.strategies.of(trial.params),
        parent=None if parent is None else parent.number,
        parent_checkpoint=None if parent is None else path,
        resource=job.resource,
        cost=0.0 if segment.costs is None else segment.costs.start,
        cost_end=None if segment.costs is None else segment.costs.end,
        changed={} if parent is None else _changed(trial.params, parent.params),
    )


def _changed(params: Params, parents: Params) -> dict[str, tuple[float, float]]:
    """Return (parent's value, own value) of the numbers that differ from the parent's."""
    pairs = {name: (parents[name], value) for name, value in params.items() if name in parents}
    return {
        name: (float(theirs), float(value))
        for name, (theirs, value) in pairs.items()
        if isinstance(theirs, int | float) and isinstance(value, int | float)
        if not math.isclose(theirs, value, rel_tol=1e-5)  # float32's resolution
    }
