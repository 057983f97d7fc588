"""Run segments in this process, in sequence: for debuggers, notebooks and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpsearch.backends.base import Backend, no_room
from hpsearch.events import Lost, Saved
from hpsearch.task import Message, Notice, Progress, Task, Workers
from hpsearch.trial import Report
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.preflight import check_trainable, placed
from hpsearch.worker.worker import Worker


class InlineBackend(Backend):
    """Runs the trainable in the caller's thread, inside `wait`.

    Timeouts are enforced at the trainable's next report, since the trainable can't be killed without this process. For
    the same reason an object's `close()` has no limit.
    """

    name = "inline"
    divides = True
    module_changes_stay = (
        "the trials after it run in this same process and find it so, and their results may depend on it. Change a "
        "copy, or run on Ray, where the worker is replaced"
    )

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._lanes: dict[tuple[int, int], Task] = {}
        """Tasks that the worker trains as lanes, by (trial, attempt)."""
        self._worker: Worker | None = None
        self._divides = False
        """Whether the sweep requests lanes, even if the trainable can't be a lane."""
        self._runs = False
        """Whether a task that uses the whole worker is running."""
        self._cut: set[tuple[int, int]] = set()
        self._notices: list[Message] = []
        self._deliver: Callable[[Message], None] = lambda message: None

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Create the worker."""
        check_trainable(job)
        if isinstance(job.trainable, CommandLine):
            job = replace(job, trainable=placed(job.trainable))
        if not isinstance(job.trainable, CommandLine):
            self._note_gpus(job)
        self._worker = Worker(job, Path(job.study))
        self._divides = job.lanes > 1
        self._deliver = deliver
        if self._worker.why_whole is not None:
            self._notices.append(Notice(f"trials run one at a time on a worker: {self._worker.why_whole}"))

    def _note_gpus(self, job: Job) -> None:
        import torch

        count = torch.cuda.device_count()
        if count and not job.gpus:
            self._notices.append(Notice(f"{count} GPUs are here and none is used: set resources.gpus_per_worker"))
        elif job.gpus and not count:
            text = f"resources.gpus_per_worker is {job.gpus:g}, but this process sees no GPU"
            self._notices.append(Notice(f"{text}: trials that look for one train on the CPU"))

    def capacity(self, lanes: int = 1) -> int:
        """Return the free lanes, or 1 if nothing runs."""
        running = len(self._tasks) + len(self._lanes)
        if lanes > 1:
            is_exclusive = any(task.lanes == 1 or task.company for task in (*self._tasks, *self._lanes.values()))
            return 0 if is_exclusive else max(min(self._opened.lanes, lanes) - running, 0)
        return 0 if running else 1

    def start(self, task: Task) -> None:
        """Queue the task for `wait`. A task that can't share the worker with the running lanes waits for their end."""
        waits = self._divides and (task.lanes == 1 or bool(task.company))
        if task.segment.width > 1 or not (waits or self.capacity(task.lanes)):
            raise no_room(task)
        self._tasks.append(task)

    def cut(self, trial: int, attempt: int) -> None:
        """End a running attempt at its next report. An attempt that waits for the worker won't begin."""
        waiting = next((task for task in self._tasks if task.key == (trial, attempt)), None)
        if waiting is None:
            self._cut.add((trial, attempt))
        else:
            self._tasks.remove(waiting)
            self._notices.append(Lost(*waiting.key, "it was cut before it began", counts_against_trial=False))

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Run the next task, if there is one, or train all lanes for an epoch."""
        notices, self._notices = self._notices, []
        if not self._tasks and not self._lanes:
            return notices
        if self._opened.lanes > 1 and (self._lanes or self._tasks[0].lanes > 1):
            return [*notices, *self._round()]
        task = self._tasks.popleft()
        self._opened.close_object(task.segment.trial)  # before this trial's clock starts
        self._runs = True
        try:
            result = self._opened.run(task.trial, task.segment, _Channel(self, task), timeout=task.timeout)
        finally:
            self._runs = False
        self._cut.discard(task.key)
        return [*notices, result]

    def workers(self) -> Workers:
        """Return 1 worker: this process."""
        return Workers(ready=1, busy=int(self._runs or bool(self._tasks or self._lanes)), wanted=1)

    def close(self, kill: bool = False) -> None:
        """Close the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def _opened(self) -> Worker:
        assert self._worker is not None, "open comes first"
        return self._worker

    def _round(self) -> list[Message]:
        while self._tasks and self._joins(self._tasks[0]):
            task = self._tasks.popleft()
            self._lanes[task.key] = task
            self._opened.enter(task.trial, task.segment, _Channel(self, task), task.timeout)
        results = self._opened.round()
        for result in results:
            del self._lanes[result.trial, result.attempt]
            self._cut.discard((result.trial, result.attempt))
        return [*results]

    def _joins(self, task: Task) -> bool:
        """Return whether a task may join the lanes that run."""
        if task.lanes == 1 or len(self._lanes) == self._opened.lanes:
            return False
        return all(other.company == task.company for other in self._lanes.values())


class _Channel:
    """Delivers messages directly to the orchestrator, which waits in this thread."""

    def __init__(self, backend: InlineBackend, task: Task) -> None:
        self._backend = backend
        self._key = task.key

    def reported(self, report: Report) -> None:
        self._backend._deliver(Progress(*self._key, (report,)))

    def noted(self, notes: Mapping[str, str]) -> None:
        self._backend._deliver(Progress(*self._key, (), notes))

    def saved(self, saved: Saved) -> None:
        self._backend._deliver(saved)

    def cut_requested(self) -> bool:
        return self._key in self._backend._cut
