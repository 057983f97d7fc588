"""What ranks of hpsearch_comm.horovod call; each function runs on all ranks at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

import hpsearch_comm.horovod as hvd
from hpsearch_comm.horovod.job import current_job
from tests.comm.horovod.horovod_oracle import (
    adasums,
    allreduces,
    alltoalls,
    gathers,
    gradients,
    reducescatters,
    sparse_reductions,
    synchronous_ways,
)
from tests.comm.host_devices import taken_for_cuda

__all__ = [
    "adasums",
    "allreduces",
    "alltoalls",
    "gathers",
    "gradients",
    "reducescatters",
    "sparse_reductions",
    "synchronous_ways",
]


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


def disagree_on_the_device() -> str:
    """Call with a tensor of a CUDA device, where all are taken for such, and on rank 1 with one on the CPU."""
    group = current_job().controller(0).group
    if hvd.rank():
        stream_of = vars(group).pop("stream_of")
    try:
        hvd.allreduce(torch.ones(3), name="x")
    except hvd.HorovodInternalError as error:
        return str(error)
    finally:
        if hvd.rank():
            vars(group)["stream_of"] = stream_of
        assert hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum).item() == hvd.size()
    raise AssertionError("no error")


def asked_of_nccl() -> list[str]:
    """Return the calls that NCCL's stand-in has received."""
    return sorted({name for ranks in taken_for_cuda for name in ranks.log(hvd.rank())})


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


def refusals() -> list[str]:
    """Call what can't be carried out; each error comes at once, and the job goes on."""
    rows = torch.ones(hvd.size() + 1)
    wrong: list[Callable[[], object]] = [
        lambda: hvd.allreduce(rows, op=17),
        lambda: hvd.allreduce(rows, average=True, op=hvd.Sum),
        lambda: hvd.allreduce(rows, "the name"),  # type: ignore[arg-type]
        lambda: hvd.allreduce(rows.to_sparse()),
        lambda: hvd.allreduce([1.0]),  # type: ignore[arg-type]
        lambda: hvd.allreduce_(torch.ones(1).expand(3)),
        lambda: hvd.grouped_allreduce_([rows, rows]),
        lambda: hvd.allreduce(rows.to("meta")),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Sum),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum),
        lambda: hvd.broadcast(rows, root_rank=hvd.size()),
        lambda: hvd.alltoall(rows),
        lambda: hvd.alltoall(rows, [2] * hvd.size()),
        lambda: hvd.alltoall(rows, torch.ones(hvd.size())),
        lambda: hvd.alltoall(rows, [1]),
        lambda: hvd.allgather(torch.tensor(1.0)),
        lambda: hvd.reducescatter(torch.tensor(1.0)),
        lambda: hvd.reducescatter(rows, op=hvd.Adasum),
        lambda: hvd.sparse_allreduce_async(rows.to_sparse(), "s", hvd.Max),
        lambda: hvd.sparse_allreduce_async(rows, "s", hvd.Sum),
        lambda: hvd.poll(10**9),
        lambda: hvd.allreduce(rows, process_set=hvd.ProcessSet([0])),
        lambda: hvd.allreduce(rows, compression="fp16"),  # type: ignore[arg-type]
        lambda: hvd.grouped_allreduce([rows], compression=None),  # type: ignore[arg-type]
        lambda: hvd.reducescatter(rows, compression="fp16"),  # type: ignore[arg-type]
        lambda: hvd.grouped_reducescatter([rows], compression=hvd.Compression),  # type: ignore[arg-type]
    ]
    said = []
    for call in wrong:
        try:
            call()
        except (ValueError, hvd.HorovodInternalError) as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("no error")
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    return said


def process_sets() -> list[Any]:
    rank, size = hvd.rank(), hvd.size()
    even = hvd.add_process_set(list(range(0, size, 2)))
    odd = hvd.add_process_set(hvd.ProcessSet(range(size - 1, 0, -2)))
    mine, other = (odd, even) if rank % 2 else (even, odd)
    assert mine.included()
    assert not other.included()
    assert mine.size() == len(mine.ranks)
    assert mine.rank() == mine.ranks.index(rank)
    with_other: list[Callable[[], object]] = [
        other.rank,
        lambda: hvd.allreduce(torch.ones(1), process_set=other),
        lambda: hvd.barrier(other),
        lambda: hvd.broadcast(torch.ones(1), other.ranks[0], process_set=mine),
        lambda: hvd.add_process_set(even.ranks),
        lambda: hvd.add_process_set(range(size)),
        lambda: hvd.add_process_set([size]),
        lambda: hvd.add_process_set([]),
        lambda: hvd.add_process_set([0, 0]),
    ]
    for call in with_other:
        try:
            call()
        except ValueError:
            continue
        raise AssertionError("no error")
    # Each set goes its own way, as often as it likes, and the job's ranks still find each other.
    results: list[Any] = []
    for turn in range(3 if rank % 2 else 5):
        total = hvd.allreduce(torch.tensor([rank + turn]), op=hvd.Sum, process_set=mine)
        assert total.item() == sum(mine.ranks) + turn * len(mine.ranks)
    results.append(hvd.allgather(torch.tensor([rank]), process_set=mine).tolist())
    results.append(hvd.broadcast(torch.tensor([rank]), mine.ranks[-1], process_set=mine).item())
    results.append(hvd.alltoall(torch.full((len(mine.ranks),), rank), process_set=mine).tolist())
    results.append(hvd.reducescatter(torch.ones(len(mine.ranks)), op=hvd.Sum, process_set=mine).tolist())
    leaf = torch.tensor([float(rank)], requires_grad=True)
    (gradient,) = torch.autograd.grad(hvd.allgather(leaf, process_set=mine).sum(), leaf)
    results.append(gradient.item())
    hvd.barrier(mine)
    results.append(hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).item())
    assert hvd.remove_process_set(odd)
    assert hvd.remove_process_set(even)
    assert not hvd.remove_process_set(even)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert mine.process_set_id is mine.size() is mine.rank() is None
    again = hvd.add_process_set(even.ranks)
    assert again.process_set_id not in (None, 0)
    hvd.remove_process_set(again)
    return results


def disagree_on_a_process_set() -> str:
    try:
        hvd.add_process_set([0, 1 + hvd.rank() % 2])
    except hvd.HorovodInternalError as error:
        hvd.remove_process_set(hvd.add_process_set([0, 1]))
        return str(error)
    raise AssertionError("no error")


def adasum_of_three() -> str:
    three = hvd.add_process_set([0, 1, 2])
    try:
        if three.included():
            hvd.allreduce(torch.ones(2), op=hvd.Adasum, process_set=three)
    except NotImplementedError as error:
        return str(error)
    finally:
        hvd.remove_process_set(three)
    return ""


def join_after(batches: list[int]) -> list[Any]:
    """Train as many batches as is said for this rank, then join."""
    rank, means = hvd.rank(), []
    for batch in range(batches[rank]):
        tensors = [torch.tensor([1.0 + rank]), torch.tensor([[2 * rank]])]
        handles = [hvd.allreduce_async(tensor, name=f"{batch}.{at}", op=hvd.Sum) for at, tensor in enumerate(tensors)]
        means.append([hvd.synchronize(handle).item() for handle in handles])
        mean = hvd.allreduce(torch.tensor([float(rank)]), name=f"{batch}.mean")
        means[-1].append(mean.item())
    return [hvd.join(), means]


def calls_while_one_has_joined() -> list[str]:
    rank, size = hvd.rank(), hvd.size()
    said = []
    if rank:
        calls: list[Callable[[], object]] = [
            lambda: hvd.allgather(torch.ones(2)),
            lambda: hvd.broadcast(torch.ones(2), 1),
            lambda: hvd.alltoall(torch.ones(size)),
            lambda: hvd.reducescatter(torch.ones(size)),
            lambda: hvd.allreduce(torch.ones(2), op=hvd.Max),
            hvd.barrier,
        ]
        for call in calls:
            try:
                call()
            except hvd.HorovodInternalError as error:
                said.append(str(error))
    hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    assert len(hvd.allgather(torch.ones(2))) == 2 * size
    return said


def from_threads() -> list[float]:
    """Let several threads call, each under names of its own."""
    results: dict[int, float] = {}

    def work(thread: int) -> None:
        for turn in range(20):
            results[thread] = hvd.allreduce(torch.tensor([1.0 + thread]), name=f"{thread}.{turn}", op=hvd.Sum).item()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [results[thread] for thread in range(4)]


def poll_before_and_after() -> list[bool]:
    handle = hvd.allreduce_async(torch.ones(1), name=f"polled{hvd.rank()}")
    before = hvd.poll(handle)
    for rank in range(hvd.size()):
        if rank != hvd.rank():
            hvd.allreduce(torch.ones(1), name=f"polled{rank}")
    hvd.barrier()
    while not hvd.poll(handle):
        pass
    hvd.synchronize(handle)
    return [before]
