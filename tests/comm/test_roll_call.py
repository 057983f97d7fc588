from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpsearch_comm.errors import CommError, RefusedError, RendezvousError
from hpsearch_comm.formation import roll_call
from hpsearch_comm.formation.roll_call import Admission, RollCall, answer_roll_call
from tests.comm.forming import LOOPBACK, PATIENCE, read_to_end
from tests.comm.meeting import given_time, leaving_nothing, outcomes


def admit_all(_sock: socket.socket) -> Admission:
    yield from ()
    return None


def listening(kind: type[socket.socket] = socket.socket) -> tuple[socket.socket, Callable[[], socket.socket]]:
    """Open a port, and give what connects to it."""
    listener = kind(socket.AF_INET)
    listener.bind((LOOPBACK, 0))
    listener.listen()
    place = listener.getsockname()
    return listener, lambda: socket.create_connection(place, PATIENCE)


def taking(pool: ThreadPoolExecutor, listener: socket.socket, size: int):
    call = RollCall([listener], size, time.monotonic() + PATIENCE, "here", "Do better", admit_all)
    return pool.submit(call.take, lambda texts: texts)


def answering(connect: Callable[[], socket.socket], rank: int, size: int, seconds: float = PATIENCE) -> list[bytes]:
    text = f"text of {rank}".encode()
    return answer_roll_call(lambda _end: connect(), rank, size, text, time.monotonic() + seconds, "here", "Do better")


def test_everybody_gets_the_outcome():
    with leaving_nothing(), ThreadPoolExecutor(3) as pool:
        listener, connect = listening()
        taken = taking(pool, listener, 3)
        ranks = [pool.submit(answering, connect, rank, 3) for rank in (1, 2)]
        expected = [b"text of 1", b"text of 2"]
        assert [future.result(PATIENCE) for future in (taken, *ranks)] == [expected] * 3


@pytest.mark.parametrize("rank", [0, 3, 2**32 - 1])
def test_a_rank_that_cannot_be_is_refused(rank):
    with leaving_nothing(), ThreadPoolExecutor(2) as pool:
        listener, connect = listening()
        taken = taking(pool, listener, 2)
        with pytest.raises(RendezvousError, match=f"refused rank {rank}: its rank must be from 1 to 1"):
            answering(connect, rank, 2)
        assert answering(connect, 1, 2) == taken.result(PATIENCE)


def test_a_slow_caller_is_dropped(monkeypatch):
    monkeypatch.setattr(roll_call, "_ADMISSION_SECONDS", 0.05)
    with leaving_nothing(), ThreadPoolExecutor(2) as pool:
        listener, connect = listening()
        taken = taking(pool, listener, 2)
        with connect() as slow:
            slow.sendall(b"HPSe")
            assert read_to_end(slow) == b""
        monkeypatch.undo()
        assert answering(connect, 1, 2) == taken.result(PATIENCE)


class Exhausted(socket.socket):
    """A listener whose process has had no descriptors left, twice."""

    refusals = 2

    def accept(self):
        if self.refusals > 0:
            self.refusals -= 1
            raise OSError("too many open files")
        return super().accept()


def test_a_connection_that_cannot_be_accepted_is_tried_again():
    with leaving_nothing(), ThreadPoolExecutor(2) as pool:
        listener, connect = listening(Exhausted)
        taken = taking(pool, listener, 2)
        assert answering(connect, 1, 2) == taken.result(PATIENCE) == [b"text of 1"]


def test_whatever_stops_rank_0_closes_its_sockets():
    def stop(_texts: list[bytes]) -> list[bytes]:
        raise KeyboardInterrupt

    def meet(soon: float) -> dict[str, object]:
        listener, connect = listening()
        call = RollCall([listener], 2, time.monotonic() + PATIENCE, "here", "Do better", admit_all)

        def take() -> bool:
            with pytest.raises(KeyboardInterrupt):
                call.take(stop)
            return True

        return outcomes({"stopped": take, "rank 1": lambda: answering(connect, 1, 2, soon)})

    with leaving_nothing():
        found = given_time(meet, lambda found: found["stopped"] is True)
    assert found["stopped"] is True
    # Its connections end, and nobody is there any more.
    assert isinstance(found["rank 1"], RendezvousError)
    assert "did not find rank 0" in str(found["rank 1"])


@pytest.fixture
def false_rank_0() -> Iterator[Callable[[bytes], Callable[[], socket.socket]]]:
    """Make connections to somebody who sends these bytes, whatever is said, and hangs up unless they are empty."""
    kept = []

    def says(message: bytes) -> Callable[[], socket.socket]:
        def connect() -> socket.socket:
            mine, theirs = socket.socketpair()
            kept.append(theirs)
            theirs.sendall(message)
            if message:
                theirs.shutdown(socket.SHUT_WR)
            return mine

        return connect

    yield says
    for sock in kept:
        sock.close()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"HTTP/1.1 400", "can't be read"),
        (b"HPSo" + struct.pack("<II", 0, 10**6), "can't be read"),
        (b"HPSo" + struct.pack("<III", 0, 1, 2**31), "a text of 2147483648 bytes, more than 8192"),
        (b"HPSo" + struct.pack("<III", 0, 1, 10) + b"short", "ended the connection; it may have died"),
        (b"HP", "ended the connection; it may have died"),
    ],
)
def test_an_outcome_that_cannot_be_is_not_taken(false_rank_0, message, reason):
    with pytest.raises(CommError, match=r"rank 1 of 3 did not find rank 0.*here.*Do better") as error:
        answering(false_rank_0(message), 1, 3, 0.05)
    assert reason in str(error.value)


def test_a_rank_0_that_says_nothing_is_given_up(false_rank_0, monkeypatch):
    monkeypatch.setattr(roll_call, "_FAREWELL_SECONDS", 0.05)
    with pytest.raises(RendezvousError, match="rank 0 is there, but told no outcome"):
        answering(false_rank_0(b""), 1, 3, 0.05)


def test_a_refusal_is_told_with_the_end_that_follows():
    def meet(soon: float) -> Exception:
        work_queue = itertools.chain([RefusedError("the secrets differ")], itertools.repeat(OSError("nobody listens")))

        def connect() -> socket.socket:
            raise next(work_queue)

        with pytest.raises(CommError) as caught:
            answering(connect, 1, 2, soon)
        return caught.value

    told = "nobody listens; before that, the secrets differ"
    error = given_time(meet, lambda error: told in str(error))
    assert isinstance(error, RendezvousError)
    assert told in str(error)
