"""Ranks that come together in threads of this process, and uninvited company."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous
from tests.comm.forming import LOOPBACK, PATIENCE, new_credentials, open_files, wait_until

SOON = 0.5
"""Seconds after which a rank gives up: long enough for all to have met before, on a machine that isn't busy."""

K = TypeVar("K")
T = TypeVar("T")


class Meeting:
    """A place, and the credentials of the group that meets there."""

    def __init__(self, place: Rendezvous) -> None:
        self.place = place
        self.credentials = new_credentials()

    def rank(
        self, rank: int, size: int, *, seconds: float = PATIENCE, credentials: Credentials | None = None, mine: str = ""
    ) -> Callable[[], list[str]]:
        return functools.partial(
            self.place.exchange,
            rank,
            size,
            mine or address(rank),
            credentials or self.credentials,
            time.monotonic() + seconds,
        )


def address(rank: int, hostname: str = "node") -> str:
    return Address(f"{rank:032x}", hostname, 1 + rank, LOOPBACK, 1 + rank, f"socket-{rank}").to_text()


def addresses(size: int) -> list[str]:
    return [address(rank) for rank in range(size)]


def new_store() -> TCPStore:
    """Open a store as torchrun does."""
    return TCPStore(LOOPBACK, 0, None, True, timedelta(seconds=PATIENCE), wait_for_workers=False)


def outcomes(tasks: Mapping[K, Callable[[], T]]) -> dict[K, T | Exception]:
    """Run all tasks at once and return what came of each."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return awaited({name: pool.submit(task) for name, task in tasks.items()})


def awaited(futures: Mapping[K, Future[T]]) -> dict[K, T | Exception]:
    found: dict[K, T | Exception] = {}
    for name, future in futures.items():
        error = future.exception(2 * PATIENCE)
        assert error is None or isinstance(error, Exception)
        found[name] = error or future.result()
    return found


def given_time(meet: Callable[[float], T], met: Callable[[T], bool]) -> T:
    """Let ranks meet that give up at a deadline, by when all who come must have come.

    How long that takes depends on the machine. So they have twice as long each time, until they have met; what the
    longest time gives is the answer in any case.
    """
    seconds = SOON
    while not met(found := meet(seconds)) and seconds < PATIENCE:
        seconds *= 2
    return found


def all_said(word: str) -> Callable[[Mapping[K, object]], bool]:
    """Look whether the errors of all ranks hold this."""
    return lambda found: all(word in str(outcome) for outcome in found.values())


def free_port() -> int:
    """Return a port that is free on every address, and that the kernel won't choose for others."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(lowest - 8000, lowest)
        with socket.socket() as everywhere, contextlib.suppress(OSError):
            everywhere.bind(("", port))
            return port


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """See that what runs inside leaves no descriptor and no thread, as soon as this process's store has noticed."""
    gc.collect()
    files, threads = open_files(), set(threading.enumerate())
    yield
    gc.collect()
    # What an earlier test has left may go meanwhile, so there may be less than before.
    wait_until(lambda: open_files().items() <= files.items() and threads.issuperset(threading.enumerate()))


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
