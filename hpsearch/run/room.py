"""What could start at once: how many segments, and how many workers they could be spread over."""

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
    """Workers that they could have: those that would be free if each lane had one for itself."""
    least: int
    """Workers that a segment takes, where it has no lane."""
    share: WorkerShare | None
    """What a segment asks for that may be a lane."""

    @classmethod
    def of(cls, backend: Backend, least: int, share: WorkerShare | None) -> Room:
        """Ask a backend."""
        workers = backend.capacity()
        return cls(workers // least if share is None else backend.capacity(share), workers, least, share)

    def after(self, widths: Iterable[int]) -> Room:
        """Give what is left when segments of these widths have begun."""
        begun = list(widths)
        workers = max(self.workers - sum(begun), 0)
        if self.share is None:
            return Room(workers // self.least, workers, self.least, None)
        # Which workers a gang takes, and how many lanes with them, is the backend's choice.
        is_known = all(width == 1 for width in begun)
        return Room(self.starts - len(begun) if is_known else 0, workers, self.least, self.share)
