"""Process sets: subsets of the job's ranks that run operations among themselves."""

from __future__ import annotations

from collections.abc import Iterable

from hpsearch_comm.horovod import job

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """A subset of ranks. It can be used after it was passed to `init` or `add_process_set` on every rank.

    Args:
        ranks: The ranks, as numbers in the job.
    """

    mpi_comm = None

    def __init__(self, ranks: Iterable[int]) -> None:
        numbers = list(ranks) if isinstance(ranks, Iterable) else None
        if numbers is None or any(type(number) is not int for number in numbers):
            raise ValueError(f"a ProcessSet must be made of a list of ranks, got {ranks!r}")
        self._ranks = sorted(numbers)

    @property
    def process_set_id(self) -> int | None:
        """The set's number in the job; None if no set of these ranks is registered."""
        return job.number_of_set(self.ranks)

    @property
    def ranks(self) -> list[int]:
        """The ranks, in ascending order."""
        return self._ranks

    def size(self) -> int | None:
        """Return the number of ranks; None if the set isn't registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's rank in the set; None if the set isn't registered.

        Raises:
            ValueError: This process isn't in the set.
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
    @property
    def process_set_id(self) -> int:
        return 0

    @property
    def ranks(self) -> list[int]:
        return list(range(job.size())) if job.is_initialized() else []


global_process_set: ProcessSet = _GlobalProcessSet([])
"""All ranks."""


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set. Every rank of the job calls it with the same ranks, also ranks outside the set.

    Raises:
        ValueError: A set of the same ranks exists, or they aren't ranks of this job.
        HorovodInternalError: The ranks disagree; the job continues.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    job.current_job().add_set(process_set.ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; every rank of the job calls it. Its pending operations end with HorovodInternalError.

    Returns:
        Whether the set was removed; False for the set of all ranks, and for a set that isn't registered.
    """
    if not process_set.process_set_id:
        return False
    job.current_job().remove_set(process_set.ranks)
    return True
