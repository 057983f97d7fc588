"""Assign segments to workers: the bookkeeping of a pool of workers, without processes.

A worker runs one segment at a time, or as many in parallel as it has lanes. If it runs one, and segments are very
short, the next ones are sent ahead, so that the worker isn't idle while the driver reads a result. Tasks that wait
behind a long one are taken back. If segments may be wide, nothing is sent ahead: they need free workers, and their
number must be exact.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpsearch.backends.gangs import Gang
from hpsearch.task import Company, Task

SEND_AHEAD_SECONDS = 0.02
"""Segments that together take about this time are sent ahead, judging by the last segments."""

MOST_FLIGHTS = 8
"""Maximum number of tasks of a worker, including the running one. More don't speed up even empty trials."""

STUCK_SECONDS = 0.5
"""Segments sent ahead are taken back when the one before them has run for longer than this."""

_RECENT = 32

_COMPARED = 4
"""Number of workers with equally many lanes whose remaining work is compared."""


@dataclass(slots=True, eq=False)
class Flight:
    """A task that was sent to a worker, possibly as one of a gang."""

    gang: Gang
    rank: int
    since: float = math.inf
    """When the worker began the task; infinite while the task waits behind another."""
    closing: int | None = None
    """The trial whose object the worker is closing first; the task's clock doesn't run yet."""
    recalled: bool = False
    cut: bool = False
    counted: int = 0
    """Highest iteration whose checkpoint the orchestrator has received."""
    first_round: int = 0
    """For a lane: number of rounds that its worker had trained when the lane entered, as far as known."""

    @property
    def task(self) -> Task:
        """The task to run."""
        return self.gang.task

    def rounds_left(self, trained: int) -> int:
        """Return the number of remaining rounds, at least 1, after its worker has trained `trained` rounds."""
        segment = self.task.segment
        end = segment.start if segment.end is None else segment.end
        return max(end - segment.start - (trained - self.first_round), 1)


@dataclass(slots=True, eq=False)
class Slot:
    """One worker."""

    handle: Any
    """The backend's handle of the worker."""
    name: str
    node: str = ""
    """Node of the worker; empty until it has a process."""
    address: str = ""
    """Address for the other ranks of its next gang."""
    ready: bool = False
    dead: bool = False
    sees: bool = True
    """Whether it can access the study's directory."""
    closes: bool = False
    """Whether the trainable's objects have a `close()`."""
    lanes: int = 1
    """Number of tasks that it can run in parallel."""
    company: Company = ()
    """Trials that may join its lanes; empty: any."""
    entering: list[Any] = field(default_factory=list)
    """Tasks to send with the next round of its lanes."""
    rounds: int = 0
    """Number of rounds that were requested and not answered."""
    round_since: float = 0.0
    """When the last round was answered, or the first one requested."""
    ends_heard: int = 0
    """Number of its lanes that have ended, as far as known."""
    trained: int = 0
    """Number of rounds that it has trained, as far as known."""
    draining: str = ""
    """Why it will be replaced once its tasks have ended. It gets no new tasks. Empty: it won't be replaced."""
    retired_since: float | None = None
    """Time since which it has only been closing its object, before it is replaced; None: it isn't."""
    log: str = ""
    """Path of its output before it is moved to the attempt's directory, relative to the study's directory."""
    flights: deque[Flight] = field(default_factory=deque)
    blocked: bool = False
    """Whether its task turned out to be long, so that nothing is sent ahead."""
    warm: int | None = None
    """The trial that it ran last."""
    idle_since: float = 0.0
    memory: int | None = None
    """Resident memory in bytes after its first segment."""
    timed_out: Flight | None = None

    @property
    def runs_whole(self) -> bool:
        """Whether it runs a task or a rank of a task alone, not lanes."""
        return self.lanes == 1 or any(flight.task.lanes == 1 for flight in self.flights)

    @property
    def work(self) -> int:
        """Return the remaining work of its lanes, in units of a lane's part of a round.

        Each round costs about two units in addition. A segment without an end counts as one round.
        """
        remaining = [flight.rounds_left(self.trained) for flight in self.flights]
        return sum(remaining) + 2 * max(remaining, default=0)


class Slots:
    """The workers of one pool.

    Args:
        ahead: Whether tasks may be sent ahead, to workers without lanes.
        lanes: Most lanes of a worker.
    """

    def __init__(self, ahead: bool = True, lanes: int = 1) -> None:
        self.all: list[Slot] = []
        self._ahead = ahead
        self._divides = lanes > 1
        self._limit = max(MOST_FLIGHTS, lanes)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        # Workers that take tasks, by their number of tasks; in the order in which they reached that number.
        self._by_load: Sequence[dict[Slot, None]] = [{} for _ in range(self._limit)]
        self._free = self._by_load[0]
        self._by_warm: dict[int | None, Slot] = {}  # by trial: its last worker, or rank 0 of its last gang

    def add(self, slot: Slot) -> None:
        """Add a new worker that isn't ready yet."""
        self.all.append(slot)

    def make_ready(self, slot: Slot, now: float) -> None:
        """Mark a worker as ready to take tasks."""
        slot.ready = True
        slot.idle_since = now
        self._reindex(slot)

    def remove(self, slot: Slot) -> list[Flight]:
        """Remove a worker; return its tasks."""
        slot.dead, slot.ready = True, False
        if slot in self.all:
            self.all.remove(slot)
        lost = list(slot.flights)
        slot.flights.clear()
        self._reindex(slot)
        self._by_warm = {trial: other for trial, other in self._by_warm.items() if other is not slot}
        return lost

    def begin(self, flight: Flight, now: float) -> None:
        """Record that a task's worker has closed the other trial's object. The gang's clock starts now."""
        flight.closing = None
        heads = [slot.flights[0] for slot in self.all if slot.flights]
        gang = [head for head in heads if head.gang is flight.gang]
        if flight in heads:
            for head in gang:
                head.since = now

    def waits(self, flight: Flight) -> bool:
        """Return whether a worker of a task's gang is still closing another trial's object."""
        return any(peer.closing is not None for slot in self.all for peer in slot.flights if peer.gang is flight.gang)

    def retire(self, slot: Slot, now: float) -> None:
        """Stop sending tasks to a worker."""
        slot.ready = False
        slot.retired_since = now
        self._reindex(slot)

    def capacity(self) -> int:
        """Return the number of tasks that could be sent to the workers now."""
        most = self._most()
        room = (max(self._room(slot, most) - load, 0) for load, slots in enumerate(self._by_load) for slot in slots)
        return sum(room)

    def unshared(self) -> int:
        """Return the number of workers that would be idle if each task had `width` whole workers."""
        shared = sum(load - 1 for slot in self.all if slot.lanes > 1 and (load := len(slot.flights)) > 1)
        return max(len(self._free) - shared, 0)

    def sent_ahead(self) -> bool:
        """Return whether every ready worker has waiting tasks."""
        with_most = next((slot for slots in self._by_load[2:] for slot in slots), None)
        return with_most is not None and with_most.lanes == 1 and not any(self._by_load[:2])

    def free(self) -> Iterable[Slot]:
        """Return the idle workers."""
        return list(self._free)

    def choose_for(self, task: Task) -> Sequence[Slot]:
        """Choose the workers for the next task, by rank; empty if there are too few."""
        segment = task.segment
        if segment.width > 1:
            return self.choose_gang(segment.trial, segment.width)
        takes_whole = self._divides and task.lanes == 1
        slot = self.choose_idle() if takes_whole else self.choose(segment.trial, task.company)
        return () if slot is None else (slot,)

    def join(self, task: Task) -> Sequence[Slot]:
        """Choose a worker with a free lane that runs the task's company, ahead of waiting tasks; empty if none."""
        slot = self._with_company(task.company) if task.company else None
        return () if slot is None else (slot,)

    def choose(self, trial: int, company: Company = ()) -> Slot | None:
        """Choose the worker for a trial's next segment: its last worker if free, else a worker with the least work.

        If the trial has a company, only workers that run part of the company, and idle workers, are considered.
        """
        if company and (joined := self._with_company(company)) is not None:
            return joined
        warm = self._by_warm.get(trial)
        if warm in self._free:
            return warm
        if company:
            return self.choose_idle()
        most = self._most()
        able = (slot for load, slots in enumerate(self._by_load) for slot in slots if load < self._room(slot, most))
        emptiest = next(able, None)
        if emptiest is None or emptiest.lanes == 1:
            return emptiest
        of_each_load = (itertools.islice(slots, _COMPARED) for slots in self._by_load)
        some = [slot for slots in of_each_load for slot in slots if len(slot.flights) < slot.lanes]
        # Its object in that worker saves less than an epoch.
        some += [warm] if warm is not None and len(warm.flights) < warm.lanes and self._accepts_tasks(warm) else []
        return min(some, key=lambda slot: (slot.work, slot is not warm))

    def choose_idle(self) -> Slot | None:
        """Choose an idle worker."""
        return next(iter(self._free), None)

    def drain(self, slot: Slot, reason: str) -> None:
        """Send no more tasks to a worker. It finishes its current tasks."""
        slot.draining = reason
        self._reindex(slot)

    def choose_gang(self, trial: int, width: int) -> Sequence[Slot]:
        """Choose the workers for a trial's next wide segment, by rank; empty if too few are free.

        They are on one node if a node has enough free workers: the node of the trial's last worker, else the node with
        the fewest free workers. Otherwise they are on the nodes with the most, and the ranks of a node are in sequence.
        The trial's last worker becomes rank 0 if it is among them.
        """
        if len(self._free) < width:
            return ()
        warm = self._by_warm.get(trial)
        nodes: dict[str, list[Slot]] = {}
        for slot in sorted(self._free, key=lambda slot: (slot is not warm, slot.warm != trial)):
            nodes.setdefault(slot.node, []).append(slot)
        enough = [slots for slots in nodes.values() if len(slots) >= width]
        if enough:
            return min(enough, key=lambda slots: (slots[0] is not warm, len(slots)))[:width]
        fullest = sorted(nodes.values(), key=len, reverse=True)
        chosen = [slot for slots in fullest for slot in slots][:width]
        first = warm.node if warm in chosen and warm is not None else chosen[0].node
        return sorted(chosen, key=lambda slot: slot.node != first)

    def send(self, slot: Slot, flight: Flight, now: float) -> None:
        """Record that a task was sent to a worker."""
        if not slot.flights or slot.lanes > 1:
            flight.since = now
        flight.first_round = slot.trained
        slot.flights.append(flight)
        if slot.lanes > 1:
            # A task that uses whole workers gets a company of its own, so that no other task joins it.
            slot.company = flight.task.company if flight.task.lanes > 1 else (flight.task.trial.number,)
        self._warm(slot, flight.task.segment.trial, flight.rank)
        self._reindex(slot)

    def land(self, slot: Slot, flight: Flight, now: float, seconds: float | None) -> None:
        """Record that a task ended after `seconds` in its worker, or was taken back (None)."""
        if seconds is not None:
            self._recent.append(seconds)
        slot.blocked &= flight is not slot.flights[0]
        slot.flights.remove(flight)
        if slot.flights:
            slot.flights[0].since = min(slot.flights[0].since, now)
        else:
            slot.idle_since = now
            slot.company = ()
        self._reindex(slot)

    def recall(self, now: float) -> list[tuple[Slot, Flight]]:
        """Return the tasks to take back because they wait behind a long one, last task first."""
        stuck: list[tuple[Slot, Flight]] = []
        for slot in self.all:
            if slot.lanes > 1:
                continue
            if slot.flights and not slot.blocked and now - slot.flights[0].since > STUCK_SECONDS:
                slot.blocked = True
                self._reindex(slot)
                stuck += [(slot, flight) for flight in list(slot.flights)[:0:-1]]
        for _, flight in stuck:
            flight.recalled = True
        return stuck

    def busy(self) -> int:
        """Return the number of busy workers."""
        return sum(1 for slot in self.all if slot.flights)

    @staticmethod
    def _room(slot: Slot, most: int) -> int:
        """Return the maximum number of tasks of a worker; without lanes it is `most`."""
        return most if slot.lanes == 1 else slot.lanes

    def _most(self) -> int:
        """Return the maximum number of tasks of a worker without lanes."""
        if not self._ahead or len(self._recent) < _RECENT:
            return 1
        each = sum(self._recent) / _RECENT
        if (MOST_FLIGHTS - 1) * each < SEND_AHEAD_SECONDS:
            return MOST_FLIGHTS
        return 1 + int(SEND_AHEAD_SECONDS / each)

    def _warm(self, slot: Slot, trial: int, rank: int) -> None:
        if slot.lanes == 1 and self._by_warm.get(slot.warm) is slot:
            del self._by_warm[slot.warm]
        slot.warm = trial
        if rank == 0:
            self._by_warm[trial] = slot

    def _reindex(self, slot: Slot) -> None:
        for slots in self._by_load:
            slots.pop(slot, None)
        load = len(slot.flights)
        if load < self._limit and self._accepts_tasks(slot):
            self._by_load[load][slot] = None

    @staticmethod
    def _accepts_tasks(slot: Slot) -> bool:
        return slot.ready and not (slot.blocked or slot.company or slot.draining)

    def _with_company(self, company: Company) -> Slot | None:
        """Return a worker that runs trials of this company and has a free lane."""
        slots = (slot for slot in self.all if slot.company == company and slot.ready and not slot.draining)
        return next((slot for slot in slots if len(slot.flights) < slot.lanes), None)
