from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpsearch_comm.formation.handshake import ANSWER_BYTES, NONCE_BYTES, Credentials, Hello, Kind, Proof, Verdict
from tests.comm.forming import (
    Forming,
    check_pairs,
    dial,
    forming,
    leaking_nothing,
    new_credentials,
    open_files,
    read,
    read_to_end,
    wait_until,
)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaking_nothing():
        yield


@pytest.mark.parametrize("size", range(1, 6))
def test_ranks_of_one_host_share_unix_sockets(size):
    with forming(size) as group:
        for rank in range(size):
            group.start(rank)
        made = group.outcomes()
        check_pairs(made, lambda rank, peer: True)
        assert [made[rank].topology.hosts for rank in range(size)] == [(tuple(range(size)),)] * size


@pytest.mark.parametrize("size", range(2, 6))
def test_ranks_of_one_host_go_over_tcp_where_asked(size):
    with forming(size, tcp_only=True, streams=3) as group:
        for rank in reversed(range(size)):
            group.start(rank)
        made = group.outcomes()
        check_pairs(made, lambda rank, peer: False)
        assert {len(streams) for outcome in made.values() for streams in outcome.streams.values()} == {3}
        assert made[0].topology.hosts == (tuple(range(size)),)


@pytest.mark.parametrize("hosts", ["ab", "aab", "aba", "abab", "aabbc", "abcde", "abcba"])
def test_hosts_are_told_apart(hosts):
    with forming(len(hosts), hosts=hosts) as group:
        for rank in range(len(hosts)):
            group.start(rank)
        made = group.outcomes()
        check_pairs(made, lambda rank, peer: hosts[rank] == hosts[peer])
        expected = tuple(tuple(r for r, host in enumerate(hosts) if host == name) for name in dict.fromkeys(hosts))
        assert {outcome.topology.hosts for outcome in made.values()} == {expected}


def test_control_connections_between_hosts_notice_a_host_that_is_gone():
    with forming(2, hosts="ab") as group:
        group.start(0)
        group.start(1)
        for outcome in group.outcomes().values():
            for control in outcome.controls.values():
                assert control.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert control.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000


def test_ranks_may_come_long_after_others_have_begun():
    with forming(3) as group:
        group.start(2)
        wait_until(lambda: bool(threading.active_count() > 1))
        group.start(0)
        with pytest.raises(TimeoutError):
            group._ranks[0].result(0.3)
        group.start(1)
        check_pairs(group.outcomes(), lambda rank, peer: True)


def test_the_listener_is_closed_when_the_group_has_formed():
    with forming(2) as group:
        address = group.addresses[0]
        group.start(0)
        group.start(1)
        group.outcomes()
        assert all(listener.sockets == () for listener in group.listeners)
        for local in (False, True):
            with pytest.raises(ConnectionRefusedError):
                dial(address, local=local)


def test_closing_the_connections_closes_all_of_them():
    before = open_files()
    with forming(3, hosts="aab") as group:
        for rank in range(3):
            group.start(rank)
        for outcome in group.outcomes().values():
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
        check_pairs(group.outcomes(), lambda rank, peer: {rank, peer} == {0, 1})


def knock(group: Forming, local: bool, credentials: Credentials, hello: Hello) -> Verdict:
    """Come to rank 0 as somebody; gives its verdict, and sees that nothing follows a refusal."""
    with dial(group.addresses[0], local=local) as sock:
        sock.sendall(Proof(credentials, hello).message(read(sock, NONCE_BYTES)))
        answer = read(sock, ANSWER_BYTES)
        assert read_to_end(sock) == b""
        return Verdict(answer[0])


def test_a_stranger_without_the_secret_is_refused(waiting):
    group, local = waiting
    assert knock(group, local, new_credentials(), Hello(1, 0, Kind.CONTROL)) is Verdict.WRONG_SECRET


def test_a_rank_of_another_group_is_refused(waiting):
    group, local = waiting
    other = replace(group.credentials, group="other")
    assert knock(group, local, other, Hello(1, 0, Kind.CONTROL)) is Verdict.WRONG_GROUP


def test_a_rank_of_another_epoch_is_refused(waiting):
    group, local = waiting
    earlier = replace(group.credentials, epoch=7)
    assert knock(group, local, earlier, Hello(1, 0, Kind.CONTROL)) is Verdict.WRONG_EPOCH


def test_a_connection_for_another_rank_is_refused(waiting):
    group, local = waiting
    assert knock(group, local, group.credentials, Hello(2, 1, Kind.CONTROL)) is Verdict.WRONG_RANK


@pytest.mark.parametrize(
    "hello",
    [
        Hello(0, 0, Kind.CONTROL),
        Hello(3, 0, Kind.CONTROL),
        Hello(1, 0, Kind.CONTROL, 1),
        Hello(1, 0, Kind.STREAM, 0),
        Hello(1, 0, Kind.RENDEZVOUS),
        Hello(2, 0, Kind.DESCRIPTORS),
        Hello(2, 0, Kind.CONTROL, 1),
        Hello(2, 0, Kind.STREAM, 2),
    ],
    ids=str,
)
def test_a_connection_that_the_group_has_no_place_for_is_refused(waiting, hello):
    group, local = waiting
    assert knock(group, local, group.credentials, hello) is Verdict.UNEXPECTED


def test_a_connection_through_the_wrong_door_is_refused(waiting):
    group, local = waiting
    hello = Hello(2, 0, Kind.CONTROL, 2) if local else Hello(1, 0, Kind.DESCRIPTORS)
    assert knock(group, local, group.credentials, hello) is Verdict.UNEXPECTED


def test_silent_and_babbling_strangers_are_in_nobodys_way(waiting):
    group, local = waiting
    crowd = [dial(group.addresses[0], local=local) for _ in range(40)]
    for index, sock in enumerate(crowd):
        sock.sendall(bytes(index))  # the first is silent, the others stop in the middle of a proof
    group.start(1)
    group.start(2)
    group.outcomes()
    for sock in crowd:
        # Each is closed when the group has formed, if not before.
        assert len(read_to_end(sock)) == NONCE_BYTES
        sock.close()
    group._ranks.pop(1).result().close()
    group._ranks.pop(2).result().close()
    group._ranks.pop(0).result().close()
    again = forming(3, hosts="aab")
    with again as fresh:
        fresh.start(0)
        group.__dict__.update(fresh.__dict__)
