from __future__ import annotations

import base64
import functools
import itertools
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpsearch_comm.errors import ConfigurationError, RendezvousError
from hpsearch_comm.formation.dial import dial
from hpsearch_comm.formation.handshake import Credentials, Hello, Kind, prove
from hpsearch_comm.formation.interface import is_local
from hpsearch_comm.formation.rendezvous import KnownAddresses, MasterRendezvous, Rendezvous, StoreRendezvous
from hpsearch_comm.formation.roll_call import name_ranks
from tests.comm.forming import LOOPBACK, PATIENCE, new_credentials, wait_until
from tests.comm.meeting import awaited, free_port, leaving_nothing, outcomes, uninvited
from tests.comm.network import in_a_network

Found = list[str] | Exception


class Meeting:
    """A place, and the credentials of the group that meets there."""

    def __init__(self, place: Rendezvous) -> None:
        self.place = place
        self.credentials = new_credentials()

    def rank(
        self, rank: int, size: int, *, seconds: float = PATIENCE, credentials: Credentials | None = None, mine: str = ""
    ) -> Callable[[], list[str]]:
        return functools.partial(
            self.place.exchange,
            rank,
            size,
            mine or address(rank),
            credentials or self.credentials,
            time.monotonic() + seconds,
        )


def address(rank: int) -> str:
    return f'{{"address of": {rank}}}'


def addresses(size: int) -> list[str]:
    return [address(rank) for rank in range(size)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    # The store asks for the name of everyone who connects, and would wait for long where nobody answers.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    return TCPStore(LOOPBACK, 0, None, True, timedelta(seconds=PATIENCE), wait_for_workers=False)


@pytest.fixture
def master() -> Meeting:
    return Meeting(MasterRendezvous(LOOPBACK, free_port()))


@pytest.fixture(params=["master", "store"])
def meeting(request: pytest.FixtureRequest) -> Meeting:
    if request.param == "master":
        return Meeting(MasterRendezvous(LOOPBACK, free_port()))
    store = request.getfixturevalue("store")
    return Meeting(StoreRendezvous(LOOPBACK, store.port))


@pytest.mark.parametrize("order", [*itertools.permutations(range(3)), (4, 2, 0, 1, 3)])
def test_every_rank_learns_all_addresses(meeting, order):
    size = len(order)
    with leaving_nothing():
        assert outcomes({rank: meeting.rank(rank, size) for rank in order}) == dict.fromkeys(order, addresses(size))


def test_many_ranks_may_have_much_to_say(master):
    # More than the kernel's buffers of a connection hold, so that rank 0 writes in many pieces.
    size = 24
    texts = [f"{rank:>8192}" for rank in range(size)]
    with leaving_nothing():
        found = outcomes({rank: master.rank(rank, size, mine=texts[rank]) for rank in range(size)})
    assert found == dict.fromkeys(range(size), texts)


def test_a_group_of_one_meets_nobody(meeting):
    assert meeting.rank(0, 1, seconds=0)() == addresses(1)


def test_groups_meet_at_one_place_one_after_another(meeting):
    # Without any pause between them: some ranks may be in the next group while others still leave the last.
    def one_after_another(rank: int) -> list[list[str]]:
        return [meeting.rank(rank, 3, mine=f"{address(rank)} of {group}")() for group in range(8)]

    with leaving_nothing():
        found = outcomes({rank: functools.partial(one_after_another, rank) for rank in range(3)})
    expected = [[f"{address(rank)} of {group}" for rank in range(3)] for group in range(8)]
    assert found == dict.fromkeys(range(3), expected)


def test_the_first_deadline_of_any_rank_names_the_missing_to_all(meeting):
    # Only rank 2 gives up soon; the others would wait for longer than the test may take.
    tasks = {rank: meeting.rank(rank, 5, seconds=0.4 if rank == 2 else 3600) for rank in (0, 2, 4)}
    with leaving_nothing():
        found = outcomes(tasks)
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "ranks 1 and 3 of 5 did not come" in str(error)
    # The place is as good as new.
    assert outcomes({rank: meeting.rank(rank, 2) for rank in range(2)}) == dict.fromkeys(range(2), addresses(2))


def test_a_missing_rank_0_is_named(meeting):
    found = outcomes({rank: meeting.rank(rank, 3, seconds=0.3) for rank in (1, 2)})
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "rank 0" in str(error)
        assert str(meeting.place.port) in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda ours: Credentials(secrets.token_bytes(32), ours.group, ours.epoch),
        lambda ours: Credentials(ours.secret, ours.group, ours.epoch + 1),
    ],
    ids=["secret", "epoch"],
)
def test_a_rank_with_other_credentials_is_kept_out_and_the_others_go_on(meeting, change):
    with ThreadPoolExecutor(4) as pool:
        stranger = pool.submit(meeting.rank(1, 3, seconds=0.5, credentials=change(meeting.credentials)))
        futures = {rank: pool.submit(meeting.rank(rank, 3)) for rank in (0, 2)}
        assert isinstance(stranger.exception(2 * PATIENCE), RendezvousError)
        futures[1] = pool.submit(meeting.rank(1, 3))
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_ranks_with_different_secrets_are_told_so(meeting):
    other = new_credentials()
    found = outcomes({0: meeting.rank(0, 2, seconds=0.5), 1: meeting.rank(1, 2, seconds=0.5, credentials=other)})
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "secret" in str(error)
    assert "rank 1 of 2 did not come" in str(found[0])


def test_groups_of_different_names_do_not_meet_in_the_store(store):
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port))
    tasks = {}
    for group in ("actor", "critic"):
        credentials = Credentials(meeting.credentials.secret, group)
        for rank in range(2):
            tasks[group, rank] = meeting.rank(rank, 2, mine=f"{group} {rank}", credentials=credentials)
    found = outcomes(tasks)
    assert found["actor", 0] == found["actor", 1] == ["actor 0", "actor 1"]
    assert found["critic", 0] == found["critic", 1] == ["critic 0", "critic 1"]


def keys(store: TCPStore) -> list[str]:
    if not hasattr(store, "list_keys"):
        pytest.skip("this torch can't list the keys of a store")
    return sorted(store.list_keys())


def in_store(store: TCPStore, size: int, secret: bytes = bytes(32)) -> dict[int, Found]:
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
    meeting.credentials = Credentials(secret)
    return outcomes({rank: meeting.rank(rank, size) for rank in range(size)})


def test_the_store_does_not_fill_with_every_start(store):
    for _ in range(3):
        assert in_store(store, 3) == dict.fromkeys(range(3), addresses(3))
        assert len(keys(store)) == 4


def test_what_others_left_in_the_store_is_passed_over(store):
    assert in_store(store, 3)[0] == addresses(3)
    left = {key: store.get(key).decode() for key in keys(store)}
    for nonsense in ("", "no base64!", "AAAA", "A" * (1 << 20), base64.b64encode(os.urandom(68)).decode()):
        write(store, dict.fromkeys(left, nonsense))
        assert in_store(store, 3) == dict.fromkeys(range(3), addresses(3))
    for turn in range(1, len(left)):  # each entry, well signed, under another's key
        write(store, dict(zip(left, [*left.values()][turn:] + [*left.values()][:turn], strict=True)))
        assert in_store(store, 3) == dict.fromkeys(range(3), addresses(3))
    write(store, left)
    assert in_store(store, 3, secret=b"\1" * 32) == dict.fromkeys(range(3), addresses(3))
    write(store, left)
    assert in_store(store, 3) == dict.fromkeys(range(3), addresses(3))


def write(store: TCPStore, entries: dict[str, str]) -> None:
    for key, entry in entries.items():
        store.set(key, entry)
        store.get(key)  # The store confirms nothing, but answers in turn.


def test_entries_that_others_overwrite_are_written_again(store):
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
    with ThreadPoolExecutor(3) as pool:
        futures = {rank: pool.submit(meeting.rank(rank, 3)) for rank in (0, 1)}
        wait_until(lambda: any(key.endswith("/answer/1") for key in keys(store)))
        write(store, dict.fromkeys(keys(store), "nonsense"))
        futures[2] = pool.submit(meeting.rank(2, 3))
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_an_earlier_outcome_does_not_stand_for_this_start(store):
    assert in_store(store, 2)[1] == addresses(2)
    late = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
    late.credentials = Credentials(bytes(32))
    with pytest.raises(RendezvousError, match=r"rank 0 of 2 did not come to the store"):
        late.rank(1, 2, seconds=0.3)()


def test_a_rank_0_that_does_not_go_on_is_named_with_those_who_do_not_answer(store):
    # What a rank 0 that was killed leaves behind.
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port))
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meeting.rank(0, 4, seconds=0.5))
        wait_until(lambda: any(key.endswith("/call") for key in keys(store)))
        left = {key: store.get(key).decode() for key in keys(store) if key.endswith("/call")}
        assert isinstance(rank_0.exception(PATIENCE), RendezvousError)
    write(store, left)
    tasks = {rank: meeting.rank(rank, 4, seconds=0.3) for rank in (1, 3)}
    for error in outcomes(tasks).values():
        assert isinstance(error, RendezvousError)
        assert "rank 0 of 4 did not come" in str(error)
        assert "It has called, but doesn't go on, and rank 2 did not answer" in str(error)


def test_a_store_that_ends_is_named():
    stores = [TCPStore(LOOPBACK, 0, None, True, timedelta(seconds=PATIENCE), wait_for_workers=False)]
    port = stores[0].port
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(Meeting(StoreRendezvous(LOOPBACK, port)).rank(0, 2))
        wait_until(lambda: any("call" in key for key in keys(stores[0])))
        stores.clear()
        error = rank_0.exception(PATIENCE)
    assert isinstance(error, RendezvousError)
    assert f"rank 0 of 2 can't use the store at {LOOPBACK}:{port}" in str(error)
    assert "MASTER_ADDR and MASTER_PORT" in str(error)


def test_a_torch_without_a_store_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", types.ModuleType("torch.distributed"))
    with pytest.raises(ConfigurationError, match="TORCHELASTIC_USE_AGENT_STORE"):
        Meeting(StoreRendezvous(LOOPBACK, 1)).rank(0, 2)()


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


def entry(rank: int, size: int, length: int, text: bytes) -> bytes:
    return b"HPSe" + struct.pack("<4I", rank, size, 60_000, length) + text


def test_members_that_break_the_protocol_hinder_nobody(master):
    def connect() -> socket.socket:
        # What they send comes after a perfect handshake.
        sock = dial(LOOPBACK, master.place.port, time.monotonic() + PATIENCE)
        try:
            prove(sock, master.credentials, Hello(3, 0, Kind.RENDEZVOUS), time.monotonic() + PATIENCE)
        except BaseException:
            sock.close()
            raise
        return sock

    company = (
        os.urandom(20),
        entry(2, 4, 2, b"me"),  # another rank's
        entry(3, 4, 2**32 - 1, b"endless"),
        entry(3, 4, 100, b"cut off"),
        entry(3, 9, 2, b"me"),  # of another size
        entry(3, 4, 2, b"me" + b"x" * 100),  # more than it announced
    )
    with leaving_nothing(), ThreadPoolExecutor(4) as pool:
        futures = {0: pool.submit(master.rank(0, 4))}
        with uninvited(connect, *company):
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
    found = outcomes({0: master.rank(0, 2, seconds=0.5), 1: master.rank(1, 3, seconds=0.5)})
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "it expects 3 ranks where rank 0 expects 2: give every rank the same WORLD_SIZE" in str(error)


def test_a_rank_that_has_gone_again_may_come_back(master):
    with ThreadPoolExecutor(3) as pool:
        futures = {0: pool.submit(master.rank(0, 3))}
        wait_until(lambda: is_open(master.place.port))
        with dial(LOOPBACK, master.place.port, time.monotonic() + PATIENCE) as sock:
            prove(sock, master.credentials, Hello(1, 0, Kind.RENDEZVOUS), time.monotonic() + PATIENCE)
            sock.sendall(entry(1, 3, 5, b"short"))
        futures |= {rank: pool.submit(master.rank(rank, 3)) for rank in (1, 2)}
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def is_open(port: int) -> bool:
    try:
        dial(LOOPBACK, port, time.monotonic() + PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


ALONE = """
import sys, time
from hpsearch_comm.formation.handshake import Credentials
from hpsearch_comm.formation.rendezvous import MasterRendezvous, StoreRendezvous
kind, port, secret = sys.argv[1:]
place = {"MasterRendezvous": MasterRendezvous, "StoreRendezvous": StoreRendezvous}[kind]("127.0.0.1", int(port))
print("here", flush=True)
place.exchange(0, 3, "it", Credentials(bytes.fromhex(secret)), time.monotonic() + 600)
"""


def test_rank_0_may_be_killed_and_start_again(meeting):
    place = meeting.place
    meeting.credentials = Credentials(meeting.credentials.secret)
    arguments = [type(place).__name__, str(place.port), meeting.credentials.secret.hex()]
    with (
        subprocess.Popen([sys.executable, "-c", ALONE, *arguments], stdout=subprocess.PIPE, text=True) as first,
        ThreadPoolExecutor(3) as pool,
    ):
        futures = {1: pool.submit(meeting.rank(1, 3))}
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        first.kill()
        first.wait(PATIENCE)
        futures |= {rank: pool.submit(meeting.rank(rank, 3)) for rank in (0, 2)}
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_addresses_known_beforehand_are_checked():
    credentials = new_credentials()
    known = KnownAddresses(addresses(3))
    assert known.exchange(1, 3, address(1), credentials, time.monotonic()) == addresses(3)
    with pytest.raises(ConfigurationError, match="addresses of all 4 ranks, got 3"):
        known.exchange(1, 4, address(1), credentials, time.monotonic())
    with pytest.raises(ConfigurationError, match="address of rank 2 to be that of its own listener"):
        known.exchange(2, 3, address(1), credentials, time.monotonic())


def test_ranks_are_named_shortly():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([1, 5]) == "ranks 1 and 5"
    assert name_ranks([1, 2, 5]) == "ranks 1, 2 and 5"
    assert name_ranks(range(1, 100)).endswith("15, 16 and 83 others")


def test_a_place_says_where_rank_0_is():
    assert MasterRendezvous("node0", 29500).host == StoreRendezvous("node0", 29500).host == "node0"
    assert KnownAddresses([]).host is None


def test_an_address_too_long_to_send_is_refused(meeting):
    with pytest.raises(ConfigurationError, match="at most 8192 bytes, got 8193"):
        meeting.rank(0, 2, mine="x" * 8193)()


def test_a_connection_never_meets_itself():
    # With a single port for outgoing connections, the kernel gives a connection to that port the port itself.
    setup = "ip link set lo up; echo 40000 40000 > /proc/sys/net/ipv4/ip_local_port_range"

    def meet() -> None:
        with socket.socket() as plain:
            plain.connect((LOOPBACK, 40000))
            assert plain.getsockname() == plain.getpeername()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                dial(LOOPBACK, 40000, time.monotonic() + PATIENCE)
        with socket.socket() as rank_0:
            rank_0.bind((LOOPBACK, 40000))

    in_a_network(setup, meet)
