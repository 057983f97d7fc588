"""What the launcher and an agent send each other: frames of a kind, a number and some bytes.

Before its first frame an agent writes one line of text, its greeting. A login may have written to the same stream
before it, so all that precedes this line is set aside.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hpsearch_comm.launch.errors import LaunchError

__all__ = ["GREETING", "Frame", "FrameKind", "FrameReader", "pack", "pack_value"]

GREETING = b"hpsearch_comm.launch.agent "
"""Begins an agent's first line; JSON follows."""

MOST_BYTES = 1 << 26
"""In a frame. The longest one holds an environment and a command line, which the kernel bounds."""

_HEADER = struct.Struct("!BiI")


class FrameKind(IntEnum):
    """What a frame is for."""

    # To an agent.
    CHOOSE_ADDRESS = 1
    """Choose where the ranks meet: JSON."""
    START = 2
    """Start the ranks: JSON."""
    INPUT = 3
    """Bytes for rank 0's standard input; none at its end."""
    SIGNAL = 4
    """Send the signal of this number to all ranks."""
    END = 5
    """End all ranks; after so many milliseconds by force."""
    ALIVE = 6
    """The launcher is still there."""
    TO_RANK = 7
    """Bytes for the rank of this number, on its channel."""
    KILL = 8
    """Kill the rank of this number."""
    # From an agent.
    ADDRESS = 9
    """Where the ranks can meet: JSON."""
    FAILED = 10
    """The agent can't do what it was told; with an exit code and the reason."""
    STDOUT = 11
    """What the rank of this number has written there."""
    STDERR = 12
    """What the rank of this number has written there."""
    ENDED = 13
    """The rank of this number has ended; JSON: its exit code, or minus the signal."""
    INPUT_TAKEN = 14
    """Rank 0 has the bytes of the last INPUT; or, with the number 1, wants no more."""
    FROM_RANK = 15
    """A line that the rank of this number says on its channel."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: FrameKind
    number: int = 0
    payload: bytes = b""

    @property
    def value(self) -> Any:
        """The JSON that the payload is."""
        return json.loads(self.payload)


def pack(kind: FrameKind, number: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _HEADER.pack(kind, number, len(payload)) + payload


def pack_value(kind: FrameKind, value: Any, number: int = 0) -> bytes:
    """Return a frame of JSON as bytes."""
    return pack(kind, number, json.dumps(value).encode())


class FrameReader:
    """Puts frames together from bytes as they arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take some bytes; return the frames that are complete.

        Raises:
            LaunchError: They are no frames.
        """
        self._bytes += data
        while len(self._bytes) >= _HEADER.size:
            number_of_kind, number, length = _HEADER.unpack_from(self._bytes)
            if number_of_kind not in FrameKind.__members__.values() or length > MOST_BYTES:
                raise LaunchError(
                    f"expected a frame of the launcher's, got {bytes(self._bytes[:64])!r}: something else writes to "
                    "the agent's standard input or output"
                )
            end = _HEADER.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_HEADER.size : end])
            del self._bytes[:end]
            yield Frame(FrameKind(number_of_kind), number, payload)
