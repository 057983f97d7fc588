"""The `trial` object that a trainable sees while it runs."""

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
from hpsearch.trainable.metrics import example, refuse_keywords, refuse_step, to_numbers
from hpsearch.trainable.parents_settings import check_own_settings
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.storage import writing

if TYPE_CHECKING:
    from hpsearch_comm import Group

__all__ = [
    "Listener",
    "RunningTrial",
    "SegmentEnd",
]

_NO_METRICS: Mapping[str, Any] = MappingProxyType({})

_OWN_LOOP = "own_loop"
"""Key beside the generators' states: the trainable hasn't called `iterations()`."""


class SegmentEnd(SystemExit):
    """Ends a trainable that runs a loop of its own, from within `report`, where its segment ends.

    A `SystemExit`, so that `except Exception` lets it pass and a script ends with status 0.
    """


class Listener(Protocol):
    """Hears what a running trial reports."""

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Take the report of an iteration."""

    def cut_requested(self) -> bool:
        """Say whether the segment is to end at the report just taken."""

    def was_cut(self) -> None:
        """Take note that the segment ends at the report just taken, as it was requested."""

    def saved(self, iteration: int, name: str) -> None:
        """Take note of a checkpoint in the attempt's directory; it comes after its report."""


class RunningTrial:
    """One trial as its trainable sees it: what to run, from where, and whom to report to.

    Attributes:
        number: Position in the order of creation, from 0.
        params: The parameters, nested as the sweep's groups are; a copy that is yours to change.
        seed: The trial's own; Python's, NumPy's and torch's global generators are seeded with it already.
        start: Iterations that are done; the first report is that of iteration `start + 1`.
        end: Last iteration of this segment; None where the sweep names no `max_iter`.
        rank: This worker's number among those that run the segment, from 0; rank 0's reports count.
        world_size: Workers that run the segment; it may change from one segment to the next.
        scaling: The sweep's `scaling`: how batch and rate follow the number of workers.
        parent: The number of the trial that this one was forked from, where it begins from that one's checkpoint: as
            long as it has none of its own. Else None.
    """

    def __init__(self, assignment: Assignment, listener: Listener, form: Callable[[], Group] | None = None) -> None:
        """Begin a segment of a trial; called by the worker.

        Args:
            assignment: The segment.
            listener: Who hears of it.
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
        """Tells where the trial's generators stand; they aren't the process's where others run in turn with it."""
        self.write_checkpoint = checkpoints.write
        """Writes a checkpoint, and gives its name; it may wait for those of others that run in turn with this one."""
        self.at_end: Callable[[BaseException | None], None] | None = None
        """Called by the worker when a function ends, with what it raised: reports what was held back until then."""
        self.assign(assignment, listener, None)

    def assign(self, assignment: Assignment, listener: Listener, saved: RandomState | None) -> None:
        """Begin another segment of this same trial, which is as wide; called by the worker.

        Args:
            assignment: The segment.
            listener: Who hears of it.
            saved: The random state at the segment's checkpoint, where it's at hand; None: read it from there.
        """
        self.parent = assignment.parent
        self.start = assignment.start
        self.end = assignment.end
        self.random_state = saved
        """At the last checkpoint that was written or read."""
        self._assignment = assignment
        self._listener = listener
        self._state: Any = None
        self._iteration = assignment.start
        self._step: int | None = None
        self._kept: tuple[int, str] | None = None
        """(this process, the name of the last report's checkpoint), where nobody was told of it."""
        self._looped = False
        self._looked = False
        self._ended = False
        self._clock = time.perf_counter()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that every report must hold."""
        return self._assignment.objective.names

    @property
    def group(self) -> Group:
        """The workers that run this segment, a `hpsearch_comm.Group`: a group of one where there is but one.

        It is closed for you. Every rank calls its operations, `iterations()` and `report()` in the same order.

        Raises:
            hpsearch_comm.CommError: The ranks didn't come together.
        """
        if self._group is None:
            self._group = self._form()
        return self._group

    def leave_group(self, error: BaseException | None = None) -> None:
        """Close the group, where there is one; called by the worker.

        Args:
            error: Why this rank ends early, which the others are told.
        """
        group, self._group = self._group, None
        if group is not None:
            group.close(error)

    @property
    def parallel(self) -> dict[str, Any]:
        """How several workers are to train it: `strategy`, and what else the sweep says; empty where it says nothing.

        A sweep may compare strategies: a trainable that reports without a look at this has failed, unless `strategy` is
        `allreduce`.
        """
        self._parallel_is_known = True
        return dict(self._assignment.parallel)

    @property
    def directory(self) -> Path:
        """A directory of this attempt's own, for any files; it is made when it is asked for.

        Raises:
            StorageError: It can't be made.
        """
        directory = Path(self._assignment.directory)
        with writing(f"the attempt's directory {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    @property
    def checkpoint(self) -> Any:
        """What the trial saved at the end of iteration `start`; None where it starts from zero.

        Of a fork that goes on at an iteration, without a checkpoint of its own, it is what its parent saved. Load
        optimizers and schedulers by `hpsearch.restore`, which keeps the fork's own settings.

        A state has its tensors on the CPU; of a directory or file it is the path, not to be written to. It is read at
        the first look: later ones give the same object until the segment ends, with what was changed of it.

        Where a loop of its own saved it, without `iterations()`, each look at it before the first report puts Python's,
        NumPy's and torch's global generators back to where they stood there: look at it last before the loop.

        Raises:
            UnreadableCheckpointError: It is missing or damaged.
            StorageError: The storage doesn't give it.
        """
        state = self._read(self._assignment.checkpoint)
        self._restore_random_state(at_a_read=True)
        return state

    @property
    def parent_checkpoint(self) -> Any:
        """What the trial that this one was forked from had saved, as `checkpoint` gives it; None in all other cases.

        Also once the trial has a checkpoint of its own, which is to hold what it took over.

        Raises:
            UnreadableCheckpointError: It is missing or damaged.
            StorageError: The storage doesn't give it.
        """
        return self._read(self._assignment.parent_checkpoint)

    def drop_state(self) -> None:
        """Let go of the checkpoint's state, as an object has taken over what is in it; called by the worker."""
        self._state = None

    @property
    def ignores_checkpoint(self) -> bool:
        """Whether it goes on from a checkpoint that nobody has looked at."""
        return self.start > 0 and self._assignment.checkpoint is not None and not self._looked

    @property
    def iteration(self) -> int:
        """The last iteration that was reported; `start` before the first report."""
        return self._iteration

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations to run, from `start + 1` to `end`; report once in each step.

        Where the trial continues from a checkpoint, Python's, NumPy's and torch's global generators are put
        back to where they stood there, just before the first step. Ends early where the sweep asks for it.

        Raises:
            TrainableError: A step didn't report, or the sweep names no `max_iter`.
        """
        if self.end is None:
            raise TrainableError(UNKNOWN_END)
        self._looped = True
        self._restore_random_state()
        try:
            while self._iteration < self.end and not self._ended:
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
        """Report the metrics at the end of an iteration; this may end the segment.

        The last thing in an iteration: what comes after it, up to the next step, isn't in the checkpoint. That is
        written here or not at all: at the segment's end, where `checkpoints.every` asks for it, and where the segment
        is cut. Where the sweep names no `max_iter` every report may be the last, so each one writes it, in place of
        the one before.

        In a wide segment every rank reports. Rank 0's metrics count, and its checkpoint; the segment ends on all
        ranks where it ends on rank 0, and all go on from rank 0's random state.

        Args:
            metrics: Names to numbers (NumPy's and torch's scalars too); the sweep's metrics among them.
            checkpoint: What continues the trial from here: tensors and plain containers; or the path of a
                directory or file, which is copied; or a function of no arguments that gives one of these,
                called only when a checkpoint is needed. None: the trial can't be continued from here.
            others: None are taken; metrics or a step that are given by keywords, as elsewhere, are told so.

        Raises:
            TrainableError: The metrics aren't numbers, lack one of the sweep's metrics, or come out of turn; the
                checkpoint is a number, as a step would be; or there are other keywords.
            CheckpointError: The checkpoint couldn't be read again.
            UnwritableError: The system refuses to write the checkpoint.
            StorageError: The storage is full, or out of order.
            SegmentEnd: The segment ends here, and the trainable runs a loop of its own.
        """
        seconds = time.perf_counter() - self._clock
        self._check_turn()
        refuse_keywords(others, self._assignment.objective.names)
        numbers = to_numbers(metrics, self._assignment.objective.names) if self.rank == 0 else {}
        refuse_step(checkpoint)
        self._iteration += 1
        self._listener.reported(self._iteration, numbers, seconds)
        cut = self._iteration != self.end and self._is_cut(numbers)
        if cut:
            self._listener.was_cut()
        self._ended = cut or self._iteration == self.end
        self.drop_kept()
        if checkpoint is not None and self.rank == 0:
            import torch  # noqa: F401 (at the first offer: what it may draw must not depend on what is saved when)

            if self._ended or self._assignment.due(self._iteration):
                if (name := self._write(checkpoint)) is not None:
                    self._listener.saved(self._iteration, name)
            elif self.end is None and (name := self._write(checkpoint)) is not None:
                self._kept = (os.getpid(), name)
        if self._ended and self._step is None:
            raise SegmentEnd(0)
        self._clock = time.perf_counter()

    def took(self, seconds: float) -> None:
        """Let the next report say that its iteration took so long; called where others ran in turn with it."""
        self._clock = time.perf_counter() - seconds

    def returned(self) -> None:
        """Tell of the checkpoint of the last report, which proved to be the last; called by the worker.

        Not of one that would have to be made now: state and generators may have moved on since that report.
        """
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == os.getpid():  # a forked child that returns speaks for nobody
            self._listener.saved(self._iteration, kept[1])

    def drop_kept(self) -> None:
        """Delete the checkpoint that was kept in case its report was the last; called by the worker, too."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == os.getpid():
            shutil.rmtree(Path(self._assignment.directory, kept[1]), ignore_errors=True)

    def _write(self, offered: object) -> str | None:
        """Write a checkpoint of this report; None where the function that was offered gives no state."""
        # Taken first and put back at the end: what is saved, and whether, must not change what comes after.
        saved = {**self.generators(), _OWN_LOOP: not self._looped}
        state = offered() if callable(offered) and not _is_module(offered) else offered
        if state is None:
            return None
        check_own_settings(state, self._assignment)
        name = self.write_checkpoint(Path(self._assignment.directory), self._iteration, state, saved)
        random_state.restore(saved)
        self.random_state = saved
        return name

    def _is_cut(self, numbers: Mapping[str, float]) -> bool:
        """Say whether the segment ends early; all ranks get rank 0's answer, and its random state with it.

        It does where it was asked to, and where this report reaches the sweep's target: a later one could be worse.

        Else a checkpoint, which holds one state, would continue a rank that drew otherwise from another point than
        where it stood.
        """
        if self.world_size == 1:
            return self._listener.cut_requested() or self._assignment.reached(numbers)
        word = None
        if self.rank == 0:
            cut = self._listener.cut_requested() or self._assignment.reached(numbers)
            word = [cut, random_state.to_json(random_state.capture())]
        cut, state = self.group.broadcast_object(word)
        if self.rank > 0:
            random_state.restore(random_state.from_json(state))
        return bool(cut)

    def _read(self, path: str | None) -> Any:
        if path is None:
            return None
        self._looked = True
        if self._state is None:
            self._state = checkpoints.read_state(Path(path))
        return self._state

    def _restore_random_state(self, at_a_read: bool = False) -> None:
        """Go on where the generators stood at the checkpoint.

        Args:
            at_a_read: The checkpoint was read: then only a loop of its own, which doesn't come by `iterations()`, goes
                on there. What others draw between the two is the same in each segment: how they split data, for one.
        """
        path = self._assignment.checkpoint
        if path is None or self._iteration != self.start or (at_a_read and self._looped):
            return
        if path == self._assignment.parent_checkpoint:
            return  # a fork's random numbers are its own
        if self.random_state is None:
            self.random_state = checkpoints.read_random_state(Path(path))
        saved = self.random_state
        if saved is not None and (not at_a_read or saved.get(_OWN_LOOP, False)):
            random_state.restore(saved)

    def _check_turn(self) -> None:
        if self.ignores_checkpoint and not self._looped:
            # Its generators stand where they did in the segment before, so it would draw the same numbers again.
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


def _is_module(offered: object) -> bool:
    """Say whether this has a state but isn't one: callable as it may be, it is for `write` to refuse."""
    return callable(getattr(offered, "state_dict", None))
