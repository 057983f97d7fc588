"""What goes wrong on ranks of torch.distributed: mistakes, deaths, ranks that don't come."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed

import hpsearch_comm.torch_backend as torch_backend

dist: Any = torch.distributed
"""Whose stubs say of all that gives a work that it may give nothing."""


def mistaken(what: str) -> None:
    """Do something wrong on rank 1."""
    rank = dist.get_rank()
    if what == "shape":
        dist.all_reduce(torch.ones(3 + rank))
    elif what == "gathered shape":
        length = 3 + rank
        dist.all_gather([torch.zeros(length) for _ in range(2)], torch.ones(length))
    elif what == "splits":
        dist.all_to_all_single(torch.zeros(4), torch.ones(4), [1, 3] if rank else [3, 1], [2, 2])
    elif what == "operation":
        dist.barrier() if rank else dist.all_reduce(torch.ones(1))
    elif what == "message":
        dist.send(torch.ones(3), 0) if rank else dist.recv(torch.ones(4), 1)
        dist.barrier()
    elif what == "device":
        dist.all_reduce(torch.ones(3, device="meta"))
    elif what == "operator":
        dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0))
    elif what == "integers":
        dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG)
    elif what == "sparse shape":
        dist.all_reduce(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4 + rank,)))
    elif what == "lists":
        dist.all_gather([torch.zeros(3)], torch.ones(3))
    elif what == "late barrier":
        if rank:
            dist.barrier(timeout=timedelta(seconds=0.3))
        else:
            dist.recv(torch.ones(3), 1)
    elif what == "late asynchronous barrier":
        if rank:
            dist.barrier(async_op=True, timeout=timedelta(seconds=0.3)).wait()
        else:
            dist.recv(torch.ones(3), 1)
    elif what == "late":
        dist.group.WORLD.group._work_queue.timeout = 0.3  # for which the ranks couldn't have formed the group surely
        dist.all_reduce(torch.ones(3)) if rank else dist.recv(torch.ones(3), 1)
    else:
        raise AssertionError(what)


def mistaken_and_goes_on(what: str) -> str:
    try:
        mistaken(what)
    except dist.DistBackendError as error:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2]
        return str(error)
    raise AssertionError(what)


def killed(what: str) -> None:
    """Let the last rank die while the others wait for it."""
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "blocking":
        dist.all_reduce(torch.ones(3))
    elif what == "async":
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    elif what == "future":
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    elif what == "callback":
        dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda future: future.value()).wait()
    else:
        dist.recv(torch.ones(3), dist.get_world_size() - 1)


def monitored(missing: list[int], wait_all: bool) -> None:
    rank, coming = dist.get_rank(), [rank for rank in range(dist.get_world_size()) if rank not in missing]
    torch_backend.monitored_barrier(timeout=timedelta(seconds=30))
    if rank in missing:
        dist.all_reduce(torch.ones(1))
    # The last one of those who come begins when the others are about to.
    if rank == coming[0]:
        for other in coming[1:]:
            dist.recv(torch.ones(1), other)
    else:
        dist.send(torch.ones(1), coming[0])
    torch_backend.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=wait_all)


def lonely() -> None:
    """Make a new group without rank 2, whose part is to make it too."""
    dist.barrier()
    if dist.get_rank() < 2:
        dist.new_group(timeout=timedelta(seconds=0.5))


def beside_another(backend: str) -> str:
    """Ask for a new group of ours and another's for other devices; then go on with one of each."""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.new_group(backend=backend)
    for group in (dist.new_group(backend="cpu:hpsearch,cuda:hpsearch"), dist.new_group(backend="gloo"), None):
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2, 2]
    return str(caught.value)
