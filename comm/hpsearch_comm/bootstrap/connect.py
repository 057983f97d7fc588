"""The connections between all ranks of a group.

Of two ranks, the lower accepts and the higher connects. Every pair gets a control connection; two ranks of one host get
a Unix socket through which descriptors of shared memory go, two ranks of different hosts some TCP streams. Everything
happens in one loop of the calling thread, both ways at once, so no order of arrival can lock the ranks up.

Were a higher rank killed before it connects, the lower one would learn nothing until its deadline. So while it waits it
opens a connection of its own, which the other holds for as long as it forms its group. Where such a connection can't be
made, as through a firewall, nothing is known of the rank; the group forms without.

Whoever fails while the group forms tells the ranks that it has reached, and they tell others: all end with the first
reason, soon, in place of a time-out each.

The kernel notices when a peer's host has gone, which sends no end of file. The kernels ask each other, and not the
processes: a process that computes or is stopped, on a host that answers, is never taken for dead. A host may be silent
for a while and live: a virtual machine that migrates, a network that is down.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import select
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hpsearch_comm.bootstrap.acceptor import Acceptor, poll_any
from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connector import Connector, Endpoint
from hpsearch_comm.bootstrap.exchange import listed
from hpsearch_comm.bootstrap.handshake import ConnectionKind, Credentials, HandshakeReply, Hello
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.errors import CommError, ConfigurationError, RendezvousError
from hpsearch_comm.failure.detector import NOTICE_BYTES, pack_notice, peek_notices
from hpsearch_comm.topology import Topology

_PROBES = 6
_MOST_SECONDS = 32767
"""The kernel's highest for TCP_KEEPIDLE and TCP_KEEPINTVL: man 7 tcp."""
_MOST_MILLISECONDS = 2**31 - 1


def enable_keepalive(sock: socket.socket, silence: float) -> None:
    """Make a TCP connection end when the other host no longer answers.

    Args:
        sock: The connection.
        silence: Seconds for which the other host may answer nothing. The kernel asks at most once a second.
    """
    interval = min(max(1, math.ceil(silence / _PROBES)), _MOST_SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    # Where this is set, the kernel ends the connection by it, whatever the number of probes: RFC 5482, tcp(7).
    milliseconds = min(max(1, math.ceil(silence * 1000)), _MOST_MILLISECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


MOST_STREAMS = 65

_SLICE = 0.1
"""Seconds between two looks at what the other ranks say, and at deadlines."""
_UNDER_WAY = 64
"""Connections that a rank opens at the same time, so that a large group doesn't flood one of its ranks."""
_WATCH_SECONDS = 0.5
"""How long a rank may be missing until it is watched."""
_MOST_WATCHED = 64
"""Ranks that are watched at a time, so that a large group doesn't flood its late ones."""
_REFUSED_SECONDS = 3.0
"""How long a watched rank of another host must refuse connections until it counts as gone. A firewall may refuse them
in its place: a rank that is well connects by itself meanwhile."""
_NAMED = 8
"""Ranks that an error names; of more it gives the number."""

_NOTICES = 128
"""Notices of a rank that are looked at: one that has finished before the others sends one a second while it waits."""

_Key = tuple[int, ConnectionKind, int]
"""The peer, what for, and which stream."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What a rank holds when the group has formed: blocking sockets, its own to close.

    Forked children close their copies, as long as the sockets stay the objects that they are here.
    """

    topology: Topology
    """Who shares a host with whom."""
    controls: dict[int, socket.socket] = field(default_factory=dict)
    """A connection to each other rank."""
    descriptors: dict[int, socket.socket] = field(default_factory=dict)
    """A Unix socket to each other rank of this host; none where everything goes over TCP."""
    streams: dict[int, list[socket.socket]] = field(default_factory=dict)
    """TCP connections to each rank that `descriptors` lacks, without Nagle's delay, in the same order on both sides."""

    def close(self) -> None:
        """Close all of them."""
        for sock in itertools.chain(self.controls.values(), self.descriptors.values(), *self.streams.values()):
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
        addresses: Where each rank is reached, by rank.
        listener: This rank's; closed afterwards, whatever happens.
        credentials: The group's.
        streams: TCP connections between two ranks of different hosts.
        tcp_only: Whether ranks of one host go over TCP as well.
        heartbeat_timeout: Seconds for which a rank's host may answer nothing before the rank counts as dead.
        deadline: When to give up, in seconds of `time.monotonic()`.

    Raises:
        ConfigurationError: The arguments don't fit together.
        RefusedError: A rank refuses this one: another secret, epoch or arguments, or a rank that is there twice.
        RendezvousError: Ranks are missing at the deadline, have died, or have given up; names them.
    """
    with listener:
        _check_addresses(rank, addresses, listener.address)
        topology = Topology.of(rank, [address.host for address in addresses])
        try:
            with _Bootstrap(
                topology, addresses, listener, credentials, streams, tcp_only, heartbeat_timeout
            ) as bootstrap:
                bootstrap.run(deadline)
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
                f"every rank must have its own address, ranks {first[address]} and {rank_of_address} share one"
            )


class _Bootstrap:
    """The group as far as it has formed on this rank."""

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
        self._own_address = listener.address
        self._credentials = credentials
        self._local = set() if tcp_only else set(topology.local_ranks)
        self._connected: dict[_Key, socket.socket] = {}
        self._awaited: set[_Key] = set()
        """What the higher ranks have yet to connect."""
        self._heartbeat_timeout = heartbeat_timeout
        self._outgoing: dict[_Key, Connector] = {}
        """What this rank has yet to connect, in this order."""
        self._watching: dict[int, Connector] = {}
        """To the higher ranks that have yet to connect."""
        self._watched: dict[int, socket.socket] = {}
        """Connections by which this rank sees that these are there."""
        self._watched_by: list[socket.socket] = []
        """Connections by which lower ranks see that this one is there."""
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(listener.sockets, self._rank, credentials, self._admit, self._welcome)
        self._selector.register(self._acceptor, selectors.EVENT_READ)
        self._last_check = time.monotonic()
        # Each rank begins with the one right below it, so that not all come to rank 0 first.
        for peer in range(self._rank - 1, -1, -1):
            self._outgoing |= {key: self._connector(*key) for key in _plan(peer, peer in self._local, streams)}
        for peer in range(self._rank + 1, topology.size):
            self._awaited.update(_plan(peer, peer in self._local, streams))
            self._watching[peer] = self._connector(peer, ConnectionKind.PRESENCE, 0)
            self._watching[peer].due = self._last_check + _WATCH_SECONDS

    def __enter__(self) -> _Bootstrap:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._acceptor.close()
        for connector in self._outgoing.values():
            connector.close()
        for peer in list(self._watching):
            self._unwatch(peer)
        self._selector.close()
        if error is not None:
            self._abort(error)
        for sock in self._watched_by:
            sock.close()

    def run(self, deadline: float) -> None:
        """Go on until every connection is made."""
        try:
            while self._awaited or self._outgoing:
                self._step(deadline)
        except RendezvousError:
            # A peer that listens no more may have said why.
            self._check_peers()
            raise

    def connections(self) -> Connections:
        """Return what has been made, in the order of the peers."""
        result = Connections(self._topology)
        for (peer, kind, _), sock in sorted(self._connected.items()):
            if kind is ConnectionKind.CONTROL:
                result.controls[peer] = sock
            elif kind is ConnectionKind.DESCRIPTORS:
                result.descriptors[peer] = sock
            else:
                result.streams.setdefault(peer, []).append(sock)
        return result

    def _step(self, deadline: float) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise RendezvousError(self._incomplete())
        self._start(now)
        for key, _ in self._selector.select(min(_SLICE, deadline - now)):
            if key.data is not None:
                self._settle(key.data, key.data.advance())
        self._acceptor.step(0)
        if now - self._last_check >= _SLICE:
            self._last_check = now
            self._check_peers()
            self._watch(now)

    def _connector(self, peer: int, kind: ConnectionKind, stream: int) -> Connector:
        address = self._addresses[peer]
        target: Endpoint = f"\0{address.unix}" if peer in self._local else (address.ip, address.port)
        hello = Hello(self._rank, peer, kind, stream)
        return Connector(hello, target, self._credentials, self._selector, self._own_address.ip)

    def _start(self, now: float) -> None:
        """Start what is due, as long as there is room."""
        idle = [connector for connector in self._outgoing.values() if not connector.in_progress]
        room = _UNDER_WAY - len(self._outgoing) + len(idle)
        for connector in [connector for connector in idle if connector.due <= now][:room]:
            connector.start()
            self._settle(connector, None)

    def _settle(self, connector: Connector, sock: socket.socket | None) -> None:
        """Keep a connection that is made, or look at why it isn't."""
        hello = connector.hello
        if sock is not None:
            self._outgoing.pop((hello.target, hello.kind, hello.stream), None)
            self._add(hello.target, hello, sock)
        elif hello.kind is not ConnectionKind.PRESENCE and not connector.in_progress and not connector.is_transient:
            self._fail(connector)

    def _watch(self, now: float) -> None:
        """Check whether the ranks that haven't connected yet are still alive; called now and then."""
        missing = self._missing()
        for peer in self._watching.keys() - missing:
            self._unwatch(peer)
        for peer, connector in list(self._watching.items())[:_MOST_WATCHED]:
            if now - connector.refused_since >= (0.0 if peer in self._local else _REFUSED_SECONDS):
                self._fail(connector)
            if peer not in self._watched and not connector.in_progress and connector.due <= now:
                connector.start()

    def _unwatch(self, peer: int) -> None:
        self._watching.pop(peer).close()
        sock = self._watched.pop(peer, None)
        if sock is not None:
            sock.close()

    def _admit(self, hello: Hello, sock: socket.socket) -> HandshakeReply:
        if hello.kind is ConnectionKind.PRESENCE:
            return HandshakeReply.ACCEPTED if 0 <= hello.sender < self._rank else HandshakeReply.UNEXPECTED
        key = (hello.sender, hello.kind, hello.stream)
        if key in self._connected:
            return HandshakeReply.DUPLICATE
        expected = key in self._awaited and (sock.family == socket.AF_UNIX) == (hello.sender in self._local)
        return HandshakeReply.ACCEPTED if expected else HandshakeReply.UNEXPECTED

    def _welcome(self, hello: Hello, sock: socket.socket) -> None:
        if hello.kind is ConnectionKind.PRESENCE:
            self._watched_by.append(sock)
            return
        self._awaited.remove((hello.sender, hello.kind, hello.stream))
        self._add(hello.sender, hello, sock)

    def _add(self, peer: int, hello: Hello, sock: socket.socket) -> None:
        if hello.kind is ConnectionKind.PRESENCE:
            self._watched[peer] = sock
        else:
            self._connected[peer, hello.kind, hello.stream] = sock
        if sock.family != socket.AF_UNIX and hello.kind in (ConnectionKind.CONTROL, ConnectionKind.PRESENCE):
            enable_keepalive(sock, self._heartbeat_timeout)

    def _check_peers(self) -> None:
        """Check whether a rank has failed. What it sent stays unread, for the group."""
        missing = self._missing()
        watched = [(peer, sock) for peer, sock in self._watched.items() if peer in missing]
        for peer, sock in (*self._controls(), *watched):
            try:
                notices = sock.recv(_NOTICES * NOTICE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                notices = b""
            ended, error = peek_notices(notices, peer)
            if error is not None:
                raise RendezvousError(str(error))
            # The other end may be closed, though not everything that came from it has been read.
            if not ended and (not notices or poll_any([sock], select.POLLRDHUP)):
                raise RendezvousError(f"{self._name(peer)} died while the group formed: its own output says why")

    def _controls(self) -> list[tuple[int, socket.socket]]:
        return [(peer, sock) for (peer, kind, _), sock in self._connected.items() if kind is ConnectionKind.CONTROL]

    def _missing(self) -> set[int]:
        """Return the higher ranks that have yet to connect."""
        return {peer for peer, _, _ in self._awaited}

    def _abort(self, error: BaseException) -> None:
        """Tell those that have been reached why, and close everything."""
        reason = error if isinstance(error, CommError) else CommError(f"rank {self._rank} failed: {error!r}")
        notice = pack_notice(reason)
        for sock in (*(control for _, control in self._controls()), *self._watched_by):
            with contextlib.suppress(OSError):
                sock.send(notice, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        for sock in self._connected.values():
            sock.close()

    def _fail(self, connector: Connector) -> NoReturn:
        """Say that a rank can't be connected to, and that waiting won't help."""
        peer, number, reason = connector.hello.target, connector.errno, connector.last_error
        if number in (errno.EMFILE, errno.ENFILE):
            raise RendezvousError(
                f"rank {self._rank} can't open more connections: {reason}. Raise `ulimit -n`, or use fewer streams"
            )
        text = f"rank {self._rank} can't connect to {self._name(peer)} at {connector.target_name}: {reason}. "
        if number != errno.ECONNREFUSED:
            text += (
                f"This rank's own address is {self._own_address.ip}; HPSEARCH_COMM_INTERFACE (or interface=) changes it"
            )
        else:
            text += "It listened before, so it has died or given up: its own output says why"
            if peer in self._local:
                text += ". If it is on another machine, a copy of this one, set HPSEARCH_COMM_HOST (or host=) on each"
        raise RendezvousError(text)

    def _incomplete(self) -> str:
        lines = [f"the {self._topology.size} ranks didn't come together in time, as seen by rank {self._rank}"]
        missing = sorted(self._missing())
        if missing:
            names = listed([self._name(peer) for peer in missing], _NAMED)
            lines.append(f"{names} didn't connect to {self._own_address.ip}, port {self._own_address.port}")
        unreached = {connector.hello.target: connector for connector in self._outgoing.values()}
        for peer in sorted(unreached)[:_NAMED]:
            trouble = unreached[peer].last_error or "no answer"
            lines.append(f"{self._name(peer)} can't be reached at {unreached[peer].target_name} ({trouble})")
        if len(unreached) > _NAMED:
            lines.append(f"nor can {len(unreached) - _NAMED} more")
        refused = [f"{count} because {reason}" for reason, count in self._acceptor.refused.most_common(3)]
        if refused:
            lines.append(f"connections were refused meanwhile, {', '.join(refused)}")
        return (
            f"{'; '.join(lines)}. Look at the output of the ranks named. If they are well, a firewall or a wrong "
            "interface is the usual reason: HPSEARCH_COMM_INTERFACE (or interface=) chooses another"
        )

    def _name(self, peer: int) -> str:
        return self._addresses[peer].name(peer)


def _plan(peer: int, local: bool, streams: int) -> list[_Key]:
    """List the connections to a peer. The control connection comes first, and says how many streams follow."""
    if local:
        return [(peer, ConnectionKind.CONTROL, 0), (peer, ConnectionKind.DESCRIPTORS, 0)]
    return [
        (peer, ConnectionKind.CONTROL, streams),
        *((peer, ConnectionKind.STREAM, stream) for stream in range(streams)),
    ]
