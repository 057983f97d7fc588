"""What ranks of hpsearch_comm.horovod call; each function runs on all ranks at once."""

from __future__ import annotations

from typing import Any

import torch

import hpsearch_comm.horovod as hvd


def places() -> list[int]:
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]


def simple_operations() -> list[Any]:
    rank = hvd.rank()
    mean = hvd.allreduce(torch.tensor([1.0, 2.0]) * rank)
    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    root = hvd.broadcast(torch.arange(3) + 10 * rank, root_rank=1)
    return [mean.tolist(), rows.tolist(), root.tolist()]


def in_another_order_on_each_rank(names: list[str]) -> list[float]:
    order = names[hvd.rank() :] + names[: hvd.rank()]
    tensors = {name: torch.tensor([float(names.index(name) + 100 * hvd.rank())]) for name in names}
    handles = {name: hvd.allreduce_async_(tensors[name], name=name, op=hvd.Sum) for name in order}
    for name in sorted(names):
        assert hvd.synchronize(handles[name]) is tensors[name]
        assert hvd.synchronize(handles[name]) is None
    return [tensors[name].item() for name in names]


def disagree(kind: str) -> str:
    rank = hvd.rank()
    try:
        if kind == "shape":
            hvd.allreduce(torch.ones(3 + rank), name="x")
        elif kind == "dtype":
            hvd.allreduce(torch.ones(3, dtype=torch.float64 if rank else torch.float32), name="x")
        elif kind == "op":
            hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum if rank else hvd.Max)
        elif kind == "root":
            hvd.broadcast(torch.ones(3), root_rank=rank, name="x")
        elif kind == "factor":
            hvd.allreduce(torch.ones(3), name="x", prescale_factor=1.0 + rank)
        elif kind == "columns":
            hvd.allgather(torch.ones(3, 1 + rank), name="x")
    except hvd.HorovodInternalError as error:
        assert hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum).item() == hvd.size()
        return str(error)
    raise AssertionError("no error")


def the_same_name_twice() -> str:
    handle = hvd.allreduce_async(torch.ones(1), name="twice" + str(hvd.rank()))
    try:
        hvd.allreduce_async(torch.ones(1), name="twice" + str(hvd.rank()))
    except ValueError as error:
        for rank in range(hvd.size()):
            if rank != hvd.rank():
                hvd.allreduce(torch.ones(1), name=f"twice{rank}")
        hvd.synchronize(handle)
        return str(error)
    raise AssertionError("no error")


def start_again() -> list[int]:
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.is_initialized()
    return [hvd.rank(), int(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())]
