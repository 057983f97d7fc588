"""How many segments could start at once, and on how many workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpsearch.backends.base import Backend
from hpsearch.task import WorkerShare

__all__ = ["Room"]


@dataclass(frozen=True, slots=True)
class Room:
    """Room for segments; a wide one takes more of it."""

    starts: int
    """Segments that could start, each as narrow as may be."""
    workers: int
    """Available workers: those that would be free if each lane had its own."""
    least: int
    """Workers that a segment takes, where it has no lane."""
    share: WorkerShare | None
    """What a segment requests that may be a lane."""

    @classmethod
    def of(cls, backend: Backend, least: int, share: WorkerShare | None) -> Room:
        """Ask a backend."""
        workers = backend.capacity()
        return cls(workers // least if share is None else backend.capacity(share), workers, least, share)

    def after(self, widths: Iterable[int]) -> Room:
        """Return the rest after segments of these widths have started."""
        begun = list(widths)
        workers = max(self.workers - sum(begun), 0)
        if self.share is None:
            return Room(workers // self.least, workers, self.least, None)
        # Which workers a gang takes, and how many lanes with them, is the backend's choice.
        is_known = all(width == 1 for width in begun)
        return Room(self.starts - len(begun) if is_known else 0, workers, self.least, self.share)
