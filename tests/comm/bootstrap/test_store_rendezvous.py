from __future__ import annotations

import socket
import sys
import time
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpsearch_comm.bootstrap import exchange, rendezvous
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous, StoreRendezvous
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError
from tests.comm.forming import LOOPBACK, PATIENCE, wait_until
from tests.comm.meeting import (
    SOON,
    Meeting,
    address,
    addresses,
    all_said,
    awaited,
    given_time,
    new_store,
    outcomes,
)
from tests.forked import forked


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    # The store asks for the name of everyone who connects, and would wait for long where nobody answers.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    return new_store()


def test_groups_of_different_names_do_not_meet_in_the_store(store):
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port))
    tasks = {}
    for group in ("actor", "critic"):
        credentials = Credentials(meeting.credentials.secret, group)
        for rank in range(2):
            tasks[group, rank] = meeting.rank(rank, 2, mine=address(rank, group), credentials=credentials)
    found = outcomes(tasks)
    assert found["actor", 0] == found["actor", 1] == [address(rank, "actor") for rank in range(2)]
    assert found["critic", 0] == found["critic", 1] == [address(rank, "critic") for rank in range(2)]


def keys(store: TCPStore) -> list[str]:
    if not hasattr(store, "list_keys"):
        pytest.skip("this torch can't list the keys of a store")
    return sorted(store.list_keys())


def in_store(store: TCPStore, size: int, secret: bytes = bytes(32)) -> dict[int, list[str] | Exception]:
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
    meeting.credentials = Credentials(secret)
    return outcomes({rank: meeting.rank(rank, size) for rank in range(size)})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_does_not_answer_is_given_up_at_the_deadline(monkeypatch, rank):
    monkeypatch.setattr(rendezvous, "_GRACE_SECONDS", 0.0)
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = StoreRendezvous(LOOPBACK, silent.getsockname()[1])
        with pytest.raises(RendezvousError, match=f"rank {rank} of 2 can't use the store at .* has not answered"):
            Meeting(place).rank(rank, 2, seconds=SOON)()


def test_the_store_does_not_fill_with_every_start(store):
    for _ in range(3):
        assert in_store(store, 3) == dict.fromkeys(range(3), addresses(3))
        assert len(keys(store)) == 1


def test_what_others_left_in_the_store_is_passed_over(store, monkeypatch):
    monkeypatch.setattr(exchange, "_TRY_SECONDS", 0.2)
    assert in_store(store, 3)[0] == addresses(3)
    [key] = keys(store)
    left = store.get(key).decode()
    with socket.create_server((LOOPBACK, 0)) as stranger:  # who accepts and says nothing
        strangers = f"{LOOPBACK} {stranger.getsockname()[1]}"
        nonsense = ("", "no address", "localhost 80", f"{LOOPBACK} 0", f"{LOOPBACK} 65536", "A" * (1 << 20), strangers)
        for entry in (*nonsense, left):
            write(store, {key: entry})
            late = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
            late.credentials = Credentials(bytes(32))
            with ThreadPoolExecutor(3) as pool:
                futures = {rank: pool.submit(late.rank(rank, 3)) for rank in (1, 2)}
                futures[0] = pool.submit(late.rank(0, 3))
                assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_a_place_that_a_stranger_names_is_not_believed(store, monkeypatch):
    # It knows the protocol, but not the secret.
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)

    def met(seconds: float) -> Mapping[int, object]:
        ours, strangers = (Meeting(StoreRendezvous(LOOPBACK, store.port, f"start {seconds}")) for _ in range(2))
        return outcomes({0: strangers.rank(0, 2, seconds=seconds), 1: ours.rank(1, 2, seconds=seconds)})

    found = given_time(met, lambda found: isinstance(found[1], RefusedError))
    assert isinstance(found[1], RefusedError)
    assert "secrets differ" in str(found[1])
    assert isinstance(found[0], RendezvousError)


def write(store: TCPStore, entries: dict[str, str]) -> None:
    for key, entry in entries.items():
        store.set(key, entry)
        store.get(key)  # The store confirms nothing, but answers in turn.


def test_an_earlier_start_does_not_stand_for_this_start(store):
    assert in_store(store, 2)[1] == addresses(2)
    late = Meeting(StoreRendezvous(LOOPBACK, store.port, "start"))
    late.credentials = Credentials(bytes(32))
    told = f"rank 1 of 2 did not find rank 0 (the store at {LOOPBACK}:{store.port})"
    found = given_time(lambda soon: outcomes({1: late.rank(1, 2, seconds=soon)}), all_said(told))
    assert isinstance(found[1], RendezvousError)
    assert told in str(found[1])


def test_a_rank_0_that_has_died_is_named_with_the_place_that_it_told(store):
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port))
    with forked(call_the_others, meeting.place, meeting.credentials) as (rank_0, _):
        wait_until(lambda: bool(keys(store)))
        rank_0.kill()
        rank_0.wait()
    told = f"{store.get(keys(store)[0]).decode().replace(' ', ':')}: Connection refused"
    found = given_time(
        lambda soon: outcomes({rank: meeting.rank(rank, 4, seconds=soon) for rank in (1, 3)}), all_said(told)
    )
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert f"did not find rank 0 (the store at {LOOPBACK}:{store.port})" in str(error)
        assert told in str(error)


def call_the_others(_channel: Connection, place: Rendezvous, credentials: Credentials) -> None:
    place.exchange(0, 4, address(0), credentials, time.monotonic() + 10 * PATIENCE)


def test_a_store_that_ends_is_named():
    stores = [new_store()]
    port = stores[0].port
    with ThreadPoolExecutor(1) as pool:
        rank_1 = pool.submit(Meeting(StoreRendezvous(LOOPBACK, port)).rank(1, 2))
        with pytest.raises(TimeoutError):
            rank_1.result(0.3)
        stores.clear()
        error = rank_1.exception(PATIENCE)
    assert isinstance(error, RendezvousError)
    assert f"rank 1 of 2 can't use the store at {LOOPBACK}:{port}" in str(error)
    assert "MASTER_ADDR and MASTER_PORT" in str(error)


def test_a_torch_without_a_store_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", types.ModuleType("torch.distributed"))
    with pytest.raises(ConfigurationError, match="TORCHELASTIC_USE_AGENT_STORE"):
        Meeting(StoreRendezvous(LOOPBACK, 1)).rank(0, 2)()
