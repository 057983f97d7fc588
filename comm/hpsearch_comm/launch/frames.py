"""What the launcher and an agent send each other: frames of a kind, a number and some bytes.

Before its first frame an agent writes one line of text, its greeting. A login may have written to the same stream
before it, so all that precedes this line is set aside.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from io import BufferedReader
from typing import Any, NamedTuple

from hpsearch_comm.launch.errors import LaunchError

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


class Frame(NamedTuple):
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


def read_frames(stream: BufferedReader) -> Iterator[Frame]:
    """Yield the frames that a stream brings, until its end.

    Raises:
        LaunchError: What it brings are no frames.
    """
    while len(header := stream.read(_HEADER.size)) == _HEADER.size:
        kind, number, length = _HEADER.unpack(header)
        if kind not in FrameKind.__members__.values() or length > MOST_BYTES:
            raise LaunchError(
                f"expected a frame of the launcher's, got {header + stream.peek()[:64]!r}: something else writes to "
                "the agent's standard input or output"
            )
        if len(payload := stream.read(length)) < length:
            return
        yield Frame(FrameKind(kind), number, payload)
