"""Subsets of the job's ranks, which run operations among themselves."""

from __future__ import annotations

from collections.abc import Iterable

from hpsearch_comm.horovod import job

__all__ = ["ProcessSet", "add_process_set", "forget_process_sets", "global_process_set", "remove_process_set"]


class ProcessSet:
    """A subset of ranks. It can be used after it was passed to `init` or `add_process_set` on every rank.

    Args:
        ranks: Their numbers in the job.

    Attributes:
        process_set_id: Its number; None while it isn't registered.
    """

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks: Iterable[int]) -> None:
        numbers = list(ranks) if isinstance(ranks, Iterable) else None
        if numbers is None or any(type(number) is not int for number in numbers):
            raise ValueError(f"a ProcessSet must be made of a list of ranks, got {ranks!r}")
        self._ranks = sorted(numbers)

    @property
    def ranks(self) -> list[int]:
        """The ranks, in ascending order."""
        return self._ranks

    def size(self) -> int | None:
        """Return the number of ranks; None while the set isn't registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's number in the set; None while that isn't registered.

        Raises:
            ValueError: This process isn't in it.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {job.rank()} is not in the process set, whose ranks are {self.ranks}")
        return self.ranks.index(job.rank())

    def included(self) -> bool:
        """Return whether this process is in the set."""
        return job.rank() in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(job.size())) if job.is_initialized() else []


global_process_set: ProcessSet = _GlobalProcessSet([])
"""All ranks."""

_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set; every rank calls it with the same ranks, including those outside.

    Raises:
        ValueError: There is one of the same ranks, or they aren't ranks of this job.
        HorovodInternalError: The ranks disagree; the job continues.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.process_set_id = job.current_job().add_set(process_set.ranks)
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; every rank calls it. Its pending operations end with HorovodInternalError.

    Returns:
        Whether there was one; the set of all ranks stays.
    """
    number = process_set.process_set_id
    if not number:
        return False
    job.current_job().remove_set(number)
    for registered in [each for each in _registered if each.process_set_id == number]:
        registered.process_set_id = None
        _registered.remove(registered)
    return True


def forget_process_sets() -> None:
    """Mark the process sets of a job that has ended as not registered."""
    while _registered:
        _registered.pop().process_set_id = None
