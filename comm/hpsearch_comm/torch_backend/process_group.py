"""torch's process group over a group of ours.

The methods have torch's names, those of torch before 2.13 beside them. What torch calls without `async_op` is carried
out in the caller's thread; the rest runs in the group's, in the order of the calls.

Of sparse tensors the indices and values are gathered, and added up on every rank.
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
from hpsearch_comm.torch_backend.devices import DEVICES
from hpsearch_comm.torch_backend.plans import OperationPlan, Tensors, check_input, check_output, only
from hpsearch_comm.torch_backend.streams import CallersStreams
from hpsearch_comm.torch_backend.work import CommWork, as_torchs


def allreduce_sparse(group: Group, tensor: torch.Tensor, op: Any) -> list[OperationPlan]:
    """Add the ranks' tensors in COO layout, of one shape, up into everybody's.

    Raises:
        UsageError: It has another layout, or isn't to be added up.
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
        with torch.no_grad():  # a detached sparse tensor would get indices of its own
            tensor.copy_(total)

    return [
        OperationPlan("allgather", (shape,), [], check_shapes),
        OperationPlan("allgather", (coalesced.indices().t(),), [], gathered.append),
        OperationPlan("allgather", (check_input("all_reduce", coalesced.values()),), [tensor], add_up),
    ]


_Base: Any = dist.ProcessGroup
"""Whose stubs name other arguments, and others in each version."""


class CommProcessGroup(_Base):  # type: ignore[misc]
    """What `torch.distributed` calls. Ranks are those in the group.

    Args:
        group: Carries everything out; closed with this.
        secret: From which those of other groups are derived.
        timeout: The group's.

    Attributes:
        group: See above.
        secret: See above.
        timeout: See above.
    """

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False
    """What torch asks of a device's backend."""

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
        """Name the devices whose tensors it takes; the CPU among them, so torch leaves objects there."""
        return [torch.device(device) for device in DEVICES]

    def _get_backend(self, device: torch.device) -> CommProcessGroup:
        """Return what carries operations on a device out: this itself, which replaces torch's group."""
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(f"No backend type associated with device type {device}")  # as torch says it
        return self

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Say that it has no memory of its own for tensors."""
        return False

    @property
    def group_name(self) -> str:
        """Return the name under which torch knows the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Return torch's description of the group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: operations are numbered from the start."""

    def shutdown(self) -> None:
        """Leave the group: finish what is under way."""
        with as_torchs():
            self.group.close()

    def abort(self) -> None:
        """Leave the group at once: the other ranks are told, and nothing is finished."""
        with as_torchs():
            self.group.close(RuntimeError("the process group was aborted"))

    # Collectives.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> CommWork:
        """Reduce the ranks' tensors into everybody's."""
        return self._call(opts, lambda: self._allreduce(only("all_reduce", tensors), opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> CommWork:
        """Do as `allreduce`, of several tensors."""
        return self._call(opts, lambda: chain.from_iterable(self._allreduce(tensor, opts) for tensor in tensors))

    def _allreduce(self, tensor: torch.Tensor, opts: Any) -> list[OperationPlan]:
        if tensor.layout is not torch.strided:
            return allreduce_sparse(self.group, tensor, _operator(opts))
        return [plans.allreduce(tensor, _operator(opts))]

    def reduce(self, tensors: Tensors, opts: Any) -> CommWork:
        """Reduce the ranks' tensors into the root's."""
        return self._call(
            opts, lambda: [plans.reduce(self.group, only("reduce", tensors), _operator(opts), opts.rootRank)]
        )

    def broadcast(self, tensors: Tensors, opts: Any) -> CommWork:
        """Copy the root's tensor into everybody's."""
        return self._call(opts, lambda: [plans.broadcast(only("broadcast", tensors), opts.rootRank)])

    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> CommWork:
        """Copy the ranks' tensors into everybody's lists of outputs."""
        only("all_gather", tensors)
        return self._call(opts, lambda: [plans.allgather(self.group, outputs[0], tensors[0])])

    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> CommWork:
        """Do as `allgather`, of several tensors; a list of outputs is what comes from one rank."""
        return self._call(
            opts,
            lambda: [
                plans.allgather(self.group, [output[index] for output in outputs], tensor)
                for index, tensor in enumerate(tensors)
            ],
        )

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> CommWork:
        """Copy the ranks' tensors behind each other into everybody's output."""
        return self._call(opts, lambda: [plans.allgather_single(self.group, output, tensor)])

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Do as `all_gather_single`, of several tensors."""
        pairs = zip(outputs, tensors, strict=True)
        return self._call(opts, lambda: [plans.allgather_single(self.group, *pair) for pair in pairs])

    def reduce_scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any = None) -> CommWork:
        """Reduce the ranks' lists of tensors, and give each rank the one with its number."""
        output = only("reduce_scatter", outputs)
        return self._call(opts, lambda: plans.reduce_scatter(self.group, output, tensors[0], _operator(opts)))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> CommWork:
        """Reduce the ranks' tensors, and give each rank its equal share."""
        return self._call(opts, lambda: [plans.reduce_scatter_single(self.group, output, tensor, _operator(opts))])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Do as `reduce_scatter_single`, of several tensors."""
        pairs = zip(outputs, tensors, strict=True)
        return self._call(
            opts, lambda: [plans.reduce_scatter_single(self.group, *pair, _operator(opts)) for pair in pairs]
        )

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> CommWork:
        """Send a tensor to each rank, and get one from each."""
        return self._call(opts, lambda: [plans.alltoall(self.group, outputs, tensors)])

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, to_come: Sequence[int], to_go: Sequence[int], opts: Any = None
    ) -> CommWork:
        """Send some rows to each rank, and get some from each."""
        return self._call(opts, lambda: [plans.alltoall_single(self.group, output, tensor, to_come, to_go)])

    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> CommWork:
        """Copy the ranks' tensors into the root's list of outputs."""
        tensor, targets = only("gather", tensors), outputs[0] if outputs else []
        return self._call(opts, lambda: [plans.gather(self.group, targets, tensor, opts.rootRank)])

    def scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any) -> CommWork:
        """Copy one of the root's list of tensors into each rank's output."""
        output, sources = only("scatter", outputs), tensors[0] if tensors else []
        return self._call(opts, lambda: [plans.scatter(self.group, output, sources, opts.rootRank)])

    def barrier(self, opts: Any = None) -> CommWork:
        """Return when every rank has come; a timeout of its own that passes before ends the group."""
        seconds = opts.timeout.total_seconds() if opts is not None else 0.0
        if seconds <= 0:  # it has none
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
        """Receive a tensor from a rank; only the number of elements must be the sender's."""
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

    # How they are carried out.

    def _start_coalescing(self, _device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device) -> CommWork:
        works, self._coalesced = self._coalesced or [], None
        return CommWork.joined(works)

    def _call(self, opts: Any, plan: Callable[[], Any]) -> CommWork:
        """Carry out what is planned; the caller waits for what torch calls without `async_op`."""
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
    """Return the operator that torch asks for; without options, the sum."""
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _finish(planned: Sequence[OperationPlan], values: Sequence[Any]) -> None:
    for each, value in zip(planned, values, strict=True):
        if each.finish is not None:
            each.finish(value)
