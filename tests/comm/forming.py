"""Groups that form in threads of this process, and what is watched while they do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connect import Connections, connect
from hpsearch_comm.bootstrap.handshake import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Challenge,
    Credentials,
    HandshakeReply,
    Hello,
    Proof,
)
from hpsearch_comm.bootstrap.listener import Listener

LOOPBACK = "127.0.0.1"
PATIENCE = 60.0
"""Seconds that a test waits at most for what should take milliseconds."""

HEARTBEAT_TIMEOUT = 60.0

Outcome = Connections | Exception


def new_credentials(group: str = "group", epoch: int = 0) -> Credentials:
    return Credentials(secrets.token_bytes(32), group, epoch)


def listeners(size: int, hosts: Sequence[str] | None = None) -> list[Listener]:
    return [Listener(LOOPBACK, host=hosts[rank] if hosts else None) for rank in range(size)]


class Forming:
    """Ranks that connect, each in a thread; `outcomes` waits for what came of them."""

    def __init__(
        self,
        group: Sequence[Listener],
        credentials: Credentials,
        streams: int = 2,
        tcp_only: bool = False,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ):
        self.listeners = group
        self.addresses = [listener.address for listener in group]
        self.credentials = credentials
        self._streams = streams
        self._tcp_only = tcp_only
        self._heartbeat_timeout = heartbeat_timeout
        self._pool = concurrent.futures.ThreadPoolExecutor(len(group))
        self._ranks: dict[int, concurrent.futures.Future[Connections]] = {}

    def start(
        self,
        rank: int,
        *,
        addresses: Sequence[Address] | None = None,
        credentials: Credentials | None = None,
        streams: int | None = None,
        seconds: float = PATIENCE,
    ) -> None:
        self._ranks[rank] = self._pool.submit(
            connect,
            rank,
            addresses or self.addresses,
            self.listeners[rank],
            credentials or self.credentials,
            streams=streams or self._streams,
            tcp_only=self._tcp_only,
            heartbeat_timeout=self._heartbeat_timeout,
            deadline=time.monotonic() + seconds,
        )

    def outcomes(self) -> dict[int, Outcome]:
        found: dict[int, Outcome] = {}
        for rank, future in self._ranks.items():
            error = future.exception(2 * PATIENCE)
            assert error is None or isinstance(error, Exception)
            found[rank] = error or future.result()
        return found

    def connections(self) -> dict[int, Connections]:
        """Return the connections of each rank, all of which must succeed."""
        found = self.outcomes()
        made = {rank: outcome for rank, outcome in found.items() if isinstance(outcome, Connections)}
        assert made.keys() == found.keys(), found
        return made

    def errors(self) -> dict[int, Exception]:
        """Return the error of each rank, all of which must fail."""
        found = self.outcomes()
        errors = {rank: outcome for rank, outcome in found.items() if isinstance(outcome, Exception)}
        assert errors.keys() == found.keys(), found
        return errors

    def result(self, rank: int, seconds: float = PATIENCE) -> Connections:
        """Return the connections of one rank.

        Raises:
            TimeoutError: It goes on connecting.
        """
        return self._ranks[rank].result(seconds)

    def end(self) -> None:
        concurrent.futures.wait(self._ranks.values())
        for future in self._ranks.values():
            if future.exception() is None:
                future.result().close()
        for listener in self.listeners:
            listener.close()
        self._pool.shutdown()


@contextlib.contextmanager
def forming(
    size: int,
    *,
    hosts: Sequence[str] | None = None,
    credentials: Credentials | None = None,
    streams: int = 2,
    tcp_only: bool = False,
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
) -> Iterator[Forming]:
    group = Forming(listeners(size, hosts), credentials or new_credentials(), streams, tcp_only, heartbeat_timeout)
    try:
        yield group
    finally:
        group.end()


@contextlib.contextmanager
def leaking_nothing() -> Iterator[None]:
    """See that what runs inside leaves no descriptor and no thread behind."""
    files, threads = open_files(), threading.active_count()
    yield
    if open_files() != files:
        # Something older may have been closed meanwhile, and something new may only wait to be collected.
        gc.collect()
    assert not open_files().items() - files.items()
    assert threading.active_count() <= threads


def open_files() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the listing's own
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return found


def dial(address: Address, *, local: bool = False) -> socket.socket:
    """Connect as anybody could."""
    sock = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
    try:
        sock.settimeout(PATIENCE)
        sock.connect(f"\0{address.unix}" if local else (address.ip, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def prove(sock: socket.socket, credentials: Credentials, hello: Hello, after: bytes = b"") -> Proof:
    """Do the client's side of a handshake that the server accepts, and send these bytes right after it.

    Raises:
        ConnectionResetError: The server closed the connection. If it left bytes unread, its answer is lost too.
    """
    sock.settimeout(PATIENCE)
    proof = Proof(credentials, hello)
    sock.sendall(proof.message(read(sock, NONCE_BYTES)) + after)
    answer = read(sock, ANSWER_BYTES)
    if len(answer) < ANSWER_BYTES:
        raise ConnectionResetError("the server closed the connection before its answer arrived")
    proof.check(answer)
    return proof


def verify(sock: socket.socket, credentials: Credentials, rank: int = 0) -> Hello:
    """Do the server's side of a handshake, where the client is to be accepted."""
    sock.settimeout(PATIENCE)
    challenge = Challenge(credentials, rank)
    sock.sendall(challenge.nonce)
    proof = read(sock, PROOF_BYTES)
    judgement = challenge.judge(proof + read(sock, Challenge.missing_bytes(proof)))
    sock.sendall(judgement.answer)
    assert judgement.hello is not None
    assert judgement.verdict is HandshakeReply.ACCEPTED
    return judgement.hello


def knock(group: Forming, local: bool, credentials: Credentials, hello: Hello) -> HandshakeReply:
    """Come to rank 0 as somebody; return its verdict, and sees that nothing follows a refusal."""
    with dial(group.addresses[0], local=local) as sock:
        sock.sendall(Proof(credentials, hello).message(read(sock, NONCE_BYTES)))
        answer = read(sock, ANSWER_BYTES)
        assert read_to_end(sock) == b""
        return HandshakeReply(answer[0])


def read(sock: socket.socket, count: int) -> bytes:
    """Read this many bytes, or as many as come before the end."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while len(found) < count and (chunk := sock.recv(count - len(found))):
            found += chunk
    return found


def read_to_end(sock: socket.socket) -> bytes:
    return read(sock, 1 << 20)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for has not come"
        time.sleep(0.005)


def check_pairs(made: dict[int, Connections], expect_local: Callable[[int, int], bool]) -> None:
    """See that every connection leads from each rank to the one that holds its other end, and is of the right sort."""
    for rank, mine in made.items():
        others = [peer for peer in made if peer != rank]
        assert sorted(mine.controls) == sorted(others)
        assert sorted(mine.streams) == sorted(others)
        for peer, sock in mine.controls.items():
            _check_ends(sock, made[peer].controls[rank])
        for peer, streams in mine.streams.items():
            local = expect_local(rank, peer)
            for sock, other in zip(streams, made[peer].streams[rank], strict=True):
                assert sock.family == (socket.AF_UNIX if local else socket.AF_INET)
                assert local or sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                _check_ends(sock, other)


def _check_ends(sock: socket.socket, other: socket.socket) -> None:
    assert sock.gettimeout() is None
    word = secrets.token_bytes(8)
    sock.sendall(word)
    assert read(other, 8) == word
