"""What ranks of hpsearch_comm.horovod write into traces."""

from __future__ import annotations

import contextlib

import torch

import hpsearch_comm as comm
import hpsearch_comm.horovod as hvd


def some_operations(path: str, mark_cycles: bool) -> str:
    hvd.start_timeline(path, mark_cycles=mark_cycles)
    hvd.allreduce(torch.ones(3), name="loss")
    hvd.allgather(torch.ones(hvd.rank() + 1), name="rows")
    handles = [hvd.allreduce_async(torch.ones(2), name=f"layer {number}") for number in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
    with contextlib.suppress(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="unlike")
    hvd.allreduce(torch.ones(3), name="loss")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(3), name="unseen")
    hvd.stop_timeline()
    return path


def stopped_while_under_way(path: str) -> None:
    hvd.start_timeline(path)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="late")
        hvd.stop_timeline()
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(1), name="late")
    hvd.synchronize(handle)


def two_in_turn(first: str, second: str) -> None:
    for path in (first, second):
        hvd.start_timeline(path)
        hvd.allreduce(torch.ones(1), name=path)
    hvd.stop_timeline()


def refused_path(path: str) -> str:
    try:
        hvd.start_timeline(path)
    except comm.ConfigurationError as error:
        return str(error)
    raise AssertionError("no error")


def one_allreduce() -> None:
    hvd.allreduce(torch.ones(1), name="alone")
