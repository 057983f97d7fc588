"""Objects that trials keep for their next segment, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Parked"]

_MOST = 64
_MOST_BYTES = 256 << 20

T = TypeVar("T")


class Parked(Generic[T]):
    """Objects by trial; the oldest are dropped first.

    Args:
        most: Largest number of objects.
        most_bytes: Largest total size; shared memory counts once.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: dict[int, tuple[T, Mapping[int, int]]] = {}

    def put(self, trial: int, kept: T, storages: Mapping[int, int]) -> None:
        """Keep a trial's object, in place of its earlier one.

        Args:
            trial: Its number.
            kept: The object.
            storages: Bytes of each of its storages, by address.
        """
        self._held.pop(trial, None)
        self._held[trial] = kept, storages
        while len(self._held) > self._most or self._bytes() > self._most_bytes:
            del self._held[next(iter(self._held))]

    def _bytes(self) -> int:
        together: dict[int, int] = {}
        for _, storages in self._held.values():
            together |= storages
        return sum(together.values())

    def take(self, trial: int) -> T | None:
        """Remove and return a trial's object."""
        held = self._held.pop(trial, None)
        return None if held is None else held[0]

    def drop(self, which: Callable[[T], bool]) -> None:
        """Drop the objects that satisfy a condition."""
        self._held = {trial: held for trial, held in self._held.items() if not which(held[0])}

    def __iter__(self) -> Iterator[T]:
        return iter([left for left, _ in self._held.values()])

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Drop all objects."""
        self._held.clear()
