"""What this rank called last, so that a peer which waits in another operation can be told that it waits in vain."""

from __future__ import annotations

_KEPT = 256


class History:
    """The packed signatures of the last operations, by their number; written by one thread, read by another.

    Attributes:
        running: The signature of the operation that is under way; None between operations.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[int, bytes]] = [(-1, b"")] * _KEPT
        self.running: bytes | None = None

    def begin(self, sequence: int, packed: bytes) -> None:
        """Keep the signature of an operation that begins."""
        self._recent[sequence % _KEPT] = sequence, packed
        self.running = packed

    def find(self, sequence: int) -> bytes | None:
        """Return the signature of the operation with this number, if it has begun and isn't too long ago."""
        number, packed = self._recent[sequence % _KEPT]
        return packed if number == sequence else None
