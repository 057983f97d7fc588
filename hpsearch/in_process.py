"""Run a function or class as a trainable in this process."""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpsearch import random_state
from hpsearch.attempt import Attempt
from hpsearch.current import here, set_current_trial
from hpsearch.errors import TrainableError
from hpsearch.failures import failure_of
from hpsearch.output import OutputRedirect
from hpsearch.running_trial import Assignment, RunningTrial, SegmentEnd
from hpsearch.trainables import Trainable, resolve_trainable
from hpsearch.trial import Failure

__all__ = ["InProcess"]


class InProcess:
    """Runs segments by calling a function afresh, or by stepping an object that may stay warm.

    torch is imported at once, before the trainable is: a segment finds the same generators and threads in a
    fresh worker and in a warm one. (What a trainable imports only while it runs is out of reach: such an import may
    draw random numbers, once per worker. Imports belong to the top of its module.)

    Raises:
        TrainableError: The trainable can't be imported, or has another shape.
    """

    def __init__(self, trainable: str | Trainable, search_path: Sequence[str], threads: int) -> None:
        import torch

        self._target = resolve_trainable(trainable, search_path)
        self._threads = threads
        self._threads_before = torch.get_num_threads()
        self._output = OutputRedirect()
        self._warm = _WarmObject()
        torch.set_num_threads(threads)

    def run(self, assignment: Assignment, attempt: Attempt, log: Path) -> Failure | None:
        """Run one segment; whatever the trainable raises is its failure, KeyboardInterrupt aside."""
        import torch

        torch.set_num_threads(self._threads)  # the last trial may have changed it
        process = os.getpid()
        outer = here()
        failure = None
        with self._output.to(log):
            try:
                self._run(self._target, assignment, attempt)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit is a user's mistake like any other
                failure = failure_of(error)
            finally:
                set_current_trial(outer)
                if os.getpid() != process:
                    os._exit(1)  # a child that the trainable forked came back: it must not go on as a second driver
        if failure is not None:
            # To the file itself: the trainable may have closed or replaced the streams.
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(failure.traceback)
        return failure

    def close(self) -> None:
        """Let go of the warm object, and give torch back its threads."""
        import torch

        self._warm.close()
        torch.set_num_threads(self._threads_before)

    def _run(self, target: Trainable, assignment: Assignment, attempt: Attempt) -> None:
        if inspect.isclass(target):
            self._warm.step(target, assignment, attempt)
        else:
            random_state.seed_all(assignment.seed)
            trial = RunningTrial(assignment, attempt)
            set_current_trial(trial)
            try:
                target(trial)
            except SegmentEnd:
                return
            attempt.returned()
            trial.save_offered()
        if attempt.iteration == 0:  # one that is continued may find that it has nothing left to do
            raise TrainableError(
                f"a trainable must report at least once in a segment, but it returned without: call "
                f'trial.report({{"{assignment.metric}": ...}}) at the end of each iteration'
            )


class _WarmObject:
    """The object of the last trial, and the checkpoint that it stands at."""

    def __init__(self) -> None:
        self._object: Any = None
        self._trial: RunningTrial | None = None
        self._stands_at: tuple[int, str] | None = None
        """(trial number, absolute path of the checkpoint written at its last report)"""

    def step(self, target: Trainable, assignment: Assignment, attempt: Attempt) -> None:
        """Step the object through a segment; the one at hand, where it stands at the segment's checkpoint."""
        trial = self._continue(assignment, attempt) or self._build(target, assignment, attempt)
        # From here to the end the object stands at no checkpoint: one that fails on the way is built afresh.
        self._stands_at = None
        offers = getattr(self._object, "state_dict", None)
        for _ in trial.iterations():
            trial.report(self._object.step(), offers)
        if attempt.checkpoint is not None:
            self._stands_at = (assignment.number, str(trial.directory / Path(attempt.checkpoint).name))

    def close(self) -> None:
        """Let go of the object; what its `close` raises is printed, and nobody's failure."""
        former, self._object, self._trial, self._stands_at = self._object, None, None, None
        if callable(close := getattr(former, "close", None)):
            try:
                close()
            except KeyboardInterrupt:
                raise
            except BaseException:  # SystemExit too: it would fail the next trial
                traceback.print_exc()

    def _continue(self, assignment: Assignment, attempt: Attempt) -> RunningTrial | None:
        if self._trial is None or self._stands_at != (assignment.number, assignment.checkpoint):
            return None
        self._trial.assign(assignment, attempt, self._trial.random_state)
        set_current_trial(self._trial)
        return self._trial

    def _build(self, target: Trainable, assignment: Assignment, attempt: Attempt) -> RunningTrial:
        self.close()
        random_state.seed_all(assignment.seed)
        trial = RunningTrial(assignment, attempt)
        set_current_trial(trial)
        self._object = target(trial)
        self._trial = trial
        if assignment.checkpoint is not None:
            self._object.load_state_dict(trial.checkpoint)
        return trial
