"""The `trial` object that is passed to a trainable."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never, Protocol

from hpsearch.errors import TrainableError
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.assignment import UNKNOWN_END, Assignment, ignored_checkpoint, ignored_parallel
from hpsearch.trainable.metrics import cost_after, example, refuse_keywords, refuse_step, to_notes, to_numbers
from hpsearch.trainable.parents_settings import check_own_settings
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.storage import writing

if TYPE_CHECKING:
    from hpsearch_comm import Group

_NO_METRICS: Mapping[str, Any] = MappingProxyType({})

_OWN_LOOP = "own_loop"
"""Key in a random state: whether the trainable did not call `iterations()`."""


class SegmentEnd(SystemExit):
    """Raised by `report` to end a trainable with its own loop at the end of its segment.

    It is a `SystemExit`, so that `except Exception` does not catch it, and a script exits with status 0.
    """


class Listener(Protocol):
    """Protocol of an object that receives the messages of a running trial."""

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Handle the report of an iteration."""

    def noted(self, notes: Mapping[str, str]) -> None:
        """Handle notes, by name."""

    def cut_requested(self) -> bool:
        """Return whether the segment should end at the last report."""

    def was_cut(self) -> None:
        """Handle that the segment ended at the last report because `cut_requested` returned True."""

    def saved(self, iteration: int, name: str) -> None:
        """Handle a new checkpoint in the attempt's directory; called after the report of its iteration."""


class RunningTrial:
    """The trial that a trainable runs: its parameters, checkpoint, and methods to report.

    Attributes:
        number: Number of the trial, from 0, in order of creation.
        params: The parameters, nested like the sweep's groups; a copy that you may modify.
        seed: Seed of the trial. The global generators of Python, NumPy and torch were already seeded with it.
        start: Number of finished iterations. The first report is that of iteration `start + 1`.
        end: Last iteration of this segment; None if the sweep has no `max_iter`, or rungs end by costs.
        rank: Rank of this worker, from 0, among the workers that run the segment. Only the reports of rank 0 count.
        world_size: Number of workers that run the segment. It may differ between segments.
        scaling: The sweep's `scaling`: how batch size and learning rate depend on the number of workers.
        parent: Number of the trial that this trial was forked from. None if this trial is not a fork or already has its
            own checkpoint.
    """

    def __init__(self, assignment: Assignment, listener: Listener, form: Callable[[], Group] | None = None) -> None:
        """Start a segment of a trial; called by the worker.

        Args:
            assignment: The segment.
            listener: Receives the trial's messages.
            form: Forms the group of a wide segment; called once, when the group is first needed.
        """
        self.number = assignment.number
        self.params = assignment.params
        self.seed = assignment.seed
        self.rank = assignment.rank
        self.world_size = assignment.world_size
        self.scaling = assignment.scaling
        self._parallel_is_known = assignment.strategy == "allreduce"
        self._form = _group_of_one if form is None else form
        self._group: Group | None = None
        self.generators = random_state.capture
        """Returns the state of the trial's random generators. If trials take turns, they differ from the process's."""
        self.write_checkpoint = checkpoints.write
        """Writes a checkpoint and returns its name. If trials take turns in this process, it may be written later."""
        self.at_end: Callable[[BaseException | None], None] | None = None
        """Sends delayed reports. The worker calls it when a function returns or raises, with the exception or None."""
        self.assign(assignment, listener, None)

    def assign(self, assignment: Assignment, listener: Listener, saved: RandomState | None) -> None:
        """Start another segment of this trial with the same number of workers; called by the worker.

        Args:
            assignment: The segment.
            listener: Receives the trial's messages.
            saved: The random state of the segment's checkpoint, if it is in memory; None: it is read from disk.
        """
        self.parent = assignment.parent
        self.start = assignment.start
        self.end = assignment.end
        self.random_state = saved
        """Random state of the last checkpoint that was written or read."""
        self._assignment = assignment
        self._listener = listener
        self._state: Any = None
        self._iteration = assignment.start
        self._cost = assignment.cost
        self._step: int | None = None
        self._provisional: tuple[int, str] | None = None
        """(process id, name) of the last report's checkpoint, if the listener has not received it."""
        self._looped = False
        self._has_read_checkpoint = False
        self._ended = False
        self._has_spent = False
        self._clock = time.perf_counter()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that every report must contain."""
        return self._assignment.names

    @property
    def group(self) -> Group:
        """The workers that run this segment, as a `hpsearch_comm.Group`; a group of one if there is only one.

        It is closed automatically. All ranks must call its operations, `iterations()` and `report()` in the same order.

        Raises:
            hpsearch_comm.CommError: The group could not be formed.
        """
        if self._group is None:
            self._group = self._form()
        return self._group

    def leave_group(self, error: BaseException | None = None) -> None:
        """Close the group if there is one; called by the worker.

        Args:
            error: Why this rank ends early; None if it does not. The other ranks receive it.
        """
        group, self._group = self._group, None
        if group is not None:
            group.close(error)

    @property
    def parallel(self) -> dict[str, Any]:
        """The sweep's `parallel`: `strategy` and its options, which set how several workers train; may be empty.

        If `strategy` is not `allreduce`, a trial that reports without reading this property fails: its result would be
        attributed to a strategy that it did not use.
        """
        self._parallel_is_known = True
        return dict(self._assignment.parallel)

    @property
    def directory(self) -> Path:
        """The directory of this attempt, for any files. It is created on first access.

        Raises:
            StorageError: The directory cannot be created.
        """
        directory = Path(self._assignment.directory)
        with writing(f"the attempt's directory {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    @property
    def checkpoint(self) -> Any:
        """What the trial saved at the end of iteration `start`; None if it starts from scratch.

        A fork without its own checkpoint gets its parent's. Load optimizers and schedulers with `hpsearch.restore`,
        which keeps the fork's own settings.

        A state has its tensors on the CPU. A directory or file is returned as its path; do not write to it. The
        checkpoint is read on first access. Later accesses return the same object until the segment ends.

        If the checkpoint was saved by a trainable that does not use `iterations()`, each access before the first report
        restores the global generators of Python, NumPy and torch to their state at that checkpoint. Such a trainable
        should access `checkpoint` directly before its loop.

        Raises:
            UnreadableCheckpointError: The checkpoint is missing or damaged.
            StorageError: The storage cannot be read.
        """
        state = self._read(self._assignment.checkpoint)
        self._restore_random_state(on_access=True)
        return state

    @property
    def parent_checkpoint(self) -> Any:
        """What the parent of this fork saved, in the same form as `checkpoint`; None if this trial is not a fork.

        It is None as soon as the trial has its own checkpoint. That checkpoint should contain everything that the trial
        needs from its parent's.

        Raises:
            UnreadableCheckpointError: The checkpoint is missing or damaged.
            StorageError: The storage cannot be read.
        """
        return self._read(self._assignment.parent_checkpoint)

    def drop_state(self) -> None:
        """Release the memory of the checkpoint's state after an object has loaded it; called by the worker."""
        self._state = None

    @property
    def ignores_checkpoint(self) -> bool:
        """Whether the trial resumes from a checkpoint that was not read."""
        return self.start > 0 and self._assignment.checkpoint is not None and not self._has_read_checkpoint

    @property
    def iteration(self) -> int:
        """The last reported iteration; `start` before the first report."""
        return self._iteration

    @property
    def _is_endless(self) -> bool:
        """Whether only the trainable itself ends the segment."""
        return self.end is None and self._assignment.cost_end is None

    def iterations(self) -> Iterator[int]:
        """Yield the numbers of the iterations to run, from `start + 1` to `end`. Call `report` once in each step.

        If the trial resumes from a checkpoint, the global generators of Python, NumPy and torch are restored to their
        state at the checkpoint before the first step. The loop ends early if the sweep requests it.

        Raises:
            TrainableError: A step did not report, or the sweep has no `max_iter`.
        """
        if self._is_endless:
            raise TrainableError(UNKNOWN_END)
        self._looped = True
        self._restore_random_state()
        try:
            while (self.end is None or self._iteration < self.end) and not self._ended:
                self._step = self._iteration + 1
                self._clock = time.perf_counter()
                yield self._step
                if self._iteration != self._step:
                    raise TrainableError(
                        f"every step of trial.iterations() must report, but iteration {self._step} didn't: "
                        f"call trial.report({example(self._assignment.objective.names, '...')}) once in each step"
                    )
        finally:
            self._step = None

    def report(self, metrics: Mapping[str, Any] = _NO_METRICS, checkpoint: object = None, **others: Never) -> None:
        """Report the metrics of an iteration. This may end the segment.

        Call it at the end of an iteration: the checkpoint does not contain later changes. A checkpoint is written at
        the end of the segment, when `checkpoints.every` is due, and when the segment is cut. If the sweep has no
        `max_iter`, every report may be the last, so each one writes a checkpoint that replaces the previous one.

        In a segment with several workers, every rank must report. Metrics and checkpoint of rank 0 are used. The
        segment ends on all ranks when it ends on rank 0, and all ranks continue with the random state of rank 0.

        Args:
            metrics: Names to numbers (or NumPy or torch scalars). Must contain the sweep's metrics.
            checkpoint: The state to resume from: tensors and plain containers; or the path of a directory or file,
                which is copied; or a function without arguments that returns one of these, called only when a
                checkpoint is written. None: the trial cannot be resumed from here.
            others: Not allowed. Metrics or a step as keywords raise an error that shows the correct call.

        Raises:
            TrainableError: The metrics are not numbers, lack one of the sweep's metrics, or are reported at the wrong
                time; the checkpoint is a number; or there are other keywords.
            CheckpointError: The checkpoint could not be read back.
            UnwritableError: The checkpoint cannot be written, for a reason other than the storage.
            StorageError: The storage is full or failing.
            SegmentEnd: The segment ends, and the trainable has its own loop.
        """
        seconds = time.perf_counter() - self._clock
        self._check_turn()
        refuse_keywords(others, self._assignment.objective.names)
        numbers = to_numbers(metrics, self._assignment.objective.names) if self.rank == 0 else {}
        if self.rank == 0:
            self._cost = cost_after(self._assignment.resource, self._cost, numbers, seconds)
        refuse_step(checkpoint)
        self._iteration += 1
        self._listener.reported(self._iteration, numbers, seconds)
        cut = self._iteration != self.end and self._is_cut(numbers)
        if cut:
            self._listener.was_cut()
        self._ended = cut or self._iteration == self.end or self._has_spent
        self.drop_kept()
        if checkpoint is not None and self.rank == 0:
            import torch  # noqa: F401 (now, so that random numbers do not depend on when a checkpoint is written)

            if self._ended or self._assignment.due(self._iteration):
                if (name := self._write(checkpoint)) is not None:
                    self._listener.saved(self._iteration, name)
            elif self._is_endless and (name := self._write(checkpoint)) is not None:
                self._provisional = (os.getpid(), name)
        if self._ended and self._step is None:
            raise SegmentEnd(0)
        self._clock = time.perf_counter()

    def note(self, /, **notes: str) -> None:
        """Note texts about this trial, such as `trial.note(commit="4f1c2a9")`, which `hpsearch trial` shows.

        They are recorded at once, and have no effect on the search. A later text of a name replaces the earlier one,
        also in a later segment. In a segment with several workers, the notes of rank 0 are used.

        Args:
            notes: Names to texts of at most 4,000 characters.

        Raises:
            TrainableError: A note is not a text, is too long, or comes after the segment's end.
        """
        checked = to_notes(notes)
        if self.rank == 0 and checked:
            self._listener.noted(checked)

    def took(self, seconds: float) -> None:
        """Set the duration of the current iteration so far; called if trials take turns in this process."""
        self._clock = time.perf_counter() - seconds

    def returned(self) -> None:
        """Send the kept checkpoint of the last report to the listener; called by the worker after the trainable.

        No checkpoint is written here, since state and generators may have changed after the last report.
        """
        provisional, self._provisional = self._provisional, None
        if provisional is not None and provisional[0] == os.getpid():  # not in a forked child that returns
            self._listener.saved(self._iteration, provisional[1])

    def drop_kept(self) -> None:
        """Delete the checkpoint that was kept in case its report was the last one; also called by the worker."""
        provisional, self._provisional = self._provisional, None
        if provisional is not None and provisional[0] == os.getpid():
            shutil.rmtree(Path(self._assignment.directory, provisional[1]), ignore_errors=True)

    def _write(self, checkpoint: object) -> str | None:
        """Write the checkpoint of this report, and return its name; None if the function `checkpoint` returned None."""
        # Captured before saving and restored after it, so that saving does not change the following random numbers.
        saved = {**self.generators(), _OWN_LOOP: not self._looped}
        state = checkpoint() if callable(checkpoint) and not _is_module(checkpoint) else checkpoint
        if state is None:
            return None
        check_own_settings(state, self._assignment)
        name = self.write_checkpoint(Path(self._assignment.directory), self._iteration, state, saved)
        random_state.restore(saved)
        self.random_state = saved
        return name

    def _is_cut(self, numbers: Mapping[str, float]) -> bool:
        """Return whether the segment ends early: on request, or because this report reaches the sweep's target.

        A report at which the segment has spent its costs ends it anyway, so it isn't cut there.

        Rank 0 decides, and sends its random state to the other ranks. A checkpoint contains only one random state, so
        without this the other ranks would get different random numbers after a resume.
        """
        cut, cost_end = False, self._assignment.cost_end
        if self.rank == 0:
            self._has_spent = cost_end is not None and self._cost >= cost_end
            cut = not self._has_spent and (self._listener.cut_requested() or self._assignment.reached(numbers))
        if self.world_size == 1:
            return cut
        message = None
        if self.rank == 0:
            message = [cut, self._has_spent, random_state.to_text(random_state.capture())]
        cut, self._has_spent, state = self.group.broadcast_object(message)
        if self.rank > 0:
            random_state.restore(random_state.from_text(state))
        return bool(cut)

    def _read(self, path: str | None) -> Any:
        if path is None:
            return None
        self._has_read_checkpoint = True
        if self._state is None:
            self._state = checkpoints.read_state(Path(path))
        return self._state

    def _restore_random_state(self, on_access: bool = False) -> None:
        """Restore the generators to their state at the checkpoint.

        Args:
            on_access: Whether the reason is an access to the checkpoint. If so, the generators are only restored for a
                trainable that does not use `iterations()`. Other trainables may draw random numbers between the access
                and the loop, for example to split data, and these must be the same in each segment.
        """
        path = self._assignment.checkpoint
        if path is None or self._iteration != self.start or (on_access and self._looped):
            return
        if path == self._assignment.parent_checkpoint:
            return  # a fork has its own random numbers
        if self.random_state is None:
            self.random_state = checkpoints.read_random_state(Path(path))
        saved = self.random_state
        if saved is not None and (not on_access or saved.get(_OWN_LOOP, False)):
            random_state.restore(saved)

    def _check_turn(self) -> None:
        if self.ignores_checkpoint and not self._looped:
            # The generators are in the state at the trial's start, so the trial would draw the same numbers again.
            raise TrainableError(ignored_checkpoint(self.number, self.start))
        if not self._parallel_is_known:
            raise TrainableError(ignored_parallel(self._assignment.strategy))
        if self._step is not None and self._iteration == self._step:
            raise TrainableError(
                f"every step of trial.iterations() must report once, but iteration {self._step} did twice: "
                "put all metrics into one report"
            )
        if self._ended and self._looped:
            raise TrainableError(
                f"the segment ended with iteration {self._iteration}, but trial.report() was called again: "
                "report only inside the loop over trial.iterations()"
            )
        if self._ended:
            raise SegmentEnd(0)


def _group_of_one() -> Group:
    from hpsearch_comm import Group

    return Group(0, 1)


def _is_module(checkpoint: object) -> bool:
    """Return whether a value has a `state_dict`. Such a value may be callable, but `write` must refuse it."""
    return callable(getattr(checkpoint, "state_dict", None))
