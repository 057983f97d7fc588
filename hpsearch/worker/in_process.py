"""Run a function or class as a trainable in this process."""

from __future__ import annotations

import contextlib
import functools
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.config.checks import shown
from hpsearch.errors import Interrupted, StorageError, TrainableError, UnwritableError
from hpsearch.trainable import random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.current import set_current_trial
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.metrics import example
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd
from hpsearch.trainable.trainables import Trainable, class_of, resolve_trainable
from hpsearch.trial import Failure, Trial
from hpsearch.worker.attempt import Attempt
from hpsearch.worker.attempt_log import LOG
from hpsearch.worker.gang import GangListener, RankInfo
from hpsearch.worker.module_values import ModuleValues, module_changes, told_of_modules
from hpsearch.worker.output import OutputRedirect
from hpsearch.worker.process_settings import apply, kept, told_of

if TYPE_CHECKING:
    from hpsearch_comm import Group

__all__ = ["InProcess"]


class InProcess:
    """Runs segments by calling a function afresh, or by stepping an object that may stay warm.

    torch is imported at once, before the trainable is: a segment finds the same generators and threads in a
    fresh worker and in a warm one. (What a trainable imports only while it runs is out of reach: such an import may
    draw random numbers, once per worker. Imports belong to the top of its module.)

    Args:
        trainable: Its import path, or itself.
        search_path: Folders put in front of `sys.path`.
        threads: torch's, of each segment.
        listener: Where gangs reach this process.

    Raises:
        TrainableError: The trainable can't be imported, or has another shape.
    """

    def __init__(
        self, trainable: str | Trainable, search_path: Sequence[str], threads: int, listener: GangListener
    ) -> None:
        import torch

        self.target = resolve_trainable(trainable, search_path)
        self.output = OutputRedirect()
        self._modules = ModuleValues(self.target)
        self._threads_before = torch.get_num_threads()
        self._warm = _WarmObject()
        self._listener = listener
        torch.set_num_threads(threads)

    @property
    def address(self) -> str:
        """Where the next gang reaches this process."""
        return self._listener.address

    def run(
        self, trial: Trial, assignment: Assignment, attempt: Attempt, log: Path, rank_info: RankInfo | None
    ) -> Failure | None:
        """Run one segment; whatever the trainable raises is its failure, the user's interruption aside."""
        process = os.getpid()
        outer = set_current_trial(None)
        failure = None
        modules = self._modules.look()
        with self.output.to(log), kept() as attempt.settings:
            try:
                self._run(assignment, attempt, rank_info)
            except Interrupted:
                raise
            except BaseException as error:  # SystemExit is a user's mistake like any other
                failure = failure_of(error)
            finally:
                set_current_trial(outer)
                if os.getpid() != process:
                    os._exit(1)  # a child that the trainable forked came back: it must not go on as a second driver
        words = "" if failure is None else failure.traceback
        attempt.module_changes = module_changes(modules)
        words += told_of(attempt.settings.changed, attempt.settings.stuck) + told_of_modules(attempt.module_changes)
        if words:
            # To the file itself: the trainable may have closed or replaced the streams.
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(words)
        return failure

    def build(self, assignment: Assignment) -> Any:
        """Give what the trainable makes of a trial's first segment, for a look: nobody hears of it.

        Raises:
            BaseException: What building it raises.
        """
        trial, generators = RunningTrial(assignment, _Nobody()), random_state.capture()
        outer = set_current_trial(trial)
        try:
            with kept():
                random_state.seed_all(trial.seed)
                return self.target(trial)
        finally:
            set_current_trial(outer)
            random_state.restore(generators)

    @property
    def closes(self) -> bool:
        """Whether its objects have a `close()`."""
        return callable(getattr(class_of(self.target), "close", None))

    def let_go(self, unless: int | None) -> None:
        """Close the object at hand, unless it is this trial's; its output goes to its last attempt's log."""
        trial = self._warm.trial
        if trial is None or trial.number == unless:
            return
        # Where its log can't be opened the next segment closes it.
        with contextlib.suppress(OSError, StorageError, UnwritableError), self.output.to(trial.directory / LOG):
            self._warm.close()

    def forget(self) -> None:
        """Keep the object at hand no more, so that its trial is built again; it has no `close`."""
        assert not self.closes, "`let_go` has a place for what that prints"
        self._warm.close()

    def close(self) -> None:
        """Let go of the warm object, and give torch back its threads."""
        import torch

        self._warm.close()
        self._listener.close()
        torch.set_num_threads(self._threads_before)

    def _run(self, assignment: Assignment, attempt: Attempt, rank_info: RankInfo | None) -> None:
        form = None if rank_info is None else functools.partial(self._listener.join, rank_info)
        returned = None
        try:
            if class_of(self.target) is not None:
                self._warm.step(self.target, assignment, attempt, form)
            else:
                returned = _call(self.target, _begin(assignment, attempt, form), attempt)
        finally:
            if rank_info is not None:
                self._listener.close()  # an address is good for one gang
        if attempt.iteration == assignment.start and assignment.must_report:
            unread = "" if returned is None else f", and its result, {shown(returned)}, isn't read"
            raise TrainableError(
                f"a trainable must report at least once in a segment, but it returned without{unread}: call "
                f"trial.report({example(assignment.objective.names, '...')}) at the end of each iteration"
            )


def _begin(assignment: Assignment, attempt: Attempt, form: Callable[[], Group] | None) -> RunningTrial:
    """Begin a segment afresh: its trial is the current one, its group is formed, the generators are seeded."""
    trial = RunningTrial(assignment, attempt, form)
    set_current_trial(trial)
    if trial.world_size > 1:
        _ = trial.group
    random_state.seed_all(trial.seed)
    return trial


def _call(target: Trainable, trial: RunningTrial, attempt: Attempt) -> object:
    """Call a function, and give what it returns; the group is closed when it ends."""
    returned = None
    try:
        returned = _ended(target, trial)
        attempt.returned()
        trial.returned()
    except SegmentEnd:
        pass
    except BaseException as error:
        trial.drop_kept()
        trial.leave_group(error)
        raise
    attempt.ignored_checkpoint = trial.ignores_checkpoint
    trial.leave_group()
    return returned


def _ended(target: Trainable, trial: RunningTrial) -> object:
    """Call a function, and let what it held back be reported."""
    try:
        returned = target(trial)
    except SegmentEnd:
        raise
    except BaseException as error:
        if trial.at_end is not None:
            with contextlib.suppress(SegmentEnd):
                trial.at_end(error)
        raise
    if trial.at_end is not None:
        trial.at_end(None)
    return returned


class _Nobody:
    """Hears nothing of a trial."""

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Let it pass."""

    def cut_requested(self) -> bool:
        """Never."""
        return False

    def was_cut(self) -> None:
        """Let it pass."""

    def saved(self, iteration: int, name: str) -> None:
        """Let it pass."""


class _WarmObject:
    """The object of the last trial, and the checkpoint that it stands at."""

    def __init__(self) -> None:
        self._object: Any = None
        self.trial: RunningTrial | None = None
        """Its trial; None where there is no object."""
        self._settings: Mapping[str, Any] = {}
        """What building it changed of the process: there again when it goes on, as if it had been built anew."""
        self._stands_at: tuple[int, str] | None = None
        """(trial number, absolute path of the checkpoint written at its last report)"""

    def step(
        self, target: Trainable, assignment: Assignment, attempt: Attempt, form: Callable[[], Group] | None
    ) -> None:
        """Step the object through a segment; the one at hand, where it stands at the segment's checkpoint."""
        try:
            trial = self._continue(assignment, attempt) or self._build(target, assignment, attempt, form)
            # From here to the end the object stands at no checkpoint: one that fails on the way is built afresh.
            self._stands_at = None
            offers = getattr(self._object, "state_dict", None)
            for _ in trial.iterations():
                trial.report(self._object.step(), offers)
            if attempt.checkpoint is not None:
                self._stands_at = (assignment.number, str(trial.directory / Path(attempt.checkpoint).name))
        except BaseException as error:
            if self.trial is not None:
                self.trial.leave_group(error)  # at once: the others may be waiting
            raise
        finally:
            if assignment.world_size > 1:
                self.close()  # the object belongs to this segment's group

    def close(self) -> None:
        """Let go of the object and its group; what its `close` raises is printed, and nobody's failure."""
        former, trial = self._object, self.trial
        self._object, self.trial, self._stands_at = None, None, None
        if callable(close := getattr(former, "close", None)):
            try:
                with kept():
                    close()
            except Interrupted:
                raise
            except BaseException:  # SystemExit too: it would fail the next trial
                traceback.print_exc()
        if trial is not None:
            trial.leave_group()

    def _continue(self, assignment: Assignment, attempt: Attempt) -> RunningTrial | None:
        """Take up the object at hand, where it stands at the checkpoint; a wide segment always builds its own."""
        if assignment.world_size > 1 or self.trial is None:
            return None
        if self._stands_at != (assignment.number, assignment.checkpoint):
            return None
        self.trial.assign(assignment, attempt, self.trial.random_state)
        set_current_trial(self.trial)
        apply(self._settings)
        return self.trial

    def _build(
        self, target: Trainable, assignment: Assignment, attempt: Attempt, form: Callable[[], Group] | None
    ) -> RunningTrial:
        self.close()
        trial = self.trial = _begin(assignment, attempt, form)
        self._object = target(trial)
        self._settings = attempt.settings.changes()
        if assignment.checkpoint is not None:
            self._object.load_state_dict(trial.checkpoint)
            trial.drop_state()
        return trial
