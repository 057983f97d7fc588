from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Iterator

import pytest

from hpsearch_comm.bootstrap.tasks import Task, Tasks, received, sleep
from tests.comm.forming import PATIENCE, leaking_nothing


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    with leaking_nothing(), contextlib.closing(Tasks()) as tasks:
        yield tasks


def within_patience() -> float:
    return time.monotonic() + PATIENCE


def echo(sock: socket.socket, rounds: int) -> Task[bytes]:
    """Send back what comes, and return all of it."""
    found = b""
    with sock:
        sock.setblocking(False)
        for _ in range(rounds):
            word = yield from received(sock, 2, within_patience())
            found += word
            sock.send(word)
    return found


def talk(sock: socket.socket, words: list[bytes]) -> Task[bytes]:
    found = b""
    with sock:
        sock.setblocking(False)
        for word in words:
            sock.send(word[:1])
            yield from sleep(0.0)
            sock.send(word[1:])
            found += yield from received(sock, 2, within_patience())
    return found


def test_tasks_that_wait_for_each_other_all_come_to_their_end(tasks):
    for _ in range(3):
        left, right = socket.socketpair()
        tasks.start(echo(left, 2))
        assert tasks.run(talk(right, [b"ab", b"cd"])) == b"abcd"


def test_a_task_that_waits_delays_no_other(tasks):
    silent, idle = socket.socketpair()
    tasks.start(echo(silent, 1))
    left, right = socket.socketpair()
    tasks.start(echo(left, 1))
    assert tasks.run(talk(right, [b"ab"])) == b"ab"
    idle.close()


def test_what_does_not_come_in_time_is_an_error_in_its_task(tasks):
    left, right = socket.socketpair()
    left.setblocking(False)
    with left, right, pytest.raises(TimeoutError, match="silent in the middle"):
        tasks.run(received(left, 1, time.monotonic()))


def test_an_end_before_everything_has_come_is_an_error(tasks):
    left, right = socket.socketpair()
    left.setblocking(False)
    right.sendall(b"a")
    right.close()
    with left, pytest.raises(OSError, match="it ended the connection before it answered"):
        tasks.run(received(left, 2, within_patience()))


def test_a_step_ends_at_its_time_though_nothing_has_come(tasks):
    left, right = socket.socketpair()
    tasks.start(echo(left, 1))
    tasks.step(time.monotonic())
    right.close()
    with pytest.raises(OSError, match="it ended the connection"):
        tasks.step()


def test_an_interrupted_task_gets_the_error_and_others_go_on(tasks):
    seen: list[str] = []

    def wait() -> Task[None]:
        try:
            yield None, 0, math.inf
        except TimeoutError as error:
            seen.append(str(error))

    waiting = wait()
    tasks.start(waiting)
    left, right = socket.socketpair()
    tasks.start(echo(left, 1))
    tasks.interrupt(waiting, TimeoutError("too slow"))
    assert seen == ["too slow"]
    assert tasks.run(talk(right, [b"ab"])) == b"ab"


def test_closing_ends_all_tasks_and_closes_their_sockets():
    with leaking_nothing():
        tasks = Tasks()
        pairs = [socket.socketpair() for _ in range(3)]
        for left, _ in pairs:
            tasks.start(echo(left, 1))
        tasks.close()
        for _, right in pairs:
            with right:
                assert select.select([right], [], [], PATIENCE)[0]
                assert right.recv(1) == b""
