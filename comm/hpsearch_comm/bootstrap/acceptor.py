"""The acceptor: it accepts connections, runs the handshake, and passes on those that authenticate.

Each handshake is a task, so a slow one delays nobody. Their number is limited, and each has a deadline. At the limit,
new connections wait in the kernel's queue until the oldest handshake has had its minimum time and is dropped. Somebody
who opens idle connections can therefore slow the ranks down, but can't lock them out, because a genuine handshake takes
only two round trips.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import math
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from hpsearch_comm.bootstrap.handshake import PROOF_BYTES, Challenge, Credentials, HandshakeReply, Hello
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.tasks import Task, Tasks, received, sleep
from hpsearch_comm.errors import RendezvousError

RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that resets a connection when it is closed."""

_PATIENCE = 5.0
"""Seconds that a handshake may take."""
_CROWDED_PATIENCE = 0.25
"""Seconds that a handshake may take while other connections wait at the limit."""
_CROWDED_PAUSE = 0.01
"""Seconds between two looks for a place at the limit."""
_MOST_PLACES = 256
_LOGGED = 10
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections on listening sockets, and runs the server's side of their handshakes.

    A refused connection is counted, logged and closed. The client receives the reason if it knows the secret. On Unix
    sockets the peer must also run as this process's user. If the process has no descriptors left, the tasks raise
    RendezvousError.

    Args:
        tasks: Runs the handshakes, and ends those that aren't complete when it is closed.
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
        tasks: Tasks,
        listening: Sequence[socket.socket],
        rank: int,
        credentials: Credentials,
        admit: Callable[[Hello, socket.socket], HandshakeReply],
        on_accepted: Callable[[Hello, socket.socket], None],
    ) -> None:
        self._tasks = tasks
        self._rank = rank
        self._credentials = credentials
        self._admit = admit
        self._on_accepted = on_accepted
        self._pending: dict[socket.socket, tuple[float, Task[None]]] = {}  # start time; the oldest first
        self._max_handshakes = min(_MOST_PLACES, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self.refused: collections.Counter[str] = collections.Counter()
        for sock in listening:
            sock.setblocking(False)
            tasks.start(self._accept(sock))

    def refuse(self, sock: socket.socket, reason: str, level: int = logging.WARNING) -> None:
        """Close a connection, count the reason, and log it at this level of `logging`."""
        try:
            origin = sock.getpeername() if sock.family != socket.AF_UNIX else "this host"
        except OSError:
            origin = "a peer that has gone"
        _reset(sock)
        self.refused[reason] += 1
        # Many refused connections must not fill the disk.
        if self.refused[reason] > _LOGGED:
            level = logging.DEBUG
        _log.log(level, "rank %d refused a connection from %s: %s", self._rank, origin, reason)

    def _accept(self, listening: socket.socket) -> Task[None]:
        while True:
            yield listening, select.EPOLLIN, math.inf
            while len(self._pending) >= self._max_handshakes:
                since, oldest = next(iter(self._pending.values()))
                if time.monotonic() - since >= _CROWDED_PATIENCE:
                    self._tasks.interrupt(oldest, TimeoutError())
                else:
                    yield from sleep(_CROWDED_PAUSE)
            try:
                sock, _ = listening.accept()
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._make_room(error)
                continue  # otherwise the queue is empty, or its first connection has been closed
            close_in_children(sock)
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif peer_uid(sock) != os.geteuid():
                self.refuse(sock, f"it comes from user {peer_uid(sock)}, this process is of user {os.geteuid()}")
                continue
            handshake = self._shake_hands(sock)
            self._pending[sock] = time.monotonic(), handshake
            self._tasks.start(handshake)

    def _shake_hands(self, sock: socket.socket) -> Task[None]:
        """Run the server's side of a handshake."""
        until = time.monotonic() + _PATIENCE
        challenge = Challenge(self._credentials, self._rank)
        try:
            sock.send(challenge.nonce, socket.MSG_NOSIGNAL)
            proof = yield from received(sock, PROOF_BYTES, until)
            proof += yield from received(sock, Challenge.missing_bytes(proof), until)
        except TimeoutError:
            self.refuse(sock, "it didn't prove itself in time")
        except OSError:
            self._count_gone(sock, "it left before it proved anything")
        except GeneratorExit:
            _reset(sock)
            raise
        else:
            self._judge(sock, challenge, proof)
        finally:
            del self._pending[sock]

    def _judge(self, sock: socket.socket, challenge: Challenge, proof: bytes) -> None:
        judgement = challenge.judge(proof, lambda hello: self._admit(hello, sock))
        answered = False
        with contextlib.suppress(OSError):  # a new connection's buffer has room for the answer
            answered = sock.send(judgement.answer, socket.MSG_NOSIGNAL) == len(judgement.answer)
        if judgement.verdict is not HandshakeReply.ACCEPTED or judgement.hello is None:
            prefix = f"rank {judgement.hello.sender}: " if judgement.hello else ""
            self.refuse(sock, prefix + judgement.verdict.reason)
        elif not answered:
            self._count_gone(sock, f"rank {judgement.hello.sender}: it left before it was accepted")
        else:
            sock.setblocking(True)
            self._on_accepted(judgement.hello, sock)

    def _count_gone(self, sock: socket.socket, reason: str) -> None:
        """Close a connection that the other side has ended.

        That is no reason to warn: a rank that watches a late one leaves as soon as the late one has connected.
        """
        self.refuse(sock, reason, logging.DEBUG)

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
