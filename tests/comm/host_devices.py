"""A group whose CPU tensors are taken for those of CUDA devices, with an NCCL and streams that work on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

import hpsearch_comm as comm
from hpsearch_comm.cuda.devices import CudaParts
from hpsearch_comm.cuda.eligibility import DeviceFacts
from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.nccl_session import NcclSession
from hpsearch_comm.cuda.nccl_start import Gather
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.options import Options
from tests.comm.host_nccl import HostNccl, HostStream, HostWorld
from tests.comm.thread_ranks import run_ranks

T = TypeVar("T")
CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0)
CHUNK_BYTES = 64


class HostParts(CudaParts):
    """What collectives of CUDA tensors are put together from, without CUDA.

    Args:
        rank: The rank.
        libraries: Its NCCL for each communicator that it may make.
        **facts: What this rank says of its GPU, where it isn't the usual.
    """

    def __init__(self, rank: int, libraries: list[HostNccl], **facts: Any) -> None:
        self._left = list(libraries)
        self._facts = DeviceFacts(f"gpu {rank}", f"bus {rank}", f"process {rank}", HostNccl.version)
        self._facts = replace(self._facts, **facts)
        self.asked = 0

    def check(self, device: torch.device) -> None:
        pass

    def facts(self, device: torch.device) -> DeviceFacts:
        self.asked += 1
        return self._facts

    def current(self, device: torch.device) -> HostStream:
        return HostStream()

    def communicator(
        self,
        options: Options,
        device: torch.device,
        gather: Gather,
        abort_state: AbortState,
        max_ctas: int | None,
    ) -> NcclCommunicator:
        nccl = self._left.pop(0)
        return NcclCommunicator(
            NcclSession(options.rank, options.size, nccl.as_library(), abort_state, options.timeout),
            nccl.stream(),
            gather,
            start_timeout=options.start_timeout,
            max_ctas=max_ctas,
        )

    def staging(self, device: torch.device, abort_state: AbortState) -> HostStaging:
        return HostStaging(
            HostStream(),
            HostStream(),
            abort_state,
            chunk_bytes=CHUNK_BYTES,
            allocate=lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
        )


class DeviceRanks:
    """Groups, one after another, whose ranks' tensors lie on CUDA devices as far as the group knows.

    Args:
        size: Number of ranks.
        facts: What single ranks say of their GPU, by rank.
    """

    def __init__(self, size: int, facts: dict[int, dict[str, Any]] | None = None) -> None:
        self.size = size
        worlds = [HostWorld(size), HostWorld(size)]
        self.nccl = [[HostNccl(world, rank) for world in worlds] for rank in range(size)]
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
            return None if device == CPU else devices.current(device)

        group._preparation = preparation  # type: ignore[method-assign]
        group.stream_of = stream_of  # type: ignore[method-assign]

    def run(self, work: Callable[[comm.Group], T], **options: Any) -> list[T]:
        """Run `work` on the ranks of a group that has joined; see `run_ranks`."""

        def joined(group: comm.Group) -> T:
            self.join(group)
            return work(group)

        return run_ranks(self.size, joined, **options)

    def log(self, rank: int) -> list[str]:
        """Give what a rank has asked of the NCCL of its first device."""
        return self.nccl[rank][0].log


def take_for_cuda() -> None:
    """Let all groups of this process take tensors for those of a CUDA device, and carry them through host memory."""
    from hpsearch_comm.torch_backend.streams import CallersStreams

    # torch makes those of a device only where it is built for that.
    CallersStreams.devices = []  # type: ignore[method-assign,assignment]
    make = comm.Group.__init__

    def init(self: comm.Group, rank: int, size: int, **options: Any) -> None:
        make(self, rank, size, **options | {"cuda": "host"})
        DeviceRanks(size).join(self)

    comm.Group.__init__ = init  # type: ignore[method-assign]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def wait_for_abort(ranks: DeviceRanks, rank: int) -> None:
    wait_for(lambda: "abort" in ranks.log(rank))


def errors_of(size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[comm.CommError | None]:
    """Give what each rank's work raised."""

    def caught(group: comm.Group) -> comm.CommError | None:
        try:
            work(group)
        except comm.CommError as error:
            return error
        return None

    return run_ranks(size, caught, **options)
