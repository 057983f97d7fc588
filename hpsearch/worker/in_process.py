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
from hpsearch.worker.attempt import LOG, Attempt
from hpsearch.worker.gang import GangListener, RankInfo
from hpsearch.worker.module_values import ModuleValues, module_changes, note_on_modules
from hpsearch.worker.output import OutputRedirect
from hpsearch.worker.process_settings import apply, notes_on_settings, restored_settings

if TYPE_CHECKING:
    from hpsearch_comm import Group


class InProcess:
    """Runs segments by calling a function, or by stepping an object that may be kept between segments.

    torch is imported before the trainable, so that a segment finds the same generators and threads in a fresh worker
    and in a warm one. (An import inside the trainable may draw random numbers, once per worker: imports belong at the
    top of its module.)

    Args:
        trainable: The trainable or its import path.
        search_path: Folders put in front of `sys.path`.
        threads: torch's number of threads in each segment.
        listener: Address of this process for gangs.

    Raises:
        TrainableError: The trainable can't be imported, or isn't a trainable.
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
        """Address of this process for the next gang."""
        return self._listener.address

    def run(
        self, trial: Trial, assignment: Assignment, attempt: Attempt, log: Path, rank_info: RankInfo | None
    ) -> Failure | None:
        """Run one segment. Exceptions of the trainable are its failure, except the user's interruption."""
        process = os.getpid()
        outer = set_current_trial(None)
        failure = None
        modules = self._modules.look()
        with self.output.to(log), restored_settings() as attempt.settings:
            try:
                self._run(assignment, attempt, rank_info)
            except Interrupted:
                raise
            except BaseException as error:  # SystemExit is a user's mistake like any other
                failure = failure_of(error)
            finally:
                set_current_trial(outer)
                if os.getpid() != process:
                    os._exit(1)  # a child that the trainable forked returned: it must not continue as a second driver
        log_text = "" if failure is None else failure.traceback
        attempt.module_changes = module_changes(modules)
        log_text += notes_on_settings(attempt.settings) + note_on_modules(attempt.module_changes)
        if log_text:
            # To the file itself: the trainable may have closed or replaced the streams.
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(log_text)
        return failure

    def build(self, assignment: Assignment) -> Any:
        """Build the trainable of a trial's first segment, to inspect it. Nothing is reported.

        Raises:
            BaseException: Whatever the build raises.
        """
        trial, generators = RunningTrial(assignment, _Nobody()), random_state.capture()
        outer = set_current_trial(trial)
        try:
            with restored_settings():
                random_state.seed_all(trial.seed)
                return self.target(trial)
        finally:
            set_current_trial(outer)
            random_state.restore(generators)

    @property
    def closes(self) -> bool:
        """Whether its objects have a `close()`."""
        return callable(getattr(class_of(self.target), "close", None))

    def close_object(self, unless: int | None) -> None:
        """Close the warm object, unless it belongs to trial `unless`; its output goes to its last attempt's log."""
        trial = self._warm.trial
        if trial is None or trial.number == unless:
            return
        if not self.closes:
            self._warm.close()
            return
        # If its log can't be opened, the next segment closes the object.
        with contextlib.suppress(OSError, StorageError, UnwritableError), self.output.to(trial.directory / LOG):
            self._warm.close()

    def close(self) -> None:
        """Close the warm object, and restore torch's threads."""
        import torch

        self.close_object(None)
        self._warm.close()  # if its log couldn't be opened
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
                self._listener.close()  # each gang needs a new address
        if attempt.iteration == assignment.start and assignment.must_report:
            unread = "" if returned is None else f", and its result, {shown(returned)}, isn't read"
            raise TrainableError(
                f"a trainable must report at least once in a segment, but it returned without{unread}: call "
                f"trial.report({example(assignment.objective.names, '...')}) at the end of each iteration"
            )


def _begin(assignment: Assignment, attempt: Attempt, form: Callable[[], Group] | None) -> RunningTrial:
    """Begin a segment: set the current trial, form the group, and seed the generators."""
    trial = RunningTrial(assignment, attempt, form)
    set_current_trial(trial)
    if trial.world_size > 1:
        _ = trial.group
    random_state.seed_all(trial.seed)
    return trial


def _call(target: Trainable, trial: RunningTrial, attempt: Attempt) -> object:
    """Call a function, and return its result; its group is closed at its end."""
    returned = None
    try:
        returned = _call_function(target, trial)
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


def _call_function(target: Trainable, trial: RunningTrial) -> object:
    """Call a function, and send its delayed reports."""
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
    """Ignores a trial's reports and notes."""

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Do nothing."""

    def noted(self, notes: Mapping[str, str]) -> None:
        """Do nothing."""

    def cut_requested(self) -> bool:
        """Return False."""
        return False

    def was_cut(self) -> None:
        """Do nothing."""

    def saved(self, iteration: int, name: str) -> None:
        """Do nothing."""


class _WarmObject:
    """The object of the last trial, and the checkpoint that it corresponds to."""

    def __init__(self) -> None:
        self._object: Any = None
        self.trial: RunningTrial | None = None
        """Its trial; None if there is no object."""
        self._settings: Mapping[str, Any] = {}
        """Settings of the process that its build changed. They are applied again when it continues."""
        self._stands_at: tuple[int, str] | None = None
        """(trial number, absolute path of the checkpoint written at its last report)"""

    def step(
        self, target: Trainable, assignment: Assignment, attempt: Attempt, form: Callable[[], Group] | None
    ) -> None:
        """Step an object through a segment: the warm one, if it corresponds to the segment's checkpoint."""
        try:
            trial = self._continue(assignment, attempt) or self._build(target, assignment, attempt, form)
            # Until the end the object corresponds to no checkpoint: after a failure it is rebuilt.
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
        """Close the object and its group. Errors of its `close` are printed, but no trial fails."""
        former, trial = self._object, self.trial
        self._object, self.trial, self._stands_at = None, None, None
        if callable(close := getattr(former, "close", None)):
            try:
                with restored_settings():
                    close()
            except Interrupted:
                raise
            except BaseException:  # also SystemExit, which would fail the next trial
                traceback.print_exc()
        if trial is not None:
            trial.leave_group()

    def _continue(self, assignment: Assignment, attempt: Attempt) -> RunningTrial | None:
        """Continue with the warm object, if it is at the checkpoint; a wide segment always builds a new one."""
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
