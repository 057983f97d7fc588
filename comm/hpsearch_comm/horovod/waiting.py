"""barrier and join: operations without a tensor."""

from __future__ import annotations

from hpsearch_comm.horovod.handles import start, synchronize, wait
from hpsearch_comm.horovod.job import current_job
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called it."""
    synchronize(start("barrier", [], None, process_set, grouped=True))


def join(device: int = -1) -> int:
    """Take part, with zeros, in the allreduces of ranks that have more data than this one, until all have joined.

    An average still divides by the number of all ranks. Meanwhile the other ranks' allgather, broadcast, alltoall and
    reducescatter, and allreduces with op Min, Max and Product, end with HorovodInternalError.

    Args:
        device: Ignored; zeros are created where they are needed.

    Returns:
        The rank that joined last, on all ranks.
    """
    job = current_job()
    controller = job.controller(0)
    last: int = wait(controller.join(), controller, job.settings)
    return last
