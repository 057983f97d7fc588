from __future__ import annotations

import base64
import os
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpsearch_comm.errors import ConfigurationError, RendezvousError
from hpsearch_comm.formation import store_exchange
from hpsearch_comm.formation.handshake import Credentials
from hpsearch_comm.formation.rendezvous import Rendezvous, StoreRendezvous
from tests.comm.forked import forked
from tests.comm.forming import LOOPBACK, PATIENCE, wait_until
from tests.comm.meeting import (
    Meeting,
    addresses,
    all_said,
    awaited,
    given_time,
    new_store,
    outcomes,
)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    monkeypatch.setattr(store_exchange, "_GRACE_SECONDS", 0.1)
    # The store asks for the name of everyone who connects, and would wait for long where nobody answers.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    return new_store()


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


def in_store(store: TCPStore, size: int, secret: bytes = bytes(32)) -> dict[int, list[str] | Exception]:
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
    told = "rank 0 of 2 did not come to the store"
    found = given_time(lambda soon: outcomes({1: late.rank(1, 2, seconds=soon)}), all_said(told))
    assert isinstance(found[1], RendezvousError)
    assert told in str(found[1])


def test_a_rank_0_that_does_not_go_on_is_named_with_those_who_do_not_answer(store):
    meeting = Meeting(StoreRendezvous(LOOPBACK, store.port))
    with forked(call_the_others, meeting.place, meeting.credentials) as (rank_0, _):
        wait_until(lambda: any(key.endswith("/call") for key in keys(store)))
        rank_0.kill()
        rank_0.join()
    told = "It has called, but doesn't go on, and rank 2 did not answer"
    found = given_time(
        lambda soon: outcomes({rank: meeting.rank(rank, 4, seconds=soon) for rank in (1, 3)}), all_said(told)
    )
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "rank 0 of 4 did not come" in str(error)
        assert told in str(error)


def call_the_others(_channel: Connection, place: Rendezvous, credentials: Credentials) -> None:
    place.exchange(0, 4, "it", credentials, time.monotonic() + 10 * PATIENCE)


def test_a_store_that_ends_is_named():
    stores = [new_store()]
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
