"""Where workers leave what happened inside their segments, and where they read what the driver wants of them.

It runs as one actor beside the driver. The driver asks it once for all workers, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from hpsearch.task import Save
from hpsearch.trial import Report

__all__ = ["Heartbeat", "HeartbeatReply", "Key", "Mailbox"]

Key = tuple[str, int, int]
"""(study, trial, attempt)."""

_PATIENCE = 2.0
"""Seconds that `collect` waits for a heartbeat."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What happened in one worker since its last heartbeat."""

    worker: str
    key: Key
    """The attempt that runs there now."""
    reports: tuple[Report, ...]
    saves: tuple[Save, ...]
    packed: bytes | None
    """The newest checkpoint of `saves`, from a worker that doesn't see the study's directory."""
    recalled: tuple[Key, ...]
    """Attempts that were taken back before they began, and will not begin there."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a heartbeat."""

    cut: bool
    """The attempt should end at its next report."""
    recall: tuple[Key, ...]
    """Attempts to take back, if they haven't begun."""


class Mailbox:
    """Letters from workers to the driver, and the attempts that the driver wants cut."""

    def __init__(self) -> None:
        self._heartbeats: list[Heartbeat] = []
        self._arrived = asyncio.Event()
        self._cut: set[Key] = set()
        self._recall: dict[str, tuple[Key, ...]] = {}

    async def exchange(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Take a heartbeat; answer what the driver wants of that worker."""
        if heartbeat.reports or heartbeat.saves or heartbeat.recalled:
            self._heartbeats.append(heartbeat)
            self._arrived.set()
        return HeartbeatReply(heartbeat.key in self._cut, self._recall.pop(heartbeat.worker, ()))

    async def exchange_all(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply]:
        """Take the heartbeats of all that a worker runs; answer each."""
        return [await self.exchange(heartbeat) for heartbeat in heartbeats]

    async def collect(self) -> list[Heartbeat]:
        """Give the heartbeats that came, or wait a while for one."""
        arrived = self._arrived
        try:
            await asyncio.wait_for(arrived.wait(), _PATIENCE)
        except TimeoutError:
            return []
        if arrived is not self._arrived:
            return []  # its study was let go meanwhile
        arrived.clear()
        heartbeats, self._heartbeats = self._heartbeats, []
        return heartbeats

    async def cut(self, key: Key) -> None:
        """Want an attempt to end."""
        self._cut.add(key)

    async def recall(self, worker: str, key: Key) -> None:
        """Want an attempt back that waits in a worker behind another."""
        self._recall[worker] = (*self._recall.get(worker, ()), key)

    async def clear(self) -> None:
        """Forget everything; a study was let go."""
        self._heartbeats.clear()
        self._arrived.set()  # who waits for this study's heartbeats would get those of the next one
        self._arrived = asyncio.Event()
        self._cut.clear()
        self._recall.clear()
