"""The protocol between the launcher and an agent: frames of a kind, a number and some bytes.

Before its first frame an agent writes one line of text, its greeting. The login may have written to the same stream
before, so the launcher skips all output before this line.
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
"""The start of an agent's greeting; JSON follows on the same line."""

MOST_BYTES = 1 << 26
"""Maximum payload of a frame. The longest has an environment and a command line, whose size the kernel limits."""

_HEADER = struct.Struct("!BiI")


class FrameKind(IntEnum):
    """Kinds of frames."""

    # To an agent.
    CHOOSE_ADDRESS = 1
    """Choose the address at which the ranks meet; JSON."""
    START = 2
    """Start the ranks; JSON."""
    SIGNAL = 3
    """Send the signal of this number to all ranks."""
    END = 4
    """End all ranks, and kill them after this number of milliseconds."""
    ALIVE = 5
    """The launcher is alive."""
    TO_RANK = 6
    """Bytes for the rank of this number, on its elastic socket."""
    KILL = 7
    """Kill the rank of this number."""
    # From an agent.
    ADDRESS = 8
    """The address at which the ranks can meet; JSON."""
    FAILED = 9
    """The agent can't execute an order; with an exit code and the reason."""
    STDOUT = 10
    """Output on stdout of the rank of this number."""
    STDERR = 11
    """Output on stderr of the rank of this number."""
    ENDED = 12
    """The rank of this number has ended; JSON of its exit code, or of minus the signal that killed it."""
    FROM_RANK = 13
    """A line that the rank of this number sends on its elastic socket."""


class Frame(NamedTuple):
    """A message between the launcher and an agent."""

    kind: FrameKind
    number: int = 0
    payload: bytes = b""

    @property
    def value(self) -> Any:
        """The payload, parsed as JSON."""
        return json.loads(self.payload)


def pack(kind: FrameKind, number: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _HEADER.pack(kind, number, len(payload)) + payload


def pack_value(kind: FrameKind, value: Any, number: int = 0) -> bytes:
    """Return a frame of JSON as bytes."""
    return pack(kind, number, json.dumps(value).encode())


def read_frames(stream: BufferedReader) -> Iterator[Frame]:
    """Yield the frames of a stream, until its end.

    Raises:
        LaunchError: The data is no valid frame.
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
