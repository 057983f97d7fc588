"""The acceptor: it accepts connections, runs the handshake, and passes on those that authenticate.

Each handshake is a task, so a slow one delays nobody. Their number is limited, and each has a deadline. At the limit,
new connections wait in the kernel's queue. Somebody who opens idle connections can therefore slow the ranks down, but
can't lock them out.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable

from hpsearch_comm.bootstrap.handshake import PROOF_BYTES, Challenge, Credentials, HandshakeReply, Hello
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.tasks import readable, receive
from hpsearch_comm.errors import RendezvousError

RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that resets a connection when it is closed."""

_PATIENCE = 2.0
"""Seconds that a handshake may take."""
_MOST_PLACES = 256
_PAUSE = 0.05
"""Seconds between two tries to accept while there is no descriptor."""
_LOGGED = 10
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections on listening sockets, and runs the server's side of their handshakes.

    A refused connection is counted, logged and closed. The client receives the reason if it knows the secret. On Unix
    sockets the peer must also run as this process's user.

    Args:
        rank: This rank.
        credentials: The group's credentials.
        admit: Decides whether a connection with the right group, epoch and rank is accepted.
        on_accepted: Called with each accepted connection, in blocking mode; it must close the connection.

    Attributes:
        refused: Number of refused connections, by reason.
    """

    def __init__(
        self,
        rank: int,
        credentials: Credentials,
        admit: Callable[[Hello, socket.socket], HandshakeReply],
        on_accepted: Callable[[Hello, socket.socket], None],
    ) -> None:
        self._rank = rank
        self._credentials = credentials
        self._admit = admit
        self._on_accepted = on_accepted
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._places = asyncio.Semaphore(min(_MOST_PLACES, max(8, limit // 4)))
        self._running = 0
        """Number of handshakes that run now."""
        self.refused: collections.Counter[str] = collections.Counter()

    async def serve(self, listening: socket.socket) -> None:
        """Accept the connections of a listening socket until this is cancelled. The caller closes the socket.

        Raises:
            RendezvousError: The process has no descriptors left, and no handshake runs that will give one back.
        """
        listening.setblocking(False)
        async with asyncio.TaskGroup() as handshakes:
            while True:
                await self._places.acquire()
                sock = await self._accept(listening)
                self._running += 1
                handshakes.create_task(self._shake_hands(sock)).add_done_callback(self._on_ended)

    def _on_ended(self, _handshake: asyncio.Task[None]) -> None:
        self._running -= 1
        self._places.release()

    def refuse(self, sock: socket.socket, reason: str, level: int = logging.WARNING) -> None:
        """Close a connection, count the reason, and log it at this level of `logging`."""
        try:
            origin = sock.getpeername() if sock.family != socket.AF_UNIX else "this host"
        except OSError:
            origin = "a peer that has gone"
        self.refused[reason] += 1
        # Many refused connections must not fill the disk.
        if self.refused[reason] > _LOGGED:
            level = logging.DEBUG
        _log.log(level, "rank %d refused a connection from %s: %s", self._rank, origin, reason)
        _reset(sock)

    async def _accept(self, listening: socket.socket) -> socket.socket:
        while True:
            await readable(listening)
            try:
                sock = close_in_children(listening.accept()[0])
                sock.setblocking(False)
                return sock
            except OSError as error:  # otherwise the connection has been closed already
                if error.errno in _SHORTAGES and self._running:  # strangers can only slow the ranks down
                    await asyncio.sleep(_PAUSE)
                elif error.errno in _SHORTAGES:
                    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                    raise RendezvousError(
                        f"rank {self._rank} can't accept more connections: {error.strerror}. This process may open "
                        f"{limit} files: raise `ulimit -n`, or use fewer streams"
                    ) from None

    async def _shake_hands(self, sock: socket.socket) -> None:
        """Run the server's side of a handshake."""
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif peer_uid(sock) != os.geteuid():
            self.refuse(sock, f"it comes from user {peer_uid(sock)}, this process is of user {os.geteuid()}")
            return
        challenge = Challenge(self._credentials, self._rank)
        try:
            async with asyncio.timeout(_PATIENCE):
                sock.send(challenge.nonce, socket.MSG_NOSIGNAL)
                proof = await receive(sock, PROOF_BYTES)
                proof += await receive(sock, Challenge.missing_bytes(proof))
        except TimeoutError:
            self.refuse(sock, "it didn't prove itself in time")
        except OSError:
            # No reason to warn: a rank that waits for this one looks whether it still listens.
            self.refuse(sock, "it left before it proved anything", logging.DEBUG)
        except asyncio.CancelledError:
            _reset(sock)
            raise
        else:
            self._judge(sock, challenge, proof)

    def _judge(self, sock: socket.socket, challenge: Challenge, proof: bytes) -> None:
        judgement = challenge.judge(proof, lambda hello: self._admit(hello, sock))
        answered = False
        with contextlib.suppress(OSError):  # a new connection's buffer has room for the answer
            answered = sock.send(judgement.answer, socket.MSG_NOSIGNAL) == len(judgement.answer)
        if judgement.verdict is not HandshakeReply.ACCEPTED or judgement.hello is None:
            prefix = f"rank {judgement.hello.sender}: " if judgement.hello else ""
            self.refuse(sock, prefix + judgement.verdict.reason)
        elif not answered:
            self.refuse(sock, f"rank {judgement.hello.sender}: it left before it was accepted", logging.DEBUG)
        else:
            sock.setblocking(True)
            self._on_accepted(judgement.hello, sock)


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
