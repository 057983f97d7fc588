from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from hpsearch_comm.bootstrap import exchange
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import LocalRendezvous
from hpsearch_comm.bootstrap.secret import SECRET_BYTES, agree_on_secret, new_secret, parse_secret
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError
from tests.comm.forming import PATIENCE, leaking_nothing, read_to_end, wait_until
from tests.comm.meeting import all_said, awaited, given_time, outcomes, uninvited
from tests.comm.other_user import NOBODY, as_nobody
from tests.forked import forked


@pytest.fixture
def name() -> str:
    return f"127.0.0.1:29500/{secrets.token_hex(8)}"


def agreeing(name: str, size: int, seconds: float = PATIENCE) -> Callable[[int], Callable[[], bytes]]:
    def rank_of(rank: int) -> Callable[[], bytes]:
        return functools.partial(agree_on_secret, rank, size, name, time.monotonic() + seconds)

    return rank_of


def meeting_address(name: str) -> str:
    return LocalRendezvous(name).address(Credentials(bytes(SECRET_BYTES)))


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(PATIENCE)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def is_there(address: str) -> bool:
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_secret_is_read_from_64_digits():
    secret = new_secret()
    assert len(secret) == SECRET_BYTES
    assert parse_secret(secret.hex()) == parse_secret(f" {secret.hex().upper()}\n") == secret
    assert new_secret() != secret


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "got 0 characters"),
        ("ab" * 31, "got 62 characters"),
        ("ab" * 33, "got 66 characters"),
        ("ab" * 31 + "xy", "got 64 characters, of which number 63 is none"),
        ("a b" + "c" * 61, "got 64 characters, of which number 2 is none"),
        ("\N{ARABIC-INDIC DIGIT ONE}" * 64, "got 64 characters, of which number 1 is none"),
    ],
)
def test_a_bad_secret_is_described_but_not_shown(text, got):
    with pytest.raises(ConfigurationError, match="HPSEARCH_COMM_SECRET to be 64 hexadecimal digits") as refusal:
        parse_secret(text)
    assert got in str(refusal.value)
    assert "secrets.token_hex(32)" in str(refusal.value)
    assert not text or text not in str(refusal.value)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_all_ranks_get_one_secret_and_leave_nothing(name, order):
    ranks = agreeing(name, 4)
    with leaking_nothing():
        first = outcomes({rank: ranks(rank) for rank in order})
        second = outcomes({rank: ranks(rank) for rank in order})
    assert len(set(first.values())) == len(set(second.values())) == 1
    assert first[0] != second[0]
    assert isinstance(first[0], bytes)
    assert len(first[0]) == SECRET_BYTES
    assert not is_there(meeting_address(name))


def test_a_group_of_one_needs_nobody(name):
    assert len(agree_on_secret(0, 1, name, time.monotonic())) == SECRET_BYTES


def test_groups_of_different_names_do_not_meet(name):
    one, other = agreeing(f"{name}/one", 2), agreeing(f"{name}/other", 2)
    found = outcomes({"one 0": one(0), "other 1": other(1), "other 0": other(0), "one 1": one(1)})
    assert found["one 0"] == found["one 1"] != found["other 0"] == found["other 1"]


def test_the_first_deadline_of_any_rank_names_the_missing_to_all(name):
    # Only rank 2 gives up soon; the others would wait for longer.
    def meet(soon: float) -> dict[int, bytes | Exception]:
        patient = agreeing(name, 5, 3 * soon)
        return outcomes({0: patient(0), 4: patient(4), 2: agreeing(name, 5, soon)(2)})

    with leaking_nothing():
        found = given_time(meet, all_said("ranks 1 and 3 of 5 did not come"))
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "ranks 1 and 3 of 5 did not come" in str(error)
        assert "HPSEARCH_COMM_SECRET to the same 64 hexadecimal digits on every rank" in str(error)


def test_a_rank_without_rank_0_is_told_how_to_set_a_secret(name):
    with leaking_nothing(), pytest.raises(RendezvousError) as error:
        agreeing(name, 2, 0.2)(1)()
    assert "rank 1 of 2 did not find rank 0" in str(error.value)
    assert name in str(error.value)
    assert "HPSEARCH_COMM_SECRET to the same 64 hexadecimal digits on every rank" in str(error.value)
    assert "secrets.token_hex(32)" in str(error.value)


def test_a_rank_of_another_host_finds_out_at_once(name):
    with pytest.raises(ConfigurationError, match=r"another host than rank 0.*'203\.0\.113\.7'.*SECRET"):
        agree_on_secret(1, 2, name, time.monotonic() + PATIENCE, host="203.0.113.7")


def test_groups_of_one_name_take_turns(name):
    ranks = agreeing(name, 2)
    with leaking_nothing(), ThreadPoolExecutor(2) as pool:
        first = [pool.submit(ranks(0)) for _ in range(2)]
        secrets_of_1 = [ranks(1)(), ranks(1)()]
        assert sorted(future.result(PATIENCE) for future in first) == sorted(secrets_of_1)


def test_a_name_that_stays_taken_is_named(name):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(meeting_address(name))
        other.listen()
        with pytest.raises(RendezvousError, match="two processes have RANK=0") as error:
            agreeing(name, 2, 0.2)(0)()
    assert name in str(error.value)


def test_a_host_that_is_unknown_is_another(name):
    with pytest.raises(ConfigurationError, match="another host than rank 0"):
        agree_on_secret(1, 2, name, time.monotonic() + PATIENCE, host="no-such-host.invalid")


def test_a_second_process_of_one_rank_is_refused(name):
    ranks = agreeing(name, 3)
    with ThreadPoolExecutor(4) as pool:
        futures = {"0": pool.submit(ranks(0)), "1": pool.submit(ranks(1)), "again": pool.submit(ranks(1))}
        wait_until(lambda: futures["1"].done() or futures["again"].done())
        futures["2"] = pool.submit(ranks(2))
        found = awaited(futures)
    refused = [error for error in (found["1"], found["again"]) if isinstance(error, RendezvousError)]
    assert len(refused) == 1
    assert "two processes may have been started with the same RANK" in str(refused[0])
    assert len({secret for secret in found.values() if isinstance(secret, bytes)}) == 1


def test_another_user_learns_nothing_and_hinders_nobody(name):
    ranks = agreeing(name, 2)
    address = meeting_address(name)
    with ThreadPoolExecutor(2) as pool:
        rank_0 = pool.submit(ranks(0))
        wait_until(lambda: is_there(address))

        def ask() -> bytes:
            with connect(address) as sock:
                with contextlib.suppress(OSError):  # The connection may have been ended already.
                    sock.sendall(os.urandom(120))
                    sock.shutdown(socket.SHUT_WR)
                return read_to_end(sock)

        assert as_nobody(ask) == b""
        assert ranks(1)() == rank_0.result(PATIENCE)


def test_ranks_do_not_trust_another_users_socket(name, monkeypatch):
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)
    address = meeting_address(name)

    def take_the_name() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address)
        sock.listen()
        return sock

    with as_nobody(take_the_name):
        found = outcomes({rank: agreeing(name, 2, 0.5)(rank) for rank in (0, 1)})
    assert isinstance(found[0], RendezvousError)
    assert "another user has taken the name" in str(found[0])
    assert isinstance(found[1], RefusedError)
    assert f"belongs to user {NOBODY}" in str(found[1])
    assert "HPSEARCH_COMM_SECRET" in str(found[1])


def test_nonsense_and_silence_hinder_nobody(name):
    address = meeting_address(name)
    ranks = agreeing(name, 3)
    with leaking_nothing(), ThreadPoolExecutor(3) as pool:
        rank_0 = pool.submit(ranks(0))
        company = (b"", b"HPSe", os.urandom(20), b"HPSe" + b"\xff" * 16, os.urandom(4096))
        with uninvited(lambda: connect(address), *company, idle=100):
            found = {rank: pool.submit(ranks(rank)) for rank in (1, 2)}
            assert {future.result(PATIENCE) for future in (rank_0, *found.values())} == {rank_0.result()}


def wait_alone(_channel: Connection, name: str) -> None:
    agree_on_secret(0, 3, name, time.monotonic() + 10 * PATIENCE)


def test_rank_0_may_be_killed_and_start_again(name):
    ranks = agreeing(name, 3)
    with forked(wait_alone, name) as (first, _), ThreadPoolExecutor(3) as pool:
        futures = {1: pool.submit(ranks(1))}
        wait_until(lambda: is_there(meeting_address(name)))
        first.kill()
        first.wait()
        assert not is_there(meeting_address(name))
        futures |= {rank: pool.submit(ranks(rank)) for rank in (0, 2)}
        found = awaited(futures)
    assert found[0] == found[1] == found[2]
    assert isinstance(found[0], bytes)
