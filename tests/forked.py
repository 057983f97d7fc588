"""Processes for tests, forked from one that has imported torch, that each do a task: each starts in milliseconds."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tests.forking import Forked


def begin(task: Callable[..., None], *arguments: Any) -> tuple[Forked, Connection]:
    """Begin `task(channel, *arguments)` in a process of its own; return it, and the other end of the channel."""
    ours, theirs = Pipe()
    with theirs:
        process = Forked("tests.forked", channel=theirs.fileno())
    ours.send(sys.path)  # on which pytest has put where its modules are
    ours.send((task, arguments))
    return process, ours


@contextlib.contextmanager
def forked(task: Callable[..., None], *arguments: Any) -> Iterator[tuple[Forked, Connection]]:
    """Run `task(channel, *arguments)` in a process of its own; return the process, and the other end of the channel.

    A process that is still there when the block ends is killed.
    """
    process, ours = begin(task, *arguments)
    try:
        yield process, ours
    finally:
        end(process, ours)


def end(process: Forked, ours: Connection) -> None:
    """Kill a process that `begin` gave."""
    process.kill()
    process.wait()
    # What it has forked itself may hold the other ends, until it hears no more over the channel.
    process.stdin.close()
    process.stdout.close()
    ours.close()


def _do_task() -> None:
    channel = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = channel.recv()
    task, arguments = channel.recv()
    task(channel, *arguments)


if __name__ == "__main__":
    _do_task()
