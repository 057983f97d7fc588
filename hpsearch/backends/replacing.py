"""Rules, independent of Ray, for replacing and releasing workers and for nodes that fail too often."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpsearch.backends.gangs import CLOSE_SECONDS, LossKind
from hpsearch.backends.slots import Flight, Slot, Slots
from hpsearch.errors import BackendError
from hpsearch.task import Notice, Result

MODULE_CHANGES_STAY = (
    "trials after it would find it so, and its worker is replaced, which takes seconds each time. "
    "Change a copy to avoid that"
)
"""Consequence of a change of the trainable's modules, if workers run more than one segment."""

_LEAK_BYTES = 2 << 30
"""A worker that grew by more than this since its first segment is replaced."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A worker that exceeded a limit."""

    slot: Slot
    timed_out: Flight | None = None
    """The task that exceeded its timeout; the worker's death reports it. None: the worker is replaced at once."""
    reason: str = ""
    kind: LossKind = "spared"
    notice: Notice | None = None


def overdue(slots: Slots, now: float) -> Iterator[Overdue]:
    """Yield the workers that have run for too long, including ranks that their gang waits for in vain."""
    for slot in list(slots.all):
        late = _late(slots, slot, now) if slot.runs_whole else _silent(slot, now)
        if late is not None:
            yield late


def _late(slots: Slots, slot: Slot, now: float) -> Overdue | None:
    """Check a worker that runs one task at a time."""
    if slot.retired_since is not None and now - slot.retired_since > CLOSE_SECONDS:
        return Overdue(slot, notice=close_hung(slot.warm))
    head = slot.flights[0] if slot.flights else None
    if head is None or slot.timed_out is not None:
        return None
    if head.closing is not None:
        hung = close_hung(head.closing)
        late = now - head.since > CLOSE_SECONDS
        return Overdue(slot, reason=f"its worker was replaced: {hung.text}", notice=hung) if late else None
    timeout = head.task.timeout
    if timeout is not None and now - head.since > timeout and not slots.waits(head):
        return Overdue(slot, head)
    if head.gang.is_late(now):
        return Overdue(slot, reason="it went on without the others of its gang", kind="late")
    return None


def _silent(slot: Slot, now: float) -> Overdue | None:
    """Check a worker with lanes: whether a round takes longer than all of them together may run."""
    limits = [flight.task.timeout for flight in slot.flights]
    finite = [limit for limit in limits if limit is not None]
    if slot.timed_out is not None or not finite or len(finite) < len(limits) or now - slot.round_since <= sum(finite):
        return None
    if len(finite) == 1:
        return Overdue(slot, slot.flights[0])
    return Overdue(slot, reason="its worker was killed: a round of its lanes took longer than all of them may")


def why_replaced(slot: Slot, result: Result, memory: int, scripts: bool) -> str | None:
    """Return why a worker must be replaced after its last segment; None if it needn't be replaced.

    Args:
        slot: The worker.
        result: Of its last segment.
        memory: Its resident bytes now.
        scripts: Whether it runs commands, which have their own processes.
    """
    if slot.memory is None:
        slot.memory = memory
    if slot.timed_out is not None:
        return "its worker was killed: the trial before it ran over its timeout"
    if result.failure is not None and result.failure.kind in ("raised", "memory") and not scripts:
        return "its worker was replaced: the trial before it raised there"
    if memory - slot.memory > _LEAK_BYTES:
        return "its worker was replaced: it kept growing"
    left_behind = "settings" if result.stuck else "changed values of its modules" if result.module_changes else None
    return None if left_behind is None else f"its worker was replaced: the trial before it left {left_behind} behind"


def close_hung(trial: int | None) -> Notice:
    """Return a notice that a trial's `close()` didn't return."""
    ended = f"hadn't ended after {CLOSE_SECONDS:g} s, and its worker was killed"
    return Notice(f"trial {trial}: its close() {ended}; what it reported counts")


MOST_FAILURES = 3
"""Most workers of a node that may fail in a row."""


class FailingNodes:
    """Counts the workers of each node that failed since the last success there.

    Args:
        stage: Where they fail, such as "before they could run anything".
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._failures: Counter[str] = Counter()

    def failed(self, node: str, name: str, error: str) -> None:
        """Record that a worker failed.

        Args:
            node: Its node; empty if unknown.
            name: Display name of the node.
            error: Its error.

        Raises:
            BackendError: Too many workers have failed on the node.
        """
        self._failures[node] += 1
        if self._failures[node] >= MOST_FAILURES:
            raise BackendError(
                f"{MOST_FAILURES} workers in a row failed on {name} {self._stage}; the last one: {error}. Is hpsearch "
                "installed there, in the same version, and is there room for temporary files? Fix that, or "
                "remove the node from the cluster (`ray stop` there); then continue with `hpsearch resume`."
            )

    def did_well(self, node: str) -> None:
        """Record that a worker succeeded on a node."""
        del self._failures[node]


FIRST_SECONDS = 3.0
"""How long a sweep holds too few workers before it first releases them."""

MOST_SECONDS = 20.0
"""The longest such time."""


class Backoff:
    """Randomized exponential backoff of sweeps that share a cluster.

    Each of them may hold workers that another one needs. A sweep that can't start anything with its workers, while
    others hold or request the rest, releases its own, waits for a random time and requests them again. The times grow,
    so that in the end one sweep starts while the other waits, however slowly workers start.

    This object only counts the workers of one sweep.
    """

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self.released = 0
        """Workers that were released, to be requested again."""
        self._draw = draw
        self._patience = FIRST_SECONDS
        self._since: float | None = None
        self._last_workers = 0
        self._again = 0.0

    def is_due(self, now: float, stuck: bool, workers: int) -> bool:
        """Record whether the sweep is stuck; return whether it has been for long enough to release its workers.

        Args:
            now: Seconds.
            stuck: Whether it holds too few workers, and waits for more.
            workers: Number of workers that it holds; while that grows, the time starts anew.
        """
        if not stuck or self._since is None or workers > self._last_workers:
            self._since = now
        self._last_workers = workers
        return stuck and now - self._since >= self._patience

    def wait_on(self) -> None:
        """Wait for the same time again, as no other sweep requests workers."""
        self._since = None

    def give_way(self, now: float, workers: int) -> None:
        """Record that workers were released."""
        self.released += workers
        self._since = None
        self._again = now + self._patience * self._draw(0.5, 1.5)
        self._patience = min(2 * self._patience, MOST_SECONDS)

    def ask(self, now: float) -> int:
        """Return the number of workers to request now."""
        if now < self._again:
            return 0
        workers, self.released = self.released, 0
        return workers

    def settle(self) -> None:
        """Record that there are enough workers."""
        self._patience = FIRST_SECONDS
