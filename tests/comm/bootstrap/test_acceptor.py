from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.bootstrap import acceptor as acceptor_module
from hpsearch_comm.bootstrap.acceptor import Acceptor
from hpsearch_comm.bootstrap.handshake import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ConnectionKind,
    Credentials,
    HandshakeReply,
    Hello,
    Proof,
)
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.tasks import alongside, run
from hpsearch_comm.errors import RendezvousError
from tests.comm.forming import LOOPBACK, PATIENCE, dial, leaking_nothing, new_credentials, read, read_to_end, wait_until
from tests.comm.other_user import as_nobody

HELLO = Hello(1, 0, ConnectionKind.CONTROL)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaking_nothing():
        yield


class Desk:
    """An acceptor of rank 0 in a thread, that lets everybody in who is of the group."""

    def __init__(self) -> None:
        self.credentials = new_credentials()
        self.listener = Listener(LOOPBACK)
        self.welcomed: list[tuple[Hello, socket.socket]] = []
        self.acceptor = Acceptor(
            0,
            self.credentials,
            lambda hello, sock: HandshakeReply.ACCEPTED,
            lambda hello, sock: self.welcomed.append((hello, sock)),
        )
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        serving = alongside(self._stopped(), map(self.acceptor.serve, self.listener.sockets))
        self.served = self._pool.submit(run, serving)

    async def _stopped(self) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(0.005)

    def enter(self, credentials: Credentials | None = None, *, local: bool = False) -> bytes:
        """Come as a rank would; return the answer."""
        with dial(self.listener.address, local=local) as sock:
            proof = Proof(credentials or self.credentials, HELLO)
            sock.sendall(proof.message(read(sock, NONCE_BYTES)))
            return read(sock, ANSWER_BYTES)

    def stop(self) -> None:
        self._stop.set()
        self._pool.shutdown()

    def close(self) -> None:
        self.stop()
        self.listener.close()
        for _, sock in self.welcomed:
            sock.close()


@pytest.fixture
def desk(nothing_leaks: None) -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.mark.parametrize("local", [False, True], ids=["tcp", "unix"])
def test_who_proves_the_secret_is_welcomed(desk, local):
    assert desk.enter(local=local)[0] == HandshakeReply.ACCEPTED
    wait_until(lambda: bool(desk.welcomed))
    [(hello, sock)] = desk.welcomed
    assert hello == HELLO
    assert sock.gettimeout() is None
    assert sock.family == (socket.AF_UNIX if local else socket.AF_INET)
    assert not desk.acceptor.refused


def test_who_does_not_is_refused_logged_and_forgotten(desk, caplog):
    assert desk.enter(new_credentials())[0] == HandshakeReply.WRONG_SECRET
    assert desk.welcomed == []
    wait_until(lambda: "refused a connection" in caplog.text)
    assert desk.acceptor.refused == {HandshakeReply.WRONG_SECRET.reason: 1}
    assert "rank 0 refused a connection from ('127.0.0.1'," in caplog.text
    assert "HPSEARCH_COMM_SECRET" in caplog.text
    assert desk.enter()[0] == HandshakeReply.ACCEPTED


@pytest.mark.parametrize("proven", [False, True])
def test_who_leaves_in_the_middle_is_counted_without_a_warning(desk, caplog, proven):
    with caplog.at_level(logging.DEBUG, "hpsearch_comm"):
        with dial(desk.listener.address, local=True) as sock:
            nonce = read(sock, NONCE_BYTES)
            if proven:
                sock.shutdown(socket.SHUT_RD)  # so that no answer can be sent
                sock.sendall(Proof(desk.credentials, HELLO).message(nonce))
        wait_until(lambda: bool(caplog.records))
    end = "rank 1: it left before it was accepted" if proven else "it left before it proved anything"
    assert desk.acceptor.refused == {end: 1}
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert desk.welcomed == []


def test_a_flood_of_strangers_does_not_flood_the_log(desk, caplog):
    for _ in range(30):
        desk.enter(new_credentials())
    wait_until(lambda: sum(desk.acceptor.refused.values()) == 30)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 10


def test_bytes_that_follow_the_proof_are_left_for_the_next_reader(desk):
    with dial(desk.listener.address) as sock:
        sock.sendall(Proof(desk.credentials, HELLO).message(read(sock, NONCE_BYTES)) + b"next")
        wait_until(lambda: bool(desk.welcomed))
        assert read(desk.welcomed[0][1], 4) == b"next"


@settings(max_examples=80, deadline=None)
@given(chunks=st.lists(st.binary(max_size=200), max_size=4), local=st.booleans(), abort=st.booleans())
def test_random_bytes_are_refused(chunks, local, abort):
    desk = Desk()
    try:
        with dial(desk.listener.address, local=local) as sock:
            for chunk in chunks:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(chunk)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR if abort else socket.SHUT_WR)
            if not abort:
                seen = read_to_end(sock)
                # A connection is reset where bytes that nobody read are left: it may lose the answer, never win one.
                answer = seen[NONCE_BYTES:]
                assert answer in (b"", bytes([HandshakeReply.WRONG_SECRET]).ljust(ANSWER_BYTES, b"\0"))
            wait_until(lambda: sum(desk.acceptor.refused.values()) == 1)
        assert desk.welcomed == []
        assert desk.enter()[0] == HandshakeReply.ACCEPTED
    finally:
        desk.close()


def test_a_recorded_proof_is_refused(desk):
    with dial(desk.listener.address) as sock:
        recorded = Proof(desk.credentials, HELLO).message(read(sock, NONCE_BYTES))
        sock.sendall(recorded)
        wait_until(lambda: len(desk.welcomed) == 1)
    with dial(desk.listener.address) as sock:
        sock.sendall(recorded)
        assert read_to_end(sock)[NONCE_BYTES:][:1] == bytes([HandshakeReply.WRONG_SECRET])
    assert len(desk.welcomed) == 1


def test_an_acceptor_does_not_prove_itself_to_those_who_send_its_own_words_back(desk):
    with dial(desk.listener.address) as sock:
        nonce = read(sock, NONCE_BYTES)
        sock.sendall((nonce * 4)[:PROOF_BYTES])
        assert read_to_end(sock) == bytes([HandshakeReply.WRONG_SECRET]).ljust(ANSWER_BYTES, b"\0")


def test_another_user_is_refused_before_a_word_is_said(desk):
    sock = as_nobody(lambda: dial(desk.listener.address, local=True))
    with sock:
        assert read_to_end(sock) == b""
    assert list(desk.acceptor.refused) == [f"it comes from user 65534, this process is of user {os.geteuid()}"]
    assert desk.enter(local=True)[0] == HandshakeReply.ACCEPTED


def test_an_idle_connection_is_closed_at_its_deadline(desk, monkeypatch):
    monkeypatch.setattr(acceptor_module, "_PATIENCE", 0.1)
    with dial(desk.listener.address) as sock:
        assert len(read_to_end(sock)) == NONCE_BYTES
    assert list(desk.acceptor.refused) == ["it didn't prove itself in time"]


def test_idle_connections_do_not_keep_an_honest_one_out(desk, monkeypatch):
    monkeypatch.setattr(acceptor_module, "_PATIENCE", 0.2)
    places = 256
    idle = [dial(desk.listener.address) for _ in range(2 * places)]
    try:
        assert desk.enter()[0] == HandshakeReply.ACCEPTED
        assert desk.acceptor.refused.keys() == {"it didn't prove itself in time"}
    finally:
        for sock in idle:
            sock.close()


@contextlib.contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Let this process open only so many more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_while_strangers_hold_the_last_descriptors_a_rank_waits_for_one(desk):
    desk.enter()  # it accepts by now
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.socket()) for _ in range(4)]
        honest = stack.enter_context(socket.socket())
        stack.enter_context(few_descriptors(2))
        for sock in (*idle, honest):
            sock.settimeout(PATIENCE)
            sock.connect((desk.listener.address.ip, desk.listener.address.port))
        honest.sendall(Proof(desk.credentials, HELLO).message(read(honest, NONCE_BYTES)))
        assert read(honest, ANSWER_BYTES)[0] == HandshakeReply.ACCEPTED
        assert not desk.served.done()


def test_a_process_without_any_descriptor_says_what_to_raise(desk):
    desk.enter()  # it accepts by now
    address = desk.listener.address
    with socket.socket() as sock, few_descriptors(0):
        sock.connect((address.ip, address.port))
        error = desk.served.exception(PATIENCE)
    assert isinstance(error, RendezvousError)
    assert "ulimit -n" in str(error)
    assert os.strerror(errno.EMFILE) in str(error)


def test_closing_ends_what_is_pending_and_nothing_else(desk):
    with dial(desk.listener.address) as pending, dial(desk.listener.address) as proven:
        proven.sendall(Proof(desk.credentials, HELLO).message(read(proven, NONCE_BYTES)))
        wait_until(lambda: len(desk.welcomed) == 1)
        desk.stop()
        assert len(read_to_end(pending)) == NONCE_BYTES
        desk.welcomed[0][1].sendall(b"still here")
        assert read(proven, ANSWER_BYTES + 10)[ANSWER_BYTES:] == b"still here"
