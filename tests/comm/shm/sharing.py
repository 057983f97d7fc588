"""What ranks do in memory that they share; called on the ranks of process_ranks."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

import torch

from hpsearch_comm import Group, SharedMemory
from hpsearch_comm.shm import shared_memory

_NEW_MOUNTS_AND_IPC = 0x00020000 | 0x08000000


def counted(group: Group, times: int) -> float:
    """Let each rank add to one number, so often."""
    memory = group.share(8, locks=1)
    total = memory.data.view(torch.float64)
    group.barrier()
    for _ in range(times):
        with memory.locks[0]:
            value = float(total)
            total.fill_(value + 1)
    group.barrier()
    return float(total)


def killed_holding(group: Group, victim: int, first: bool) -> None:
    """Let a rank die while it holds a lock: before others ask for it, or as they do."""
    memory = group.share(group.size, locks=2)
    if group.rank == victim:
        with memory.locks[1]:
            memory.data[victim] = 1
            if not first:
                _await(memory, [rank for rank in range(group.size) if rank != victim])
            os.kill(os.getpid(), signal.SIGKILL)
    _await(memory, [victim])
    memory.data[group.rank] = 1
    if first:
        while group._abort_state.error is None:
            os.sched_yield()
    with memory.locks[1]:
        pass


def killed_before_it_says_so(group: Group, victim: int) -> None:
    """Let a rank die that has a lock, but hasn't come to write its number there."""
    memory = group.share(group.size, locks=1)
    if group.rank == victim:
        shared_memory.try_lock(memory.locks[0]._address)
        os.kill(os.getpid(), signal.SIGKILL)
    while group._abort_state.error is None:
        os.sched_yield()
    with memory.locks[0]:
        pass


def killed_behind(group: Group, victim: int) -> None:
    """Let a rank die while others wait for it to come as far as they are."""
    memory = group.share(group.size)
    memory.advance()
    if group.rank == victim:
        _await(memory, [rank for rank in range(group.size) if rank != victim])
        os.kill(os.getpid(), signal.SIGKILL)
    memory.advance()
    memory.data[group.rank] = 1
    memory.wait()


def told_while_working(group: Group, victim: int) -> None:
    """Let a rank die while others work by themselves."""
    memory = group.share(0)
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        memory.advance()
        os.sched_yield()


def across_namespaces(group: Group) -> list[int]:
    """Share memory in a group that is made by a rank with mounts and IPC names of its own."""
    if group.rank == 1 and ctypes.CDLL(None).unshare(_NEW_MOUNTS_AND_IPC) != 0:
        return []
    with group.duplicate() as inside:
        memory = inside.share(4)
        memory.data[group.rank] = 1 + group.rank
        inside.barrier()
        return list(memory.data.tolist())


def beyond_the_limit(group: Group, nbytes: int) -> None:
    """Ask for more than this process may map."""
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
    group.share(nbytes)


def _await(memory: SharedMemory, ranks: list[int]) -> None:
    while not memory.data[ranks].all():
        os.sched_yield()
