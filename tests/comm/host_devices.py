"""A group whose CPU tensors are taken for those of CUDA devices: Gloo stands in for NCCL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed as dist

import hpsearch_comm as comm
from hpsearch_comm.cuda.devices import CudaParts
from hpsearch_comm.cuda.eligibility import DeviceFacts
from hpsearch_comm.cuda.stream import CudaStream
from tests.comm.thread_ranks import run_ranks

T = TypeVar("T")
CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0)


class HostEvent:
    def __init__(self, reached: Callable[[], bool] = lambda: True) -> None:
        self.query = reached


class HostStream(CudaStream):
    """A stream on which everything is done at once, but for what `busy` says."""

    device = torch.device("cuda", 0)

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        self.busy = busy
        self.followed: list[Any] = []
        self.kept: list[torch.Tensor] = []

    @classmethod
    def beside(cls, device: torch.device) -> HostStream:
        return cls()

    @classmethod
    def current(cls, device: torch.device) -> HostStream:
        return cls()

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self) -> HostEvent:
        return HostEvent(lambda: not self.busy())

    def follow(self, event: Any) -> None:
        self.followed.append(event)

    def keep(self, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)


class StandInWork:
    """A work of Gloo's, which `wait` brings to its end, as a stream would.

    Args:
        owner: Its process group; when that is aborted, a wait ends.
        work: Gloo's.
        finish: What is to be done then.
    """

    def __init__(self, owner: StandIn, work: Any, finish: Callable[[], object]) -> None:
        self._owner, self._work, self._finish = owner, work, finish

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def exception(self) -> Any:
        return self._work.exception()

    def wait(self) -> None:
        until = time.monotonic() + 20e-6
        while not self._work.is_completed():
            if self._owner.aborted.is_set():
                return
            time.sleep(0 if time.monotonic() < until else 1e-4)
        self._finish()


class StandIn:
    """ProcessGroupGloo with the interface that is used of ProcessGroupNCCL, and what tests can make of it.

    Attributes:
        log: What has been called.
        fails: What a call raises, by its name; `start` for the start.
        hangs: Names of calls that never return.
        busy: Whether the GPU doesn't come to the end of what was called.
        max_ctas: What it was started with.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.hangs: set[str] = set()
        self.busy = False
        self.aborted = threading.Event()
        self.max_ctas: int | None = None
        self._gloo: Any = None

    def start(self, store: Any, rank: int, size: int, max_ctas: int | None = None) -> StandIn:
        self.max_ctas = max_ctas
        self._check("start")
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(days=365))
        self._rank, self._size = rank, size
        self.log.append("started")
        return self

    def stream(self) -> HostStream:
        return HostStream(lambda: self.busy)

    def abort(self) -> None:
        self._check("abort")
        # Gloo's own wakes nobody, and its teardown waits for what never comes: it stays until the process ends.
        _abandoned.append(self._gloo)
        self.busy = False
        self.aborted.set()
        self.log.append("abort")

    def shutdown(self) -> None:
        self._check("shutdown")
        self._gloo = None
        self.log.append("shutdown")

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions) -> StandInWork:
        return self._call("allreduce", tensors, options)

    def broadcast(self, tensors: list[torch.Tensor], options: dist.BroadcastOptions) -> StandInWork:
        return self._call("broadcast", tensors, options)

    def reduce(self, tensors: list[torch.Tensor], options: dist.ReduceOptions) -> StandInWork:
        return self._call("reduce", tensors, options)

    def alltoall_base(self, out: torch.Tensor, rows: torch.Tensor, *counts: list[int]) -> StandInWork:
        return self._call("alltoall_base", [out], rows.clone(), *counts)

    def _allgather_base(self, out: torch.Tensor, rows: torch.Tensor) -> StandInWork:
        return self._call("_allgather_base", [out], rows.clone())

    def _reduce_scatter_base(
        self, out: torch.Tensor, rows: torch.Tensor, options: dist.ReduceScatterOptions
    ) -> StandInWork:
        # Gloo has one whose work is never completed.
        self._check("_reduce_scatter_base")
        total = rows.clone()
        to_all = dist.AllreduceOptions()
        to_all.reduceOp = options.reduceOp
        start = self._rank * out.numel()
        work = self._gloo.allreduce([total], to_all)
        self.log.append("_reduce_scatter_base")
        return StandInWork(self, work, lambda: out.copy_(total[start:][: len(out)]))

    def _call(self, name: str, outputs: list[torch.Tensor], *arguments: Any) -> StandInWork:
        self._check(name)
        # Copies, as Gloo keeps what it works on where a peer never comes.
        copies = [output.clone() for output in outputs]
        first = copies[0] if name.endswith("_base") else copies
        work = getattr(self._gloo, name)(first, *arguments)
        self.log.append(name)
        return StandInWork(self, work, lambda: [output.copy_(one) for output, one in zip(outputs, copies, strict=True)])

    def _check(self, name: str) -> None:
        if name in self.hangs:
            threading.Event().wait()
        if name in self.fails:
            raise self.fails[name]


_abandoned: list[Any] = []


class HostParts(CudaParts):
    """What collectives of CUDA tensors are made of, without CUDA.

    Args:
        rank: The rank.
        stand_ins: Its process group for each device that it may use.
        **facts: What this rank says of its GPU, where it isn't the usual.
    """

    def __init__(self, rank: int, stand_ins: list[StandIn], **facts: Any) -> None:
        self._left = list(stand_ins)
        self._facts = replace(DeviceFacts(f"gpu {rank}", f"process {rank}", 22809), **facts)
        self._started: StandIn | None = None
        self.asked = 0

    def facts(self, device: torch.device) -> DeviceFacts:
        self.asked += 1
        return self._facts

    def current(self, device: torch.device) -> HostStream:
        return HostStream()

    def beside(self, device: torch.device) -> HostStream:
        return HostStream(lambda: self._started is not None and self._started.busy)

    def process_group(
        self, store: Any, rank: int, size: int, device: torch.device, max_ctas: int | None, interface: str | None
    ) -> Any:
        self._started = self._left.pop(0)
        return self._started.start(store, rank, size, max_ctas)


class DeviceRanks:
    """Groups, one after another, whose ranks' tensors lie on CUDA devices as far as the group knows.

    Args:
        size: Number of ranks.
        facts: What single ranks say of their GPU, by rank.
    """

    def __init__(self, size: int, facts: dict[int, dict[str, Any]] | None = None) -> None:
        self.size = size
        self.nccl = [[StandIn(), StandIn()] for _ in range(size)]
        self.parts = [HostParts(rank, self.nccl[rank], **(facts or {}).get(rank, {})) for rank in range(size)]

    def join(self, group: comm.Group, pick: Callable[[torch.Tensor], torch.device] = lambda tensor: DEVICE) -> None:
        """Take a group's tensors for those of a device from now on, but for those that `pick` leaves on the CPU."""
        devices = group._devices
        devices.parts = self.parts[group.rank]

        def preparation(tensor: torch.Tensor) -> Any:
            device = pick(tensor)
            if device == CPU:
                return group._prepare
            return devices.preparation(device, group._work_queue, group._prepare)

        def stream_of(tensor: torch.Tensor) -> CudaStream | None:
            device = pick(tensor)
            return None if device == CPU else devices.parts.current(device)

        group._preparation = preparation  # type: ignore[method-assign]
        group.stream_of = stream_of  # type: ignore[method-assign]

    def run(self, work: Callable[[comm.Group], T], **options: Any) -> list[T]:
        """Run `work` on the ranks of a group that has joined; see `run_ranks`."""

        def joined(group: comm.Group) -> T:
            self.join(group)
            return work(group)

        return run_ranks(self.size, joined, **options)

    def log(self, rank: int) -> list[str]:
        """Return what a rank has asked of the process group of its first device."""
        return self.nccl[rank][0].log


taken_for_cuda: list[DeviceRanks] = []
"""Those of the groups that `take_for_cuda` has seen."""


def take_for_cuda() -> None:
    """Let all groups of this process take tensors for those of a CUDA device, and Gloo for NCCL."""
    from hpsearch_comm.torch_backend.work import CallersStreams

    # torch makes those of a device only where it is built for that.
    CallersStreams.devices = []  # type: ignore[method-assign,assignment]
    make = comm.Group.__init__

    def init(self: comm.Group, rank: int, size: int, **options: Any) -> None:
        make(self, rank, size, **options | {"cuda": "nccl"})
        ranks = DeviceRanks(size)
        ranks.join(self)
        taken_for_cuda.append(ranks)

    comm.Group.__init__ = init  # type: ignore[method-assign]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def wait_for_abort(ranks: DeviceRanks, rank: int) -> None:
    wait_for(lambda: "abort" in ranks.log(rank))


def errors_of(size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[comm.CommError | None]:
    """Return the error of each rank's work."""

    def caught(group: comm.Group) -> comm.CommError | None:
        try:
            work(group)
        except comm.CommError as error:
            return error
        return None

    return run_ranks(size, caught, **options)
