"""Train segments of many trials in this process: an epoch of each in a round, those that can as one computation.

Nothing of a trial is in another's reach: each has its own generators, its own settings of the process, its own log, and
the object that it had alone. What comes of it is to the bit what `InProcess` gives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from hpsearch.errors import Interrupted, StorageError, UnwritableError
from hpsearch.task import Result
from hpsearch.trainable import random_state
from hpsearch.trainable.addresses import PACKS, place_of
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.current import set_current_trial
from hpsearch.trainable.failures import bounded
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trainable.storage import writing
from hpsearch.trial import Segment
from hpsearch.worker.builds import unshared
from hpsearch.worker.job import Channel
from hpsearch.worker.lane import Lane, Standing
from hpsearch.worker.lane_log import LaneLog
from hpsearch.worker.module_values import ModuleValues, Namespace, module_changes, told_of_modules
from hpsearch.worker.output import OutputRedirect
from hpsearch.worker.parked import Parked
from hpsearch.worker.process_settings import Kept, apply, kept, told_of
from hpsearch.worker.round_end import state_bytes, with_own_memory, write_checkpoint, write_kept

if TYPE_CHECKING:
    from hpsearch_trainers import Trainer
    from hpsearch_trainers.lanes import Fuser, Stepped

__all__ = ["AroundBuild", "Ended", "Lanes", "no_limit", "why_whole"]

AroundBuild = Callable[[float | None], AbstractContextManager[None]]

_VERDICT = "lane"
"""Key beside the generators' states, where lanes may round: why the trial runs alone, nothing where it is a lane.

What is found of a trial that goes on may be something else than at its beginning, and its digits would be, too.
"""
_MOST_KINDS = 8
"""Settings of the process that are remembered with what was found of trials that have them, beside those in use."""


def why_whole(target: object, threads: int, gpus: float, *, rounded: bool = False) -> str | None:
    """Say why segments of this trainable run one at a time in their worker; None: they can be lanes of it."""
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


def no_limit(seconds: float | None) -> AbstractContextManager[None]:
    """Let a build take as long as it takes."""
    return contextlib.nullcontext()


class Ended(NamedTuple):
    """A segment that has come to its end."""

    segment: Segment
    result: Result
    late: bool
    """It was cut because it ran over its timeout."""


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Refuse what changes settings of the process while it trains: there is one process for all lanes.

    Raises:
        NotFusible: What ran inside has changed some; they are put back.
    """
    from hpsearch_trainers.lanes import NotFusible

    with kept() as settings:
        yield
        if names := settings.told():
            raise NotFusible(f"training it changes what there is once for all lanes: {', '.join(names)}")


class Lanes:
    """The segments that this process trains at once.

    Args:
        target: The trainable: a class of `Trainer`, of which `why_whole` says nothing.
        output: Where this process prints to.
        most: Trials of one computation.
        study: The study's directory. What they print together, and the checkpoints that they write together, lie in its
            `trials/packs`; a lane's own output in its attempt's directory.
        at_hand: A file for output meanwhile; see `LaneLog`.
        packs: Whether they write checkpoints together.
        rounded: A computation is always of `most` trials, and may round otherwise than each alone.
        around_build: Gives what surrounds the build of a segment that may be charged for so many seconds.
    """

    def __init__(
        self,
        target: Callable[[RunningTrial], Any],
        output: OutputRedirect,
        most: int,
        study: Path,
        at_hand: Path,
        *,
        packs: bool,
        rounded: bool,
        around_build: AroundBuild = no_limit,
    ) -> None:
        import torch

        from hpsearch_trainers.lanes import Fuser, RoundingFuser

        # What torch imports with its first optimizer adds to the filters of warnings: the first lane's would differ.
        torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._target = target
        self._modules = ModuleValues(target)
        self._modules_before: Sequence[Namespace] = ()
        self._output = output
        self._study = study
        self._packs = packs
        self._rounded = rounded
        self._around_build = around_build
        self._log = LaneLog(at_hand, study / PACKS, shared=True)
        self._at_hand = at_hand
        self._verdicts: WeakKeyDictionary[Trainer, str] = WeakKeyDictionary()
        """How trainers that may round are trained, as their checkpoints have it."""
        how: dict[str, Any] = {
            "around": lambda trainer: self._turn(self._by_object[id(trainer)]),
            "around_pack": _unchanged,
            "passing": (Interrupted,),
        }
        self._made_fuser: Callable[[], Fuser] = (
            (lambda: RoundingFuser(most, **how, verdicts=self._verdicts)) if rounded else lambda: Fuser(most, **how)
        )
        self._fusers: list[tuple[Mapping[str, Any], Fuser]] = []
        """One for each kind of settings of the process, as it lets go of those that it isn't given; the last used last.

        Those are trained together that have the same settings.
        """
        self._new: list[Lane] = []
        self._lanes: list[Lane] = []
        self._by_object: dict[int, Lane] = {}
        self._parked: Parked[Standing] = Parked()
        self._around: Kept | None = None
        """What the process was before the settings of those that are trained together were put in force."""

    def enter(self, assignment: Assignment, segment: Segment, channel: Channel, timeout: float | None) -> None:
        """Take a segment in, which begins with the next round.

        Args:
            assignment: What is to run, in a world of one.
            segment: The same.
            channel: Hears of it.
            timeout: Seconds that it may be charged for: its build, and its part of each epoch.
        """
        self._new.append(Lane(assignment, segment, channel, timeout, self._at_hand))

    def round(self) -> list[Ended]:
        """Let new segments begin, and train each of all for an epoch; give those that have come to their end.

        Raises:
            Interrupted: The user wants an end at once.
            Exception: What a channel raises.
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
                os._exit(1)  # a child that a trainable forked came back: it must not go on as a second driver
        ended = [lane for lane in self._lanes if lane.has_ended]
        write_kept(ended, self._study)
        self._lanes = [lane for lane in self._lanes if not lane.has_ended]
        return [self._leave(lane) for lane in ended]

    def beside_another(self) -> AbstractContextManager[None]:
        """Surround a segment that has this process for itself, while none is trained here.

        Trials are built again when they go on where that has changed a value of the trainable's modules.
        """
        assert not self._lanes, "it has this process for itself"
        return unshared(None, (), self._parked, self._modules, rounded=self._rounded)

    def close(self) -> None:
        """Let go of all."""
        self._new.clear()
        self._lanes.clear()
        self._by_object.clear()
        self._parked.clear()
        self._at_hand.unlink(missing_ok=True)

    def _begin(self, lane: Lane) -> None:
        """Make a segment's object, or take up the one that stands where it begins."""
        assignment = lane.assignment
        standing = self._parked.take(assignment.number)
        begins_at = None if assignment.checkpoint is None else place_of(assignment.checkpoint)
        if standing is not None and standing.at == begins_at:
            lane.standing, lane.settings = standing, standing.settings
            lane.trial = standing.trial
            lane.trial.assign(assignment, lane.listener, lane.trial.random_state)
        else:
            lane.trial = RunningTrial(assignment, lane.listener)
        lane.trial.generators = lambda: self._beside_state(lane)
        if self._packs:
            lane.trial.write_checkpoint = lambda *given: write_checkpoint(lane, state_bytes(lane.object), *given)
        with contextlib.ExitStack() as around:
            if lane.standing is None:
                beside = [one for one in self._lanes if one is not lane and one.failure is None]
                around.enter_context(unshared(lane, beside, self._parked, self._modules, rounded=self._rounded))
            settings = around.enter_context(self._turn(lane))
            is_new = lane.standing is None
            if lane.standing is None:
                random_state.seed_all(lane.trial.seed)
                made = self._target(lane.trial)
                lane.standing = Standing(made, lane.trial, settings())
                if assignment.checkpoint is not None:
                    made.load_state_dict(lane.trial.checkpoint)
                    lane.trial.drop_state()
            lane.steps = lane.trial.iterations()
            next(lane.steps)
            if is_new and _VERDICT in (saved := lane.trial.random_state or {}):
                self._verdicts[lane.object] = saved[_VERDICT]
        self._by_object[id(lane.standing.object)] = lane

    def _beside_state(self, lane: Lane) -> random_state.RandomState:
        """Give what a checkpoint has beside the state."""
        verdict = self._verdicts.get(lane.object)
        return lane.generators if verdict is None else {**lane.generators, _VERDICT: verdict}

    @contextlib.contextmanager
    def _turn(self, lane: Lane) -> Iterator[Callable[[], Mapping[str, Any]]]:
        """Let what runs inside find the process as its own trial left it: generators, settings, and output.

        Gives what tells the settings that have been changed.
        """
        outer = set_current_trial(lane.trial)
        try:
            with self._printing_to(lane.log), kept() as settings:
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
        """Train each for an epoch, and report it."""
        kinds: list[list[Lane]] = []
        for lane in lanes:
            alike = next((alike for alike in kinds if alike[0].settings == lane.settings), None)
            if alike is None:
                kinds.append([lane])
            else:
                alike.append(lane)
        for alike in kinds:
            settings = alike[0].settings
            is_apart = settings and len(alike) == 1 and len(kinds) > 1
            reason = f"no trial beside it has changed {', '.join(settings)} as it has" if is_apart else None
            for lane, of_it in zip(alike, self._together(settings, alike), strict=True):
                self._reported(lane, of_it, of_it.alone_because or reason)
        del self._fusers[: -max(_MOST_KINDS, len(kinds))]

    def _fuser_of(self, settings: Mapping[str, Any]) -> Fuser:
        found = next((one for one in self._fusers if one[0] == settings), None)
        if found is None:
            found = settings, self._made_fuser()
        else:
            self._fusers.remove(found)
        self._fusers.append(found)
        return found[1]

    def _together(self, settings: Mapping[str, Any], lanes: Sequence[Lane]) -> Sequence[Stepped]:
        """Train those for an epoch that have these settings of the process."""
        from hpsearch_trainers.lanes import Stepped

        fuser = self._fuser_of(settings)
        try:
            with self._printing_to(self._log), kept() as outer:
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
        """Let what is printed inside go to a log."""
        redirected = contextlib.ExitStack()
        with writing(f"the output {log.path}"):  # not around what runs inside, whose errors are its own
            redirected.enter_context(self._output.to(log.path))
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
        """Give what continues a lane; its tensors are parts of what lanes share, which a file must not hold."""
        generators = lane.generators  # whether something is saved changes nothing that comes after
        try:
            with self._turn(lane):
                return with_own_memory(lane.object.state_dict())
        finally:
            lane.generators = generators

    def _leave(self, lane: Lane) -> Ended:
        from hpsearch_trainers.lanes import storages_of

        attempt, failure = lane.attempt, lane.failure
        if lane.standing is not None:
            self._by_object.pop(id(lane.standing.object), None)
            for _, fuser in self._fusers:
                fuser.release(lane.standing.object)
            if failure is None and attempt.checkpoint is not None:
                lane.standing.at = str(Path(lane.assignment.directory, Path(attempt.checkpoint).name))
                self._parked.put(lane.assignment.number, lane.standing, storages_of(lane.standing.object))
        if changes := module_changes(self._modules_before):
            self._modules_before = self._modules.look()
        words = "" if failure is None else failure.traceback
        lane.log.add(words + told_of(tuple(lane.changed), tuple(lane.stuck)) + told_of_modules(changes))
        result = Result(
            trial=lane.segment.trial,
            attempt=lane.segment.attempt,
            iteration=attempt.iteration,
            checkpoint=None if failure else attempt.checkpoint,
            reports=tuple(attempt.reports),
            cut=attempt.cut and failure is None,
            seconds=lane.seconds,
            failure=None if failure is None else bounded(failure),
            changed=tuple(lane.changed),
            stuck=tuple(lane.stuck),
            module_changes=changes,
            lanes=lane.fused,
        )
        lane.forget()
        return Ended(lane.segment, result, lane.late and result.cut)
