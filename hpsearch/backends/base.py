"""Interface of backends, which run segments.

A backend receives tasks, runs each in a worker, and returns messages. It decides nothing about the search.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hpsearch.errors import BackendError
from hpsearch.task import Message, Task, Workers
from hpsearch.worker.job import Job


def no_room(task: Task) -> BackendError:
    """Return the error for a task that is started without capacity."""
    asked = f"one of {task.lanes} lanes of a worker" if task.lanes > 1 else f"workers: {task.segment.width}"
    return BackendError(
        f"trial {task.trial.number} asks for {asked}, for which there is no room: start no more than capacity() says"
    )


class Backend(ABC):
    """Runs tasks in workers. Its clock is the sweep's: limits, polls and the times of events use it.

    A cut, a timeout and a failure concern one task; the other tasks of its worker continue. If a worker is lost, each
    of its tasks gets its own outcome. A segment ends, as if it were cut, at the report that reaches the job's target;
    `Worker` does that where it runs segments.
    """

    name: str
    tick = 0.25
    """Seconds between two polls of requests and of the sweep's state."""
    runs_edits = True
    """Whether edits of the trainable's files may take effect while a study runs."""
    module_changes_stay = ""
    """Text to add to the warning that a trial changed values of its modules; empty: there is no warning."""
    divides = False
    """Whether tasks may request lanes of its workers. Only the worker knows whether its trainable can be a lane."""

    @abstractmethod
    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Prepare to run the segments of this study.

        Args:
            job: Data that all segments share.
            deliver: Receives messages at once, from inside `wait`, if the backend runs the trainable in the
                caller's thread; other backends don't call it.

        Raises:
            BackendError: The backend can't be reached, or can never have a worker of this size.
        """

    @abstractmethod
    def capacity(self, lanes: int = 1) -> int:
        """Return the number of tasks of width 1 that could start at once.

        Args:
            lanes: As in `Task`. It is 0 for more than 1 if workers aren't divided. A worker whose trainable can't be a
                lane runs one task that requests a lane, as if it requested the whole worker. If workers are divided,
                the whole workers are those that would be free if each lane had its own worker.
        """

    @abstractmethod
    def start(self, task: Task) -> None:
        """Run a task on the workers that it requests; there must be capacity for it.

        If workers are divided, a task that needs whole workers, or more of them than before, or that has a company,
        may be started without capacity: it waits for its workers, and no later task overtakes it, except those of its
        company.

        Its outcome comes as exactly one `Result` or `Lost`.

        Raises:
            BackendError: The task requests resources that this backend doesn't have.
        """

    @abstractmethod
    def cut(self, trial: int, attempt: int) -> None:
        """End a running attempt at its next report, with a checkpoint. Do nothing if it has ended.

        An attempt that waits for a worker is `Lost` and doesn't begin.
        """

    @abstractmethod
    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Return new messages; wait up to `timeout` seconds for the first (None: without a limit)."""

    def wake(self, when: float) -> None:
        """Make a `wait` return at `now() == when`, even without a message; for a `wait` that ignores its timeout."""
        return

    def now(self) -> float:
        """Return seconds since a fixed moment; they never decrease."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch, for the times of events."""
        return time.time()

    @abstractmethod
    def workers(self) -> Workers:
        """Count the workers."""

    @abstractmethod
    def close(self, kill: bool = False) -> None:
        """Close the study; `kill` ends running tasks, including child processes."""
