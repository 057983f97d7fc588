"""What ranks of torch.distributed do with tensors on CUDA devices, or on what stands in for one."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
import torch.distributed
from torch import nn

from tests.comm.torch_backend.torch_scripts import values

dist: Any = torch.distributed
"""Whose stubs say of all that gives a work that it may give nothing."""


def way() -> list[str]:
    """Return how tensors travel in the default group, in a new one, and where torch puts objects."""
    paths = []
    for group in (dist.group.WORLD, dist.new_group()):
        tensor = torch.full((3,), 1.0 + dist.get_rank())
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [sum(range(1, dist.get_world_size() + 1))] * 3
        paths.append(group.group.device_path)
    dist.barrier(device_ids=[0])
    return [*paths, dist.distributed_c10d._get_object_coll_device()]


def one_device() -> str:
    """Pass tensors of two devices in one call, which is refused; the group goes on."""
    outputs = [torch.zeros(3, device="cpu") for _ in range(dist.get_world_size())]
    try:
        dist.all_gather(outputs, torch.ones(3))
    except dist.DistBackendError as error:
        dist.all_gather([torch.zeros(3) for _ in outputs], torch.ones(3))
        return str(error)
    raise AssertionError("tensors of two devices were taken")


def from_both_devices() -> None:
    """Mix operations and messages of tensors on the CPU and on the device, in one order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works = []
    for turn in range(10):
        for device in ("cpu", torch.get_default_device()):
            tensor = torch.full((1000,), float(rank + turn), device=device)
            works.append((turn, tensor, dist.all_reduce(tensor, async_op=True)))
    for turn, tensor, work in reversed(works):
        work.wait()
        assert (tensor == sum(range(size)) + size * turn).all()
    room = torch.zeros(5, device="cpu")
    receive = dist.irecv(room, (rank - 1) % size)
    send = dist.isend(torch.full((5,), float(rank)), (rank + 1) % size)  # from the device to the CPU
    receive.wait()
    send.wait()
    assert (room == (rank - 1) % size).all()


class Aside:
    """Another stream than the current one, within a `with`; nothing without a GPU."""

    def __init__(self) -> None:
        gpu = torch.get_default_device().type == "cuda"
        self.stream: Any = torch.cuda.Stream() if gpu else None  # type: ignore[no-untyped-call]
        self._within: Any = None

    def __enter__(self) -> None:
        self._within = torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()
        self._within.__enter__()

    def __exit__(self, *error: object) -> None:
        self._within.__exit__(*error)


def beside_the_caller(turns: int, length: int) -> None:
    """Call from a stream that is busy, wait on another, and use the results there at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    callers, waiters = Aside(), Aside()
    for turn in range(turns):
        with callers:
            mine = torch.zeros(length)
            for _ in range(100):
                mine += 1
            outputs = [torch.zeros(length) for _ in range(size)]
            rows, room = torch.zeros(size, length), torch.zeros(length)
            gathered = dist.all_gather(outputs, mine * (rank + 1), async_op=True)  # copied into the outputs behind it
            at_once = dist.all_gather_into_tensor(rows, mine * (rank + 1), async_op=True)
            summed = dist.all_reduce(mine, async_op=True)
            doubled = summed.get_future().then(lambda future: future.value()[0] * 2)
            received = dist.irecv(room, rank)
            sent = dist.isend(torch.full((length,), 5.0) + turn, rank)
        with waiters:
            gathered.wait()
            right = [(output == 100 * (other + 1)).all() for other, output in enumerate(outputs)]
            at_once.wait()
            right += [(row == 100 * (other + 1)).all() for other, row in enumerate(rows)]
            right.append((doubled.wait() == 200 * size).all())
            summed.wait()
            right.append((mine == 100 * size).all())
            received.wait()
            right.append((room == 5 + turn).all())
            sent.wait()
            assert [value.item() for value in right] == [True] * (2 * size + 3), (turn, right)
        if callers.stream:
            callers.stream.wait_stream(waiters.stream)


def without_a_wait(length: int) -> None:
    """See by `is_completed` alone that results are there."""
    other = Aside()
    for _ in range(20):
        outputs = [torch.zeros(length) for _ in range(dist.get_world_size())]
        work = dist.all_gather(outputs, torch.ones(length), async_op=True)
        while not work.is_completed():
            time.sleep(0)
        with other:
            assert all((output == 1).all() for output in outputs)


def in_a_graph() -> str:
    """Call within a CUDA graph, which is refused; the group goes on."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    said = ""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        tensor.add_(1)
        for call in (dist.all_reduce, dist.isend):
            try:
                call(tensor, *([dist.get_rank()] if call is dist.isend else []))
            except dist.DistBackendError as error:
                said += str(error)
    dist.all_reduce(tensor)
    return said


def with_sync_batch_norm() -> None:
    """Normalize over all ranks' rows, and compare with one rank that has them all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = values(7, 8 * size, 4)
    torch.manual_seed(3)
    whole = nn.BatchNorm1d(4)
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4))  # type: ignore[no-untyped-call]
    wanted = everything.clone().requires_grad_()
    mine = everything[8 * rank : 8 * (rank + 1)].clone().requires_grad_()
    whole(wanted).square().mul(everything).sum().backward()
    norm(mine).square().mul(everything[8 * rank : 8 * (rank + 1)]).sum().backward()
    assert wanted.grad is not None
    torch.testing.assert_close(mine.grad, wanted.grad[8 * rank : 8 * (rank + 1)], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, whole.running_var)
