from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpsearch_comm.bootstrap import exchange
from hpsearch_comm.bootstrap.connector import open_connection
from hpsearch_comm.bootstrap.handshake import ConnectionKind, Hello
from hpsearch_comm.bootstrap.interface import is_local
from hpsearch_comm.bootstrap.rendezvous import MasterRendezvous
from hpsearch_comm.bootstrap.tasks import run
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError
from tests.comm.forming import LOOPBACK, PATIENCE, new_credentials, prove, wait_until
from tests.comm.meeting import (
    Meeting,
    addresses,
    all_said,
    awaited,
    free_port,
    given_time,
    leaving_nothing,
    outcomes,
    uninvited,
)
from tests.comm.network import in_a_network


@pytest.fixture
def master() -> Meeting:
    return Meeting(MasterRendezvous(LOOPBACK, free_port()))


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"", ": the other side was silent in the middle of a handshake"),
        (b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13.5\r\n" * 4, "doesn't know the group's secret"),
    ],
    ids=["silent", "ssh"],
)
def test_another_program_at_the_port_is_found_out(master, monkeypatch, greeting, reason):
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)

    def meet(soon: float) -> BaseException | None:
        with socket.create_server((LOOPBACK, master.place.port)) as other, ThreadPoolExecutor(1) as pool:
            held: list[socket.socket] = []
            rank_1 = pool.submit(master.rank(1, 2, seconds=PATIENCE if greeting else soon))
            other.settimeout(0.05)
            while not rank_1.done():
                with contextlib.suppress(TimeoutError):
                    held.append(other.accept()[0])
                    held[-1].sendall(greeting)
            for sock in held:
                sock.close()
            return rank_1.exception()

    error = given_time(meet, lambda error: reason in str(error))
    assert isinstance(error, RefusedError if greeting else RendezvousError)
    assert f"rank 1 of 2 did not find rank 0 (127.0.0.1:{master.place.port})" in str(error)
    assert reason in str(error)


def test_many_ranks_may_have_much_to_say(master):
    # More than the kernel's buffers of a connection hold, so that rank 0 writes in many pieces.
    size = 24
    texts = [f"{rank:>8192}" for rank in range(size)]
    with leaving_nothing():
        found = outcomes({rank: master.rank(rank, size, mine=texts[rank]) for rank in range(size)})
    assert found == dict.fromkeys(range(size), texts)


def test_the_port_is_free_again_at_once(master):
    for _ in range(3):
        assert outcomes({rank: master.rank(rank, 3) for rank in range(3)})[0] == addresses(3)
        with socket.socket() as sock:  # without SO_REUSEADDR
            sock.bind((LOOPBACK, master.place.port))
        assert isinstance(outcomes({0: master.rank(0, 2, seconds=0.05)})[0], RendezvousError)
        with socket.socket() as sock:
            sock.bind((LOOPBACK, master.place.port))


def test_a_taken_port_is_named():
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        sock.listen()
        port = sock.getsockname()[1]
        meeting = Meeting(MasterRendezvous(LOOPBACK, port))
        with leaving_nothing(), pytest.raises(ConfigurationError, match=f"MASTER_PORT {port} of {LOOPBACK}.*in use"):
            meeting.rank(0, 2, seconds=0.2)()


def test_an_address_of_another_host_is_named():
    meeting = Meeting(MasterRendezvous("203.0.113.7", free_port()))
    with leaving_nothing(), pytest.raises(ConfigurationError, match=r"MASTER_ADDR.*'203\.0\.113\.7'.*127\.0\.0\.1/8"):
        meeting.rank(0, 2)()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_named(port):
    with pytest.raises(ConfigurationError, match=f"MASTER_PORT from 1 to 65535, got {port}"):
        MasterRendezvous(LOOPBACK, port)


@pytest.mark.parametrize("host", ["localhost", "::1", socket.gethostname()])
def test_rank_0_is_found_by_any_name_of_its_host(host):
    if host == "::1" and not is_local("::1"):
        pytest.skip("this host has no IPv6")
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pytest.skip("this host doesn't know its own name")
    meeting = Meeting(MasterRendezvous(host, free_port()))
    assert outcomes({rank: meeting.rank(rank, 3) for rank in range(3)}) == dict.fromkeys(range(3), addresses(3))


def test_strangers_at_the_port_hinder_nobody(master):
    def connect() -> socket.socket:
        return socket.create_connection((LOOPBACK, master.place.port), PATIENCE)

    company = (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(116), bytes(116), os.urandom(1 << 16))
    with leaving_nothing(), ThreadPoolExecutor(4) as pool:
        futures = {0: pool.submit(master.rank(0, 4))}
        with uninvited(connect, *company, idle=100):
            futures |= {rank: pool.submit(master.rank(rank, 4)) for rank in (1, 2, 3)}
            assert awaited(futures) == dict.fromkeys(range(4), addresses(4))


def entry(size: int) -> bytes:
    return struct.pack("<IQ", size, 60_000) + b"me"


def test_members_that_break_the_protocol_hinder_nobody(master):
    def come(hello: Hello, after: bytes = b"") -> Callable[[], socket.socket]:
        def connect() -> socket.socket:
            sock = socket.create_connection((LOOPBACK, master.place.port), PATIENCE)
            try:
                prove(sock, master.credentials, hello, after)
            except BaseException:
                sock.close()
                raise
            return sock

        return connect

    company = (
        come(Hello(3, 0, ConnectionKind.RENDEZVOUS, 0, entry(9))),  # of another size
        come(Hello(3, 0, ConnectionKind.RENDEZVOUS, 0, entry(4)), b"x" * 100),  # more than its entry
        come(Hello(7, 0, ConnectionKind.RENDEZVOUS, 0, entry(4))),
    )
    with leaving_nothing(), ThreadPoolExecutor(4) as pool:
        futures = {0: pool.submit(master.rank(0, 4))}
        wait_until(lambda: is_open(master.place.port))
        for hello in (
            Hello(3, 0, ConnectionKind.RENDEZVOUS, 0, b"short"),
            Hello(3, 0, ConnectionKind.CONTROL, 0, entry(4)),
        ):
            with pytest.raises(RefusedError, match="no such connection is expected"):
                come(hello)()
        with contextlib.ExitStack() as every:
            for connect in company:
                every.enter_context(uninvited(connect, b""))
            futures |= {rank: pool.submit(master.rank(rank, 4)) for rank in (1, 2)}
        futures[3] = pool.submit(master.rank(3, 4))
        assert awaited(futures) == dict.fromkeys(range(4), addresses(4))


def test_a_second_process_of_one_rank_is_refused(master):
    with ThreadPoolExecutor(4) as pool:
        futures = {"0": pool.submit(master.rank(0, 3)), "1": pool.submit(master.rank(1, 3, mine="one"))}
        futures["again"] = pool.submit(master.rank(1, 3, mine="again"))
        wait_until(lambda: futures["1"].done() or futures["again"].done())
        futures["2"] = pool.submit(master.rank(2, 3))
        found = awaited(futures)
    first, refused = ("1", "again") if isinstance(found["again"], Exception) else ("again", "1")
    assert "this rank is here already: two processes may have been started with the same RANK" in str(found[refused])
    assert found["0"] == found["2"] == found[first]


def test_ranks_that_count_differently_are_told_so(master):
    told = "it expects 3 ranks where rank 0 expects 2: give every rank the same WORLD_SIZE"
    found = given_time(
        lambda soon: outcomes({0: master.rank(0, 2, seconds=soon), 1: master.rank(1, 3, seconds=soon)}), all_said(told)
    )
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert told in str(error)


def test_a_rank_that_has_gone_again_may_come_back(master):
    with ThreadPoolExecutor(3) as pool:
        futures = {0: pool.submit(master.rank(0, 3))}
        wait_until(lambda: is_open(master.place.port))
        with socket.create_connection((LOOPBACK, master.place.port)) as sock:
            prove(sock, master.credentials, Hello(1, 0, ConnectionKind.RENDEZVOUS, 0, entry(3)))
        futures |= {rank: pool.submit(master.rank(rank, 3)) for rank in (1, 2)}
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def is_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_connection_never_meets_itself():
    # With a single port for outgoing connections, the kernel gives a connection to that port the port itself.
    setup = "ip link set lo up; echo 40000 40000 > /proc/sys/net/ipv4/ip_local_port_range"

    def meet() -> None:
        with socket.socket() as plain:
            plain.connect((LOOPBACK, 40000))
            assert plain.getsockname() == plain.getpeername()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(2):
            hello = Hello(1, 0, ConnectionKind.RENDEZVOUS)
            with pytest.raises(ConnectionRefusedError):
                run(open_connection(hello, (LOOPBACK, 40000), new_credentials(), PATIENCE))
        with socket.socket() as rank_0:
            rank_0.bind((LOOPBACK, 40000))

    in_a_network(setup, meet)
