"""Where workers leave what happened inside their segments, and where they read which of them should end early.

It runs as one actor beside the driver. The driver asks it once for all workers, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hpsearch.trial import Report

__all__ = ["Letter", "Mailbox", "Save"]

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
    """What happened inside one attempt since its last letter."""

    key: Key
    reports: tuple[Report, ...]
    saves: tuple[Save, ...]
    packed: bytes | None
    """The newest checkpoint of `saves`, from a worker that doesn't see the study's directory."""


class Mailbox:
    """Letters from workers to the driver, and the attempts that the driver wants cut."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._arrived = asyncio.Event()
        self._cut: set[Key] = set()

    async def exchange(self, letter: Letter) -> bool:
        """Take a letter; answer whether its attempt should end at its next report."""
        if letter.reports or letter.saves:
            self._letters.append(letter)
            self._arrived.set()
        return letter.key in self._cut

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

    async def clear(self) -> None:
        """Forget everything; a study was let go."""
        self._letters.clear()
        self._arrived.clear()
        self._cut.clear()
