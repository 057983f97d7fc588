"""Run segments on Ray: a warm pool of actors, with one call per segment and worker."""

from __future__ import annotations

import functools
import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import ray
from ray.exceptions import RayError

from hpsearch.backends.base import Backend
from hpsearch.backends.gangs import Gang, Loss, LossKind, halved
from hpsearch.backends.ray.failures import as_backend_error, first_line
from hpsearch.backends.ray.inbox import Inbox
from hpsearch.backends.ray.mailbox import Heartbeat, Key
from hpsearch.backends.ray.messages import (
    RoundsEnd,
    RunRequest,
    RunResponse,
    pack_checkpoint,
    read_heartbeat,
    read_response,
)
from hpsearch.backends.ray.nodes import Shape
from hpsearch.backends.ray.session import connect, is_cluster
from hpsearch.backends.ray.worker_pool import WorkerPool
from hpsearch.backends.replacing import MODULE_CHANGES_STAY, close_hung, overdue, why_replaced
from hpsearch.backends.slots import Flight, Slot
from hpsearch.events import Lost
from hpsearch.sweep.parts import Resources
from hpsearch.task import Message, Notice, Task, Workers
from hpsearch.worker.attempt import attempt_directory, file_log
from hpsearch.worker.gang import ranks_of_gang
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.preflight import check_trainable

_HOUSEKEEPING_SECONDS = 0.25

_ROUNDS_AHEAD = 2
"""Number of rounds requested from a worker in advance, so that it doesn't wait for the driver."""

_BURST_SECONDS = 0.002
"""While all workers have work, answers are read in bursts: each wake-up of the driver slows them down."""


class RayBackend(Backend):
    """A pool of warm workers on Ray. If no number of workers is given, it uses the whole cluster, even if that grows.

    Args:
        resources: The sweep's resources.
        address: A cluster to join; None: `RAY_ADDRESS`, or a local Ray.
    """

    name = "ray"
    divides = True

    def __init__(self, resources: Resources, address: str | None = None) -> None:
        self._requested = resources.workers
        self._shape = Shape(resources.cpus_per_worker, resources.gpus_per_worker)
        self._address = address
        self._least = resources.workers_per_trial
        self.runs_edits = not is_cluster(address)  # a cluster's nodes have copies from when we joined
        self._fresh = resources.fresh_process
        self.module_changes_stay = "" if self._fresh else MODULE_CHANGES_STAY
        self._deliver: Callable[[Message], None] = lambda message: None
        self._worker_pool: WorkerPool | None = None
        self._flights: dict[tuple[int, int], tuple[Slot, Flight]] = {}
        """Worker of rank 0 and its task, by (trial, attempt)."""
        self._waiting: deque[Task] = deque()
        self._inbox = Inbox()
        self._due: dict[Slot, None] = {}
        """Workers with lanes from which rounds are requested next."""
        self._next_look = 0.0
        self._live = False
        self._handled: dict[Key, int] = {}
        """Last report of each attempt that was returned by the last `wait`, if the scheduler may stop it there."""

    @as_backend_error()
    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Connect, and start the workers. They become ready one by one, during `wait`."""
        if not is_cluster(self._address):  # a cluster's nodes may have the missing files
            check_trainable(job)
        cpus = max((self._requested or self._least) * self._shape.cpus, os.cpu_count() or 1)
        pool = self._pool = connect(self._address, cpus)
        self._study = Path(job.study)
        self._scripts = isinstance(job.trainable, CommandLine)
        self._live = job.live
        self._mailbox = pool.mailbox()
        for warning in filter(None, (pool.warning, self._shape.check(self._least))):
            self._inbox.put(Notice(warning))
        self._deliver = deliver
        self._fresh = self._fresh and not isinstance(job.trainable, CommandLine)  # a script has its own process
        self._worker_pool = WorkerPool(
            self._shape, self._requested, job, pool, self._inbox, self._send_waiting, self._lose, self._fresh
        )
        self._slots = self._worker_pool.slots
        self._worker_pool.start()  # after the assignment, so that `close` ends the workers even after a Ctrl-C here
        self._collect()

    def capacity(self, lanes: int = 1) -> int:
        """Return the number of free workers, including released ones that can be started again."""
        if lanes > 1:
            # A task waits for whole workers, and no other task may overtake it.
            return 0 if self._waiting else self._opened.capacity(0, whole_workers=False)
        return self._opened.capacity(self._missing())

    @as_backend_error()
    def start(self, task: Task) -> None:
        """Send a task to the best worker, or to `width` workers."""
        # All waiting tasks have been tried since a worker became free.
        if slots := self._slots.join(task) if self._waiting else self._slots.choose_for(task):
            self._send(slots, task)
        else:
            self._waiting.append(task)
            self._opened.fetch(self._missing())

    @as_backend_error()
    def cut(self, trial: int, attempt: int) -> None:
        """Put the request into the mailbox; the worker reads it at its next heartbeat."""
        for task in list(self._waiting):
            if task.key == (trial, attempt):
                self._waiting.remove(task)
                self._spare(task)
                self._send_waiting()
                return
        if (flight := self._flights.get((trial, attempt))) is not None:
            flight[1].cut = True
        self._mailbox.cut.remote((str(self._study), trial, attempt))

    @as_backend_error()
    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Return the workers' messages."""
        if self._handled:  # the scheduler has processed the messages of the last call
            self._mailbox.decided.remote(str(self._study), self._handled)
            self._handled = {}
        self._opened.refill()
        self._ask_rounds()
        messages = self._housekeeping()
        pause = _BURST_SECONDS if self._slots.sent_ahead() else 0.0
        return messages + self._inbox.take(0.0 if messages else timeout, pause)

    def workers(self) -> Workers:
        """Count the workers."""
        ready = sum(1 for slot in self._slots.all if slot.ready)
        return Workers(ready, self._slots.busy(), self._opened.wanted)

    def close(self, kill: bool = False) -> None:
        """Keep idle workers for the next search of this process, and end the others."""
        worker_pool, self._worker_pool = self._worker_pool, None
        if worker_pool is not None:
            for slot in worker_pool.close(kill):
                if slot.closes and slot.warm is not None:
                    self._deliver(close_hung(slot.warm))
            if ray.is_initialized():
                self._mailbox.clear.remote(str(self._study))

    @property
    def _opened(self) -> WorkerPool:
        assert self._worker_pool is not None, "open comes first"
        return self._worker_pool

    # Sending tasks.

    def _missing(self) -> int:
        """Return the number of workers that tasks wait for; a company counts as one."""
        companies = {task.company for task in self._waiting if task.company}
        return len(companies) + sum(task.segment.width for task in self._waiting if not task.company)

    def _send_waiting(self) -> None:
        """Send waiting tasks, in order: narrow tasks don't overtake a wide one, which would starve.

        Nor does a task overtake one that waits for an idle worker, unless it joins its own company.
        """
        is_held = False
        for task in list(self._waiting):
            if slots := self._slots.join(task) if is_held else self._slots.choose_for(task):
                self._waiting.remove(task)
                self._send(slots, task)
            else:
                is_held = True

    def _send(self, slots: Sequence[Slot], task: Task) -> None:
        packed = None if all(slot.sees for slot in slots) else pack_checkpoint(self._study, task.segment)
        gang = Gang(task)
        number = task.trial.number
        if task.lanes > 1 and slots[0].lanes > 1:
            self._send_lane(slots[0], gang, packed)
            return
        rank_infos = ranks_of_gang([slot.address for slot in slots], [slot.node for slot in slots])
        for rank, (slot, rank_info) in enumerate(zip(slots, rank_infos, strict=True)):
            closing = slot.warm if slot.closes and slot.warm != number else None
            closed = None if closing is None else slot.handle.close_object.remote(number)
            request = RunRequest(task.trial, task.segment, None if slot.sees else packed, rank_info)
            answer = slot.handle.run.remote(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
            flight = Flight(gang, rank, closing=closing)
            self._slots.send(slot, flight, self.now())
            if closed is not None:
                self._inbox.when_done(closed, functools.partial(self._closed, flight))
            if rank == 0:
                self._flights[flight.task.key] = (slot, flight)
            self._inbox.when_done(answer, functools.partial(self._landed, slot, flight))

    def _send_lane(self, slot: Slot, gang: Gang, packed: bytes | None) -> None:
        task, flight = gang.task, Flight(gang, 0)
        self._slots.send(slot, flight, self.now())
        self._flights[task.key] = (slot, flight)
        request = RunRequest(task.trial, task.segment, None if slot.sees else packed, None, task.timeout)
        slot.entering.append(request)
        self._due[slot] = None

    def _ask_rounds(self) -> None:
        """Request the rounds that are due, once all messages have been handled.

        So lanes that start at the same time enter in the same round.
        """
        due, self._due = self._due, {}
        for slot in due:
            while slot.flights and slot.rounds < _ROUNDS_AHEAD:
                if slot.rounds == 0:
                    slot.round_since = self.now()
                slot.rounds += 1
                new, slot.entering = slot.entering, []
                answer = slot.handle.round.remote(pickle.dumps(new, pickle.HIGHEST_PROTOCOL), slot.ends_heard)
                self._inbox.when_done(answer, functools.partial(self._round_landed, slot))

    def _closed(self, flight: Flight, future: Future[None]) -> Sequence[Message]:
        if future.exception() is None:  # otherwise the worker died, which the task's own answer reports
            self._slots.begin(flight, self.now())
        return ()

    def _take_back(self, slot: Slot, flight: Flight) -> None:
        """Send a task to another worker if it waited behind a long one and hadn't begun."""
        del self._flights[flight.task.key]
        self._slots.land(slot, flight, self.now(), None)
        if flight.cut:
            self._spare(flight.task)
        else:
            self._waiting.appendleft(flight.task)
        self._send_waiting()

    def _spare(self, task: Task) -> None:
        """Report a task that was cut before it began."""
        self._inbox.put(Lost(*task.key, "it was cut before it began", counts_against_trial=False))

    # Receiving results.

    def _landed(self, slot: Slot, flight: Flight, future: Future[bytes]) -> Sequence[Message]:
        if flight not in slot.flights:
            return ()
        try:
            response: RunResponse | None = pickle.loads(future.result())
        except RayError as error:
            self._opened.end_unreachable(slot, error)
            return self._lose(slot, first_line(error))
        if response is None:  # it was taken back, and its worker returned before the heartbeat that reports this
            self._take_back(slot, flight)
            return ()
        messages, reason = self._take_response(slot, flight, response)
        slot.address = response.address
        if reason is not None:
            messages += self._replace(slot, reason)
        elif self._fresh:
            messages += self._retire(slot)
        self._send_waiting()
        return messages

    def _take_response(self, slot: Slot, flight: Flight, response: RunResponse) -> tuple[list[Message], str | None]:
        """Return the messages of a worker that is done with a task, and why it must be replaced, or None."""
        self._opened.ran(slot)
        saves, result = read_response(self._study, flight, response, slot.sees)
        self._slots.land(slot, flight, self.now(), result.seconds)
        flight.gang.landed(flight.rank, result, self.now())
        reason = why_replaced(slot, result, response.memory, self._scripts)
        return [*saves, *self._finish_task(flight)], reason

    def _lane_landed(self, slot: Slot, flight: Flight, response: RunResponse) -> Sequence[Message]:
        messages, reason = self._take_response(slot, flight, response)
        if reason is not None:
            self._slots.drain(slot, reason)
        if slot.draining and not slot.flights:
            messages += self._replace(slot, slot.draining)
        self._send_waiting()
        return messages

    def _round_landed(self, slot: Slot, future: Future[bytes]) -> Sequence[Message]:
        if slot.dead:
            return ()
        messages: list[Message] = []
        try:
            answer: RoundsEnd = pickle.loads(future.result())
        except RayError as error:
            self._opened.end_unreachable(slot, error)
            messages += self._lose(slot, first_line(error))
            self._send_waiting()
            return messages
        slot.rounds -= 1
        slot.round_since = self.now()
        slot.trained += answer.trained
        slot.ends_heard += len(answer.ends)
        self._due[slot] = None
        flights = {flight.task.key: flight for flight in slot.flights}
        for end in answer.ends:
            messages += self._lane_landed(slot, flights[end.result.trial, end.result.attempt], end)
        return messages

    def _finish_task(self, flight: Flight) -> Sequence[Message]:
        """Record that a worker is done with a task; return the outcome if it was the last one."""
        if flight.rank == 0:
            del self._flights[flight.task.key]
        outcome = flight.gang.outcome()
        return () if outcome is None else (outcome,)

    def _lose(self, slot: Slot, reason: str, kind: LossKind = "died") -> Sequence[Message]:
        """Remove a lost worker, and return the outcomes of its tasks. The next `wait` starts another.

        The new worker isn't started here, since this may have been the sweep's last trial: if an actor is killed at the
        moment it gets its process, Ray never frees its resources.
        """
        messages: list[Message] = []
        lost = self._slots.remove(slot)
        together = slot.lanes > 1 and len(lost) > 1
        trials = [flight.task.trial.number for flight in lost]
        halves = halved(trials) if kind == "died" else {trial: (trial,) for trial in trials}
        for index, flight in enumerate(lost):
            if index == 0 and slot.log and not together:
                directory = attempt_directory(flight.task.segment, flight.rank)
                file_log(self._study / slot.log, self._study / directory)
            # Tasks that waited behind the first hadn't begun.
            had_begun = index == 0 and flight.closing is None and not together
            how: LossKind = "timeout" if flight is slot.timed_out else kind if had_begun else "spared"
            company = halves[flight.task.trial.number] if together else ()
            flight.gang.lost(flight.rank, Loss(reason, how, max(self.now() - flight.since, 0.0), company), self.now())
            messages += self._finish_task(flight)
        return messages

    def _replace(self, slot: Slot, reason: str, kind: LossKind = "spared") -> Sequence[Message]:
        """End a worker, and replace it."""
        self._opened.end(slot)
        return self._lose(slot, reason, kind)

    def _retire(self, slot: Slot) -> Sequence[Message]:
        """Replace a worker once it has closed its object."""
        reason = "its worker was replaced: each segment has a process of its own"
        if not slot.closes:
            return self._replace(slot, reason)
        self._slots.retire(slot, self.now())
        closed = slot.handle.close_object.remote(None)
        self._inbox.when_done(closed, lambda _: () if slot.dead else self._replace(slot, reason))
        return ()

    # Reading the mailbox.

    def _collect(self) -> None:
        self._inbox.when_done(self._mailbox.collect.remote(str(self._study)), self._read)

    def _read(self, future: Future[list[Heartbeat]]) -> Sequence[Message]:
        if self._worker_pool is None:
            return ()
        self._collect()
        try:
            heartbeats = future.result()
        except RayError:
            return ()
        messages: list[Message] = []
        for heartbeat in heartbeats:
            for key in heartbeat.recalled:
                recalled = self._flight(key)
                if recalled is not None and recalled[1].recalled and recalled[0].name == heartbeat.worker:
                    self._take_back(*recalled)
            flight = self._flight(heartbeat.key)
            if flight is not None:
                messages += read_heartbeat(self._study, flight[1], heartbeat)
            if self._live and heartbeat.reports:
                self._handled[heartbeat.key] = heartbeat.reports[-1].iteration
        return messages

    def _flight(self, key: Key) -> tuple[Slot, Flight] | None:
        study, trial, attempt = key
        return self._flights.get((trial, attempt)) if study == str(self._study) else None

    # Housekeeping.

    def _housekeeping(self) -> list[Message]:
        now = self.now()
        if now < self._next_look:
            return []
        self._next_look = now + _HOUSEKEEPING_SECONDS
        self._pool.check()
        messages = self._end_late(now)
        for slot, flight in self._slots.recall(now):
            self._mailbox.recall.remote(slot.name, (str(self._study), *flight.task.key))
        needed = self._waiting[0].segment.width if self._waiting else self._least
        messages += self._opened.share(now, needed, bool(self._waiting))
        short = bool(self._waiting) and self._opened.is_short(needed)
        if short or self._opened.is_stuck(now, needed):
            if short or needed > self._least:  # the orchestrator may narrow it
                reason = f"there is no place for {needed} workers at present"
                messages.append(Lost(*self._waiting.popleft().key, reason, counts_against_trial=False))
                self._send_waiting()  # a later task may find workers
            else:
                self._opened.give_way(now)
        return messages

    def _end_late(self, now: float) -> list[Message]:
        """Kill attempts that exceed their timeout."""
        messages: list[Message] = []
        for late in overdue(self._slots, now):
            if late.notice is not None:
                messages.append(late.notice)
            if late.timed_out is None:
                messages += self._replace(late.slot, late.reason, late.kind)
            else:
                late.slot.timed_out = late.timed_out
                self._opened.end(late.slot)
        return messages
