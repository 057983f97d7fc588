"""The job that this process belongs to between `init` and `shutdown`, and the process's ranks in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from hpsearch_comm.group import Group
from hpsearch_comm.horovod.controller import Controller
from hpsearch_comm.horovod.errors import HorovodInternalError
from hpsearch_comm.horovod.request import Entry, Request
from hpsearch_comm.horovod.settings import Settings

__all__ = [
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "size",
]


class Job:
    """The ranks between `init` and `shutdown`, and their process sets.

    Args:
        group: The group of all ranks; `close` closes it.
        settings: The settings from the environment.

    Attributes:
        group: See above.
        settings: See above.
        sets: The ranks of each process set, by number, including sets without this rank. Set 0 has all ranks.
    """

    def __init__(self, group: Group, settings: Settings) -> None:
        self.group = group
        self.settings = settings
        self.sets: dict[int, list[int]] = {0: list(range(group.size))}
        self._process = os.getpid()
        self._set_numbers = itertools.count(1)
        self._controllers = {0: Controller(group, self.sets[0], settings)}

    @property
    def inherited(self) -> bool:
        """Whether this object is a copy in a forked child, which can't use the job."""
        return self._process != os.getpid()

    def controller(self, process_set: int | None) -> Controller:
        """Return the controller of a process set.

        Raises:
            ValueError: The set isn't registered, or this rank isn't in it.
        """
        if process_set is None or process_set not in self.sets:
            raise ValueError(
                "the process set has not been registered, or has been removed since: pass it to hvd.init() or to "
                "hvd.add_process_set(), on every rank"
            )
        if process_set not in self._controllers:
            raise ValueError(
                f"rank {self.group.rank} is not in the process set, whose ranks are {self.sets[process_set]}: "
                "they alone call operations with it"
            )
        return self._controllers[process_set]

    def add_set(self, ranks: list[int]) -> None:
        """Create a process set; every rank calls it.

        Raises:
            ValueError: A set of these ranks exists, or they aren't ranks of this job.
            HorovodInternalError: The ranks request different sets; the job continues.
        """
        if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(self.sets[0]):
            raise ValueError(
                f"a process set must have one or more ranks from 0 to {self.group.size - 1}, each of them once, got "
                f"{ranks}"
            )
        if ranks in self.sets.values():
            raise ValueError(f"there is a process set of ranks {ranks} already: use that one, or remove it")
        self._ask_all("add_process_set", ranks, self._add)

    def remove_set(self, ranks: list[int]) -> None:
        """Remove a process set; every rank calls it. Its pending operations end with HorovodInternalError."""
        self._ask_all("remove_process_set", ranks, self._remove)

    def close(self) -> None:
        """Leave the job."""
        self._controllers[0].close()  # first: its thread creates and removes the others
        for controller in list(self._controllers.values())[1:]:
            controller.close()

    def _ask_all(self, kind: str, ranks: list[int], carry: Callable[[Entry], None]) -> None:
        everybody = self._controllers[0]
        entry = Entry(Request(everybody.name(kind, None), kind, numbers=tuple(ranks)), carry=carry)
        everybody.submit(entry)
        entry.handle.wait()

    def _add(self, entry: Entry) -> None:
        """Execute `add_set`, in the controller thread of the set of all ranks."""
        ranks = list(entry.request.numbers)
        group = self.group.subgroup(ranks)
        number = next(self._set_numbers)
        if group is not None:
            self._controllers[number] = Controller(group, ranks, self.settings)
        self.sets[number] = ranks
        entry.handle.finish()

    def _remove(self, entry: Entry) -> None:
        number = next(number for number, ranks in self.sets.items() if ranks == list(entry.request.numbers))
        del self.sets[number]
        controller = self._controllers.pop(number, None)
        if controller is not None:
            controller.close()
        entry.handle.finish()


_job: Job | None = None
_NOT_INITIALIZED = "Horovod has not been initialized: call hvd.init() before this"


def set_current_job(job: Job | None) -> Job | None:
    """Set the job of this process; return the previous job."""
    global _job
    before, _job = _job, job
    return before


def current_job() -> Job:
    """Return the job of this process, to run an operation.

    Raises:
        HorovodInternalError: There is no job, or this process is a forked child.
    """
    if _job is None:
        raise HorovodInternalError(_NOT_INITIALIZED)
    if _job.inherited:  # before any lock is acquired: a thread of the parent may have held it at the fork
        raise HorovodInternalError(
            "a forked child, such as a worker of a data loader, has no part in the job: call collectives in the "
            "process that called hvd.init()"
        )
    return _job


def number_of_set(ranks: list[int]) -> int | None:
    """Return the number of the process set of these ranks; None if there is none."""
    sets = {} if _job is None else _job.sets
    return next((number for number, of_set in list(sets.items()) if of_set == ranks), None)


def is_initialized() -> bool:
    """Return whether `init` has been called, without a later `shutdown`."""
    return _job is not None


def rank() -> int:
    """Return the rank of this process in the job."""
    return _group().rank


def size() -> int:
    """Return the number of ranks."""
    return _group().size


def local_rank() -> int:
    """Return the rank of this process among the ranks on its host."""
    return _group().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _group().local_size


def cross_rank() -> int:
    """Return the index of this rank's host among the hosts that have this local rank."""
    return [host[_group().local_rank] for host in _hosts_with_local_rank()].index(rank())


def cross_size() -> int:
    """Return the number of hosts that have this local rank."""
    return len(_hosts_with_local_rank())


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    return len({len(host) for host in _group().hosts}) == 1


def _hosts_with_local_rank() -> list[tuple[int, ...]]:
    return [host for host in _group().hosts if len(host) > _group().local_rank]


def _group() -> Group:
    if _job is None:
        raise ValueError(_NOT_INITIALIZED)
    return _job.group
