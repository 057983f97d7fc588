"""Run segments on Ray: one warm pool of actors, one call per segment."""

from __future__ import annotations

import functools
import os
import pickle
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from hpsearch.attempt import attempt_directory
from hpsearch.attempt_log import LOG, file_log
from hpsearch.backends.base import (
    Backend,
    Gone,
    Message,
    Notice,
    Progress,
    Result,
    Task,
    TimedOut,
    Workers,
)
from hpsearch.backends.mailbox import Key, Letter, Save
from hpsearch.backends.ray_session import Shape, connect, why_no_workers
from hpsearch.backends.ray_worker import Delivery, Greeting, Order, RayWorker
from hpsearch.backends.slots import Flight, Slot, Slots
from hpsearch.checkpoints import pack, unpack
from hpsearch.errors import BackendError, TrainableError
from hpsearch.job import Job
from hpsearch.provenance import process_name
from hpsearch.trial import Failure

__all__ = ["RayBackend"]

_HOUSEKEEPING_SECONDS = 0.25

_IDLE_SECONDS = 30.0
"""On a cluster that others share, a worker that had nothing to do for this long is given back."""

_MOST_BAD_STARTS = 3
"""Workers that may die in a row before any of them could greet."""

_LEAK_BYTES = 2 << 30
"""A worker that grew by more than this since its first segment is replaced."""

_NOTICE_SECONDS = 3.0, 30.0
"""When to say that workers are missing: first, and then every so often."""


class RayBackend(Backend):
    """A pool of warm workers on Ray."""

    name = "ray"

    def __init__(
        self,
        workers: int | None = None,
        cpus_per_worker: int = 1,
        gpus_per_worker: float = 0,
        address: str | None = None,
    ) -> None:
        """Describe the pool.

        Args:
            workers: How many; None: as many as the cluster holds, and more when it grows.
            cpus_per_worker: CPUs that each reserves.
            gpus_per_worker: GPUs that each reserves; a fraction shares a device.
            address: A cluster to join; None: `RAY_ADDRESS`, or a local Ray.
        """
        self._asked = workers
        self._shape = Shape(cpus_per_worker, gpus_per_worker)
        self._address = address
        self._wanted = workers or 0
        self._slots: Slots[Any] = Slots()
        self._flights: dict[tuple[int, int], tuple[Slot[Any], Flight]] = {}
        self._waiting: deque[Task] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], Sequence[Message]]] = queue.SimpleQueue()
        self._given_back = 0
        self._bad_starts = 0
        self._closed = False
        self._next_look = 0.0
        self._next_notice = 0.0

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Connect, and start the workers; they greet one by one, through `wait`."""
        cpus = max((self._asked or 0) * self._shape.cpus, os.cpu_count() or 1)
        self._pool = connect(self._address, cpus)
        self._study = Path(job.study)
        self._owner = f"{job.name} ({process_name()})"
        self._payload = ray.put(cloudpickle.dumps(job))
        self._search_path = job.search_path
        self._token = (str(self._study / "sight.token"), secrets.token_hex(16))
        Path(self._token[0]).write_text(self._token[1], encoding="utf-8")
        self._mailbox = self._pool.mailbox()
        warning = self._shape.check()
        if warning is not None:
            self._inbox.put(lambda: [Notice(warning)])
        if self._asked is None:
            self._wanted = self._shape.room()
        for _ in range(self._wanted):
            self._add_worker()
        self._collect()
        self._next_notice = time.monotonic() + _NOTICE_SECONDS[0]

    def capacity(self) -> int:
        """Count the ready workers that are free, and those that were given back and can be had again."""
        starting = sum(1 for slot in self._slots.all if not slot.ready)
        spoken_for = max(len(self._waiting) - starting, 0)
        return max(self._slots.capacity() + self._given_back - spoken_for, 0)

    def start(self, task: Task) -> None:
        """Send a task to the best worker."""
        slot = self._slots.choose(task.segment.trial)
        if slot is not None:
            self._send(slot, task)
            return
        self._waiting.append(task)
        if self._given_back > 0:
            self._given_back -= 1
            self._add_worker()

    def cut(self, trial: int, attempt: int) -> None:
        """Leave word in the mailbox; the worker reads it at its next beat."""
        for task in list(self._waiting):
            if (task.segment.trial, task.segment.attempt) == (trial, attempt):
                self._waiting.remove(task)
                self._inbox.put(lambda: [Gone(trial, attempt, "it was cut before it began", innocent=True)])
                return
        self._mailbox.cut.remote((str(self._study), trial, attempt))

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Give what came from the workers."""
        messages = list(self._housekeeping())
        try:
            messages += self._inbox.get(timeout=0.0 if messages else timeout)()
            while True:
                messages += self._inbox.get_nowait()()
        except queue.Empty:
            return messages

    def now(self) -> float:
        """Seconds of the driver's monotonic clock."""
        return time.monotonic()

    def workers(self) -> Workers:
        """Count the workers."""
        ready = sum(1 for slot in self._slots.all if slot.ready)
        return Workers(ready, self._slots.busy(), self._wanted)

    def close(self, kill: bool = False) -> None:
        """Keep idle workers for the next search of this process; end the others."""
        self._closed = True
        for slot in list(self._slots.all):
            if slot.ready and not slot.flights and not kill:
                slot.handle.release.remote()
                self._pool.give(self._shape, slot.handle, slot.name)
            elif ray.is_initialized():
                ray.kill(slot.handle, no_restart=True)
        if self._slots.all and ray.is_initialized():
            self._mailbox.clear.remote()
            Path(self._token[0]).unlink(missing_ok=True)
        self._slots = Slots()

    # Workers come and go.

    def _add_worker(self) -> None:
        known = self._pool.take(self._shape)
        if known is None:
            name = f"{self._owner} #{secrets.token_hex(4)}"
            actor = ray.remote(RayWorker).options(
                num_cpus=self._shape.cpus, num_gpus=self._shape.gpus, max_restarts=0, name=name
            )
            slot = Slot(actor.remote(name, self._mailbox), name)
        else:
            slot = Slot(*known)
        self._slots.add(slot)
        greeting = slot.handle.open.remote(self._payload, self._search_path, self._token)
        self._when_done(greeting, functools.partial(self._greeted, slot, known is None))

    def _greeted(self, slot: Slot[Any], new: bool, future: Future[Greeting]) -> Sequence[Message]:
        try:
            greeting = future.result()
        except RayError as error:
            self._bad_starts += new  # one of the pool may have died there
            if self._bad_starts >= _MOST_BAD_STARTS:
                raise BackendError(
                    f"{_MOST_BAD_STARTS} workers in a row died before they could run anything; the last one: "
                    f"{_first_line(error)}. Is hpsearch installed on every node, in the same version?"
                ) from error
            return self._lose(slot, _first_line(error))
        if greeting.mistake is not None:
            raise TrainableError(greeting.mistake)
        self._bad_starts = 0
        slot.sees, slot.log = greeting.sees, greeting.log
        self._slots.make_ready(slot, self.now())
        self._send_waiting()
        if greeting.sees:
            return ()
        return [Notice(f"node {greeting.host} doesn't see {self._study}: its checkpoints travel through Ray")]

    def _lose(self, slot: Slot[Any], reason: str, innocent: bool = False) -> Sequence[Message]:
        """Forget a worker that is gone, make another, and say what went with it."""
        head, *_ = [*slot.flights, None]
        lost = self._slots.remove(slot)
        if head is not None and slot.log:
            file_log(self._study / slot.log, self._study / attempt_directory(head.task.segment))
        messages: list[Message] = []
        for flight in lost:
            del self._flights[flight.key]
            if flight is slot.timed_out:
                failure = Failure("timeout", f"killed: it ran over its trial_timeout ({reason})", "")
                messages.append(TimedOut(*flight.key, failure))
            else:
                messages.append(Gone(*flight.key, reason, innocent or flight is not head))
        if not self._closed and len(self._slots.all) + self._given_back < self._wanted:
            self._add_worker()
        return messages

    def _replace(self, slot: Slot[Any], reason: str) -> Sequence[Message]:
        """Take a worker down that is not to run anything more."""
        ray.kill(slot.handle, no_restart=True)
        return self._lose(slot, reason, innocent=True)

    # Tasks go out and results come in.

    def _send(self, slot: Slot[Any], task: Task) -> None:
        packed = None
        if task.segment.checkpoint is not None and not slot.sees:
            checkpoint = self._study / task.segment.checkpoint
            packed = pack(checkpoint) if checkpoint.is_dir() else None  # the worker says that it is missing
        order = Order(task.trial, task.segment, packed)
        ticket = slot.handle.run.remote(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))
        flight = Flight(task, ticket, 0.0)
        self._slots.send(slot, flight, self.now())
        self._flights[flight.key] = (slot, flight)
        self._when_done(ticket, functools.partial(self._landed, slot, flight))

    def _send_waiting(self) -> None:
        while self._waiting:
            slot = self._slots.choose(self._waiting[0].segment.trial)
            if slot is None:
                return
            self._send(slot, self._waiting.popleft())

    def _when_done(self, ref: Any, take: Callable[[Future[Any]], Sequence[Message]]) -> None:
        ref.future().add_done_callback(lambda future: self._inbox.put(lambda: take(future)))

    def _landed(self, slot: Slot[Any], flight: Flight, future: Future[bytes]) -> Sequence[Message]:
        if flight not in slot.flights:
            return ()
        try:
            delivery: Delivery | None = pickle.loads(future.result())
        except RayError as error:
            ray.kill(slot.handle, no_restart=True)  # perhaps it is only out of reach
            return self._lose(slot, _first_line(error))
        if delivery is None:  # taken back, and its worker was done before it could say so in a letter
            self._take_back(slot, flight)
            return ()
        messages = self._unpack(slot, flight, delivery)
        del self._flights[flight.key]
        self._slots.land(slot, flight, self.now(), delivery.result.seconds)
        if slot.memory is None:
            slot.memory = delivery.memory
        if delivery.result.failure is not None and delivery.result.failure.kind == "raised":
            messages += self._replace(slot, "its worker was replaced: the trial before it raised there")
        elif delivery.memory - slot.memory > _LEAK_BYTES:
            messages += self._replace(slot, "its worker was replaced: it kept growing")
        self._send_waiting()
        return messages

    def _unpack(self, slot: Slot[Any], flight: Flight, delivery: Delivery) -> list[Message]:
        """Write what travelled through Ray, and tell of checkpoints whose letters haven't come."""
        result = delivery.result
        if delivery.log is not None:
            directory = self._study / attempt_directory(flight.task.segment)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / LOG).write_bytes(delivery.log)
        saves = [save for save in delivery.saves if save.iteration > flight.counted]
        newest = result.checkpoint or (saves[-1].checkpoint if saves else None)
        if delivery.packed is not None and newest is not None:
            unpack(delivery.packed, self._study / newest)
        messages: list[Message] = []
        held: tuple[Any, ...] = ()
        for save in saves:
            held += save.reports
            if slot.sees or save.checkpoint == newest:
                messages.append(Progress(*flight.key, (), (save.iteration, save.checkpoint, held)))
                held = ()
        if held:
            result = replace(result, reports=held + result.reports)
        return [*messages, Result(*flight.key, result)]

    def _collect(self) -> None:
        self._when_done(self._mailbox.collect.remote(), self._read)

    def _read(self, future: Future[list[Letter]]) -> Sequence[Message]:
        if self._closed:
            return ()
        self._collect()
        try:
            letters = future.result()
        except RayError:
            return ()
        messages: list[Message] = []
        for letter in letters:
            for key in letter.recalled:
                recalled = self._flight(key)
                if recalled is not None and recalled[1].recalled and recalled[0].name == letter.worker:
                    self._take_back(*recalled)
            known = self._flight(letter.key)
            if known is not None:
                messages += self._read_letter(letter, known[1])
        return messages

    def _flight(self, key: Key) -> tuple[Slot[Any], Flight] | None:
        study, trial, attempt = key
        return self._flights.get((trial, attempt)) if study == str(self._study) else None

    def _take_back(self, slot: Slot[Any], flight: Flight) -> None:
        """Send a task elsewhere that waited behind a long one and hasn't begun."""
        del self._flights[flight.key]
        self._slots.land(slot, flight, self.now(), None)
        self._waiting.appendleft(flight.task)
        self._send_waiting()

    def _read_letter(self, letter: Letter, flight: Flight) -> Sequence[Message]:
        if not letter.saves:
            return [Progress(*flight.key, letter.reports, None)]
        if letter.packed is not None:
            unpack(letter.packed, self._study / letter.saves[-1].checkpoint)
        flight.counted = letter.saves[-1].iteration
        saves = letter.saves if letter.packed is None else (_merged(letter.saves),)
        told = [Progress(*flight.key, (), (save.iteration, save.checkpoint, save.reports)) for save in saves]
        return [Progress(*flight.key, letter.reports, None), *told]

    # Now and then.

    def _housekeeping(self) -> Sequence[Message]:
        now = self.now()
        if now < self._next_look:
            return ()
        self._next_look = now + _HOUSEKEEPING_SECONDS
        self._kill_late(now)
        for slot, flight in self._slots.stuck(now):
            flight.recalled = True
            self._mailbox.recall.remote(slot.name, (str(self._study), *flight.key))
        if not self._pool.shared:
            return ()
        self._give_back_idle(now)
        self._grow()
        nobody = bool(self._slots.all) and not any(slot.ready for slot in self._slots.all)
        if not nobody or now < self._next_notice:
            return ()
        self._next_notice = now + _NOTICE_SECONDS[1]
        return [Notice(why_no_workers(self._shape, self._owner))]

    def _kill_late(self, now: float) -> None:
        for slot in self._slots.all:
            head = slot.flights[0] if slot.flights else None
            timeout = None if head is None else head.task.timeout
            if timeout is not None and head is not None and now - head.since > timeout and slot.timed_out is None:
                slot.timed_out = head
                ray.kill(slot.handle, no_restart=True)

    def _grow(self) -> None:
        """Use the room of nodes that joined, where the number of workers was left to the cluster."""
        room = 0 if self._asked is not None else self._shape.room()
        for _ in range(room - self._wanted):
            self._add_worker()
        self._wanted = max(self._wanted, room)

    def _give_back_idle(self, now: float) -> None:
        for slot in self._slots.free():
            if now - slot.idle_since > _IDLE_SECONDS:
                self._slots.remove(slot)
                ray.kill(slot.handle, no_restart=True)
                self._given_back += 1


def _merged(saves: Sequence[Save]) -> Save:
    """Give the newest of several checkpoints, with the reports of all: only that one travelled."""
    return replace(saves[-1], reports=tuple(report for save in saves for report in save.reports))


def _first_line(error: BaseException) -> str:
    error = getattr(error, "cause", None) or error  # what was raised in the worker, without Ray's own words
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
