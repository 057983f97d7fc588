"""The CUDA devices of a group. On first use of a device, all ranks agree on how to send its tensors."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from hpsearch_comm.bootstrap.interface import interface_name
from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas
from hpsearch_comm.cuda.nccl import start_nccl
from hpsearch_comm.cuda.operations import Alone, DeviceOperations
from hpsearch_comm.cuda.process_group import ThroughProcessGroup
from hpsearch_comm.cuda.staging import CHUNK_BYTES, ThroughHost, pinned
from hpsearch_comm.cuda.start import start_together
from hpsearch_comm.cuda.stream import CudaStream, check_capture
from hpsearch_comm.errors import ConfigurationError, NcclError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.host_operations import HostOperations
from hpsearch_comm.operations.way import Turn, Way
from hpsearch_comm.operations.work_queue import WorkQueue, nested_use_error
from hpsearch_comm.options import Options

_log = logging.getLogger(__name__)


class CudaParts:
    """Creates the parts that collectives of CUDA tensors need. Tests replace it with a fake."""

    chunk_bytes = CHUNK_BYTES

    def check(self, device: torch.device) -> None:
        """Raise UsageError if collectives don't support tensors on this device."""
        if device.type != "cuda":
            raise UsageError(
                f"collectives take tensors on the CPU or on a CUDA device, got one on {device}: move it with "
                "tensor.cpu(), and the result back with tensor.to(device)"
            )
        check_capture()

    def facts(self, device: torch.device) -> DeviceFacts:
        """Return the facts about this rank's GPU that the other ranks need."""
        return local_facts(device)

    def current(self, device: torch.device) -> CudaStream:
        """Return the calling thread's current stream."""
        return CudaStream.current(device)

    def beside(self, device: torch.device) -> CudaStream:
        """Return a new stream."""
        return CudaStream.beside(device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return page-locked host memory."""
        return pinned(nbytes)

    def process_group(self, options: Options, device: torch.device, max_ctas: int | None, store: Any) -> Any:
        """Return a torch process group that is connected with all other ranks."""
        return start_nccl(store, options.rank, options.size, device, max_ctas, _nccls_interface(options))


class Devices:
    """A group's CUDA devices, one for most programs.

    Devices are numbered in the order of their first use. The first devices of all ranks belong together, then the
    second ones, and so on; their indices in CUDA may differ.

    Args:
        options: The group's options.
        abort_state: The group's abort state.

    Attributes:
        parts: Creates streams, memory and process groups.
        path: How tensors of the newest device are sent; None before the first use of a device.
    """

    def __init__(self, options: Options, abort_state: AbortState) -> None:
        self.parts = CudaParts()
        self.path: str | None = None
        self._options = options
        self._abort_state = abort_state
        self._operations: dict[torch.device, DeviceOperations] = {}
        self._lock = threading.RLock()  # for signal handlers, as in `WorkQueue`
        self._agreeing = False
        self._process = os.getpid()
        self._open: list[ThroughProcessGroup | ThroughHost] = []

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
        operations = self._operations.get(device)
        if operations is not None:
            return operations
        self.parts.check(device)
        with self._lock:
            if self._agreeing:
                raise nested_use_error()
            operations = self._operations.get(device)
            if operations is not None:
                return operations
            self._agreeing = True
            try:
                self._operations[device] = self._set_up(device, work_queue, host)
            finally:
                self._agreeing = False
            return self._operations[device]

    def current(self, device: torch.device) -> CudaStream:
        """Return the calling thread's current stream of a device.

        Raises:
            UsageError: Collectives don't support tensors on this device, or a CUDA graph is being captured.
        """
        self.parts.check(device)
        return self.parts.current(device)

    def close(self) -> None:
        """Finish the GPU work, close NCCL together with the peers, and release host memory. The group stays open."""
        if self._process != os.getpid():
            return  # a forked child can't use CUDA, and has nothing to close
        with contextlib.ExitStack() as closing:
            # In the order of creation, which is the same on every rank.
            for resource in reversed(self._open):
                closing.callback(resource.close)
            self._open = []

    def _set_up(self, device: torch.device, work_queue: WorkQueue, host: HostOperations) -> DeviceOperations:
        path, nccl = "none: a group of one", None
        otherwise: Way = Alone()
        if self._options.size > 1:
            path, nccl = self._agree(device, work_queue, host)
            parts = self.parts
            staging = ThroughHost(parts.beside(device), host.host, self._abort_state, parts.pinned, parts.chunk_bytes)
            self._open.append(staging)
            otherwise = staging
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
            nccl, reason = work_queue.run(host.first_cuda_use(lambda turn: self._join(turn, device, host, facts)))
            if nccl is not None:
                return "nccl", nccl
            if mine == "auto" and self._options.rank == 0:
                _log.warning("%s. Tensors on %s travel through host memory", reason, device)
        if mine == "nccl":
            raise ConfigurationError(
                f"cuda='nccl' needs NCCL between all ranks, but {reason}. Set cuda (HPSEARCH_COMM_CUDA) to auto to go "
                "through host memory where NCCL can't be used"
            )
        return f"host memory: {reason}", None

    def _join(
        self, turn: Turn, device: torch.device, host: HostOperations, facts: list[DeviceFacts]
    ) -> tuple[ThroughProcessGroup, None] | tuple[None, str]:
        """Start NCCL on all ranks, or return the reason why it can't be used."""
        options, parts = self._options, self.parts

        def gather(value: Any) -> list[Any]:
            return host.allgather_object(value).work(turn)

        try:
            start = partial(parts.process_group, options, device, most_ctas(facts))
            process_group, store = start_together(start, gather, options.start_timeout, self._abort_state.check)
        except NcclError as error:
            return None, str(error)
        nccl = ThroughProcessGroup(
            process_group, store, parts.beside(device), options.rank, options.size, self._abort_state, options.timeout
        )
        self._open.append(nccl)
        return nccl, None


def _nccls_interface(options: Options) -> str | None:
    """Return the name of the interface that the user has chosen, for NCCL; None if there is none."""
    if not options.interface:
        return None
    name = interface_name(options.interface, None if options.rendezvous is None else options.rendezvous.host)
    if name is None:
        _log.warning(
            "rank %d: it isn't known to which interface %s belongs, so NCCL chooses one: set NCCL_SOCKET_IFNAME",
            options.rank,
            options.interface,
        )
    return name
