from __future__ import annotations

import contextlib
import inspect
import select
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    ConnectionKind,
    HandshakeReply,
    Hello,
)
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.group import Group
from tests.comm.forming import (
    LOOPBACK,
    PATIENCE,
    Forming,
    check_pairs,
    dial,
    forming,
    knock,
    leaking_nothing,
    new_credentials,
    open_files,
    read_to_end,
    wait_until,
)
from tests.comm.other_user import as_nobody


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaking_nothing():
        yield


@pytest.mark.parametrize("size", range(1, 6))
def test_ranks_of_one_host_share_unix_sockets(size):
    with forming(size) as group:
        for rank in range(size):
            group.start(rank)
        made = group.connections()
        check_pairs(made, lambda rank, peer: True)
        assert [made[rank].topology.hosts for rank in range(size)] == [(tuple(range(size)),)] * size


@pytest.mark.parametrize("size", range(2, 6))
def test_ranks_of_one_host_go_over_tcp_where_asked(size):
    with forming(size, tcp_only=True, streams=3) as group:
        for rank in reversed(range(size)):
            group.start(rank)
        made = group.connections()
        check_pairs(made, lambda rank, peer: False)
        assert {len(streams) for outcome in made.values() for streams in outcome.streams.values()} == {3}
        assert made[0].topology.hosts == (tuple(range(size)),)


@pytest.mark.parametrize("hosts", ["ab", "aab", "aba", "abab", "aabbc", "abcde", "abcba"])
def test_hosts_are_told_apart(hosts):
    with forming(len(hosts), hosts=hosts) as group:
        for rank in range(len(hosts)):
            group.start(rank)
        made = group.connections()
        check_pairs(made, lambda rank, peer: hosts[rank] == hosts[peer])
        expected = tuple(tuple(r for r, host in enumerate(hosts) if host == name) for name in dict.fromkeys(hosts))
        assert {outcome.topology.hosts for outcome in made.values()} == {expected}


@pytest.mark.parametrize(
    ("heartbeat_timeout", "interval", "milliseconds"),
    [(60.0, 10, 60_000), (0.25, 1, 250), (0.0001, 1, 1), (1e9, 32767, 2**31 - 1)],
)
def test_control_connections_between_hosts_notice_a_host_that_is_gone(heartbeat_timeout, interval, milliseconds):
    with forming(2, hosts="ab", heartbeat_timeout=heartbeat_timeout) as group:
        group.start(0)
        group.start(1)
        for outcome in group.connections().values():
            for control in outcome.controls.values():
                assert control.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT]
                found = [control.getsockopt(socket.IPPROTO_TCP, option) for option in options]
                assert found == [interval, interval, milliseconds]


def test_a_host_may_be_silent_for_a_minute_unless_the_user_says_otherwise():
    assert inspect.signature(Group).parameters["heartbeat_timeout"].default == 60.0
    with Group(0, 1, heartbeat_timeout=2.0) as group, group.duplicate() as duplicate:
        assert duplicate._options.heartbeat_timeout == 2.0
    with pytest.raises(ConfigurationError, match="heartbeat_timeout must be a number of seconds above 0, got 0"):
        Group(0, 1, heartbeat_timeout=0)


def test_ranks_may_come_long_after_others_have_begun():
    with forming(3) as group:
        group.start(2)
        wait_until(lambda: bool(threading.active_count() > 1))
        group.start(0)
        with pytest.raises(TimeoutError):
            group.result(0, 0.3)
        group.start(1)
        check_pairs(group.connections(), lambda rank, peer: True)


def test_the_listener_is_closed_when_the_group_has_formed():
    with forming(2) as group:
        address = group.addresses[0]
        group.start(0)
        group.start(1)
        group.connections()
        assert all(listener.sockets == () for listener in group.listeners)
        for local in (False, True):
            with pytest.raises(ConnectionRefusedError):
                dial(address, local=local)


def test_closing_the_connections_closes_all_of_them():
    before = open_files()
    with forming(3, hosts="aab") as group:
        for rank in range(3):
            group.start(rank)
        for outcome in group.connections().values():
            outcome.close()
        assert len(open_files()) == len(before)


# Strangers at a live rank 0, while ranks 1 and 2 have yet to come. The group forms all the same.


@pytest.fixture(params=[False, True], ids=["tcp", "unix"])
def waiting(request, nothing_leaks) -> Iterator[tuple[Forming, bool]]:
    """A group whose rank 0 waits for the others; whether to knock at its Unix socket."""
    with forming(3, hosts="aab") as group:
        group.start(0)
        yield group, request.param
        group.start(1)
        group.start(2)
        check_pairs(group.connections(), lambda rank, peer: {rank, peer} == {0, 1})


def test_a_stranger_without_the_secret_is_refused(waiting):
    group, local = waiting
    assert knock(group, local, new_credentials(), Hello(1, 0, ConnectionKind.CONTROL)) is HandshakeReply.WRONG_SECRET


def test_a_rank_of_another_group_is_refused(waiting):
    group, local = waiting
    other = replace(group.credentials, group="other")
    assert knock(group, local, other, Hello(1, 0, ConnectionKind.CONTROL)) is HandshakeReply.WRONG_GROUP


def test_a_rank_of_another_epoch_is_refused(waiting):
    group, local = waiting
    earlier = replace(group.credentials, epoch=7)
    assert knock(group, local, earlier, Hello(1, 0, ConnectionKind.CONTROL)) is HandshakeReply.WRONG_EPOCH


def test_a_connection_for_another_rank_is_refused(waiting):
    group, local = waiting
    assert knock(group, local, group.credentials, Hello(2, 1, ConnectionKind.CONTROL)) is HandshakeReply.WRONG_RANK


@pytest.mark.parametrize(
    "hello",
    [
        Hello(0, 0, ConnectionKind.CONTROL),
        Hello(3, 0, ConnectionKind.CONTROL),
        Hello(1, 0, ConnectionKind.CONTROL, 1),
        Hello(1, 0, ConnectionKind.STREAM, 2),
        Hello(1, 0, ConnectionKind.RENDEZVOUS),
        Hello(2, 0, ConnectionKind.CONTROL, 1),
        Hello(2, 0, ConnectionKind.STREAM, 2),
    ],
    ids=str,
)
def test_a_connection_that_the_group_has_no_place_for_is_refused(waiting, hello):
    group, local = waiting
    assert knock(group, local, group.credentials, hello) is HandshakeReply.UNEXPECTED


def test_a_connection_through_the_wrong_door_is_refused(waiting):
    group, local = waiting
    hello = Hello(2, 0, ConnectionKind.CONTROL, 2) if local else Hello(1, 0, ConnectionKind.CONTROL, 2)
    assert knock(group, local, group.credentials, hello) is HandshakeReply.UNEXPECTED


def test_another_user_is_refused(nothing_leaks):
    with forming(2) as group:
        group.start(0)
        sock = as_nobody(lambda: dial(group.addresses[0], local=True))
        with sock:
            assert read_to_end(sock) == b""
        group.start(1)
        check_pairs(group.connections(), lambda rank, peer: True)


def test_silent_and_babbling_strangers_are_in_nobodys_way():
    with forming(3, hosts="aab") as group, contextlib.ExitStack() as crowd:
        group.start(0)
        strangers = [crowd.enter_context(dial(group.addresses[0], local=bool(index % 2))) for index in range(40)]
        for index, sock in enumerate(strangers):
            sock.sendall(bytes(index))  # the first is silent, the others stop in the middle of a proof
        group.start(1)
        group.start(2)
        check_pairs(group.connections(), lambda rank, peer: {rank, peer} == {0, 1})
        assert {len(read_to_end(sock)) for sock in strangers} == {NONCE_BYTES}


def test_a_crowd_that_comes_back_whenever_it_is_sent_away_cannot_keep_the_group_from_forming():
    crowd = 300  # more than there are places
    besieged, stop = threading.Event(), threading.Event()

    def besiege(address: Address) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as every:
            for _ in range(crowd):
                selector.register(every.enter_context(dial(address)), selectors.EVENT_READ)
            besieged.set()
            while not stop.is_set():
                for key, _ in selector.select(0.05):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    with contextlib.suppress(ConnectionResetError):
                        if sock.recv(4096):
                            continue
                    selector.unregister(sock)
                    sock.close()
                    with contextlib.suppress(ConnectionError):  # the group has formed
                        selector.register(every.enter_context(dial(address)), selectors.EVENT_READ)

    with forming(3, hosts="abc") as group:
        group.start(0)
        besieger = threading.Thread(target=besiege, args=(group.addresses[0],))
        besieger.start()
        assert besieged.wait(PATIENCE)
        try:
            group.start(1)
            group.start(2)
            check_pairs(group.connections(), lambda rank, peer: False)
        finally:
            stop.set()
            besieger.join()


def test_the_proofs_of_an_earlier_group_are_refused():
    credentials = new_credentials()
    with forming(2, hosts="ab", credentials=credentials) as earlier, Relay(earlier.addresses[0]) as relay:
        earlier.start(0)
        earlier.start(1, addresses=[replace(earlier.addresses[0], port=relay.port), earlier.addresses[1]])
        made = earlier.connections()
        check_pairs(made, lambda rank, peer: False)
        recorded = relay.sent_by_clients()
        for connections in made.values():
            connections.close()
    # A control connection and two streams, each with the word of the check behind the proof.
    assert [len(proof) for proof in recorded] == [PROOF_BYTES + 8] * 3
    with forming(2, hosts="ab", credentials=credentials) as later:
        later.start(0)
        for proof in recorded:
            with dial(later.addresses[0]) as sock:
                sock.sendall(proof[:PROOF_BYTES])
                assert read_to_end(sock)[NONCE_BYTES:][:1] == bytes([HandshakeReply.WRONG_SECRET])
        later.start(1)
        check_pairs(later.connections(), lambda rank, peer: False)


class Relay:
    """Stands between ranks and passes everything on; keeps what the clients sent."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._door = socket.create_server((LOOPBACK, 0))
        self.port = self._door.getsockname()[1]
        self._sent: list[bytearray] = []
        self._threads: list[threading.Thread] = []
        self._enter(self._accept)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._door.close()

    def sent_by_clients(self) -> list[bytes]:
        return [bytes(sent) for sent in self._sent]

    def _enter(self, task: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=task, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self._sent.append(bytearray())
                self._enter(self._pass_on, client, self._sent[-1])

    def _pass_on(self, client: socket.socket, sent: bytearray) -> None:
        with client, dial(self._address) as server:
            while True:
                for source in select.select([client, server], [], [], PATIENCE)[0]:
                    chunk = source.recv(4096)
                    if not chunk:
                        return
                    if source is client:
                        sent += chunk
                    (server if source is client else client).sendall(chunk)


def test_a_group_that_comes_together_again_and_again_leaves_nothing():
    before = len(open_files())
    for _ in range(20):
        with forming(3, hosts="aab") as group:
            for rank in range(3):
                group.start(rank)
            check_pairs(group.connections(), lambda rank, peer: {rank, peer} == {0, 1})
    assert len(open_files()) == before
