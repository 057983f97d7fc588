"""Where workers leave what happened inside their segments, and where they read what the driver wants of them.

It runs as one actor beside the driver. The driver asks it once for all workers, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hpsearch.trial import Report

__all__ = ["Key", "Letter", "Mailbox", "Orders", "Save"]

Key = tuple[str, int, int]
"""(study, trial, attempt)."""

_PATIENCE = 2.0
"""Seconds that `collect` waits for a letter."""


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint inside a segment."""

    iteration: int
    checkpoint: str
    reports: tuple[Report, ...]
    """Those since the checkpoint before it."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What happened in one worker since its last letter."""

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
class Orders:
    """The answer to a letter."""

    cut: bool
    """The attempt should end at its next report."""
    recall: tuple[Key, ...]
    """Attempts to take back, if they haven't begun."""


class Mailbox:
    """Letters from workers to the driver, and the attempts that the driver wants cut."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._arrived = asyncio.Event()
        self._cut: set[Key] = set()
        self._recall: dict[str, tuple[Key, ...]] = {}

    async def exchange(self, letter: Letter) -> Orders:
        """Take a letter; answer what the driver wants of that worker."""
        if letter.reports or letter.saves or letter.recalled:
            self._letters.append(letter)
            self._arrived.set()
        return Orders(letter.key in self._cut, self._recall.pop(letter.worker, ()))

    async def collect(self) -> list[Letter]:
        """Give the letters that came, or wait a while for one."""
        try:
            await asyncio.wait_for(self._arrived.wait(), _PATIENCE)
        except TimeoutError:
            return []
        self._arrived.clear()
        letters, self._letters = self._letters, []
        return letters

    async def cut(self, key: Key) -> None:
        """Want an attempt to end."""
        self._cut.add(key)

    async def recall(self, worker: str, key: Key) -> None:
        """Want an attempt back that waits in a worker behind another."""
        self._recall[worker] = (*self._recall.get(worker, ()), key)

    async def clear(self) -> None:
        """Forget everything; a study was let go."""
        self._letters.clear()
        self._arrived.clear()
        self._cut.clear()
        self._recall.clear()
