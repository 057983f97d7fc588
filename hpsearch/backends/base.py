"""The backend's seam: where segments run.

A backend takes tasks, runs each in a worker, and answers with messages. It decides nothing about the search.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hpsearch.errors import BackendError
from hpsearch.task import WHOLE_WORKER, Message, Place, Task, WorkerGang, Workers, WorkerShare
from hpsearch.worker.job import Job

__all__ = ["Backend", "refuse_share", "tasks_on"]


class Backend(ABC):
    """Runs tasks in workers. Its clock is the sweep's: limits, looks and the times of events go by it.

    A cut, a timeout and a failure are one task's, and the others of its worker go on. A worker that is lost takes all
    its tasks with it, each with an outcome of its own. A segment ends, as if it were cut there, at the report that
    reaches the job's target; `Worker` sees to that where it runs segments.
    """

    name: str
    tick = 0.25
    """Seconds between two looks at requests and at where the sweep stands."""
    runs_edits = True
    """A file of the trainable's that is edited while a study runs may be run as edited."""
    module_changes_stay = ""
    """What to add where a trial is reported to have changed values of its modules; empty: nothing is reported."""
    divides = False
    """Tasks may ask for shares of its workers; whether a trainable can be a lane shows only in the worker."""

    @abstractmethod
    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Get ready to run the segments of this study.

        Args:
            job: What all segments share.
            deliver: Takes messages at once, from inside `wait`, where a backend runs the trainable in the
                caller's own thread; other backends leave it alone.

        Raises:
            BackendError: The place can't be reached, or no worker of this size could ever be had.
        """

    @abstractmethod
    def capacity(self, place: Place = WHOLE_WORKER) -> int:
        """Say how many tasks that ask for this would be taken up at once.

        That is: without a wait that another order would spare. 0 for a share where workers aren't divided. A worker
        whose trainable can't be a lane takes one task that asks for a share, as if it asked for all of it. Where they
        are divided, whole workers are those that would be free if each lane had one for itself.
        """

    def share(self, lanes: int) -> WorkerShare | None:
        """Give what a task asks for that may be one of so many lanes of a worker; None: all of it."""
        return WorkerShare(lanes) if self.divides and lanes > 1 else None

    @abstractmethod
    def start(self, task: Task) -> None:
        """Run a task in the place that it asks for; there was capacity for it.

        One that is to have whole workers where these are divided, or more of them than before, or that has a company,
        may be started without: it waits until there is a worker that it may have, and nothing that is started after it
        overtakes it, but for what joins its own company.

        Its outcome comes as exactly one `Result`, `TimedOut` or `Gone`.

        Raises:
            BackendError: It asks for what this backend doesn't have.
        """

    @abstractmethod
    def cut(self, trial: int, attempt: int) -> None:
        """End a running attempt at its next report, with a checkpoint; one that has ended is left alone.

        One that waits for a worker is `Gone`, and doesn't begin.
        """

    @abstractmethod
    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Give the messages that came; wait for one up to `timeout` seconds (None: until one comes)."""

    def wake(self, when: float) -> None:
        """Let a `wait` end at `now() == when`, also without a message; whoever wakes at each timeout needs no more."""
        return

    def now(self) -> float:
        """Seconds since some fixed moment; they never go back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, which events bear."""
        return time.time()

    @abstractmethod
    def workers(self) -> Workers:
        """Count the workers."""

    @abstractmethod
    def close(self, kill: bool = False) -> None:
        """Let go of the study; `kill` ends what still runs, children included."""


def tasks_on(workers: int, place: Place) -> int:
    """Count the tasks that so many free workers can take, where workers aren't divided."""
    match place:
        case WorkerShare():
            return 0
        case WorkerGang(width):
            return workers // width
        case _:
            return workers


def refuse_share(task: Task) -> None:
    """See that a task asks for whole workers.

    Raises:
        BackendError: It asks for a part of one.
    """
    if task.share is not None:
        raise BackendError(
            f"a task must ask for whole workers here, but trial {task.trial.number} asks for one of {task.share.lanes} "
            "lanes of a worker: start no more than capacity() says"
        )
