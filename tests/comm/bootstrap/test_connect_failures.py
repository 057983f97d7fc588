from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpsearch_comm.bootstrap.connect import connect
from hpsearch_comm.bootstrap.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    ConnectionKind,
    HandshakeReply,
    Hello,
)
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.errors import CommError, ConfigurationError, RefusedError, RendezvousError
from hpsearch_comm.failure.detector import NOTICE_BYTES, pack_notice, unpack_notice
from tests.comm.forming import (
    HEARTBEAT_TIMEOUT,
    LOOPBACK,
    PATIENCE,
    Forming,
    check_pairs,
    dial,
    forming,
    knock,
    leaking_nothing,
    listeners,
    new_credentials,
    prove,
    read,
    read_to_end,
    verify,
    wait_until,
)
from tests.comm.meeting import all_said, given_time
from tests.comm.other_user import NOBODY, as_nobody


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaking_nothing():
        yield


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda right: new_credentials(), "HPSEARCH_COMM_SECRET"),
        (lambda right: replace(right, group="other"), "group of another name"),
        (lambda right: replace(right, epoch=1), "another epoch"),
    ],
)
def test_a_rank_with_other_credentials_is_told_and_the_others_name_it_soon(change, word):
    with forming(3) as group:
        for rank in (0, 1):
            group.start(rank)
        group.start(2, credentials=change(group.credentials))
        errors = group.errors()
    assert isinstance(errors[2], RefusedError)
    assert word in str(errors[2])
    for rank in (0, 1):
        assert isinstance(errors[rank], RendezvousError | RefusedError)
        assert f"rank 2 (pid {os.getpid()} on {socket.gethostname()})" in str(errors[rank])


def test_a_second_process_of_the_same_rank_is_refused():
    with forming(3, hosts="abc") as group, Listener(LOOPBACK, host="d") as second:
        group.start(0)
        group.start(1)
        streams = [Hello(1, 0, ConnectionKind.STREAM, stream) for stream in range(2)]
        wait_until(lambda: all(is_taken(group, hello) for hello in [Hello(1, 0, ConnectionKind.CONTROL, 2), *streams]))
        addresses = [group.addresses[0], second.address, group.addresses[2]]
        with pytest.raises(
            RefusedError, match=r"rank 0 refused.*two processes may have been started with the same rank"
        ):
            connect(
                1,
                addresses,
                second,
                group.credentials,
                streams=2,
                tcp_only=False,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                deadline=time.monotonic() + PATIENCE,
            )
        group.start(2)
        check_pairs(group.connections(), lambda rank, peer: False)


def is_taken(group: Forming, hello: Hello) -> bool:
    """Say whether rank 0 has this connection already, without ever taking it."""
    # Through the Unix socket it is never expected, but it may be a duplicate.
    return knock(group, True, group.credentials, hello) is HandshakeReply.DUPLICATE


def test_ranks_that_mix_up_addresses_are_refused():
    with forming(3) as group:
        group.start(0)
        group.start(1)
        first, second, third = group.addresses
        group.start(2, addresses=[second, first, third])
        errors = group.errors()
    assert isinstance(errors[2], RefusedError)
    assert "meant for another rank" in str(errors[2])
    assert all(isinstance(errors[rank], RendezvousError) for rank in (0, 1))


def test_ranks_with_unequal_numbers_of_streams_are_refused():
    def meet(soon: float) -> dict[int, Exception]:
        with forming(2, hosts="ab") as group:
            group.start(0, streams=2, seconds=soon)
            group.start(1, streams=3)
            return group.errors()

    told = "rank 1: no such connection is expected"
    errors = given_time(meet, lambda errors: told in str(errors[0]))
    assert isinstance(errors[1], RefusedError)
    assert "same arguments" in str(errors[1])
    assert told in str(errors[0])


def test_what_sends_a_ranks_words_back_is_not_taken_for_its_peer():
    with forming(2, hosts="ab") as group, socket.create_server((LOOPBACK, 0)) as mirror:

        def reflect() -> None:
            with contextlib.ExitStack() as every, contextlib.suppress(OSError):
                while True:
                    sock, _ = mirror.accept()
                    every.enter_context(sock)
                    sock.sendall(secrets.token_bytes(NONCE_BYTES))
                    proof = read(sock, PROOF_BYTES)
                    sock.sendall(bytes([HandshakeReply.ACCEPTED]) + proof[-32:])

        thread = threading.Thread(target=reflect)
        thread.start()
        group.start(1, addresses=[replace(group.addresses[0], port=mirror.getsockname()[1]), group.addresses[1]])
        errors = group.errors()
        mirror.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert isinstance(errors[1], RefusedError)
    assert "doesn't know the group's secret" in str(errors[1])


def test_a_unix_socket_of_another_user_is_not_talked_to():
    def squat(name: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(f"\0{name}")
        sock.listen()
        return sock

    with forming(2) as group:
        squatted = replace(group.addresses[0], unix=f"hpsearch-comm-{secrets.token_hex(16)}")
        with as_nobody(lambda: squat(squatted.unix)) as squatter:
            group.start(1, addresses=[squatted, group.addresses[1]])
            errors = group.errors()
            connection, _ = squatter.accept()
            with connection:
                assert read_to_end(connection) == b""
    assert isinstance(errors[1], RefusedError)
    assert f"belongs to user {NOBODY}, this process to user {os.geteuid()}" in str(errors[1])


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_rank_that_listens_no_more_is_named_at_once(hosts):
    with forming(2, hosts=hosts) as group:
        group.listeners[0].close()
        group.start(1)
        errors = group.errors()
    assert isinstance(errors[1], RendezvousError)
    assert f"rank 1 can't connect to rank 0 (pid {os.getpid()} on " in str(errors[1])
    assert "died or given up" in str(errors[1])
    assert ("HPSEARCH_COMM_HOST" in str(errors[1])) == (hosts == "aa")


def test_a_rank_of_this_host_that_dies_before_it_connects_is_named_soon():
    with forming(3) as group:
        group.start(0)
        group.start(1)
        group.listeners[2].close()
        errors = group.errors()
    for rank in (0, 1):
        assert isinstance(errors[rank], RendezvousError)
        assert "rank 2 (pid" in str(errors[rank])


def test_a_rank_that_dies_after_it_has_connected_to_some_is_named_by_all():
    with forming(3, hosts="abc") as group:
        group.start(0)
        group.start(1)
        # Rank 2 reaches rank 0 alone, and dies.
        with dial(group.addresses[0]) as sock:
            prove(sock, group.credentials, Hello(2, 0, ConnectionKind.CONTROL, 2))
        errors = group.errors()
    assert "rank 2 (pid" in str(errors[0])
    assert "died while the group formed" in str(errors[0])
    assert str(errors[1]) == f"rank 0 says: {errors[0]}"


def test_a_rank_that_gives_up_is_believed_before_those_that_listen_no_more():
    with forming(3, hosts="abc") as group:
        group.start(2)
        tcp = group.listeners[1].sockets[0]
        for _ in range(3):
            sock, _ = tcp.accept()
            with sock:
                hello = verify(sock, group.credentials, rank=1)
                if hello.kind is ConnectionKind.CONTROL:
                    sock.sendall(pack_notice(CommError("rank 1 has seen it all")))
                    group.listeners[0].close()
                    assert str(group.errors()[2]) == "rank 1 has seen it all"
                    break
        else:
            pytest.fail("rank 2 has not opened a control connection")


def test_ranks_that_never_come_are_named_at_the_deadline():
    def meet(soon: float) -> dict[int, Exception]:
        with forming(4, hosts="aabb") as group:
            group.start(0, seconds=soon)
            group.start(2, seconds=3 * soon)
            return group.errors()

    name = f"(pid {os.getpid()} on {socket.gethostname()})"
    told = f"rank 1 {name} and rank 3 {name} didn't connect to 127.0.0.1"
    errors = given_time(meet, all_said(told))
    assert told in str(errors[0])
    assert str(errors[2])[:400] == str(errors[0])[:400]


def test_a_rank_that_accepts_nothing_is_named_at_the_deadline():
    with forming(2, hosts="ab") as group:
        group.start(1, seconds=0.3)
        errors = group.errors()
    port = group.addresses[0].port
    assert f"on {socket.gethostname()}) at 127.0.0.1:{port} (no answer)" in str(errors[1])


def test_a_place_that_ends_every_connection_is_tried_until_the_deadline():
    def meet(soon: float) -> tuple[int, Exception]:
        came = 0
        with forming(2, hosts="ab") as group, socket.create_server((LOOPBACK, 0)) as door:

            def hang_up() -> None:
                nonlocal came
                with contextlib.suppress(OSError):
                    while True:
                        door.accept()[0].close()
                        came += 1

            thread = threading.Thread(target=hang_up)
            thread.start()
            elsewhere = replace(group.addresses[0], port=door.getsockname()[1])
            group.start(1, addresses=[elsewhere, group.addresses[1]], seconds=soon)
            error = group.errors()[1]
            door.shutdown(socket.SHUT_RDWR)
            thread.join()
        return came, error

    came, error = given_time(meet, lambda found: found[0] > 3)
    assert came > 3
    assert "it ended the connection before it answered" in str(error)


def test_a_goodbye_of_a_rank_that_has_finished_already_is_left_for_the_group():
    with forming(3, hosts="abc") as group:
        group.start(0)
        group.start(1)
        wait_until(lambda: is_taken(group, Hello(1, 0, ConnectionKind.CONTROL, 2)))
        addresses, rank = group.addresses, 2
        with contextlib.ExitStack() as held:
            for peer in (0, 1):
                plan = [(ConnectionKind.CONTROL, 2), (ConnectionKind.STREAM, 0), (ConnectionKind.STREAM, 1)]
                for kind, stream in plan if peer == 1 else plan[:1]:
                    sock = held.enter_context(dial(addresses[peer]))
                    prove(sock, group.credentials, Hello(rank, peer, kind, stream))
                    if kind is ConnectionKind.CONTROL:
                        sock.sendall(pack_notice(None))
            first = group.result(1)
            with pytest.raises(TimeoutError):
                group.result(0, 0.3)
            for stream in (0, 1):
                sock = held.enter_context(dial(addresses[0]))
                prove(sock, group.credentials, Hello(rank, 0, ConnectionKind.STREAM, stream))
            for made in (first, group.result(0)):
                assert unpack_notice(read(made.controls[2], NOTICE_BYTES), 2) is None


WAITING = bytes([255]).ljust(NOTICE_BYTES, b"\0")
"""What a rank sends that waits in an operation, because it has formed before the others."""


def test_ranks_that_have_finished_may_wait_for_those_that_have_not():
    with forming(3, hosts="abc") as group, contextlib.ExitStack() as held:
        group.start(0)
        control = held.enter_context(dial(group.addresses[0]))
        prove(control, group.credentials, Hello(1, 0, ConnectionKind.CONTROL, 2))
        control.sendall(WAITING * 3 + WAITING[:100])
        with pytest.raises(TimeoutError):
            group.result(0, 0.3)
        control.sendall(WAITING[100:] + pack_notice(CommError("rank 1 has had enough")))
        assert str(group.errors()[0]) == "rank 1 has had enough"


@pytest.mark.parametrize("said", [b"", WAITING * 2, WAITING[:100]], ids=["nothing", "waiting", "part"])
def test_a_rank_that_dies_is_noticed_whatever_it_said_before(said):
    with forming(3, hosts="abc") as group:
        group.start(0)
        with dial(group.addresses[0]) as control:
            prove(control, group.credentials, Hello(1, 0, ConnectionKind.CONTROL, 2))
            control.sendall(said)
        assert "rank 1 (pid" in str(group.errors()[0])
        assert "died while the group formed" in str(group.errors()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, "the address of rank 1 must be that of its own listener"),
        ({"addresses": "twice"}, "ranks 0 and 1 share one"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused_and_the_listener_is_closed(arguments, message):
    own, other = listeners(2)
    addresses = [own.address, own.address if arguments.pop("addresses", None) else other.address]
    with other, pytest.raises(ConfigurationError, match=message):
        connect(
            arguments.get("rank", 0),
            addresses,
            own,
            new_credentials(),
            streams=1,
            tcp_only=False,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            deadline=time.monotonic() + PATIENCE,
        )
    assert own.sockets == ()


def test_an_address_that_is_not_this_hosts_is_refused():
    with pytest.raises(ConfigurationError, match=r"203\.0\.113\.5"):
        Listener("203.0.113.5")
