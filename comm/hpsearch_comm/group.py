"""A group of ranks and its collective operations."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from hpsearch_comm.assembly import assemble, release
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.rendezvous import Rendezvous
from hpsearch_comm.cuda.devices import Devices
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.operations.host_collectives import HostCollectives
from hpsearch_comm.operations.host_operations import HostOperations
from hpsearch_comm.operations.messages import Receive, Send
from hpsearch_comm.operations.work import Handle, ReceiveHandle
from hpsearch_comm.operations.work_queue import WorkQueue
from hpsearch_comm.options import Options
from hpsearch_comm.shm.shared_memory import SharedMemory
from hpsearch_comm.subgroup import check_members, related_options
from hpsearch_comm.timeline import NoTimeline, Timeline, open_timeline
from hpsearch_comm.timeline.clock import compare_clocks


class Group:
    """Ranks that communicate. Every rank must call the same operations in the same order.

    An operation that fails ends the group on every rank, because its tensors may be partly written. Create a new group
    then. A `UsageError` does not end the group: it is raised before anything is sent (except one of `allgather`).

    Operations may be called from any thread. If several threads call operations, the caller must ensure the same order
    on every rank. Operations whose name ends in `_async` run in a background thread, in the order of the calls. A
    blocking operation waits for them.

    Args:
        rank: This rank, from 0.
        size: Number of ranks.
        rendezvous: Where the ranks exchange their addresses; not needed for a group of one.
        secret: 32 bytes that only the ranks know; not needed for a group of one.
        epoch: Number of this start of the group, the same on every rank. Ranks of another start are refused.
        name: Distinguishes groups with the same secret.
        listener: The listener by which others reach this rank. Needed only if its address had to be known before; the
            group closes it. It replaces `interface` and `host`.
        timeout: Seconds without progress after which an operation fails. From 30 s on a warning names the missing rank.
        start_timeout: Seconds in which all ranks must start.
        heartbeat_timeout: Seconds without an answer after which another host counts as lost. The death of a process is
            detected at once.
        deadline: When all ranks must have started, in seconds of `time.monotonic()`. Pass it if a part of start_timeout
            has already passed.
        algorithm: The algorithm of allreduce: auto, direct, ring, butterfly, hierarchical or naive.
        transport: auto, or tcp to use TCP between ranks of one host, too.
        interface: Interface, address or network by which other hosts reach this rank; None chooses by routing.
        host: Divides one machine into several hosts, by a name for this one.
        streams: TCP connections between two ranks of different hosts, for collectives.
        cuda: How CUDA tensors are sent: nccl, host (pinned host memory), or auto (NCCL if all ranks can use it).
        timeline: Path of a trace for chrome://tracing or Perfetto, set on all ranks; each rank writes its part next to
            it. Or the timeline of another group of the same ranks: it records both groups until that group is closed.

    Attributes:
        local_rank: This rank's index among the ranks of its host.
        local_size: Number of ranks on this rank's host.
        hosts: The ranks of each host, the hosts by their lowest rank.

    Raises:
        ConfigurationError: An argument can't be used, or contradicts those of other ranks.
        RendezvousError: Not all ranks started; names the missing ones.
        RefusedError: The group that was reached has another secret, name or epoch.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        rendezvous: Rendezvous | None = None,
        secret: bytes | None = None,
        epoch: int = 0,
        name: str = "",
        listener: Listener | None = None,
        timeout: float = 300.0,
        start_timeout: float = 60.0,
        heartbeat_timeout: float = 60.0,
        deadline: float | None = None,
        algorithm: str = "auto",
        transport: str = "auto",
        interface: str | None = None,
        host: str | None = None,
        streams: int = 4,
        cuda: str = "auto",
        timeline: str | os.PathLike[str] | Timeline | NoTimeline | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._options = Options(
            rank=rank,
            size=size,
            rendezvous=rendezvous,
            secret=secret,
            epoch=epoch,
            name=name,
            timeout=timeout,
            start_timeout=start_timeout,
            heartbeat_timeout=heartbeat_timeout,
            deadline=deadline,
            algorithm=algorithm,
            transport=transport,
            interface=interface,
            host=host,
            streams=streams,
            cuda=cuda,
        )
        self._related = 0
        self._timeline = open_timeline(timeline, rank, size)
        self._own_timeline = self._timeline is not timeline
        # If the host of rank 0 is known, the route to it shows which of our addresses others can reach.
        towards = None if rendezvous is None else rendezvous.host
        self._listen = partial(Listener, interface, towards, host) if listener is None else listener.another
        if listener is not None and size == 1:
            listener.close()
        try:
            with torch.inference_mode(False):  # operations write to tensors created here
                parts = assemble(self._options, lambda: listener or self._listen())
        except BaseException:
            if self._own_timeline:
                self._timeline.close()
            raise
        self._abort_state, self._messages, topology = parts.abort_state, parts.messages, parts.topology
        self.local_rank, self.local_size, self.hosts = topology.local_rank, topology.local_size, topology.hosts
        self._devices = Devices(self._options, parts.abort_state)
        self._work_queue = WorkQueue(rank, parts.abort_state, parts.history, self._timeline, float(timeout), name)
        # Close the devices before the other ranks are notified: all ranks must close NCCL together.
        leave = [self._timeline.close, self._devices.close] if self._own_timeline else [self._devices.close]
        self._release = weakref.finalize(self, release, rank, parts, self._work_queue, leave)
        try:
            self._prepare = HostOperations(HostCollectives(parts.sharing, parts.shm, parts.mesh, algorithm))
            if self._own_timeline and self._timeline.on:
                offset, start = compare_clocks(partial(self.gather_in, "compare_clocks"), rank)
                self._timeline.set_clock(offset if len(self.hosts) > 1 else 0, start)  # one host has one clock
        except BaseException as error:
            self.close(error)
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._work_queue.closed

    @property
    def last_algorithm(self) -> str:
        """The algorithm of the last operation."""
        return self._work_queue.last_algorithm

    @property
    def device_path(self) -> str | None:
        """How CUDA tensors are sent: `nccl`, or `host memory: ` with the reason; None before the first one.

        The ranks agree once per device: every rank must call with a CUDA tensor, and asynchronous calls block.
        """
        return self._devices.path

    @property
    def timeline(self) -> Timeline | NoTimeline:
        """The recorder of the operations; `timeline.backward()` marks a backward pass in it."""
        return self._timeline

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._abort_state.error is not None else "open"
        return f"<Group {self._options.name!r}: rank {self.rank} of {self.size}, {state}>"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group: finish asynchronous calls, notify the others, release all resources.

        Ranks that still need this one get PeerLost.

        Args:
            error: Why this rank leaves early. The others are notified at once, and nothing is finished.

        Raises:
            UsageError: A signal handler calls this during an operation of the group in this thread; the group
                continues.
        """
        if self.closed:
            return
        self._work_queue.check_outside()
        if error is not None and not self._work_queue.inherited:
            self._abort_state.break_off(self.rank, error)
        self._release()

    # Operations.

    def allreduce(self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None) -> torch.Tensor:
        """Reduce the ranks' tensors; every rank gets the same result, to the bit.

        Args:
            tensor: The input. It has the same shape and dtype on every rank. float16, bfloat16 and float8 are summed
                in float32; NCCL sums float16 and bfloat16 in the dtype itself.
            op: sum, mean, min, max, product; for integers and bools also band, bor, bxor.
            out: The tensor for the result; None overwrites `tensor`.

        Returns:
            The tensor, or `out`.
        """
        return self._work_queue.run(self._preparation(tensor).allreduce(tensor, op, out))

    def allreduce_async(
        self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None
    ) -> Handle[torch.Tensor]:
        """Run `allreduce` in the background. The tensor may be used again when the handle's `wait` returns."""
        return self._work_queue.submit(self._preparation(tensor).allreduce(tensor, op, out))

    def allreduce_agreed(self, tensor: torch.Tensor, op: str, out: torch.Tensor) -> Handle[torch.Tensor]:
        """Run `allreduce` in the background, in an internal step that the ranks have agreed on before.

        On the GPU the ranks don't compare their operations, so a mismatch is not detected: the agreement must fix the
        order, shapes and dtypes of these calls, as a bucket plan does.
        """
        return self._work_queue.submit(self._preparation(tensor).allreduce(tensor, op, out, agreed=True))

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Copy the root's tensor to every other rank, in place. All tensors have the same shape and dtype."""
        return self._work_queue.run(self._preparation(tensor).broadcast(tensor, root))

    def broadcast_async(self, tensor: torch.Tensor, root: int = 0) -> Handle[torch.Tensor]:
        """Run `broadcast` in the background."""
        return self._work_queue.submit(self._preparation(tensor).broadcast(tensor, root))

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated along the first dimension in the order of ranks.

        Args:
            tensor: The input. First dimensions may differ between ranks; other dimensions and the dtype may not. A
                0-D tensor counts as one element.
            out: The tensor for the result; None creates one. Its shape must match. Its length can be checked only
                after the ranks have exchanged their lengths: a rank with a wrong `out` raises UsageError afterwards.
        """
        return self._work_queue.run(self._preparation(tensor).allgather(tensor, out))

    def allgather_async(self, tensor: torch.Tensor, out: torch.Tensor | None = None) -> Handle[torch.Tensor]:
        """Run `allgather` in the background."""
        return self._work_queue.submit(self._preparation(tensor).allgather(tensor, out))

    def reduce_scatter(self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None) -> torch.Tensor:
        """Reduce the ranks' tensors, and return this rank's share of the result's rows.

        Args:
            tensor: The input. It has the same shape and dtype on every rank, and is not changed. Rows are divided as
                by `torch.tensor_split`: if the number isn't divisible, the first ranks get one row more.
            op: sum, mean, min, max, product; for integers and bools also band, bor, bxor.
            out: The tensor for this rank's rows; None creates one.
        """
        return self._work_queue.run(self._preparation(tensor).reduce_scatter(tensor, op, out))

    def reduce_scatter_async(
        self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None
    ) -> Handle[torch.Tensor]:
        """Run `reduce_scatter` in the background."""
        return self._work_queue.submit(self._preparation(tensor).reduce_scatter(tensor, op, out))

    def alltoall(self, tensor: torch.Tensor, splits: Sequence[int] | None = None) -> Any:
        """Send rows to each rank and receive rows from each.

        Args:
            tensor: The rows to send. All dimensions except the first, and the dtype, are the same on every rank.
            splits: Number of rows for each rank. None sends equal numbers.

        Returns:
            The received rows, in the order of ranks. With `splits`, a pair: these rows, and the number from each rank.
        """
        rows, coming = self._work_queue.run(self._preparation(tensor).alltoall(tensor, splits))
        return rows if splits is None else (rows, coming)

    def alltoall_async(self, tensor: torch.Tensor, splits: Sequence[int] | None = None) -> Handle[Any]:
        """Run `alltoall` in the background. The handle returns a pair: the rows, and the number from each rank."""
        return self._work_queue.submit(self._preparation(tensor).alltoall(tensor, splits))

    def send(self, tensor: torch.Tensor, target: int, tag: int = 0) -> torch.Tensor:
        """Send a tensor to a rank, which must call `recv`. Sends do not wait for collectives.

        The call returns when the tensor may be changed again, possibly before the message has arrived.

        Args:
            tensor: The message, on the CPU.
            target: The receiving rank; it may be this rank.
            tag: Distinguishes messages: `recv` returns the first message with its tag.
        """
        return self._messages.wait(self.send_async(tensor, target, tag))

    def send_async(self, tensor: torch.Tensor, target: int, tag: int = 0) -> Handle[torch.Tensor]:
        """Run `send` in the background; messages to one rank keep their order."""
        self._work_queue.check()
        self._messages.submit(send := Send.of(tensor, target, tag, self.size))
        return send.handle

    def recv(self, tensor: torch.Tensor, source: int | None = None, tag: int = 0) -> torch.Tensor:
        """Receive a tensor from a rank. If its dtype or shape differs, all ranks raise MismatchError.

        Args:
            tensor: The tensor for the message, on the CPU.
            source: The sending rank; None receives the first message with this tag from any rank.
            tag: The tag of the message.
        """
        return self._messages.wait(self.recv_async(tensor, source, tag))

    def recv_async(self, tensor: torch.Tensor, source: int | None = None, tag: int = 0) -> ReceiveHandle:
        """Run `recv` in the background. The handle's `source` is the rank that sent the message."""
        self._work_queue.check()
        self._messages.submit(receive := Receive.of(tensor, source, tag, self.size))
        return receive.handle

    def barrier(self) -> None:
        """Wait until every rank has called `barrier`."""
        self._work_queue.run(self._prepare.barrier())

    def barrier_async(self) -> Handle[None]:
        """Run `barrier` in the background."""
        return self._work_queue.submit(self._prepare.barrier())

    def allgather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank: dicts, lists, text, numbers, booleans and None."""
        return self._work_queue.run(self._prepare.allgather_object(value))

    def gather_in(self, step: str, value: Any) -> list[Any]:
        """Run `allgather_object` as an internal step. If a rank calls another operation, MismatchError is raised.

        Args:
            step: The name of the step, an internal one of `header.OPERATIONS`.
            value: This rank's value.
        """
        return self._work_queue.run(self._prepare.allgather_object(value, step))

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the root's value on every rank: dicts, lists, text, numbers, booleans and None."""
        return self._work_queue.run(self._prepare.broadcast_object(value, root))

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zero tensor in memory that the ranks of this host share. Every rank calls it with the same shape.

        Collectives on this tensor, or on the same part of it on every rank, need no copies. The tensor is on the CPU.
        Each rank has its own: other ranks access it only during an operation.
        """
        return self._work_queue.run(self._prepare.empty(shape, dtype))

    def share(self, nbytes: int, locks: int = 0) -> SharedMemory:
        """Return zeroed memory that all ranks share. They must be on one host and pass equal arguments.

        Args:
            nbytes: Bytes of data.
            locks: Number of locks in it.
        """
        return self._work_queue.run(self._prepare.share(nbytes, locks))

    def duplicate(self, timeout: float | None = None) -> Group:
        """Return another group of the same ranks. Operations of the two groups may interleave in any order.

        The new group records in this group's timeline until this group is closed. `timeout` defaults to this group's.
        """
        return cast(Group, self._form(list(range(self.size)), self._timeline, timeout))

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """Return a new group of some of these ranks, None on the others. All ranks of this group must call it.

        The new group is not in the timeline.

        Args:
            ranks: The members, the same on every rank. The new group numbers them in this order.
        """
        return self._form(check_members(ranks, self.size), None, None)

    def _form(self, members: list[int], timeline: Timeline | NoTimeline | None, timeout: float | None) -> Group | None:
        self._work_queue.check()  # before counting: if a call that raises were counted, the ranks' counts would differ
        self._related += 1
        inside = self.rank in members
        with self._listen() if inside and len(members) > 1 else contextlib.nullcontext() as listener:
            address = None if listener is None else listener.address.to_text()
            addresses = self._work_queue.run(self._prepare.subgroup(members, address))
            if not inside:
                return None
            own_options = self._options if timeout is None else replace(self._options, timeout=timeout)
            options = related_options(own_options, self._related, members, addresses, self._prepare.host.topology)
            return Group(**vars(options), listener=listener, timeline=timeline)

    def stream_of(self, tensor: torch.Tensor) -> CudaStream | None:
        """Return the calling thread's current stream on the tensor's device; None for a tensor on the CPU."""
        return None if tensor.is_cpu else self._devices.parts.current(tensor.device)

    def stream_beside(self, device: torch.device) -> CudaStream:
        """Return a new stream of a CUDA device."""
        return self._devices.parts.beside(device)

    def _preparation(self, tensor: torch.Tensor) -> HostOperations:
        """Return the object that prepares operations for the tensor's device."""
        try:
            if tensor.is_cpu:  # much faster than tensor.device.type
                return self._prepare
        except AttributeError:
            return self._prepare  # not a tensor: the operation raises the error
        return self._devices.preparation(tensor.device, self._work_queue, self._prepare)
