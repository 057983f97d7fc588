"""The protocol between a rank and an elastic launcher, in lines of JSON.

    the rank                                           the launcher
      | --- coming: number of the call, address -------> |   address where the rank listens, as `Address.to_text`
      | <-- roster: number of the call, members -------- |   sent when all living ranks are coming
      | --- done --------------------------------------> |   the rank may come or end at any later time
      | --- busy --------------------------------------> |   the rank is no longer done

The agent of the rank's host relays these messages. It has started the rank with one end of a socket.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.errors import RendezvousError

VARIABLE = "HPSEARCH_COMM_ELASTIC"
"""Environment variable with the file descriptor of the rank's end, and the inode of its socket."""

DONE, BUSY = "done", "busy"

_CHUNK = 1 << 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Coming:
    """The message of a process that wants to join the next meeting."""

    call: int
    """Number of the process's call; only the last call is answered."""
    address: str
    """Address where the process listens."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a meeting, as sent to one of them."""

    call: int
    """Number of the call that this answers."""
    number: int
    """Number of the meeting, from 0."""
    rank: int
    """The process's rank."""
    addresses: tuple[str, ...]
    """Address of each rank, by rank."""
    local_rank: int
    local_size: int

    def variables(self) -> dict[str, str]:
        """Return the same information as environment variables."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(len(self.addresses)),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
        }

    def to_line(self) -> bytes:
        """Return the line that the launcher sends."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Roster:
        """Parse a line of `to_line`."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**{**fields, "addresses": tuple(fields["addresses"])})


def read_message(line: bytes) -> Coming | str:
    """Parse a rank's message: Coming, DONE or BUSY.

    Raises:
        ValueError: The message is invalid.
    """
    message = json.loads(line)
    if message in (DONE, BUSY):
        return str(message)
    if isinstance(message, dict) and type(message.get("call")) is int and isinstance(message.get("address"), str):
        return Coming(message["call"], message["address"])
    raise ValueError(f"expected a rank to come, or to be done or busy, got {line!r:.100}")


def describe_socket(descriptor: int) -> str:
    """Return the value of VARIABLE for a descriptor that a rank inherits."""
    return f"{descriptor}:{os.fstat(descriptor).st_ino}"


class LauncherLine:
    """A rank's end of the connection to its launcher.

    Args:
        sock: The connected socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = close_in_children(sock)
        self._calls = itertools.count()
        self._received = bytearray()

    @classmethod
    def open(cls, env: Mapping[str, str]) -> LauncherLine | None:
        """Open the socket that the environment names. Return None if it names no socket, or one that is closed.

        The inode is checked because the descriptor's number may be reused: a program between the launcher and this
        one may have closed the socket.
        """
        text = env.get(VARIABLE, "")
        descriptor = text.partition(":")[0]
        if not descriptor.isdecimal():
            return None
        number = int(descriptor)
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode) and describe_socket(number) == text:
                # Child processes must not inherit it.
                os.set_inheritable(number, False)
                return cls(socket.socket(fileno=number))
        except OSError:
            pass
        _log.warning(
            "%s=%s names no socket of this process's: a program between the launcher and this one has closed it, so "
            "that this rank can't go on without others. Have the launcher start it itself",
            VARIABLE,
            text,
        )
        return None

    def meet(self, address: str) -> Roster:
        """Join the next meeting: send this process's address and wait for the roster.

        Args:
            address: Where this process listens. It must listen until all ranks are connected.

        Raises:
            RendezvousError: The launcher is gone.
        """
        call = next(self._calls)
        self._send({"call": call, "address": address})
        # Skip answers to earlier calls that were interrupted.
        while (roster := Roster.from_line(self._receive_line())).call != call:
            pass
        return roster

    def send_done(self, done: bool = True) -> None:
        """Tell the launcher whether this process is done: then it may register again or end at any later time."""
        self._send(DONE if done else BUSY)

    def close(self) -> None:
        """Close the connection to the launcher."""
        self._sock.close()

    def _send(self, message: Any) -> None:
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise _gone() from None

    def _receive_line(self) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            try:
                data = self._sock.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                raise _gone()
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


def _gone() -> RendezvousError:
    return RendezvousError("the launcher, which says who meets, is gone: its own output says why")
