"""The connections between all ranks of a group.

In each pair, the lower rank accepts and the higher rank connects. Every pair gets a control connection and streams:
Unix sockets for two ranks of one host, which also pass file descriptors of shared memory, and TCP otherwise. Tasks
accept and connect concurrently, so no order of arrival can cause a deadlock.

If a higher rank is killed before it connects, a lower rank on its host notices that it no longer listens. On other
hosts the lower ranks wait until their deadline, and name it.

A rank that fails while the group forms notifies the ranks that it is connected to, and these notify others. All ranks
fail soon, with the first reason, instead of each waiting for a timeout.

If a peer's host dies, no end of file arrives. The kernel detects this by keepalive probes, which the other kernel
answers: a process that computes or is stopped is never taken for dead while its host answers. A live host may be silent
for some time: a virtual machine that migrates, a network that is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import math
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hpsearch_comm.bootstrap.acceptor import Acceptor
from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connector import Endpoint, may_pass, name_endpoint, open_connection
from hpsearch_comm.bootstrap.exchange import listed
from hpsearch_comm.bootstrap.handshake import ConnectionKind, Credentials, HandshakeReply, Hello
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.tasks import alongside, has_events, run, wait_for
from hpsearch_comm.errors import CommError, ConfigurationError, RendezvousError
from hpsearch_comm.failure.detector import NOTICE_BYTES, pack_notice, peek_notices
from hpsearch_comm.topology import Topology

_PROBES = 6
_MOST_SECONDS = 32767
"""The kernel's maximum for TCP_KEEPIDLE and TCP_KEEPINTVL: man 7 tcp."""
_MOST_MILLISECONDS = 2**31 - 1


def enable_keepalive(sock: socket.socket, silence: float) -> None:
    """Make a TCP connection end when the other host no longer answers.

    Args:
        sock: The connection.
        silence: Seconds without an answer after which the connection ends. The kernel sends at most one probe a second.
    """
    interval = min(max(1, math.ceil(silence / _PROBES)), _MOST_SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    # If this is set, it replaces the number of probes: RFC 5482, tcp(7).
    milliseconds = min(max(1, math.ceil(silence * 1000)), _MOST_MILLISECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


MOST_STREAMS = 65
_LOCAL_STREAMS = 2
"""Unix sockets between two ranks of one host: one for collectives, and one for send and recv."""

_SLICE = 0.1
"""Seconds between two checks of notices from other ranks, and of deadlines."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two tries of a connection: time for the reason of a rank that has failed to arrive. They double."""
_PROBE_SECONDS = 1.0
"""Seconds between two checks whether the missing ranks of this host still listen."""
_NAMED = 8
"""Maximum number of ranks that an error names; it counts the others."""

_NOTICES = 128
"""Maximum number of a rank's notices that are checked: a rank that finishes early sends one a second while it waits."""

_Key = tuple[int, ConnectionKind, int]
"""The peer, the kind of connection, and the index of the stream."""


@dataclass(frozen=True, slots=True)
class Connections:
    """A rank's connections when the group has formed: blocking sockets, which the owner closes.

    Forked children close their copies. This holds for these socket objects only, not for duplicates.
    """

    topology: Topology
    """Which ranks share a host."""
    controls: dict[int, socket.socket] = field(default_factory=dict)
    """A connection to each other rank."""
    streams: dict[int, list[socket.socket]] = field(default_factory=dict)
    """Connections to each other rank, in the same order on both sides: two Unix sockets, or TCP with TCP_NODELAY."""

    def close(self) -> None:
        """Close all connections."""
        for sock in itertools.chain(self.controls.values(), *self.streams.values()):
            sock.close()


def connect(
    rank: int,
    addresses: Sequence[Address],
    listener: Listener,
    credentials: Credentials,
    *,
    streams: int,
    tcp_only: bool,
    heartbeat_timeout: float,
    deadline: float,
) -> Connections:
    """Connect this rank with all others of its group.

    Every rank must call it, with the same addresses, credentials, streams and tcp_only.

    Args:
        rank: This rank.
        addresses: The address of each rank, by rank.
        listener: This rank's listener. It is closed at the end, even if an error is raised.
        credentials: The group's credentials.
        streams: TCP connections between two ranks of different hosts.
        tcp_only: Whether ranks of one host use TCP as well.
        heartbeat_timeout: Seconds without an answer from a rank's host after which the rank counts as dead.
        deadline: When to give up, in seconds of `time.monotonic()`.

    Raises:
        ConfigurationError: The arguments contradict each other.
        RefusedError: A rank refuses this rank: secret, epoch or arguments differ, or this rank was started twice.
        RendezvousError: Ranks are missing at the deadline, have died, or have given up; names them.
    """
    with listener:
        _check_addresses(rank, addresses, listener.address)
        topology = Topology.of(rank, [address.host for address in addresses])
        try:
            bootstrap = _Bootstrap(topology, addresses, listener, credentials, streams, tcp_only, heartbeat_timeout)
            run(bootstrap.form(deadline))
            return bootstrap.connections()
        except OSError as error:
            raise RendezvousError(f"rank {rank} can't connect to the others: {error.strerror or error}") from error


def _check_addresses(rank: int, addresses: Sequence[Address], own_address: Address) -> None:
    if addresses[rank] != own_address:
        raise ConfigurationError(
            f"the address of rank {rank} must be that of its own listener, {own_address.to_text()}, got "
            f"{addresses[rank].to_text()}: two processes run as this rank, or the addresses are mixed up: sort them by "
            "rank, and pass the listener whose address was gathered"
        )
    first: dict[Address, int] = {}
    for rank_of_address, address in enumerate(addresses):
        if first.setdefault(address, rank_of_address) != rank_of_address:
            raise ConfigurationError(
                f"every rank must have its own address, ranks {first[address]} and {rank_of_address} share one: sort "
                "the gathered addresses by rank, each once"
            )


class _Bootstrap:
    """The group while it forms, on this rank."""

    def __init__(
        self,
        topology: Topology,
        addresses: Sequence[Address],
        listener: Listener,
        credentials: Credentials,
        streams: int,
        tcp_only: bool,
        heartbeat_timeout: float,
    ) -> None:
        self._topology = topology
        self._rank = topology.rank
        self._addresses = addresses
        self._listener = listener
        self._credentials = credentials
        self._local = set() if tcp_only else set(topology.local_ranks)
        self._heartbeat_timeout = heartbeat_timeout
        self._connected: dict[_Key, socket.socket] = {}
        higher = range(self._rank + 1, topology.size)
        self._awaited = {key for peer in higher for key in _plan(peer, peer in self._local, streams)}
        """Connections that the higher ranks have yet to make."""
        # Each rank connects to the next lower rank first, so that not all connect to rank 0 at once.
        lower = range(self._rank - 1, -1, -1)
        self._unmade = {key: "" for peer in lower for key in _plan(peer, peer in self._local, streams)}
        """Connections that this rank has yet to make, with the last error of each."""
        self._complete = asyncio.Event()
        self._acceptor = Acceptor(self._rank, credentials, self._admit, self._welcome)

    async def form(self, deadline: float) -> None:
        """Make every connection. If that fails, send the reason to the ranks that are connected."""
        tasks = [self._acceptor.serve(sock) for sock in self._listener.sockets]
        tasks += [self._dial(key) for key in self._unmade]
        try:
            await alongside(self._wait(deadline), [*tasks, self._probe()])
        except BaseException as error:
            self._abort(error)
            raise

    async def _wait(self, deadline: float) -> None:
        while self._awaited or self._unmade:
            self._check_peers()
            if time.monotonic() >= deadline:
                raise RendezvousError(self._incomplete())
            await wait_for(self._complete, min(deadline, time.monotonic() + _SLICE))

    def connections(self) -> Connections:
        """Return the connections, in the order of the peers."""
        result = Connections(self._topology)
        for (peer, kind, _), sock in sorted(self._connected.items()):
            if kind is ConnectionKind.CONTROL:
                result.controls[peer] = sock
            else:
                result.streams.setdefault(peer, []).append(sock)
        return result

    def _endpoint(self, peer: int) -> Endpoint:
        address = self._addresses[peer]
        return f"\0{address.unix}" if peer in self._local else (address.ip, address.port)

    async def _dial(self, key: _Key) -> None:
        """Connect to a lower rank, again and again while an error may pass."""
        peer, kind, stream = key
        hello, pause = Hello(self._rank, peer, kind, stream), _FIRST_PAUSE
        while True:
            try:
                source = self._listener.address.ip
                sock, _ = await open_connection(hello, self._endpoint(peer), self._credentials, source=source)
            except OSError as error:
                self._unmade[key] = error.strerror or str(error)
                if not may_pass(error):
                    self._fail(peer, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                sock.setblocking(True)
                del self._unmade[key]
                self._add(key, sock)
                return

    async def _probe(self) -> None:
        """Fail if a rank of this host that has yet to connect no longer listens: it has died or given up."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            for peer in self._missing() & self._local:
                with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(BlockingIOError):  # its queue is full
                    sock.setblocking(False)
                    try:
                        sock.connect(self._endpoint(peer))
                    except ConnectionRefusedError as error:
                        self._fail(peer, error)

    def _admit(self, hello: Hello, sock: socket.socket) -> HandshakeReply:
        key = (hello.sender, hello.kind, hello.stream)
        if key in self._connected:
            return HandshakeReply.DUPLICATE
        expected = key in self._awaited and (sock.family == socket.AF_UNIX) == (hello.sender in self._local)
        return HandshakeReply.ACCEPTED if expected else HandshakeReply.UNEXPECTED

    def _welcome(self, hello: Hello, sock: socket.socket) -> None:
        key = (hello.sender, hello.kind, hello.stream)
        self._awaited.remove(key)
        self._add(key, sock)

    def _add(self, key: _Key, sock: socket.socket) -> None:
        self._connected[key] = sock
        if key[1] is ConnectionKind.CONTROL and sock.family != socket.AF_UNIX:
            enable_keepalive(sock, self._heartbeat_timeout)
        if not self._awaited and not self._unmade:
            self._complete.set()

    def _check_peers(self) -> None:
        """Check whether a rank has failed. Its notices are only peeked at, since the formed group reads them."""
        for peer, sock in self._controls():
            try:
                notices = sock.recv(_NOTICES * NOTICE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                notices = b""
            ended, error = peek_notices(notices, peer)
            if error is not None:
                raise RendezvousError(str(error))
            # The other end may be closed although unread data remains.
            if not ended and (not notices or has_events(sock, select.POLLRDHUP)):
                raise RendezvousError(f"{self._name(peer)} died while the group formed: its own output says why")

    def _controls(self) -> list[tuple[int, socket.socket]]:
        return [(peer, sock) for (peer, kind, _), sock in self._connected.items() if kind is ConnectionKind.CONTROL]

    def _abort(self, error: BaseException) -> None:
        """Send the error to the connected ranks, and close everything."""
        reason = error if isinstance(error, CommError) else CommError(f"rank {self._rank} failed: {error!r}")
        notice = pack_notice(reason)
        for _, sock in self._controls():
            with contextlib.suppress(OSError):
                sock.send(notice, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        for sock in self._connected.values():
            sock.close()

    def _fail(self, peer: int, error: OSError) -> NoReturn:
        """Raise the error for a rank that can't be reached, if waiting won't help."""
        self._check_peers()  # a rank that no longer listens may have sent the reason
        number, reason = error.errno, error.strerror or error
        if number in (errno.EMFILE, errno.ENFILE):
            raise RendezvousError(
                f"rank {self._rank} can't open more connections: {reason}. Raise `ulimit -n`, or use fewer streams"
            )
        place = name_endpoint(self._endpoint(peer))
        text = (
            f"rank {self._rank} can't connect to {self._name(peer)} at {place}: {reason}. It listened before, so it "
            "has died or given up: its own output says why"
        )
        if peer in self._local:
            text += ". If it is on another machine, a copy of this one, set HPSEARCH_COMM_HOST (or host=) on each"
        raise RendezvousError(text)

    def _incomplete(self) -> str:
        lines = [f"the {self._topology.size} ranks didn't come together in time, as seen by rank {self._rank}"]
        if self._awaited:
            names = listed([self._name(peer) for peer in sorted(self._missing())], _NAMED)
            lines.append(f"{names} didn't connect to {self._listener.address.ip}, port {self._listener.address.port}")
        unreached = {peer: trouble or "no answer" for (peer, _, _), trouble in sorted(self._unmade.items())}
        places = [
            f"{self._name(peer)} at {name_endpoint(self._endpoint(peer))} ({trouble})"
            for peer, trouble in unreached.items()
        ]
        if places:
            lines.append(f"it can't reach {listed(places, _NAMED)}")
        refused = [f"{count} because {reason}" for reason, count in self._acceptor.refused.most_common(3)]
        if refused:
            lines.append(f"connections were refused meanwhile, {', '.join(refused)}")
        return (
            f"{'; '.join(lines)}. Look at the output of the ranks named. If they are well, a firewall or a wrong "
            "interface is the usual reason: HPSEARCH_COMM_INTERFACE (or interface=) chooses another"
        )

    def _missing(self) -> set[int]:
        return {peer for peer, _, _ in self._awaited}

    def _name(self, peer: int) -> str:
        return self._addresses[peer].name(peer)


def _plan(peer: int, local: bool, streams: int) -> list[_Key]:
    """List the connections to a peer. The control connection comes first; its hello has the number of streams."""
    count = _LOCAL_STREAMS if local else streams
    return [
        (peer, ConnectionKind.CONTROL, count),
        *((peer, ConnectionKind.STREAM, stream) for stream in range(count)),
    ]
