"""The acceptor: it accepts connections, runs the handshake, and passes on those that authenticate.

Many handshakes run concurrently, so a slow one delays nobody. Their number is limited, and each has a deadline. At the
limit, new connections wait in the kernel's queue until the oldest handshake has had its minimum time and is dropped.
Somebody who opens idle connections can therefore slow the ranks down, but can't lock them out, because a genuine
handshake takes only two round trips. No thread is needed: the owner calls `step` until all ranks have connected.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import os
import resource
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable, Generator, Sequence

from hpsearch_comm.bootstrap.handshake import PROOF_BYTES, Challenge, Credentials, HandshakeReply, Hello
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.errors import RendezvousError

RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that resets a connection when it is closed."""

_PATIENCE = 5.0
"""Seconds that a handshake may take."""
_CROWDED_PATIENCE = 0.25
"""Seconds that a handshake may take while other connections wait at the limit."""
_MOST_PLACES = 256
_ACCEPTED_AT_ONCE = 64
_LOGGED = 10
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_Handshake = Generator[None, None, tuple[Challenge, bytes]]

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections on listening sockets, and runs the server's side of their handshakes.

    A refused connection is counted, logged and closed. The client receives the reason if it knows the secret. On Unix
    sockets the peer must also run as this process's user.

    Args:
        listening: Listening sockets; the caller closes them.
        rank: This rank.
        credentials: The group's credentials.
        admit: Decides whether a connection with the right group, epoch and rank is accepted.
        on_accepted: Called with each accepted connection, in blocking mode; it must close the connection.

    Attributes:
        refused: Number of refused connections, by reason.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        rank: int,
        credentials: Credentials,
        admit: Callable[[Hello, socket.socket], HandshakeReply],
        on_accepted: Callable[[Hello, socket.socket], None],
    ) -> None:
        self._listening = list(listening)
        self._rank = rank
        self._credentials = credentials
        self._admit = admit
        self._on_accepted = on_accepted
        self._pending: dict[socket.socket, tuple[float, _Handshake]] = {}  # start time; the oldest first
        self._max_handshakes = min(_MOST_PLACES, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._accepting = False
        self.refused: collections.Counter[str] = collections.Counter()
        self._selector = selectors.DefaultSelector()
        for sock in self._listening:
            sock.setblocking(False)
        self._set_accepting(True)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `step` has something to do; for another selector."""
        return self._selector.fileno()

    def step(self, seconds: float) -> None:
        """Wait for events, at most for the given seconds, and handle them.

        Call it at least every 0.1 s: it also checks the deadlines.

        Raises:
            RendezvousError: The process has no descriptors left.
        """
        for key, _ in self._selector.select(seconds):
            key.data(key.fileobj)
        self._drop_slow()

    def close(self) -> None:
        """Close the connections whose handshake isn't complete. The listening sockets stay open."""
        for sock in list(self._pending):
            self._forget(sock)
            _reset(sock)
        self._selector.close()

    def refuse(self, sock: socket.socket, reason: str) -> None:
        """Close a connection, and count and log the reason."""
        try:
            origin = sock.getpeername() if sock.family != socket.AF_UNIX else "this host"
        except OSError:
            origin = "a peer that has gone"
        _reset(sock)
        self.refused[reason] += 1
        # Many refused connections must not fill the disk.
        level = logging.WARNING if self.refused[reason] <= _LOGGED else logging.DEBUG
        _log.log(level, "rank %d refused a connection from %s: %s", self._rank, origin, reason)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self._pending) >= self._max_handshakes:
                return
            try:
                sock, _ = listening.accept()
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._make_room(error)
                # Otherwise the queue is empty, or its first connection has been closed.
                return
            close_in_children(sock)
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif peer_uid(sock) != os.geteuid():
                self.refuse(sock, f"it comes from user {peer_uid(sock)}, this process is of user {os.geteuid()}")
                continue
            self._pending[sock] = time.monotonic(), self._shake_hands(sock)
            self._selector.register(sock, selectors.EVENT_READ, self._advance)
            self._advance(sock)

    def _advance(self, sock: socket.socket) -> None:
        """Continue a handshake after data has arrived."""
        try:
            next(self._pending[sock][1])
        except StopIteration as end:
            self._forget(sock)
            self._judge(sock, *end.value)
        except OSError:
            self._forget(sock)
            self.refuse(sock, "it left before it proved anything")

    def _shake_hands(self, sock: socket.socket) -> _Handshake:
        """Run the server's side up to the verdict. Yield whenever data from the client is needed."""
        challenge = Challenge(self._credentials, self._rank)
        if not _send(sock, challenge.nonce):
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        proof = yield from received(sock, PROOF_BYTES)
        return challenge, proof + (yield from received(sock, Challenge.missing_bytes(proof)))

    def _judge(self, sock: socket.socket, challenge: Challenge, proof: bytes) -> None:
        judgement = challenge.judge(proof, lambda hello: self._admit(hello, sock))
        answered = _send(sock, judgement.answer)
        if judgement.verdict is not HandshakeReply.ACCEPTED or judgement.hello is None:
            prefix = f"rank {judgement.hello.sender}: " if judgement.hello else ""
            self.refuse(sock, prefix + judgement.verdict.reason)
        elif not answered:
            self.refuse(sock, f"rank {judgement.hello.sender}: it left before it was accepted")
        else:
            sock.setblocking(True)
            self._on_accepted(judgement.hello, sock)

    def _drop_slow(self) -> None:
        now = time.monotonic()
        crowded = len(self._pending) >= self._max_handshakes and poll_any(self._listening, select.POLLIN)
        while self._pending:
            oldest, (since, _) = next(iter(self._pending.items()))
            if now - since < (_CROWDED_PATIENCE if crowded else _PATIENCE):
                break
            self._forget(oldest)
            self.refuse(oldest, "it didn't prove itself in time")
            crowded = False  # one free slot is enough for the next connection
        self._set_accepting(len(self._pending) < self._max_handshakes)

    def _make_room(self, error: OSError) -> None:
        """Lower the limit to the current number of handshakes, because the process has run out of descriptors.

        Raises:
            RendezvousError: There is no handshake, so no descriptor will become free.
        """
        if not self._pending:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise RendezvousError(
                f"rank {self._rank} can't accept more connections: {error.strerror}. This process may open {limit} "
                "files: raise `ulimit -n`, or use fewer streams"
            ) from None
        self._max_handshakes = max(1, len(self._pending))

    def _set_accepting(self, accepting: bool) -> None:
        """Poll the listening sockets only below the limit: otherwise they would wake every `step` for nothing."""
        if accepting == self._accepting:
            return
        self._accepting = accepting
        for sock in self._listening:
            if accepting:
                self._selector.register(sock, selectors.EVENT_READ, self._accept)
            else:
                self._selector.unregister(sock)

    def _forget(self, sock: socket.socket) -> None:
        del self._pending[sock]
        self._selector.unregister(sock)


def received(sock: socket.socket, count: int) -> Generator[None, None, bytes]:
    """Receive exactly `count` bytes and return them. Yield before each read.

    Raises:
        OSError: The other side ended the connection.
    """
    arrived = b""
    while len(arrived) < count:
        yield
        try:
            chunk = sock.recv(count - len(arrived))
        except BlockingIOError:
            continue
        if not chunk:
            raise OSError(errno.ECONNRESET, "it ended the connection before it answered")
        arrived += chunk
    return arrived


def poll_any(socks: Sequence[socket.socket], events: int) -> bool:
    """Return whether one of the sockets has one of the events now; see poll(2)."""
    poll = select.poll()
    for sock in socks:
        poll.register(sock, events)
    return bool(poll.poll(0))


def peer_uid(sock: socket.socket) -> int:
    """Return the user ID of the process at the other end of a Unix socket, as the kernel reports it."""
    credentials = struct.Struct("3i")
    _pid, uid, _gid = credentials.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return int(uid)


def _reset(sock: socket.socket) -> None:
    """Reset a connection, so that it doesn't keep the port busy for a minute (TIME_WAIT).

    Data that was sent still arrives, because Nagle's algorithm is off. If it is lost, the peer tries again.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def _send(sock: socket.socket, message: bytes) -> bool:
    """Send a short message on a new connection, whose buffer still has room; return whether it was sent."""
    try:
        return sock.send(message, socket.MSG_NOSIGNAL) == len(message)
    except OSError:
        return False
