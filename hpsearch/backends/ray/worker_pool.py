"""The workers of one sweep on Ray: started, counted, replaced and released."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from hpsearch.backends.gangs import CLOSE_SECONDS
from hpsearch.backends.ray.failures import first_line
from hpsearch.backends.ray.inbox import Inbox
from hpsearch.backends.ray.messages import Hello
from hpsearch.backends.ray.nodes import Shape, here, live_nodes, node_of, why_no_workers, workers_of_others
from hpsearch.backends.ray.session import Kind, Pool
from hpsearch.backends.ray.worker import RayWorker
from hpsearch.backends.replacing import Backoff, FailingNodes
from hpsearch.backends.slots import Slot, Slots
from hpsearch.errors import TrainableError
from hpsearch.journal.provenance import process_name
from hpsearch.task import Message, Notice
from hpsearch.worker.job import Job

_IDLE_SECONDS = 30.0
"""On a shared cluster, a worker that was idle for this long is released."""

_SENT_ALONG = 64 << 10
"""Largest job, in bytes, that is sent to each worker; a larger one is put into the object store once."""

_NOTICE_SECONDS = 3.0, 30.0
"""When to report that workers are missing: first after, then every so many seconds."""


class WorkerPool:
    """The workers of one sweep.

    Args:
        shape: Resources of one worker.
        requested: Their number; None: as many as the cluster holds, also when it grows.
        job: What they run.
        pool: Source of idle workers, and where they return at the end.
        inbox: Receives their hellos.
        ready: Called when a worker is ready.
        lost: Called with a worker that died before it was ready, and the reason.
        fresh: Whether each task gets a new process, so that idle workers aren't reused and don't count.
    """

    def __init__(
        self,
        shape: Shape,
        requested: int | None,
        job: Job,
        pool: Pool,
        inbox: Inbox,
        ready: Callable[[], None],
        lost: Callable[[Slot, str], Sequence[Message]],
        fresh: bool = False,
    ) -> None:
        self.slots: Slots = Slots(ahead=job.widest == 1 and not fresh, lanes=job.lanes)
        self.divides = job.lanes > 1
        """Tasks may be lanes of its workers."""
        self._has_noted_why_whole = False
        self._fresh = fresh
        self._kind = Kind(shape, job.mkl_cbwr)
        self._room = shape.room(live_nodes())
        """Workers that fit on the nodes, at the last poll."""
        self.wanted = self._room if requested is None else requested
        self._requested = requested
        self._shape = shape
        self._pool = pool
        self._inbox = inbox
        self._ready = ready
        self._lost = lost
        self._study = Path(job.study)
        self._owner = f"{job.name} ({process_name()})"
        payload = cloudpickle.dumps(job)
        # An object in the store is lost with the raylet, and then Ray ends this process without a message.
        self._payload = payload if len(payload) <= _SENT_ALONG else ray.put(payload)
        self._search_path = job.search_path
        self._token = (str(self._study / "sight.token"), secrets.token_hex(16))
        Path(self._token[0]).write_text(self._token[1], encoding="utf-8")
        self._released = 0
        self._backoff = Backoff()
        self._failing_starts = FailingNodes("before they could run anything")
        self._failing_runs = FailingNodes("around the trials that they ran")
        self._next_notice = time.monotonic() + _NOTICE_SECONDS[0]
        self._was_short = False

    def start(self) -> None:
        """Start the workers."""
        self._pool.join(self, self._kind)
        if self._fresh:
            self._pool.empty()
        self._add(self.wanted)

    def capacity(self, waiting: int, whole_workers: bool = True) -> int:
        """Return the number of tasks that could start now, on ready workers and on released ones.

        Args:
            waiting: Workers that tasks wait for; starting ones are reserved for them.
            whole_workers: Whether whole workers are counted, else lanes.
        """
        starting = sum(1 for slot in self.slots.all if not slot.ready)
        reserved = max(waiting - starting, 0)
        room = self.slots.unshared() if whole_workers and self.divides else self.slots.capacity()
        again = min(self._released, max(self._room - len(self.slots.all), 0))  # except those of lost nodes
        return max(room + again - reserved, 0)

    def fetch(self, waiting: int) -> None:
        """Start released workers again if tasks wait for them."""
        on_hand = sum(1 for slot in self.slots.all if not slot.flights)
        again = min(max(waiting - on_hand, 0), self._released)
        self._released -= again
        self._add(again)

    def refill(self) -> None:
        """Start workers to replace lost ones."""
        self._add(self.wanted - len(self.slots.all) - self._released - self._backoff.released)

    def ran(self, slot: Slot) -> None:
        """Record that a worker returned from a segment."""
        self._failing_runs.did_well(slot.node)

    def end_unreachable(self, slot: Slot, error: RayError) -> None:
        """End a worker that doesn't return: it may only be unreachable.

        Raises:
            BackendError: Our own code raises again and again on its node; trials that kill their workers fail instead.
        """
        self.end(slot)
        if isinstance(error, RayTaskError):
            self._failing_runs.failed(*node_of(slot.handle), first_line(error))

    def end(self, slot: Slot) -> None:
        """End a worker's process."""
        if ray.is_initialized():
            ray.kill(slot.handle, no_restart=True)

    def close(self, kill: bool) -> Sequence[Slot]:
        """Keep idle workers for the next search of this process, unless `kill`; end the others.

        Returns:
            Idle workers that were ended because they didn't close their objects in time.

        Workers without a process yet are kept in any case: if Ray kills an actor between its lease and its creation,
        it never frees its resources (seen with 2.60, once in some thousand times).
        """
        self._pool.leave(self)
        slots = self.slots.all if ray.is_initialized() else []
        unassigned = [slot for slot in slots if not slot.flights and not kill]
        idle = [slot for slot in unassigned if slot.ready or slot.retired_since is not None]
        coming = [slot for slot in slots if not slot.node]
        for slot in slots:
            if slot not in idle and slot not in coming:
                self.end(slot)
        released = {slot.handle.release.remote(): slot for slot in idle}
        # Wait for them: this process may be about to end, and they with it.
        ready, late = ray.wait([*released], num_returns=len(released), timeout=CLOSE_SECONDS) if idle else ([], [])
        for slot in coming:
            slot.handle.release.remote()
        for slot in [*coming, *(released[answer] for answer in ready)]:  # the last one is reused first
            self._pool.give(self._kind, slot.handle, slot.name)
        hung = [released[answer] for answer in late]
        for slot in hung:  # the next search would wait for it forever
            self.end(slot)
        Path(self._token[0]).unlink(missing_ok=True)
        self.slots = Slots()
        return hung

    def share(self, now: float, needed: int, waits: bool) -> Sequence[Message]:
        """Share the cluster with other sweeps.

        Args:
            now: Seconds.
            needed: Workers that the narrowest task needs.
            waits: Whether a task waits for workers.
        """
        if not self._pool.shared or not self._pool.pulse.answers:
            return ()
        nodes = live_nodes()
        self._room = self._shape.room(nodes)
        messages = self._forget_idle({node["NodeID"] for node in nodes})
        ready = sum(1 for slot in self.slots.all if slot.ready)
        # While too few workers have started for any task, an idle one doesn't show that there is nothing to run.
        if not waits and not ready < needed <= len(self.slots.all):
            self._release_idle(now)
        self._grow()
        self._add(self._backoff.ask(now))
        if self.slots.busy() or ready >= needed:
            return messages
        if self.is_short(needed) and not self._was_short:
            self._next_notice = now
        self._was_short = self.is_short(needed)
        if now < self._next_notice or self._released == self.wanted:
            return messages
        self._next_notice = now + _NOTICE_SECONDS[1]
        return [*messages, Notice(why_no_workers(self._shape, self._names(), needed))]

    def is_short(self, needed: int) -> bool:
        """Return whether the remaining nodes hold too few workers."""
        return self._pool.shared and self._room < needed

    def is_stuck(self, now: float, needed: int) -> bool:
        """Return whether, for some time, too few workers have been placed to start anything."""
        if not self._pool.shared or not self._pool.pulse.answers:
            return False
        placed = sum(1 for slot in self.slots.all if slot.node)
        if placed >= needed:
            self._backoff.settle()
        few = needed > 1 and not self.slots.busy() and placed < min(needed, len(self.slots.all))
        return self._backoff.is_due(now, few, placed)

    def give_way(self, now: float) -> None:
        """Release resources that are too few for this sweep, and request them again later."""
        slots = list(self.slots.all)
        if not any(slot.node for slot in slots) or not workers_of_others(self._names()):
            self._backoff.wait_on()
            return
        for slot in sorted(slots, key=lambda slot: slot.node):  # first those without a node, which may get one
            self.slots.remove(slot)
            self.end(slot)
        self._backoff.give_way(now, len(slots))

    def _names(self) -> set[str]:
        return {slot.name for slot in self.slots.all}

    def _add(self, count: int) -> None:
        if count > 0:
            self._pool.check()
        for _ in range(count):
            reused = None if self._fresh else self._pool.take(self._kind)
            if reused is None:
                name = f"{self._owner} #{secrets.token_hex(4)}"
                actor = ray.remote(RayWorker).options(
                    num_cpus=self._shape.cpus, num_gpus=self._shape.gpus, max_restarts=0, name=name
                )
                slot = Slot(actor.remote(name, self._pool.mailbox(), here, self._shape.gpus), name)
            else:
                slot = Slot(*reused)
            self.slots.add(slot)
            self._inbox.when_done(slot.handle.node.remote(), functools.partial(_placed, slot))
            hello = slot.handle.open.remote(self._payload, self._search_path, self._token)
            self._inbox.when_done(hello, functools.partial(self._greeted, slot, reused is None))

    def _greeted(self, slot: Slot, new: bool, future: Future[Hello]) -> Sequence[Message]:
        if slot.dead:
            return ()
        try:
            hello = future.result()
        except RayError as error:
            if new:  # an idle worker of the pool may have died there
                self._failing_starts.failed(*node_of(slot.handle), first_line(error))
            self.end(slot)  # a worker that only raised is alive, and holds its resources
            return self._lost(slot, first_line(error))
        if hello.edited is not None:
            self.end(slot)
            return self._lost(slot, f"{hello.edited} was edited after it had imported it")
        if hello.mistake is not None:
            raise TrainableError(f"node {hello.host}: {hello.mistake}" if self._pool.shared else hello.mistake)
        self._failing_starts.did_well(slot.node)
        slot.sees, slot.log, slot.address = hello.sees, hello.log, hello.address
        slot.closes, slot.lanes = hello.closes, hello.lanes
        self.slots.make_ready(slot, time.monotonic())
        self._ready()
        notices = []
        if hello.why_whole is not None and not self._has_noted_why_whole:
            self._has_noted_why_whole = True
            notices.append(Notice(f"trials run one at a time on a worker: {hello.why_whole}"))
        if not hello.sees:
            notices.append(Notice(f"node {hello.host} doesn't see {self._study}: its checkpoints travel through Ray"))
        return notices

    def _grow(self) -> None:
        """Start workers on nodes that joined, if the number of workers is up to the cluster."""
        room = 0 if self._requested is not None else self._room
        self._add(room - self.wanted)
        self.wanted = max(self.wanted, room)

    def _forget_idle(self, nodes: Collection[str]) -> Sequence[Message]:
        """Remove idle workers of lost nodes; Ray reports the busy ones."""
        return [
            message
            for slot in self.slots.free()
            if slot.node and slot.node not in nodes
            for message in self._lost(slot, "its node is gone")
        ]

    def _release_idle(self, now: float) -> None:
        for slot in self.slots.free():
            if now - slot.idle_since > _IDLE_SECONDS:
                self.slots.remove(slot)
                self.end(slot)
                self._released += 1


def _placed(slot: Slot, future: Future[str]) -> Sequence[Message]:
    if future.exception() is None:  # errors are reported with the hello, too
        slot.node = future.result()
    return ()
