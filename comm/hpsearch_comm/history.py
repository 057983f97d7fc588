"""The last operations of this rank. They show a peer that waits in another operation that the calls mismatch."""

from __future__ import annotations

_KEPT = 256


class History:
    """The packed signatures of the last operations, by number. One thread writes, another one reads.

    Attributes:
        running: The signature of the running operation; None between operations.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[int, bytes]] = [(-1, b"")] * _KEPT
        self.running: bytes | None = None

    def begin(self, sequence: int, packed: bytes) -> None:
        """Record the signature of an operation that starts."""
        self._recent[sequence % _KEPT] = sequence, packed
        self.running = packed

    def find(self, sequence: int) -> bytes | None:
        """Return the signature of the operation with this number; None if it hasn't started or is no longer kept."""
        number, packed = self._recent[sequence % _KEPT]
        return packed if number == sequence else None
