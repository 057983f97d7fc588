from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import CommError, CommTimeoutError, MismatchError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.detector import NOTICE_BYTES, Detector, pack_notice, unpack_notice
from hpsearch_comm.header import Signature
from hpsearch_comm.history import History

ERRORS = [
    CommError("rank 1 broke off"),
    PeerLost("rank 2 has died", 2),
    CommTimeoutError("rank 1 waited for rank 0", 0),
    MismatchError("the ranks disagree: rank 1 ..."),
]


def wait_until(met: Callable[[], object]) -> None:
    while not met():
        time.sleep(0.002)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was(error):
    notice = pack_notice(error)
    assert len(notice) == NOTICE_BYTES
    read = unpack_notice(notice, 1)
    assert type(read) is type(error)
    assert str(error) in str(read)
    assert getattr(read, "rank", None) == getattr(error, "rank", None)


def test_a_long_text_is_cut_and_a_goodbye_is_none():
    assert str(unpack_notice(pack_notice(CommError("ä" * 1000)), 3)).startswith("rank 3 says: äää")
    assert unpack_notice(pack_notice(None), 3) is None


@given(st.binary(min_size=NOTICE_BYTES, max_size=NOTICE_BYTES))
def test_random_notices_are_errors_and_never_crash(notice):
    assert isinstance(unpack_notice(notice, 0), CommError | None)


class End:
    """One rank's end of a connection to the other."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.sock = sock
        self.abort_state = AbortState()
        self.history = History()
        self.control = Detector(
            rank, {1 - rank: sock}, {1 - rank: f"rank {1 - rank} (process 5)"}, self.abort_state, self.history
        )

    def close(self) -> None:
        self.control.close()
        self.abort_state.close()


@pytest.fixture
def ends() -> Iterator[list[End]]:
    both = [End(rank, sock) for rank, sock in enumerate(socket.socketpair())]
    yield both
    for end in both:
        end.close()


def test_a_goodbye_marks_and_doesnt_fail(ends):
    ends[0].close()
    wait_until(lambda: ends[1].abort_state.departed)
    assert ends[1].abort_state.departed == {0}
    assert ends[1].abort_state.error is None
    with pytest.raises(PeerLost, match="rank 0 has closed the group"):
        ends[1].abort_state.check(0)
    ends[1].abort_state.check()


def test_an_end_without_a_goodbye_is_a_death(ends):
    ends[0].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: ends[1].abort_state.error)
    with pytest.raises(PeerLost, match=r"rank 0 \(process 5\) has died") as caught:
        ends[1].abort_state.check()
    assert caught.value.rank == 0


def test_a_failure_is_told_to_the_peer_once_and_the_first_counts(ends):
    ends[0].abort_state.fail(ERRORS[3])
    ends[0].abort_state.fail(ERRORS[0])
    wait_until(lambda: ends[1].abort_state.error)
    assert str(ends[1].abort_state.error) == f"rank 0 says: {ERRORS[3]}"
    assert type(ends[0].abort_state.error) is MismatchError


def test_an_operation_that_lasts_finds_a_peer_in_another(ends):
    mine = Signature(7, "allreduce", "ring", shape=(3,), reduction="sum")
    ends[1].history.begin(7, Signature(7, "barrier", "pairwise").pack())
    ends[1].history.running = None
    ends[0].history.begin(7, mine.pack())
    wait_until(lambda: ends[0].abort_state.error)
    for end in ends:
        assert type(end.abort_state.error) is MismatchError
        assert "rank 1 calls barrier 7 (pairwise), rank 0 calls allreduce 7" in str(end.abort_state.error)


def test_an_operation_that_lasts_leaves_a_peer_alone_that_is_in_the_same_or_elsewhere(ends):
    same = Signature(7, "barrier", "pairwise").pack()
    ends[1].history.begin(7, same)
    for number, packed in ((7, same), (8, Signature(8, "broadcast", "tree").pack())):
        ends[0].history.begin(number, packed)
        wait_until(lambda: ends[0].control._announced[0] == ends[0].history.running)
    ends[0].close()
    wait_until(lambda: ends[1].abort_state.departed)
    assert ends[1].abort_state.error is None


def test_bytes_that_are_no_notice_end_the_group_with_an_error(ends):
    ends[0].sock.setblocking(True)
    ends[0].sock.sendall(os.urandom(4) + b"\xff" * (NOTICE_BYTES - 4))
    ends[0].sock.sendall(b"\xff" * NOTICE_BYTES)
    wait_until(lambda: ends[1].abort_state.error)


class Narrow:
    """A socket that takes so many bytes at a time, and then none."""

    def __init__(self, sock: socket.socket, room: list[int]) -> None:
        self._sock = sock
        self._room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes, flags: int = 0) -> int:
        room = self._room.pop(0) if self._room else len(data)
        if room == 0:
            raise BlockingIOError
        return self._sock.send(data[:room], flags)


@pytest.mark.parametrize("room", [[200], [200, 0, 0], [1, 0, 511], [511, 1], [0, 200, 100, 0, 50], [0], [0] * 5])
def test_a_notice_that_is_taken_in_part_shifts_none_that_follow(ends, room):
    ends[0].control._controls[1] = Narrow(ends[0].sock, list(room))
    ends[1].history.begin(7, Signature(7, "barrier", "pairwise").pack())
    for sequence in range(20, 30):
        ends[0].control.announce(Signature(sequence, "allreduce", "ring").pack())
    ends[0].control.announce(Signature(7, "barrier", "pairwise").pack())
    assert ends[1].abort_state.error is None
    ends[0].close()
    wait_until(lambda: ends[1].abort_state.departed or ends[1].abort_state.error)
    assert ends[1].abort_state.error is None
    assert ends[1].abort_state.departed == {0}


def test_an_error_follows_the_rest_of_a_notice(ends):
    ends[0].control._controls[1] = Narrow(ends[0].sock, [200])
    ends[0].control.announce(Signature(7, "barrier", "pairwise").pack())
    ends[0].abort_state.fail(ERRORS[1])
    wait_until(lambda: ends[1].abort_state.error)
    assert str(ends[1].abort_state.error) == f"rank 0 says: {ERRORS[1]}"


def test_what_a_peer_takes_late_is_told_in_whole_notices_and_not_without_bounds():
    """A peer that is stopped reads nothing for a while, and then all at once."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 5000)
    end = End(0, ours)
    for sequence in range(500):
        end.control.announce(Signature(sequence, "barrier", "pairwise").pack())
    assert len(end.control._unsent[1]) < NOTICE_BYTES
    theirs.settimeout(20)
    arrived = theirs.recv(4 * NOTICE_BYTES, socket.MSG_WAITALL)
    end.abort_state.fail(ERRORS[1])
    end.close()
    while chunk := theirs.recv(NOTICE_BYTES):
        arrived += chunk
    theirs.close()
    notices = [arrived[start : start + NOTICE_BYTES] for start in range(0, len(arrived), NOTICE_BYTES)]
    assert {notice[0] for notice in notices[:-1]} == {255}
    assert str(unpack_notice(notices[-1], 0)) == f"rank 0 says: {ERRORS[1]}"


def in_time(work: Callable[[], object]) -> None:
    """Run it in a thread, since it might wait for itself."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_a_failure_in_the_middle_of_telling_something_waits_for_nobody(ends):
    """A signal's handler may end the group while the thread that it interrupts is about to tell where it waits."""
    fail = [lambda: ends[0].abort_state.fail(ERRORS[0])]

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(ends[0].sock, name)

        def send(self, *arguments: Any) -> int:
            sent: int = ends[0].sock.send(*arguments)
            while fail:
                fail.pop()()
            return sent

    ends[0].control._controls[1] = Interrupted()
    operation = Signature(7, "barrier", "pairwise").pack()
    in_time(lambda: ends[0].control.announce(operation))
    wait_until(lambda: ends[1].abort_state.error)
    assert type(ends[1].abort_state.error) is CommError


def test_a_failure_in_the_middle_of_another_one_waits_for_nobody_and_the_first_counts(monkeypatch):
    abort_state = AbortState()
    write = os.eventfd_write
    told: list[CommError | None] = []
    abort_state.on_change(lambda: told.append(abort_state.error))

    def interrupted(*arguments: int) -> None:
        monkeypatch.setattr("os.eventfd_write", write)
        abort_state.fail(ERRORS[1])
        abort_state.mark_departed(3)
        abort_state.close()

    monkeypatch.setattr("os.eventfd_write", interrupted)
    in_time(lambda: abort_state.fail(ERRORS[0]))
    assert abort_state.error is ERRORS[0]
    assert abort_state.departed == {3}
    assert set(told) == {ERRORS[0]}


def test_closing_leaves_no_thread():
    before = threading.active_count()
    both = [End(rank, sock) for rank, sock in enumerate(socket.socketpair())]
    for end in both:
        end.close()
        end.close()
    assert threading.active_count() == before


def test_a_goodbye_that_the_network_holds_up_comes_all_the_same():
    """The peer's buffer is full, and it goes on sending: a connection that had been closed would be reset by that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(server.getsockname())
        end = End(0, server.accept()[0])
    for sequence in range(100):
        end.control.announce(Signature(sequence, "barrier", "pairwise").pack())
    leaving = threading.Thread(target=end.close)
    with sock:
        leaving.start()
        wait_until(lambda: not end.control._thread.is_alive())
        sock.sendall(bytes(NOTICE_BYTES))
        sock.settimeout(20)
        arrived = b""
        while chunk := sock.recv(1 << 16):
            arrived += chunk
        leaving.join()
    assert len(arrived) % NOTICE_BYTES == 0
    assert unpack_notice(arrived[-NOTICE_BYTES:], 0) is None
    assert arrived[-NOTICE_BYTES] == 0
