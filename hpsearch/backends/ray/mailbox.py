"""Workers send the events of their segments here, and read the driver's requests.

The mailbox is one actor on the driver's node. The driver polls it once for all workers. Only a worker whose trial the
scheduler may stop at its next report waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.events import Saved
from hpsearch.trial import Report

Key = tuple[str, int, int]
"""(study, trial, attempt)."""

_PATIENCE = 2.0
"""Seconds that `collect` waits for a heartbeat, and `verdict` for the driver."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What happened in one worker since its last heartbeat."""

    worker: str
    key: Key
    """The attempt that runs there now."""
    reports: tuple[Report, ...]
    saves: tuple[Saved, ...]
    packed: bytes | None
    """The newest checkpoint of `saves`, from a worker that doesn't see the study's directory."""
    recalled: tuple[Key, ...]
    """Attempts that were taken back before they began."""
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a heartbeat."""

    cut: bool
    """The attempt should end at its next report."""
    recall: tuple[Key, ...]
    """Attempts to take back, if they haven't begun."""


class _Box:
    """Messages of one study."""

    def __init__(self) -> None:
        self.heartbeats: list[Heartbeat] = []
        self.arrived = asyncio.Event()
        self.cut: set[Key] = set()
        self.exchanged: dict[str, tuple[int, list[HeartbeatReply]]] = {}
        """Number and replies of each worker's last exchange."""
        self.decided: dict[Key, int] = {}
        """Iteration of each attempt up to which the driver has handled the reports."""
        self.decision = asyncio.Condition()


class Mailbox:
    """Messages from workers to drivers and requests from drivers to workers, for each running study."""

    def __init__(self) -> None:
        self._boxes: defaultdict[str, _Box] = defaultdict(_Box)
        self._recall: dict[str, tuple[Key, ...]] = {}

    async def exchange(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Store a heartbeat; return the driver's requests to that worker."""
        box = self._boxes[heartbeat.key[0]]
        if heartbeat.reports or heartbeat.notes or heartbeat.saves or heartbeat.recalled:
            box.heartbeats.append(heartbeat)
            box.arrived.set()
        return HeartbeatReply(heartbeat.key in box.cut, self._recall.pop(heartbeat.worker, ()))

    async def exchange_all(self, number: int, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply]:
        """Store the heartbeats of a worker's running attempts; return a reply to each.

        Args:
            number: Number of this exchange. A worker that got no answer sends the same heartbeats again, with the same
                number; they are stored once.
            heartbeats: One or more, all of the same worker and study.
        """
        study, worker = heartbeats[0].key[0], heartbeats[0].worker
        exchanged = self._boxes[study].exchanged
        if worker not in exchanged or exchanged[worker][0] != number:
            exchanged[worker] = number, [await self.exchange(heartbeat) for heartbeat in heartbeats]
        return exchanged[worker][1]

    async def collect(self, study: str) -> list[Heartbeat]:
        """Return a study's new heartbeats; wait up to 2 s for the first."""
        box = self._boxes[study]
        try:
            await asyncio.wait_for(box.arrived.wait(), _PATIENCE)
        except TimeoutError:
            return []
        if box is not self._boxes.get(study):
            return []  # the study was closed meanwhile
        box.arrived.clear()
        heartbeats, box.heartbeats = box.heartbeats, []
        return heartbeats

    async def cut(self, key: Key) -> None:
        """Request that an attempt end."""
        self._boxes[key[0]].cut.add(key)

    async def decided(self, study: str, iterations: dict[Key, int]) -> None:
        """Record that the driver has handled the reports of attempts up to these iterations."""
        box = self._boxes[study]
        async with box.decision:
            box.decided |= iterations
            box.decision.notify_all()

    async def verdict(self, key: Key, iteration: int) -> bool:
        """Return whether an attempt should end, once the driver has handled its report; wait up to 2 s for that."""
        box = self._boxes[key[0]]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE), box.decision:
                await box.decision.wait_for(lambda: box.decided.get(key, -1) >= iteration)
        return key in box.cut

    async def recall(self, worker: str, key: Key) -> None:
        """Request a worker to return an attempt that waits behind another one."""
        self._recall[worker] = (*self._recall.get(worker, ()), key)

    async def clear(self, study: str) -> None:
        """Remove all data of a closed study."""
        box = self._boxes.pop(study, None)
        if box is not None:
            box.arrived.set()  # end a waiting `collect`, which would otherwise receive the next driver's messages
        for worker, keys in list(self._recall.items()):
            self._recall[worker] = tuple(key for key in keys if key[0] != study)
            if not self._recall[worker]:
                del self._recall[worker]
