"""torch's process group, implemented with a `Group`.

The methods have torch's names; aliases have the names of torch before 2.13. Calls without `async_op` run in the
caller's thread. Calls with `async_op` run in the group's thread, in the order of the calls.

For sparse tensors, indices and values are gathered and summed on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.torch_backend import plans
from hpsearch_comm.torch_backend.plans import OperationPlan, Tensors, check_input, check_output, only
from hpsearch_comm.torch_backend.work import CallersStreams, CommWork, as_torchs

DEVICES = ("cpu", "cuda")
"""Supported device types."""


def allreduce_sparse(group: Group, tensor: torch.Tensor, op: Any) -> list[OperationPlan]:
    """Sum the ranks' sparse COO tensors, of one shape, into the tensors of all ranks.

    Raises:
        UsageError: The tensor has another layout, or the operator isn't SUM.
    """
    if tensor.layout is not torch.sparse_coo or op != dist.ReduceOp.SUM:
        raise UsageError(f"all_reduce of sparse tensors adds up those in COO layout, got {op} of {tensor.layout}")
    coalesced = tensor.detach().coalesce()
    shape = torch.tensor(coalesced.shape, device="cpu").view(1, -1)
    gathered: list[torch.Tensor] = []

    def check_shapes(shapes: torch.Tensor) -> None:
        if (shapes != shape).any():
            raise UsageError(
                f"all_reduce takes sparse tensors of one shape, got {shapes.tolist()} on the ranks in turn"
            )

    def add_up(values: torch.Tensor) -> None:
        total = torch.sparse_coo_tensor(gathered.pop().t(), values, coalesced.shape, device=coalesced.device).coalesce()
        with torch.no_grad():  # not detach(): a detached sparse tensor would not share new indices
            tensor.copy_(total)

    return [
        OperationPlan("allgather", (shape,), [], check_shapes),
        OperationPlan("allgather", (coalesced.indices().t(),), [], gathered.append),
        OperationPlan("allgather", (check_input("all_reduce", coalesced.values()),), [tensor], add_up),
    ]


_Base: Any = dist.ProcessGroup
"""Typed as Any, because the arguments in torch's stubs differ from ours and between versions."""


class CommProcessGroup(_Base):  # type: ignore[misc]
    """The process group that `torch.distributed` calls. Ranks are numbered within the group.

    Args:
        group: The group that executes the operations; `shutdown` and `abort` close it.
        secret: The group's secret, from which secrets of other groups are derived.
        timeout: The group's timeout in seconds.

    Attributes:
        group: See above.
        secret: See above.
        timeout: See above.
    """

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False
    """Properties that torch reads from a device's backend."""

    def __init__(self, group: Group, secret: bytes, timeout: float) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        self.secret = secret
        self.timeout = timeout
        self._name = ""
        self._description = ""
        self._coalesced: list[CommWork] | None = None

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "hpsearch"

    @property
    def _device_types(self) -> list[torch.device]:
        """The supported devices. They include the CPU, so torch sends pickled objects from the CPU."""
        return [torch.device(device) for device in DEVICES]

    def _get_backend(self, device: torch.device) -> CommProcessGroup:
        """Return the backend of a device, which is this object."""
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(f"No backend type associated with device type {device}")  # torch's message
        return self

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Return False: the backend doesn't allocate tensors."""
        return False

    @property
    def group_name(self) -> str:
        """The group's name in torch."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The group's description in torch."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: operations are numbered from the start."""

    def shutdown(self) -> None:
        """Finish pending operations and leave the group."""
        with as_torchs():
            self.group.close()

    def abort(self) -> None:
        """Leave the group immediately: pending operations fail, on the other ranks too."""
        with as_torchs():
            self.group.close(RuntimeError("the process group was aborted"))

    # Collectives.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> CommWork:
        """Reduce the ranks' tensors into the tensors of all ranks."""
        return self._call(opts, lambda: self._allreduce(only("all_reduce", tensors), opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> CommWork:
        """Run `allreduce` for several tensors."""
        return self._call(opts, lambda: chain.from_iterable(self._allreduce(tensor, opts) for tensor in tensors))

    def _allreduce(self, tensor: torch.Tensor, opts: Any) -> list[OperationPlan]:
        if tensor.layout is not torch.strided:
            return allreduce_sparse(self.group, tensor, _operator(opts))
        return [plans.allreduce(tensor, _operator(opts))]

    def reduce(self, tensors: Tensors, opts: Any) -> CommWork:
        """Reduce the ranks' tensors into the root's tensor."""
        return self._call(
            opts, lambda: [plans.reduce(self.group, only("reduce", tensors), _operator(opts), opts.rootRank)]
        )

    def broadcast(self, tensors: Tensors, opts: Any) -> CommWork:
        """Copy the root's tensor into the tensors of all ranks."""
        return self._call(opts, lambda: [plans.broadcast(only("broadcast", tensors), opts.rootRank)])

    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> CommWork:
        """Copy the ranks' tensors into the output lists of all ranks."""
        only("all_gather", tensors)
        return self._call(opts, lambda: [plans.allgather(self.group, outputs[0], tensors[0])])

    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> CommWork:
        """Run `allgather` for several tensors. Each list of outputs has the tensors of one rank."""
        return self._call(
            opts,
            lambda: [
                plans.allgather(self.group, [output[index] for output in outputs], tensor)
                for index, tensor in enumerate(tensors)
            ],
        )

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> CommWork:
        """Copy the ranks' tensors, concatenated, into the output of all ranks."""
        return self._call(opts, lambda: [plans.allgather_single(self.group, output, tensor)])

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Run `all_gather_single` for several tensors."""
        pairs = zip(outputs, tensors, strict=True)
        return self._call(opts, lambda: [plans.allgather_single(self.group, *pair) for pair in pairs])

    def reduce_scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any = None) -> CommWork:
        """Reduce the ranks' lists of tensors, and copy result i into the output of rank i."""
        output = only("reduce_scatter", outputs)
        return self._call(opts, lambda: plans.reduce_scatter(self.group, output, tensors[0], _operator(opts)))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> CommWork:
        """Reduce the ranks' tensors, and copy part i of n equal parts into the output of rank i."""
        return self._call(opts, lambda: [plans.reduce_scatter_single(self.group, output, tensor, _operator(opts))])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Run `reduce_scatter_single` for several tensors."""
        pairs = zip(outputs, tensors, strict=True)
        return self._call(
            opts, lambda: [plans.reduce_scatter_single(self.group, *pair, _operator(opts)) for pair in pairs]
        )

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Send a tensor to each rank, and receive one from each."""
        return self._call(opts, lambda: [plans.alltoall(self.group, outputs, tensors)])

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, to_come: Sequence[int], to_go: Sequence[int], opts: Any = None
    ) -> CommWork:
        """Send rows to each rank, and receive rows from each."""
        return self._call(opts, lambda: [plans.alltoall_single(self.group, output, tensor, to_come, to_go)])

    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> CommWork:
        """Copy the ranks' tensors into the root's output list."""
        tensor, targets = only("gather", tensors), outputs[0] if outputs else []
        return self._call(opts, lambda: [plans.gather(self.group, targets, tensor, opts.rootRank)])

    def scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any) -> CommWork:
        """Copy one of the root's list of tensors into each rank's output."""
        output, sources = only("scatter", outputs), tensors[0] if tensors else []
        return self._call(opts, lambda: [plans.scatter(self.group, output, sources, opts.rootRank)])

    def barrier(self, opts: Any = None) -> CommWork:
        """Wait until every rank has called it. If `opts` has a timeout, the group is closed when it expires."""
        seconds = opts.timeout.total_seconds() if opts is not None else 0.0
        if seconds <= 0:  # no timeout in opts
            return self._call(opts, lambda: [OperationPlan("barrier", (), [])])
        with as_torchs():
            work = self._register(CommWork([self.group.barrier_async()], [], limit=(seconds, self.group.close)))
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Between two ranks.

    def send(self, tensors: Tensors, target: int, tag: int) -> CommWork:
        """Send a tensor to a rank."""
        with as_torchs():
            tensor = only("send", tensors)
            elements = check_input("send", tensor).reshape(-1)
            if CallersStreams.of(self.group, [tensor]) is not None:
                elements = elements.to("cpu", copy=True)  # waits for the caller's stream
            return self._register(CommWork([self.group.send_async(elements, target, tag)], [tensor], ordered=False))

    def recv(self, tensors: Tensors, source: int | None, tag: int) -> CommWork:
        """Receive a tensor from a rank. It must have the sender's number of elements; the shape may differ."""
        with as_torchs():
            tensor = only("recv", tensors)
            target = check_output("recv", tensor)
            streams = CallersStreams.of(self.group, [tensor])
            if streams is None and target.is_contiguous():
                handle = self.group.recv_async(target.view(-1), source, tag)
                return self._register(CommWork([handle], [tensor], ordered=False))
            room = torch.empty(target.numel(), dtype=target.dtype, device="cpu")
            handle = self.group.recv_async(room, source, tag)
            finish = lambda _: target.copy_(room.view(target.shape))  # noqa: E731
            return self._register(CommWork([handle], [tensor], finish, streams=streams, ordered=False))

    def recv_anysource(self, tensors: Tensors, tag: int) -> CommWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)

    # Execution.

    def _start_coalescing(self, _device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device) -> CommWork:
        works, self._coalesced = self._coalesced or [], None
        return CommWork.joined(works)

    def _call(self, opts: Any, plan: Callable[[], Any]) -> CommWork:
        """Execute the planned operations. Without `async_op`, return after they have ended."""
        with as_torchs():
            planned: list[OperationPlan] = list(plan())
            results = [tensor for each in planned for tensor in each.results]
            streams = CallersStreams.of(self.group, (each.arguments[0] for each in planned if each.arguments))
            if getattr(opts, "asyncOp", True):
                handles = [getattr(self.group, f"{each.operation}_async")(*each.arguments) for each in planned]
                finish = (lambda values: _finish(planned, values)) if any(each.finish for each in planned) else None
                return self._register(CommWork(handles, results, finish, streams=streams))
            for each in planned:
                _finish([each], [getattr(self.group, each.operation)(*each.arguments)])
            return self._register(CommWork([], results, streams=streams))

    def _register(self, work: CommWork) -> CommWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _operator(opts: Any) -> Any:
    """Return the operator in torch's options; SUM without options."""
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _finish(planned: Sequence[OperationPlan], values: Sequence[Any]) -> None:
    for each, value in zip(planned, values, strict=True):
        if each.finish is not None:
            each.finish(value)
