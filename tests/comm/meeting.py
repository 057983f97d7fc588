"""Ranks that come together in threads of this process, and uninvited company."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tests.comm.forming import PATIENCE, open_files, wait_until

K = TypeVar("K")
T = TypeVar("T")


def outcomes(tasks: Mapping[K, Callable[[], T]]) -> dict[K, T | Exception]:
    """Run all tasks at once and give what came of each."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return awaited({name: pool.submit(task) for name, task in tasks.items()})


def awaited(futures: Mapping[K, Future[T]]) -> dict[K, T | Exception]:
    found: dict[K, T | Exception] = {}
    for name, future in futures.items():
        error = future.exception(2 * PATIENCE)
        assert error is None or isinstance(error, Exception)
        found[name] = error or future.result()
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """See that what runs inside leaves no descriptor and no thread, as soon as this process's store has noticed."""
    gc.collect()
    before = open_files(), threading.active_count()
    yield
    gc.collect()
    wait_until(lambda: (open_files(), threading.active_count()) == before)


@contextlib.contextmanager
def uninvited(connect: Callable[[], socket.socket], *messages: bytes, idle: int = 0) -> Iterator[None]:
    """Keep sending these from connections of their own as long as the block runs, beside connections that say nothing.

    The block begins as soon as each message has been sent once.
    """
    done, begun = threading.Event(), threading.Event()

    def keep_on() -> None:
        silent: list[socket.socket] = []
        while not done.wait(0.001):
            with contextlib.suppress(OSError):
                while len(silent) < idle:
                    silent.append(connect())
                for message in messages:
                    with connect() as sock:
                        sock.sendall(message)
                begun.set()
        for sock in silent:
            sock.close()

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield
    finally:
        done.set()
        thread.join()
