from __future__ import annotations

import functools
import itertools
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from hpsearch_comm.bootstrap import exchange
from hpsearch_comm.bootstrap.exchange import name_ranks
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import (
    KnownAddresses,
    LocalRendezvous,
    MasterRendezvous,
    Rendezvous,
    StoreRendezvous,
)
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError
from tests.comm.forming import LOOPBACK, PATIENCE, new_credentials
from tests.comm.meeting import (
    Meeting,
    address,
    addresses,
    all_said,
    awaited,
    free_port,
    given_time,
    leaving_nothing,
    new_store,
    outcomes,
)
from tests.forked import forked


@pytest.fixture(params=["master", "store", "local"])
def meeting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    if request.param == "master":
        yield Meeting(MasterRendezvous(LOOPBACK, free_port()))
        return
    if request.param == "local":
        yield Meeting(LocalRendezvous(uuid.uuid4().hex))
        return
    # The store asks for the name of everyone who connects, and would wait for long where nobody answers.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    store = new_store()
    yield Meeting(StoreRendezvous(LOOPBACK, store.port))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "order",
    [
        (0, 1, 2),
        (2, 1, 0),
        (4, 2, 0, 1, 3),
        *(pytest.param(order, marks=pytest.mark.exhaustive) for order in [*itertools.permutations(range(3))][1:-1]),
    ],
)
def test_every_rank_learns_all_addresses(meeting, order):
    size = len(order)
    with leaving_nothing():
        assert outcomes({rank: meeting.rank(rank, size) for rank in order}) == dict.fromkeys(order, addresses(size))


def test_a_group_of_one_meets_nobody(meeting):
    assert meeting.rank(0, 1, seconds=0)() == addresses(1)


@pytest.mark.some_cases(1)
def test_groups_meet_at_one_place_one_after_another(meeting):
    # Without any pause between them: some ranks may be in the next group while others still leave the last.
    def one_after_another(rank: int) -> list[list[str]]:
        return [meeting.rank(rank, 3, mine=address(rank, f"group {group}"))() for group in range(8)]

    with leaving_nothing():
        found = outcomes({rank: functools.partial(one_after_another, rank) for rank in range(3)})
    expected = [[address(rank, f"group {group}") for rank in range(3)] for group in range(8)]
    assert found == dict.fromkeys(range(3), expected)


@pytest.mark.some_cases(1)
def test_the_first_deadline_of_any_rank_names_the_missing_to_all(meeting):
    # Only rank 2 gives up soon; the others would wait for longer.
    def meet(soon: float) -> dict[int, list[str] | Exception]:
        return outcomes({rank: meeting.rank(rank, 5, seconds=soon if rank == 2 else 3 * soon) for rank in (0, 2, 4)})

    with leaving_nothing():
        found = given_time(meet, all_said("ranks 1 and 3 of 5 did not come"))
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "ranks 1 and 3 of 5 did not come" in str(error)
    # The place is as good as new.
    assert outcomes({rank: meeting.rank(rank, 2) for rank in range(2)}) == dict.fromkeys(range(2), addresses(2))


def test_a_missing_rank_0_is_named(meeting):
    found = given_time(
        lambda soon: outcomes({rank: meeting.rank(rank, 3, seconds=soon) for rank in (1, 2)}), all_said("rank 0")
    )
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "rank 0" in str(error)
        place = meeting.place
        assert (place.job if isinstance(place, LocalRendezvous) else str(place.port)) in str(error)


def test_a_rank_with_another_secret_is_told_soon_and_the_others_go_on(meeting, monkeypatch, caplog):
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)
    with ThreadPoolExecutor(4) as pool:
        stranger = pool.submit(meeting.rank(1, 3, credentials=new_credentials()))
        futures = {rank: pool.submit(meeting.rank(rank, 3)) for rank in (0, 2)}
        error = stranger.exception(PATIENCE / 2)
        assert isinstance(error, RefusedError)
        assert "rank 0" in str(error)
        assert "secrets differ" in str(error)
        # Rank 0 says so too, at once; but strangers can't end the group.
        assert "rank 1 of 3 was refused" in caplog.text
        assert any(record.getMessage().startswith("rank 0 refused") for record in caplog.records)
        futures[1] = pool.submit(meeting.rank(1, 3))
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_a_rank_waits_until_another_group_has_left_the_place(meeting, monkeypatch):
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)
    ours = meeting.credentials
    earlier, later = Credentials(ours.secret, ours.group, 1), Credentials(ours.secret, ours.group, 2)
    with ThreadPoolExecutor(4) as pool:
        first = {0: pool.submit(meeting.rank(0, 2, credentials=earlier))}
        second = {1: pool.submit(meeting.rank(1, 2, credentials=later))}
        with pytest.raises(TimeoutError):
            second[1].result(0.3)
        first[1] = pool.submit(meeting.rank(1, 2, credentials=earlier))
        assert awaited(first) == dict.fromkeys(range(2), addresses(2))
        second[0] = pool.submit(meeting.rank(0, 2, credentials=later))
        assert awaited(second) == dict.fromkeys(range(2), addresses(2))


def test_ranks_with_different_secrets_are_told_so(meeting):
    other = new_credentials()

    def meet(soon: float) -> dict[int, list[str] | Exception]:
        return outcomes({0: meeting.rank(0, 2, seconds=soon), 1: meeting.rank(1, 2, seconds=soon, credentials=other)})

    found = given_time(meet, all_said("secret"))
    assert isinstance(found[0], RendezvousError)
    assert isinstance(found[1], RefusedError | RendezvousError)
    assert all("secret" in str(error) for error in found.values())
    assert "rank 1 of 2 did not come" in str(found[0])


def wait_alone(channel: Connection, place: Rendezvous, credentials: Credentials) -> None:
    channel.send("here")
    place.exchange(0, 3, address(0), credentials, time.monotonic() + 10 * PATIENCE)


def test_rank_0_may_be_killed_and_start_again(meeting):
    with (
        forked(wait_alone, meeting.place, meeting.credentials) as (first, channel),
        ThreadPoolExecutor(3) as pool,
    ):
        futures = {1: pool.submit(meeting.rank(1, 3))}
        assert channel.recv() == "here"
        first.kill()
        first.wait()
        futures |= {rank: pool.submit(meeting.rank(rank, 3)) for rank in (0, 2)}
        assert awaited(futures) == dict.fromkeys(range(3), addresses(3))


def test_addresses_known_beforehand_are_checked():
    credentials = new_credentials()
    known = KnownAddresses(addresses(3))
    assert known.exchange(1, 3, address(1), credentials, time.monotonic()) == addresses(3)
    with pytest.raises(ConfigurationError, match="addresses of all 4 ranks, got 3"):
        known.exchange(1, 4, address(1), credentials, time.monotonic())


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([1, 5], "ranks 1 and 5"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 2, 3], "ranks 0, 2 and 3"),
        ([0, 1, 2, 4, 6], "ranks 0 to 2, 4 and 6"),
        ([1, 4, 5, 6], "ranks 1 and 4 to 6"),
        ([2, 3, 4], "ranks 2 to 4"),
        (range(1, 100), "ranks 1 to 99"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 34 more"),
    ],
)
def test_ranks_are_named_shortly(ranks, text):
    assert name_ranks(ranks) == text


def test_a_place_says_where_rank_0_is():
    assert MasterRendezvous("node0", 29500).host == StoreRendezvous("node0", 29500).host == "node0"
    assert KnownAddresses([]).host is None


def test_an_address_too_long_to_send_is_refused(meeting):
    with pytest.raises(ConfigurationError, match="at most 8192 bytes, got 8193"):
        meeting.rank(0, 2, mine="x" * 8193)()
