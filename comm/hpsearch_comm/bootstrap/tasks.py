"""Tasks: generators that run concurrently in one thread, each of which makes or accepts one connection.

A task waits by `yield (socket, events, until)`, which returns True once the socket has one of the events, or False at
that time; without a socket it only sleeps. asyncio does the same, but not in a thread whose event loop is running
already, such as that of a notebook or of an actor.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Wish = tuple[socket.socket | None, int, float]
"""What a task waits for: a socket or None, its events, as for epoll(7), and a time in seconds of `time.monotonic()`."""
Task = Generator[Wish, bool | None, T]


class Tasks:
    """Runs tasks. A task's error is raised where the task is started or continued; the others stay as they are."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wishes: dict[Task[Any], Wish] = {}

    def start(self, task: Task[Any]) -> None:
        """Run a task up to its first wait."""
        self._resume(task, None)

    def step(self, until: float = math.inf) -> None:
        """Wait until a task can continue, at most until this time, and continue all tasks that can."""
        seconds = min([until, *(due for _, _, due in self._wishes.values())]) - time.monotonic()
        ready = {number for number, _ in self._epoll.poll(None if seconds == math.inf else max(0.0, seconds))}
        now = time.monotonic()
        for task, (sock, _, due) in list(self._wishes.items()):
            came = sock is not None and sock.fileno() in ready
            if (came or due <= now) and task in self._wishes:
                self._forget(task)
                self._resume(task, came)

    def run(self, task: Task[T]) -> T:
        """Run a task to its end, and return its result."""
        results: list[T] = []

        def keep() -> Task[None]:
            results.append((yield from task))

        self.start(keep())
        while not results:
            self.step()
        return results[0]

    def interrupt(self, task: Task[Any], error: Exception) -> None:
        """Raise an error in a waiting task, which must end then."""
        self._forget(task)
        with contextlib.suppress(StopIteration):
            task.throw(error)

    def close(self) -> None:
        """End all tasks, which then close their sockets."""
        for task in list(self._wishes):
            self._forget(task)
            task.close()
        self._epoll.close()

    def _resume(self, task: Task[Any], came: bool | None) -> None:
        try:
            wish = self._wishes[task] = task.send(came)
        except StopIteration:
            return
        if wish[0] is not None:
            self._epoll.register(wish[0], wish[1])

    def _forget(self, task: Task[Any]) -> None:
        sock, _, _ = self._wishes.pop(task)
        if sock is not None:
            self._epoll.unregister(sock)


def sleep(seconds: float) -> Task[None]:
    """Wait for this number of seconds while other tasks run."""
    yield None, 0, time.monotonic() + seconds


def ready(sock: socket.socket, events: int, until: float) -> Task[None]:
    """Wait for one of the events.

    Raises:
        TimeoutError: There was none until this time.
    """
    if not (yield sock, events, until):
        raise TimeoutError("the other side was silent in the middle of a handshake")


def received(sock: socket.socket, count: int, until: float) -> Task[bytes]:
    """Receive exactly `count` bytes and return them.

    Raises:
        TimeoutError: They haven't arrived until this time.
        OSError: The other side ended the connection.
    """
    arrived = b""
    while len(arrived) < count:
        yield from ready(sock, select.EPOLLIN, until)
        try:
            chunk = sock.recv(count - len(arrived))
        except BlockingIOError:
            continue
        if not chunk:
            raise OSError(errno.ECONNRESET, "it ended the connection before it answered")
        arrived += chunk
    return arrived


def poll_any(socks: Sequence[socket.socket], events: int) -> bool:
    """Return whether one of the sockets has one of the events now; see poll(2)."""
    poll = select.poll()
    for sock in socks:
        poll.register(sock, events)
    return bool(poll.poll(0))
