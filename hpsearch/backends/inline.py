"""Run segments in this process, one after another: for a debugger, a notebook, and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from hpsearch.backends.base import Backend, refuse_share, tasks_on
from hpsearch.task import WHOLE_WORKER, Message, Place, Progress, Result, Save, Task, TimedOut, Workers
from hpsearch.trial import Failure, Report
from hpsearch.worker.job import Job
from hpsearch.worker.preflight import check_trainable
from hpsearch.worker.worker import Worker

__all__ = ["InlineBackend"]


class InlineBackend(Backend):
    """The trainable runs in the caller's thread, inside `wait`.

    A timeout is enforced at the trainable's next report: nothing can kill it but its own process. For the same reason
    an object's `close()` may take as long as it likes.
    """

    name = "inline"

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._worker: Worker | None = None
        self._cut: tuple[int, int] | None = None
        self._deliver: Callable[[Message], None] = lambda message: None

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Make the one worker."""
        check_trainable(job)
        self._worker = Worker(job, Path(job.study))
        self._deliver = deliver

    def capacity(self, place: Place = WHOLE_WORKER) -> int:
        """One task at a time."""
        return tasks_on(0 if self._tasks else 1, place)

    def start(self, task: Task) -> None:
        """Keep the task for `wait`."""
        refuse_share(task)
        self._tasks.append(task)

    def cut(self, trial: int, attempt: int) -> None:
        """Ask the running attempt to end."""
        self._cut = (trial, attempt)

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Run the task that waits, if there is one."""
        if not self._tasks:
            return ()
        assert self._worker is not None, "open comes before wait"
        task = self._tasks.popleft()
        self._worker.let_go(task.segment.trial)  # before this trial's clock runs
        channel = _Channel(self, task)
        result = self._worker.run(task.trial, task.segment, channel)
        if channel.late and result.cut:
            message = f"ran over its trial_timeout; {task.timeout:g} s of it were left for this segment"
            return (TimedOut(*task.key, Failure("timeout", message, ""), result.seconds),)
        return (Result(*task.key, result),)

    def workers(self) -> Workers:
        """This process."""
        return Workers(ready=1, busy=len(self._tasks), wanted=1)

    def close(self, kill: bool = False) -> None:
        """Close the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Channel:
    """Hands what the trainable says straight to the orchestrator, which waits in this very thread."""

    def __init__(self, backend: InlineBackend, task: Task) -> None:
        self._backend = backend
        self._key = task.key
        self._deadline = None if task.timeout is None else backend.now() + task.timeout
        self.late = False

    def reported(self, report: Report) -> None:
        self._backend._deliver(Progress(*self._key, (report,), None))

    def saved(self, iteration: int, checkpoint: str, reports: tuple[Report, ...]) -> None:
        self._backend._deliver(Progress(*self._key, (), Save(iteration, checkpoint, reports)))

    def cut_requested(self) -> bool:
        self.late = self._deadline is not None and self._backend.now() > self._deadline
        return self.late or self._backend._cut == self._key
