"""Run segments on a virtual clock, with tables and models in place of trainables."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpsearch.backends.base import Backend, no_room
from hpsearch.errors import TrainableError, UnreadableCheckpointError
from hpsearch.journal.filesystem import put_in_place
from hpsearch.simulation import Simulation, Step
from hpsearch.simulation.simulation import RecordedFailure
from hpsearch.task import Message, Progress, Result, Task, Workers
from hpsearch.trainable.failures import bounded, failure_of, failure_of_message
from hpsearch.trainable.metrics import cost_after
from hpsearch.trial import Failure, Report
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job

_STATE = "state.pickle"
"""File in a checkpoint, with the trial's state."""


class SimulatedBackend(Backend):
    """Runs a simulation, which returns the metrics and the duration of each iteration, on a virtual clock.

    Segments, widths, cuts, timeouts and failures work as on other backends. Only the states of trials are on disk.
    """

    name = "simulated"
    runs_edits = False
    tick = 60.0  # virtual seconds; a poll takes real time

    def __init__(self, workers: int, simulation: Simulation, live: bool = True, epoch: float = 0.0) -> None:
        """Create the virtual workers.

        Args:
            workers: Number of workers.
            simulation: The simulation that they run.
            live: Whether each iteration is reported when it ends. False is faster: the clock jumps to the next end of a
                segment. Results are the same.
            epoch: When the virtual clock starts, in seconds since the epoch.
        """
        self._free = self._workers = workers
        self.simulation = simulation
        self._clock = 0.0
        self._live = live
        self._epoch = epoch
        self._alarm = math.inf
        self._due: list[tuple[float, int, int, _Attempt]] = []
        """Heap of (time of the next message, number of the attempt in starting order, number of the entry, attempt)."""
        self._started = self._noted = 0
        self._study: Path | None = None
        self._states: dict[str, bytes] = {}
        """States by checkpoint, if the study isn't on disk."""
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self.reached: Callable[[Step], bool] = lambda step: False
        """Whether an iteration reaches the sweep's targets."""
        self.resource: str | None = None
        """What rungs end by; None: iterations."""

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Store the study's directory, if it has one, and the sweep's targets, at which segments end."""
        self._study = Path(job.study) if job.study else None
        objective = job.objective
        self.resource = job.resource
        if any(goal.target is not None for goal in objective.goals):
            self.reached = lambda step: objective.reaches(objective.reported(step.metrics))

    def capacity(self, lanes: int = 1) -> int:
        """Return the number of free workers. They have no lanes."""
        return self._free if lanes == 1 else 0

    def start(self, task: Task) -> None:
        """Occupy workers until the segment's virtual end.

        Raises:
            BackendError: Too few workers are free, or the task requests a lane.
        """
        if task.lanes > 1 or task.segment.width > self._free:
            raise no_room(task)
        self._free -= task.segment.width
        self._started += 1
        running = _Attempt(self, task, self._started)
        self._attempts[task.key] = running
        self._note(running)

    def cut(self, trial: int, attempt: int) -> None:
        """End an attempt at its next report."""
        running = self._attempts.get((trial, attempt))
        if running is not None and running.cut(self._clock):
            self._note(running)  # at another time than before

    def wake(self, when: float) -> None:
        """Stop the clock once at this time, before a later message."""
        self._alarm = when

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Jump to the next end of an iteration or segment, and return the messages of that time."""
        messages: list[Message] = []
        if self._due and self._clock < self._alarm < self._due[0][0]:
            self._clock = self._alarm
            return messages
        while self._due and (not messages or self._due[0][0] == self._clock):
            when, _, _, running = heapq.heappop(self._due)
            if running.ended or when != running.due:
                continue  # it was cut, and has another entry
            self._clock = when
            messages.append(self._next_message(running))
        return messages

    def now(self) -> float:
        """Return virtual seconds since the start."""
        return self._clock

    def wall(self) -> float:
        """Return the virtual time as seconds since the epoch."""
        return self._epoch + self._clock

    def go_on_from(self, when: float) -> None:
        """Start the virtual calendar at this time or later, since earlier runs took virtual time, too."""
        self._epoch = max(self._epoch, when)

    def workers(self) -> Workers:
        """Count the virtual workers."""
        return Workers(self._workers, self._workers - self._free, self._workers)

    def close(self, kill: bool = False) -> None:
        """Do nothing: no resources are held."""

    def steps(self, task: Task) -> Iterator[Step]:
        """Yield a segment's iterations: some trials end only with the sweep."""
        segment = task.segment
        most = None if segment.end is None else segment.end - segment.start
        state = None if segment.checkpoint is None else self._state_at(segment.checkpoint)
        yield from islice(self.simulation.steps(task.trial, segment, state), most)

    def _state_at(self, checkpoint: str) -> bytes | None:
        if not self.simulation.has_state:
            return None
        if self._study is None:
            return self._states[checkpoint]
        try:
            return Path(self._study, checkpoint, _STATE).read_bytes()
        except OSError as error:
            raise UnreadableCheckpointError(f"{checkpoint} must hold the trial's state, but: {error}") from error

    def _note(self, running: _Attempt) -> None:
        """Schedule an attempt's next message; at equal times the attempt that started first comes first."""
        self._noted += 1
        running.due = min(running.when(running.next(self._live)), running.deadline)
        heapq.heappush(self._due, (running.due, running.number, self._noted, running))

    def _next_message(self, running: _Attempt) -> Message:
        key = running.task.key
        count = running.next(self._live)
        if running.when(count) > running.deadline:
            self._end(running)
            return running.task.timed_out(
                f"; {running.task.timeout:g} s of it were left", running.deadline - running.began
            )
        reports = running.new_reports(count)
        if count != running.last:
            self._note(running)
            return Progress(*key, reports)
        self._end(running)
        return self._result(running, count)

    def _end(self, running: _Attempt) -> None:
        running.ended = True
        del self._attempts[running.task.key]
        self._free += running.task.segment.width

    def _result(self, running: _Attempt, count: int) -> Result:
        segment = running.task.segment
        return Result(
            trial=segment.trial,
            attempt=segment.attempt,
            iteration=segment.start + count,
            checkpoint=None if running.failure is not None else self._save(running, count),
            reports=tuple(running.reports),
            cut=running.is_cut,
            seconds=self._clock - running.began,
            failure=running.failure,
        )

    def _save(self, running: _Attempt, count: int) -> str | None:
        """Keep the state at an attempt's end; return the checkpoint's name."""
        segment = running.task.segment
        if not self.simulation.has_checkpoints or not count:
            return None
        checkpoint = f"{attempt_directory(segment)}/hpsearch-checkpoint-{segment.start + count}"
        state = running.steps[count - 1].state
        if state is not None:
            if self._study is None:
                self._states[checkpoint] = state
            else:
                directory = self._study / checkpoint
                directory.mkdir(parents=True, exist_ok=True)
                put_in_place(state, directory / _STATE)
        return checkpoint


class _Attempt:
    """An attempt on virtual workers."""

    def __init__(self, backend: SimulatedBackend, task: Task, number: int) -> None:
        simulation = backend.simulation
        self._backend = backend
        self.task = task
        self.number = number
        self.began = self.due = backend.now()
        """When it began, and the time of its next message."""
        self.deadline = math.inf if task.timeout is None else self.began + task.timeout
        self.steps: list[Step] = []
        """Iterations simulated so far: up to one after the next message."""
        self.last: int | None = None
        """Number of iterations, once known."""
        self.failure: Failure | None = None
        """Failure after the last iteration."""
        self.reports: list[Report] = []
        self.is_cut = self.ended = False
        self._more = backend.steps(task)
        self._cost = 0.0 if task.segment.costs is None else task.segment.costs.start
        self._speed = simulation.speed(task.segment.width)
        if not 0 < self._speed < math.inf:
            raise TrainableError(f"speed(width) must be a number, more than 0, got {self._speed!r}")
        self._checkpoint_seconds = simulation.checkpoint_seconds if simulation.has_checkpoints else 0.0
        self._ends = [self.began + simulation.start_seconds]
        """End of the start-up, of the first iteration, and so on."""

    def next(self, live: bool) -> int:
        """Return the number of iterations that will have ended at its next message."""
        while not live and self.last is None:
            self._see(len(self.steps) + 1)
        self._see(len(self.reports) + 2)
        return self.last if self.last is not None and not live else self._at_most(len(self.reports) + 1)

    def when(self, count: int) -> float:
        """Return the time of the message after `count` iterations; the last one includes the checkpoint's time."""
        saves = count == self.last and self.failure is None
        return self._ends[count] + (self._checkpoint_seconds if saves else 0.0)

    def new_reports(self, count: int) -> tuple[Report, ...]:
        """Return reports of the iterations up to the `count`-th that are new."""
        reported, start = len(self.reports), self.task.segment.start
        new = tuple(
            Report(
                self.task.trial.number,
                start + index + 1,
                self.steps[index].metrics,
                self.steps[index].seconds / self._speed,
            )
            for index in range(reported, count)
        )
        self.reports += new
        return new

    def cut(self, clock: float) -> bool:
        """End it at its next report; return whether that is before its regular end."""
        count = len(self.reports) + 1
        self._see(count + 1)
        while self._at_most(count) == count and self._ends[count] <= clock:
            count += 1
            self._see(count + 1)
        if self.last is not None and count >= self.last:
            return False
        self.last, self.is_cut, self.failure = count, True, None
        return True

    def _at_most(self, count: int) -> int:
        return count if self.last is None else min(count, self.last)

    def _see(self, count: int) -> None:
        """Simulate up to `count` iterations, and what follows the last."""
        while self.last is None and len(self.steps) < count:
            try:
                step = next(self._more, None)
                if step is not None:
                    self._cost = cost_after(
                        self._backend.resource, self._cost, step.metrics, step.seconds / self._speed
                    )
            except RecordedFailure as error:
                step, self.failure = None, bounded(failure_of_message(str(error)))
            except Exception as error:
                step, self.failure = None, bounded(failure_of(error))
            if step is not None:
                self.steps.append(step)
                self._ends.append(self._ends[-1] + step.seconds / self._speed)
                costs = self.task.segment.costs
                if costs is not None and self._cost >= costs.end:
                    self.last = len(self.steps)
                elif self._backend.reached(step) and self.task.segment.start + len(self.steps) != self.task.segment.end:
                    self.last, self.is_cut = len(self.steps), True
                continue
            self.last = len(self.steps)
            if not self.steps and self.task.segment.start == 0 and self.failure is None:
                self.failure = Failure("contract", "a trial must give at least one iteration, but it gave none", "")
