"""A barrier that names missing ranks. torch's `monitored_barrier` accepts only Gloo."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from hpsearch_comm.errors import CommTimeoutError, UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.torch_backend.process_group import CommProcessGroup
from hpsearch_comm.torch_backend.work import as_torchs

_TAG = 2**62
"""The tag of its messages. It can't collide with torch's tags, which are 32-bit integers."""


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank has called it. After the timeout, close the group with an error that names missing ranks.

    Args:
        group: A group of the hpsearch backend; None for the default group.
        timeout: The timeout; None for the group's timeout.
        wait_all_ranks: Whether to name all missing ranks, not only the first.

    Raises:
        DistBackendError: A rank didn't call it.
    """
    with as_torchs():
        everybody = group if group is not None else dist.distributed_c10d._get_default_group()
        if not isinstance(everybody, CommProcessGroup):
            raise UsageError(
                "monitored_barrier of hpsearch_comm takes a group of the hpsearch backend, got one of "
                f"{dist.get_backend(group)}: use torch.distributed.monitored_barrier"
            )
        seconds = everybody.timeout if timeout is None else timeout.total_seconds()
        if everybody.group.rank:
            _report(everybody.group, seconds)
        else:
            _watch(everybody.group, seconds, wait_all_ranks)


def _report(group: Group, seconds: float) -> None:
    """Run the part of ranks other than 0: report to rank 0, and wait for it and then for all ranks."""
    token = torch.zeros(0, device="cpu")
    group.send(token, 0, _TAG)
    here, everybody = group.recv_async(token, 0, _TAG), group.recv_async(token, 0, _TAG)
    try:
        here.wait(seconds)
    except CommTimeoutError:
        if here.done():
            raise
        _fail(group, [0], seconds)
    everybody.wait()


def _watch(group: Group, seconds: float, wait_all_ranks: bool) -> None:
    """Run the part of rank 0: wait for all other ranks."""
    token, deadline = torch.zeros(0, device="cpu"), time.monotonic() + seconds
    arrivals = {rank: group.recv_async(token, rank, _TAG) for rank in range(1, group.size)}
    for rank in arrivals:
        group.send(token, rank, _TAG)
    missing: list[int] = []
    for rank, arrival in arrivals.items():
        try:
            arrival.wait(max(0.0, deadline - time.monotonic()))
        except CommTimeoutError:
            if arrival.done():
                raise
            missing.append(rank)
            if not wait_all_ranks:
                break
    if missing:
        _fail(group, missing, seconds)
    for rank in arrivals:
        group.send(token, rank, _TAG)


def _fail(group: Group, missing: list[int], seconds: float) -> NoReturn:
    names = ", ".join(map(str, missing))
    error = CommTimeoutError(
        f"monitored_barrier: rank {names} of {group.size} didn't come within {seconds:g} s: see whether it has failed, "
        "hangs, or calls something else",
        missing[0],
    )
    group.close(error)
    raise error
