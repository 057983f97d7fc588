"""An all-gather before the group exists: every rank sends a text to rank 0, and receives the texts of all ranks.

    rank r                                                   rank 0
      | <-- handshake; the hello's payload is its entry: -->   |   size, milliseconds left (4 and 8 bytes), and the text
      |                         ...                            |   rank r keeps the connection open while it waits
      | <-- outcome: length (4 bytes), JSON, and its MAC ----- |   all texts, or why there are none
      | --- end of file -------------------------------------> |

Ranks start at different times, and each has its own deadline. The earliest deadline applies to all, since no group can
form without that rank. So all ranks fail together, and all can name the missing ranks.

Rank 0 serves any number of ranks concurrently and blocks on none. The MAC of the hello covers the entry, and the MAC of
the outcome covers the client's nonce. A man in the middle can therefore block the ranks, but can't alter a text.
Numbers are little endian.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpsearch_comm.bootstrap.acceptor import Acceptor
from hpsearch_comm.bootstrap.connector import Endpoint, name_endpoint, open_connection
from hpsearch_comm.bootstrap.handshake import (
    MAC_BYTES,
    PAYLOAD_BYTES,
    ConnectionKind,
    Credentials,
    HandshakeReply,
    Hello,
    Refusal,
)
from hpsearch_comm.bootstrap.tasks import alongside, has_events, receive, run, wait_for
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError

_ENTRY = struct.Struct("<IQ")
_TEXT_BYTES = PAYLOAD_BYTES - _ENTRY.size
_LENGTH = struct.Struct("<I")
_SLICE = 0.1
"""Seconds between two checks of the deadlines."""
_TRY_SECONDS = 5.0
"""Seconds for one attempt to connect, including the handshake."""
_REFUSED_SECONDS = 5.0
"""Seconds for which a refused rank tries again: another group may be about to leave the endpoint. Rank 0
itself continues after it has refused a connection."""
_FAREWELL_SECONDS = 2.0
_LONGEST_SECONDS = 2e6  # the longest wait that the kernel accepts
_LONGEST_PAUSE = 0.25
_NAMED = 16
"""Maximum number of ranks, or ranges of ranks, that an error names."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Venue:
    """The meeting point of a group's ranks, with all that the exchange needs."""

    size: int
    """Number of ranks."""
    credentials: Credentials
    deadline: float
    """This rank's deadline, in seconds of `time.monotonic()`."""
    description: str
    """Description of the meeting point, for errors."""
    advice: str
    """Advice to the user about missing ranks, at the end of the error."""


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A rank that is connected to rank 0."""

    text: str
    deadline: float
    sock: socket.socket
    nonce: bytes


def meet(
    venue: Venue,
    rank: int,
    text: str,
    listen: Callable[[], Sequence[socket.socket]],
    endpoints: Callable[[], Sequence[Endpoint]],
) -> list[str]:
    """Run this rank's side: `gather` on rank 0, `join` on the others. `listen` opens rank 0's sockets.

    Raises:
        ConfigurationError: The text is too long.
    """
    if len(text.encode()) > _TEXT_BYTES:
        raise ConfigurationError(f"expected an address of at most {_TEXT_BYTES} bytes, got {len(text.encode())}")
    if venue.size == 1:
        return [text]
    return gather(venue, listen(), text) if rank == 0 else join(venue, rank, endpoints, text)


def gather(venue: Venue, listening: Sequence[socket.socket], text: str) -> list[str]:
    """Run rank 0's side: wait for every other rank, and send the texts of all ranks to each.

    Args:
        venue: The meeting point; the same on every rank except for the deadline.
        listening: Listening sockets; closed as soon as all ranks are connected or the deadline has passed.
        text: Rank 0's text.

    Returns:
        The texts by rank.

    Raises:
        RendezvousError: A deadline passed; names the missing ranks. The connected ranks raise the same error.
    """
    gathering = _Gathering(venue)
    with contextlib.closing(gathering):
        with contextlib.ExitStack() as doors:
            for sock in listening:
                doors.enter_context(sock)
            missing = run(alongside(gathering.wait(), map(gathering.acceptor.serve, listening)))
        if missing:
            gathering.send_outcome(_encode(error=missing))
            raise RendezvousError(missing)
        texts = [text, *gathering.texts()]
        gathering.send_outcome(_encode(texts=texts))
    return texts


class _Gathering:
    """The ranks that are connected to rank 0 so far."""

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._began = time.monotonic()
        self._members: dict[int, _Member] = {}
        self._arrived = asyncio.Event()
        self.acceptor = Acceptor(0, venue.credentials, self._admit, self._welcome)

    def close(self) -> None:
        """Close all connections."""
        for member in self._members.values():
            member.sock.close()

    def texts(self) -> list[str]:
        """Return the texts of the other ranks, by rank."""
        return [self._members[rank].text for rank in range(1, self._venue.size)]

    async def wait(self) -> str:
        """Wait until every other rank is connected. Returns an error if some are missing at a deadline, else ""."""
        while len(self._members) < self._venue.size - 1 or self._drop_disconnected():
            now = time.monotonic()
            end = min([self._venue.deadline, *(member.deadline for member in self._members.values())])
            if now >= end and not self._drop_disconnected():
                return self._missing(now)
            await wait_for(self._arrived, min(now + _SLICE, end))
        return ""

    def send_outcome(self, outcome: bytes) -> None:
        """Send the outcome to all connected ranks, which close first: so no connection keeps the port in TIME_WAIT."""
        for member in self._members.values():
            self._send(member.sock, member.nonce, outcome)
        end = time.monotonic() + _FAREWELL_SECONDS
        for member in self._members.values():
            with contextlib.suppress(OSError):
                member.sock.settimeout(max(0.001, end - time.monotonic()))
                member.sock.recv(1)

    def _admit(self, hello: Hello, _sock: socket.socket) -> HandshakeReply:
        readable = hello.kind is ConnectionKind.RENDEZVOUS and len(hello.payload) >= _ENTRY.size
        return HandshakeReply.ACCEPTED if readable else HandshakeReply.UNEXPECTED

    def _welcome(self, hello: Hello, sock: socket.socket) -> None:
        size, milliseconds = _ENTRY.unpack_from(hello.payload)
        rank, expected, reason = hello.sender, self._venue.size, None
        if rank in self._members:
            self._drop_disconnected()  # the rank may have disconnected, and now reconnects
        if size != expected:
            reason = f"it expects {size} ranks where rank 0 expects {expected}: give every rank the same WORLD_SIZE"
        elif not 1 <= rank < expected:
            reason = f"its rank must be from 1 to {expected - 1}"
        elif rank in self._members:
            reason = "this rank is here already: two processes may have been started with the same RANK"
        if reason is not None:
            self._send(sock, hello.nonce, _encode(error=f"rank 0 refused rank {rank}: {reason}"))
            self.acceptor.refuse(sock, f"rank {rank}: {reason}")
            return
        text = hello.payload[_ENTRY.size :].decode("utf-8", "replace")
        self._members[rank] = _Member(text, time.monotonic() + milliseconds / 1000, sock, hello.nonce)
        self._arrived.set()

    def _drop_disconnected(self) -> bool:
        """Drop the ranks that have disconnected (they send nothing more, so readable means ended); return if any."""
        gone = [rank for rank, member in self._members.items() if has_events(member.sock, select.POLLIN)]
        for rank in gone:
            self._members.pop(rank).sock.close()
        return bool(gone)

    def _send(self, sock: socket.socket, nonce: bytes, outcome: bytes) -> None:
        with contextlib.suppress(OSError):  # it has disconnected, and fails without this message
            sock.settimeout(_FAREWELL_SECONDS)
            sock.sendall(_LENGTH.pack(len(outcome)) + outcome + _sign(self._venue.credentials, nonce, outcome))

    def _missing(self, now: float) -> str:
        venue = self._venue
        missing = [rank for rank in range(1, venue.size) if rank not in self._members]
        sentence = (
            f"{name_ranks(missing)} of {venue.size} did not come to rank 0 ({venue.description}), which waited "
            f"{now - self._began:.1f} s, until the start_timeout of a rank was over. {venue.advice}"
        )
        if self.acceptor.refused:
            counted = "; ".join(f"{count} x {reason}" for reason, count in self.acceptor.refused.most_common(3))
            sentence += f". Connections refused meanwhile: {counted}"
        return sentence


def join(venue: Venue, rank: int, endpoints: Callable[[], Sequence[Endpoint]], text: str) -> list[str]:
    """Run the side of a rank above 0: connect to rank 0, which may start later, and wait for the outcome.

    Args:
        venue: The meeting point; the same on every rank except for the deadline.
        rank: This rank.
        endpoints: Returns the possible endpoints of rank 0; called for every try.
        text: This rank's text.

    Returns:
        The texts by rank.

    Raises:
        RendezvousError: Rank 0 or others didn't start, or rank 0 refused this rank.
        RefusedError: The process that answers doesn't belong to this group.
    """
    return run(_join(venue, rank, endpoints, text))


async def _join(venue: Venue, rank: int, endpoints: Callable[[], Sequence[Endpoint]], text: str) -> list[str]:
    began = time.monotonic()
    deadline = min(venue.deadline, began + _LONGEST_SECONDS)
    refused_since = math.inf
    reasons: list[str] = []  # the last two: an earlier answer of rank 0 may say more than the last try
    pause = 0.005
    while True:
        try:
            return await _try(venue, rank, endpoints(), text, deadline)
        except (OSError, RefusedError) as error:
            failure = error
        now, reason = time.monotonic(), getattr(failure, "strerror", None) or str(failure)
        refused = isinstance(failure, RefusedError)
        refused_since = min(refused_since, now) if refused else math.inf
        if reason not in reasons[-1:]:
            reasons = [*reasons[-1:], reason]
            if refused:
                _log.warning("rank %d of %d was refused, and tries again: %s", rank, venue.size, reason)
        may_pass = isinstance(failure, Refusal) and failure.verdict.is_transient
        final = not may_pass and now - refused_since >= _REFUSED_SECONDS
        if final or now >= deadline:
            break
        await asyncio.sleep(min(pause, deadline - now))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    sentence = (
        f"rank {rank} of {venue.size} did not find rank 0 ({venue.description}) in {time.monotonic() - began:.1f} s: "
        f"{'; before that, '.join(reversed(reasons))}. {venue.advice}"
    )
    raise RefusedError(sentence) if refused else RendezvousError(sentence)


async def _try(venue: Venue, rank: int, endpoints: Sequence[Endpoint], text: str, deadline: float) -> list[str]:
    entry = _ENTRY.pack(venue.size, int(1000 * max(0.001, deadline - time.monotonic()))) + text.encode()
    failures: list[str] = []
    refusal: RefusedError | None = None
    hello = Hello(rank, 0, ConnectionKind.RENDEZVOUS, 0, entry)
    for endpoint in endpoints:
        seconds = min(deadline - time.monotonic(), _TRY_SECONDS)
        try:
            sock, nonce = await open_connection(hello, endpoint, venue.credentials, seconds)
        except OSError as error:
            # The error lists each address: the host name may resolve to an unintended one.
            failures.append(f"{name_endpoint(endpoint)}: {error.strerror or error}")
        except RefusedError as error:
            refusal = error
        else:
            with sock:
                return await _read_outcome(venue, sock, nonce, deadline + _FAREWELL_SECONDS)
    raise refusal or OSError("; ".join(failures) or "it has not come there yet")


async def _read_outcome(venue: Venue, sock: socket.socket, nonce: bytes, deadline: float) -> list[str]:
    try:
        async with asyncio.timeout_at(deadline):
            (length,) = _LENGTH.unpack(await receive(sock, _LENGTH.size))
            if length > (venue.size + 1) * 6 * (_TEXT_BYTES + 2):  # 6 characters for each that JSON escapes
                raise RefusedError(f"rank 0's answer is of {length} bytes, too many for {venue.size} ranks")
            body, mac = await receive(sock, length), await receive(sock, MAC_BYTES)
    except TimeoutError:
        raise TimeoutError("rank 0 is there, but told no outcome") from None
    if not hmac.compare_digest(mac, _sign(venue.credentials, nonce, body)):
        raise RefusedError("rank 0's answer isn't as it was signed: somebody has altered it on its way")
    outcome = json.loads(body)
    if "error" in outcome:
        raise RendezvousError(outcome["error"])
    return list(outcome["texts"])


def _encode(**outcome: object) -> bytes:
    return json.dumps(outcome).encode()


def _sign(credentials: Credentials, nonce: bytes, body: bytes) -> bytes:
    return credentials.mac(b"outcome", nonce, hashlib.sha256(body).digest())


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0 to 4, 6 and 8`. The ranks are in ascending order."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    names = [name for span in spans for name in (map(str, span) if len(span) < 3 else [f"{span[0]} to {span[-1]}"])]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(names, _NAMED)}"


def listed(names: Sequence[str], most: int) -> str:
    """Return `a`, `a, b and c`, or, if there are more than `most`, `a, b and 47 more`."""
    shown = list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
