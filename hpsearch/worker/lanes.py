"""Train segments of many trials in this process: one epoch of each per round, as one computation if possible.

Trials are isolated: each has its own generators, its own settings of the process, its own log and its own object.
Results equal those of `InProcess` to the bit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hpsearch.errors import Interrupted, StorageError, TrainableError, UnwritableError
from hpsearch.task import Result
from hpsearch.trainable import random_state
from hpsearch.trainable.addresses import PACKS, path_of
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.current import set_current_trial
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trainable.storage import writing
from hpsearch.trial import Segment
from hpsearch.worker.attempt import LaneLog
from hpsearch.worker.in_process import InProcess
from hpsearch.worker.job import Channel, Job
from hpsearch.worker.lane import (
    BuiltTrainer,
    Lane,
    Parked,
    state_bytes,
    with_own_memory,
    write_checkpoint,
    write_pending,
)
from hpsearch.worker.module_values import ModuleValues, Namespace, module_changes, note_on_modules
from hpsearch.worker.process_settings import Kept, apply, notes_on_settings, restored_settings

if TYPE_CHECKING:
    from hpsearch_trainers import Trainer
    from hpsearch_trainers.lanes import Fuser, Stepped

AroundBuild = Callable[[float | None], AbstractContextManager[Any]]

_VERDICT = "lane"
"""Key in the random state, if lanes may round differently: why the trial runs alone; empty if it is a lane.

It is stored because a new verdict on a resumed trial could differ, and so would the trial's results.
"""
_MOST_KINDS = 8
"""Maximum number of unused sets of process settings whose verdicts are kept."""


def why_whole(target: object, threads: int, gpus: float, *, rounded: bool = False) -> str | None:
    """Return why segments of this trainable run one at a time in their worker; None: they can be lanes."""
    from hpsearch_trainers import Trainer

    if not isinstance(target, type) or not issubclass(target, Trainer):
        return "only a Trainer is trained an epoch at a time"
    if callable(getattr(target, "close", None)):
        return f"{target.__name__} has a close(), which ends what it holds before another trial begins"
    if gpus > 0 and not rounded:
        return (
            "on a GPU trials are one computation with fuse: rounding alone; with a fraction for gpus_per_worker "
            "several workers share it"
        )
    return f"torch has {threads} threads, and bits depend on how many" if threads > 1 else None


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Refuse a block that changes settings of the process, which all lanes share.

    Raises:
        NotFusible: The block has changed some; they are restored.
    """
    from hpsearch_trainers.lanes import NotFusible

    with restored_settings() as settings:
        yield
        if names := settings.reported():
            raise NotFusible(f"training it changes what there is once for all lanes: {', '.join(names)}")


class Lanes:
    """The segments that this process trains in parallel.

    Args:
        runner: Has the trainable, a class of `Trainer` that can be a lane according to `why_whole`, and the output.
        job: What all segments share. If it is rounded, a computation always has as many trials as it has lanes, and
            may round differently from a trial alone.
        study: The study's directory. Common output and common checkpoint files are in its `trials/packs`; a lane's own
            output is in its attempt's directory.
        at_hand: A file for output, see `LaneLog`.
        around_build: Returns a context for the build of a segment, given the seconds that it may take.
    """

    def __init__(self, runner: InProcess, job: Job, study: Path, at_hand: Path, around_build: AroundBuild) -> None:
        import torch

        from hpsearch_trainers.lanes import Fuser, RoundingFuser

        # torch's first optimizer imports modules that add warning filters, so the first lane's filters would differ.
        torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._runner = runner
        self._modules = ModuleValues(runner.target)
        self._modules_before: Sequence[Namespace] = ()
        self._job = job
        self._study = study
        self._around_build = around_build
        self._log = LaneLog(at_hand, study / PACKS, shared=True)
        self._at_hand = at_hand
        self._verdicts: WeakKeyDictionary[Trainer, str] = WeakKeyDictionary()
        """Verdicts on trainers that may round, as stored in their checkpoints."""
        how: dict[str, Any] = {
            "around": lambda trainer: self._turn(self._by_object[id(trainer)]),
            "around_pack": _unchanged,
            "passing": (Interrupted,),
        }
        self._new_fuser: Callable[[], Fuser] = (
            (lambda: RoundingFuser(job.lanes, **how, verdicts=self._verdicts))
            if job.rounded
            else lambda: Fuser(job.lanes, **how)
        )
        self._fusers: list[tuple[Mapping[str, Any], Fuser]] = []
        """One for each set of process settings, the last used last; trials with equal settings train together.
        """
        self._new: list[Lane] = []
        self._lanes: list[Lane] = []
        self._by_object: dict[int, Lane] = {}
        self._parked: Parked[BuiltTrainer] = Parked()
        self._around: Kept | None = None
        """Settings of the process outside the lanes' common ones."""

    def enter(self, assignment: Assignment, segment: Segment, channel: Channel, timeout: float | None) -> None:
        """Add a segment, which begins with the next round.

        Args:
            assignment: The assignment, for a world of one.
            segment: Its segment.
            channel: Receives its messages.
            timeout: Limit of its seconds: its build, and its part of each epoch.
        """
        self._new.append(Lane(assignment, segment, channel, timeout, self._at_hand))

    def round(self) -> list[Result]:
        """Begin new segments, train each for an epoch, and return the results of those that have ended.

        Raises:
            Interrupted: The user ends the process at once.
            Exception: Of a channel.
        """
        process = os.getpid()
        outer = set_current_trial(None)
        try:
            if not self._lanes:
                self._modules_before = self._modules.look()
            new, self._new = self._new, []
            self._lanes += new
            for lane in new:
                with lane.charged(), lane.at_fault(), self._around_build(lane.timeout):
                    self._begin(lane)
            self._train([lane for lane in self._lanes if lane.failure is None])
        finally:
            set_current_trial(outer)
            if os.getpid() != process:
                os._exit(1)  # a child that a trainable forked returned: it must not continue as a second driver
        ended = [lane for lane in self._lanes if lane.has_ended]
        write_pending(ended, self._study)
        self._lanes = [lane for lane in self._lanes if not lane.has_ended]
        return [self._leave(lane) for lane in ended]

    def beside_another(self) -> AbstractContextManager[None]:
        """Return a context for a segment that runs alone in this process, while there are no lanes.

        If the segment changes a value of the trainable's modules, trials are built again when they continue.
        """
        assert not self._lanes, "it has this process for itself"
        return self._unshared(None, ())

    def close(self) -> None:
        """Drop all lanes."""
        self._new.clear()
        self._lanes.clear()
        self._by_object.clear()
        self._parked.clear()
        self._at_hand.unlink(missing_ok=True)

    def _begin(self, lane: Lane) -> None:
        """Build a segment's object, or continue with the parked one of its checkpoint."""
        assignment = lane.assignment
        standing = self._parked.take(assignment.number)
        begins_at = None if assignment.checkpoint is None else path_of(assignment.checkpoint)
        if standing is not None and standing.at == begins_at:
            lane.standing, lane.settings = standing, standing.settings
            lane.trial = standing.trial
            lane.trial.assign(assignment, lane.attempt, lane.trial.random_state)
        else:
            lane.trial = RunningTrial(assignment, lane.attempt)
        lane.trial.generators = lambda: self._beside_state(lane)
        if self._job.packs:
            lane.trial.write_checkpoint = lambda *args: write_checkpoint(lane, state_bytes(lane.object), *args)
        with contextlib.ExitStack() as around:
            if lane.standing is None:
                beside = [other for other in self._lanes if other is not lane and other.failure is None]
                around.enter_context(self._unshared(lane, beside))
            settings = around.enter_context(self._turn(lane))
            is_new = lane.standing is None
            if lane.standing is None:
                random_state.seed_all(lane.trial.seed)
                trainer = self._runner.target(lane.trial)
                lane.standing = BuiltTrainer(trainer, lane.trial, settings())
                if assignment.checkpoint is not None:
                    trainer.load_state_dict(lane.trial.checkpoint)
                    lane.trial.drop_state()
            lane.steps = lane.trial.iterations()
            next(lane.steps)
            if is_new and _VERDICT in (saved := lane.trial.random_state or {}):
                self._verdicts[lane.object] = saved[_VERDICT]
        self._by_object[id(lane.standing.object)] = lane

    @contextlib.contextmanager
    def _unshared(self, lane: Lane | None, beside: Sequence[Lane]) -> Iterator[None]:
        """Check that the block, such as the build of a lane, changes no value of the trainable's modules.

        All lanes of a process share these values. If one changes, each other lane fails before it trains with the new
        value. Parked objects are dropped: those trials are built again from their checkpoints.

        Args:
            lane: The lane that is built; None: another segment runs alone in this process.
            beside: The other lanes.

        Raises:
            TrainableError: There are other lanes, and a value was changed.
        """
        running = [other for other in beside if other.standing is not None]
        if not running and not self._parked:
            yield
            return
        before = self._modules.look()
        problem = ""
        try:
            yield
        finally:
            if changes := module_changes(before):
                self._parked.clear()
                if running and lane is not None:
                    problem = _problem(lane, running, changes, rounded=self._job.rounded)
                    for other in running:
                        with other.at_fault():
                            raise TrainableError(problem)
        if problem:
            raise TrainableError(problem)

    def _beside_state(self, lane: Lane) -> random_state.RandomState:
        """Return the entries of a checkpoint's random state."""
        verdict = self._verdicts.get(lane.object)
        return lane.generators if verdict is None else {**lane.generators, _VERDICT: verdict}

    @contextlib.contextmanager
    def _turn(self, lane: Lane) -> Iterator[Callable[[], Mapping[str, Any]]]:
        """Run the block with the trial's own generators, settings of the process and output.

        Yields:
            The record of the settings that the block changes.
        """
        outer = set_current_trial(lane.trial)
        try:
            with self._printing_to(lane.log), restored_settings() as settings:
                before = self._around or settings
                apply(lane.settings)
                if lane.generators:
                    random_state.restore(lane.generators)
                try:
                    yield before.changes
                finally:
                    lane.generators = random_state.capture()
                    lane.settings = before.changes()
        finally:
            set_current_trial(outer)
            lane.changed |= dict.fromkeys(settings.changed)
            lane.stuck |= dict.fromkeys(settings.stuck)

    def _train(self, lanes: Sequence[Lane]) -> None:
        """Train each lane for an epoch, and report it."""
        groups: list[list[Lane]] = []
        for lane in lanes:
            group = next((group for group in groups if group[0].settings == lane.settings), None)
            if group is None:
                groups.append([lane])
            else:
                group.append(lane)
        for group in groups:
            settings = group[0].settings
            is_apart = settings and len(group) == 1 and len(groups) > 1
            reason = f"no trial beside it has changed {', '.join(settings)} as it has" if is_apart else None
            for lane, of_it in zip(group, self._together(settings, group), strict=True):
                self._reported(lane, of_it, of_it.alone_because or reason)
        del self._fusers[: -max(_MOST_KINDS, len(groups))]

    def _fuser_of(self, settings: Mapping[str, Any]) -> Fuser:
        existing = next((fuser for fuser in self._fusers if fuser[0] == settings), None)
        if existing is not None:
            self._fusers.remove(existing)
        self._fusers.append(existing or (settings, self._new_fuser()))
        return self._fusers[-1][1]

    def _together(self, settings: Mapping[str, Any], lanes: Sequence[Lane]) -> Sequence[Stepped]:
        """Train the lanes with these settings of the process for an epoch."""
        from hpsearch_trainers.lanes import Stepped

        fuser = self._fuser_of(settings)
        try:
            with self._printing_to(self._log), restored_settings() as outer:
                apply(settings)
                self._around = outer
                try:
                    stepped = fuser.step([lane.object for lane in lanes])
                finally:
                    self._around = None
        except (StorageError, UnwritableError) as error:
            return [Stepped(None, error) for _ in lanes]
        return stepped

    @contextlib.contextmanager
    def _printing_to(self, log: LaneLog) -> Iterator[None]:
        """Redirect the block's output to a log."""
        redirected = contextlib.ExitStack()
        with writing(f"the output {log.path}"):  # not around the block, whose errors are handled elsewhere
            redirected.enter_context(self._runner.output.to(log.path))
        try:
            with redirected:
                yield
        finally:
            with writing(f"the output {log.path}"):
                log.file()

    def _reported(self, lane: Lane, stepped: Stepped, alone_because: str | None) -> None:
        lane.seconds += stepped.seconds
        lane.fused = max(lane.fused, stepped.lanes)
        lane.attempt.lanes = stepped.lanes
        if alone_because is not None:
            lane.trains_alone(alone_because)
        with lane.charged(), lane.at_fault():
            if stepped.error is not None:
                raise stepped.error
            assert stepped.metrics is not None
            lane.trial.took(stepped.seconds)
            lane.trial.report(stepped.metrics, lambda: self._state(lane))
            next(lane.steps, None)

    def _state(self, lane: Lane) -> Any:
        """Return a lane's state. Its tensors are views of the stack, which a file must not contain."""
        generators = lane.generators  # saving must not change later results
        try:
            with self._turn(lane):
                return with_own_memory(lane.object.state_dict())
        finally:
            lane.generators = generators

    def _leave(self, lane: Lane) -> Result:
        from hpsearch_trainers.lanes import storages_of

        attempt, failure = lane.attempt, lane.failure
        if lane.standing is not None:
            self._by_object.pop(id(lane.standing.object), None)
            for _, fuser in self._fusers:
                fuser.release(lane.standing.object)
            if failure is None and attempt.checkpoint is not None:
                lane.standing.at = str(Path(lane.assignment.directory, Path(attempt.checkpoint).name))
                self._parked.put(lane.assignment.number, lane.standing, storages_of(lane.standing.object))
        attempt.settings = Kept(tuple(lane.changed), tuple(lane.stuck))
        if changes := module_changes(self._modules_before):
            self._modules_before = self._modules.look()
        attempt.module_changes = changes
        log_text = "" if failure is None else failure.traceback
        lane.log.add(log_text + notes_on_settings(attempt.settings) + note_on_modules(changes))
        result = attempt.result(lane.seconds, failure, lane.fused)
        lane.forget()
        return result


def _problem(lane: Lane, running: Sequence[Lane], changes: Sequence[str], *, rounded: bool) -> str:
    numbers = sorted(other.assignment.number for other in running)
    alone = "in a new study without fuse: rounding" if rounded else "with --set resources.trials_per_worker=1"
    trials = f"trial{'s' if len(numbers) > 1 else ''} {_listed([*map(str, numbers)])}"
    return (
        f"what trials train with must be their own where a worker trains several, but building trial "
        f"{lane.assignment.number} changed {_listed(changes)}, which {trials} may train with from here on: "
        f"keep it in the trainer or in the model, as an attribute of it say, or train one trial at a time, {alone}"
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
