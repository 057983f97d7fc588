"""The CUDA devices of a group. On first use of a device, all ranks agree on how to send its tensors.

Before every NCCL operation, the ranks compare their calls on the CPU. NCCL doesn't compare anything: if counts differ,
it writes past the end of a tensor or hangs. A comparison at the first call of each kind wouldn't suffice, because ranks
can still call two known operations in different orders. The comparison also ensures that no kernel spins on the GPU for
a peer that never calls the operation.

The gradient buckets of a training step are the exception: their plan, which the ranks agreed on when it was created,
fixes the order, shapes and dtypes. If a rank calls another operation there, this is detected when it waits: it
announces its operation, and the other ranks see that theirs with the same number differs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from hpsearch_comm.bootstrap.interface import interface_name
from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas
from hpsearch_comm.cuda.nccl import start_nccl, start_together
from hpsearch_comm.cuda.process_group import ThroughProcessGroup, supports
from hpsearch_comm.cuda.staging import ThroughHost
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.errors import ConfigurationError, NcclError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.host_collectives import HostCollectives
from hpsearch_comm.operations.host_operations import HostOperations, Way
from hpsearch_comm.operations.work_queue import Prepared, Turn, WorkQueue
from hpsearch_comm.options import Options

_log = logging.getLogger(__name__)

_MEETING = ("allgather", "alltoall")
"""Operations in which the ranks exchange numbers of rows first, and so have already compared their calls."""


class CudaParts:
    """What needs CUDA. Tests replace it with a fake."""

    facts = staticmethod(local_facts)
    current = staticmethod(CudaStream.current)
    beside = staticmethod(CudaStream.beside)
    process_group = staticmethod(start_nccl)


class Devices:
    """A group's CUDA devices, one for most programs.

    Devices are numbered in the order of their first use. The first devices of all ranks belong together, then the
    second ones, and so on; their indices in CUDA may differ.

    Args:
        options: The group's options.
        abort_state: The group's abort state.

    Attributes:
        parts: Creates streams and process groups.
        path: How tensors of the newest device are sent; None before the first use of a device.
    """

    def __init__(self, options: Options, abort_state: AbortState) -> None:
        self.parts = CudaParts()
        self.path: str | None = None
        self._options = options
        self._abort_state = abort_state
        self._operations: dict[torch.device, DeviceOperations] = {}
        self._lock = threading.RLock()  # for signal handlers, as in `WorkQueue`
        self._process = os.getpid()
        self._open: list[ThroughProcessGroup] = []

    def preparation(self, device: torch.device, work_queue: WorkQueue, host: HostOperations) -> HostOperations:
        """Return the object that prepares operations on a device's tensors.

        For a new device, the ranks first agree on NCCL or host memory.

        Args:
            device: The device of a tensor.
            work_queue: The group's queue, which runs the agreement.
            host: Prepares operations on the CPU.

        Raises:
            UsageError: Collectives don't support tensors on this device.
            ConfigurationError: The ranks have different `cuda` options, or NCCL is required but can't be used.
            PeerLost, CommTimeoutError, MismatchError: The other ranks don't take part in the agreement.
        """
        if device not in self._operations:
            self.parts.current(device)
            with self._lock:
                if device not in self._operations:
                    self._operations[device] = self._set_up(device, work_queue, host)
        return self._operations[device]

    def close(self) -> None:
        """Finish the GPU work, and close NCCL together with the peers. The group stays open."""
        if self._process != os.getpid():
            return  # a forked child can't use CUDA, and has nothing to close
        with contextlib.ExitStack() as closing:
            # In the order of creation, which is the same on every rank.
            for process_group in reversed(self._open):
                closing.callback(process_group.close)
            self._open = []

    def _set_up(self, device: torch.device, work_queue: WorkQueue, host: HostOperations) -> DeviceOperations:
        path, nccl = "none: a group of one", None
        otherwise: Way = Alone()
        if self._options.size > 1:
            path, nccl = self._agree(device, work_queue, host)
            otherwise = ThroughHost(self.parts.beside(device), host.host, self._abort_state)
        _log.info("rank %d: tensors on %s travel by %s", self._options.rank, device, path)
        self.path = path
        number = len(self._operations) + 1
        return DeviceOperations(host.host, number, partial(self.parts.current, device), nccl, otherwise)

    def _agree(
        self, device: torch.device, work_queue: WorkQueue, host: HostOperations
    ) -> tuple[str, ThroughProcessGroup | None]:
        mine = self._options.cuda
        # With the option `host`, the facts aren't needed, and NCCL isn't loaded.
        own_facts = None if mine == "host" else asdict(self.parts.facts(device))
        everyone = work_queue.run(host.allgather_object([mine, own_facts], "first_cuda_use"))
        # From here on all ranks evaluate the same answers, so all reach the same decision.
        requested = [want for want, _ in everyone]
        if set(requested) != {mine}:
            listing = ", ".join(f"{want} on rank {rank}" for rank, want in enumerate(requested))
            raise ConfigurationError(f"cuda (HPSEARCH_COMM_CUDA) must be the same on every rank, got {listing}")
        if mine == "host":
            return "host memory: cuda='host' asks for it", None
        facts = [DeviceFacts(**values) for _, values in everyone]
        reason = can_use_nccl(facts)
        if reason is None:
            started = work_queue.run(host.first_cuda_use(lambda turn: self._start(turn, device, host, facts)))
            if isinstance(started, ThroughProcessGroup):
                return "nccl", started
            reason = started
            if mine == "auto" and self._options.rank == 0:
                _log.warning("%s. Tensors on %s travel through host memory", reason, device)
        if mine == "nccl":
            raise ConfigurationError(
                f"cuda='nccl' needs NCCL between all ranks, but {reason}. Set cuda (HPSEARCH_COMM_CUDA) to auto to go "
                "through host memory where NCCL can't be used"
            )
        return f"host memory: {reason}", None

    def _start(
        self, turn: Turn, device: torch.device, host: HostOperations, facts: list[DeviceFacts]
    ) -> ThroughProcessGroup | str:
        """Start NCCL on all ranks, or return the reason why it can't be used."""
        options, parts, abort_state, interface = self._options, self.parts, self._abort_state, None
        if options.interface:
            interface = interface_name(options.interface, options.rendezvous.host if options.rendezvous else None)
            if interface is None:
                _log.warning(
                    "rank %d: it isn't known to which interface %s belongs, so NCCL chooses one: set "
                    "NCCL_SOCKET_IFNAME",
                    options.rank,
                    options.interface,
                )

        def start(store: Any) -> Any:
            return parts.process_group(store, options.rank, options.size, device, most_ctas(facts), interface)

        def gather(value: Any) -> list[Any]:
            return host.allgather_object(value).work(turn)

        try:
            process_group, store = start_together(start, gather, options.start_timeout, abort_state.check)
        except NcclError as error:
            return str(error)
        stream = parts.beside(device)
        nccl = ThroughProcessGroup(process_group, store, stream, options.rank, options.size, abort_state)
        self._open.append(nccl)
        return nccl


class DeviceOperations(HostOperations):
    """Prepares operations on tensors of one CUDA device.

    Args:
        host: Runs the exchanges between ranks on the CPU.
        device: The device's number among those that the group has used, from 1.
        current: Returns the current stream; called in the caller's thread.
        nccl: The way through NCCL; None if the ranks haven't agreed on NCCL.
        otherwise: The way for all other operations.
    """

    def __init__(
        self,
        host: HostCollectives,
        device: int,
        current: Callable[[], CudaStream],
        nccl: Way | None,
        otherwise: Way,
    ) -> None:
        super().__init__(host, device)
        self._current = current
        self._nccl = nccl
        self._otherwise = otherwise

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        if self._nccl is not None and supports(reduction, dtype):
            return "nccl"
        return self.host.algorithm(operation, nbytes)

    def _prepared(self, call: Call, work: Callable[[Way, Turn], Any], agreed: bool = False) -> Prepared[Any]:
        stream = self._current()
        ready = stream.record()

        def launch(turn: Turn) -> Any:
            turn.stream, turn.ready = stream, ready
            way: Way = self._otherwise
            if self._nccl is not None and call.algorithm == "nccl":
                way = self._nccl
                if not agreed and call.operation not in _MEETING:
                    self.host.barrier(turn, self.host.algorithm("barrier", 0))
            result = work(way, turn)
            under_way, turn.under_way = turn.under_way, None  # no cycle, which would keep the result until it is found
            if under_way is None:
                return result
            under_way.result = result
            return under_way

        return Prepared(call, launch, launches=True)

    def _empty(self, way: Way, turn: Turn, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        # Allocated on the stream that will write it, then also used by the caller's stream.
        with (way.stream or turn.stream).scope():
            result = like.new_empty(shape)
        turn.stream.keep(result)
        return result


class Alone:
    """The `Way` of a group of one: results are copies, made on the caller's stream without waiting on the host."""

    stream: CudaStream | None = None

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """See `Way`."""
        if out is not tensor:
            with turn.stream.scope():
                out.copy_(tensor)
