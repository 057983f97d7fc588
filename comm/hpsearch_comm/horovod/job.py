"""The job that this process belongs to between `init` and `shutdown`."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

from hpsearch_comm import environment
from hpsearch_comm.group import Group
from hpsearch_comm.horovod.controller import Controller
from hpsearch_comm.horovod.errors import HorovodInternalError

__all__ = [
    "Job",
    "cross_rank",
    "cross_size",
    "current_job",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

_PATIENCE = 1e6
"""Seconds for which a rank waits until another one asks for the same, eleven days: as long as scripts may do."""
_CYCLE_TIME = 1.0


class Job:
    """The ranks of a start of the script.

    Args:
        group: Of all ranks.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        milliseconds = float(os.environ.get("HOROVOD_CYCLE_TIME") or _CYCLE_TIME)
        everybody = list(range(group.size))
        self.controllers = {0: Controller(group, group.duplicate(_PATIENCE), everybody, milliseconds / 1e3)}
        self._counts: dict[tuple[int, str], itertools.count[int]] = {}

    def name(self, kind: str, name: str | None, process_set: int = 0) -> str:
        """Give an operation's full name; those without one are numbered as they come, in each process set by kind."""
        number = next(self._counts.setdefault((process_set, kind), itertools.count(1)))
        return f"{kind}.{name}" if name else f"{kind}.noname.{number}"

    def controller(self, process_set_id: int) -> Controller:
        """Give what runs the operations of a process set.

        Raises:
            ValueError: It isn't registered, or this rank isn't in it.
        """
        controller = self.controllers.get(process_set_id)
        if controller is None:
            raise ValueError("the process set has not been registered, or has been removed")
        return controller

    def close(self) -> None:
        """Leave the job."""
        for controller in reversed(self.controllers.values()):
            controller.close()


_job: Job | None = None
_lock = threading.RLock()
_starts = 0


def init(comm: Sequence[int] | None = None, process_sets: Any = None) -> None:
    """Start, or join, the job that the launcher has described in the environment; without one, a job of one rank.

    A second call changes nothing. After `shutdown` another job of the same ranks may be started.

    Args:
        comm: None, or all ranks in order: subsets are process sets here.
        process_sets: None.

    Raises:
        ValueError: An argument can't be used.
    """
    global _job, _starts
    with _lock:
        if _job is not None:
            return
        group = environment.init(name=f"horovod {_starts}")
        _starts += 1
        _job = Job(group)
        # After the group's own, so that it runs before that.
        atexit.register(shutdown)


def shutdown() -> None:
    """Leave the job. Other ranks that still need this one get HorovodInternalError."""
    global _job
    with _lock:
        job, _job = _job, None
        atexit.unregister(shutdown)
    if job is not None:
        job.close()


def is_initialized() -> bool:
    """Say whether `init` has been called, and `shutdown` not since."""
    return _job is not None


def current_job() -> Job:
    """Give the job, for an operation.

    Raises:
        HorovodInternalError: There is none.
    """
    if _job is None:
        raise HorovodInternalError(_NOT_INITIALIZED)
    return _job


_NOT_INITIALIZED = "Horovod has not been initialized: call hvd.init() before this"


def _group() -> Group:
    if _job is None:
        raise ValueError(_NOT_INITIALIZED)
    return _job.group


def rank() -> int:
    """Give this process's number in the job."""
    return _group().rank


def size() -> int:
    """Give the number of ranks."""
    return _group().size


def local_rank() -> int:
    """Give this process's number on its host."""
    return _group().local_rank


def local_size() -> int:
    """Give the number of ranks on this host."""
    return _group().local_size


def cross_rank() -> int:
    """Give the number of this rank's host, among those that have as many ranks as this one's local rank needs."""
    group = _group()
    return [host for host in group.hosts if len(host) > group.local_rank].index(_own_host(group))


def cross_size() -> int:
    """Give the number of hosts that have a rank with this local rank."""
    group = _group()
    return sum(len(host) > group.local_rank for host in group.hosts)


def is_homogeneous() -> bool:
    """Say whether every host has equally many ranks."""
    return len({len(host) for host in _group().hosts}) == 1


def _own_host(group: Group) -> tuple[int, ...]:
    return next(host for host in group.hosts if group.rank in host)
