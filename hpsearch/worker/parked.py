"""What trials leave behind for their next segment, as long as there is room for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Parked"]

_MOST = 64
_MOST_BYTES = 256 << 20

T = TypeVar("T")


class Parked(Generic[T]):
    """Objects by their trials; those that came first go first.

    Args:
        most: How many.
        most_bytes: How large, all together; what several hold counts once.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: dict[int, tuple[T, Mapping[int, int]]] = {}

    def put(self, trial: int, left: T, storages: Mapping[int, int]) -> None:
        """Keep what a trial leaves, in place of what it left before.

        Args:
            trial: Its number.
            left: What it leaves.
            storages: The bytes of each piece of memory that this holds, by its address.
        """
        self._held.pop(trial, None)
        self._held[trial] = left, storages
        while len(self._held) > self._most or self._bytes() > self._most_bytes:
            del self._held[next(iter(self._held))]

    def _bytes(self) -> int:
        together: dict[int, int] = {}
        for _, storages in self._held.values():
            together |= storages
        return sum(together.values())

    def take(self, trial: int) -> T | None:
        """Give what a trial left, and keep it no more."""
        held = self._held.pop(trial, None)
        return None if held is None else held[0]

    def drop(self, which: Callable[[T], bool]) -> None:
        """Keep those no more of which this holds."""
        self._held = {trial: held for trial, held in self._held.items() if not which(held[0])}

    def __iter__(self) -> Iterator[T]:
        return iter([left for left, _ in self._held.values()])

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Keep nothing."""
        self._held.clear()
