"""Groups whose ranks are threads of this process: quick to make, for whatever doesn't need a rank to die."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import hpsearch_comm as comm

T = TypeVar("T")

SECRET = bytes(range(32))


def run_ranks(size: int, work: Callable[[comm.Group], T], *, hosts: list[str] | None = None, **options: Any) -> list[T]:
    """Run `work` on each rank of a new group, and return the results by rank; raises what the first of them raised.

    Args:
        size: Number of ranks.
        work: What a rank does with its group.
        hosts: A name of a host for each rank, where there are to be several.
        **options: Of every group.
    """
    listeners = [comm.Listener("127.0.0.1", host=hosts[rank] if hosts else None) for rank in range(size)]
    addresses = comm.KnownAddresses([listener.address.to_text() for listener in listeners])
    results: dict[int, T] = {}
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            group = comm.Group(rank, size, rendezvous=addresses, secret=SECRET, listener=listeners[rank], **options)
            with group:
                results[rank] = work(group)
        except BaseException as error:
            errors.append((rank, error))

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return [results[rank] for rank in range(size)]
