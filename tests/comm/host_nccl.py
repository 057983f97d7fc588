"""An NCCL and a stream that work on the host, on the same addresses, counts and numbers that the real ones get.

Ranks are threads. A call is carried out in the background, as with a non-blocking communicator, once every rank has
made it; so the order of calls, their groups and their arguments are checked as far as that is possible without a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

from hpsearch_comm.cuda.nccl_library import DATATYPES, IN_PROGRESS, OPERATORS, SUCCESS, NcclLibrary
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.errors import NcclError

T = TypeVar("T")
DTYPES = {code: dtype for dtype, code in DATATYPES.items()}
OPERATOR_NAMES = {code: name for name, code in OPERATORS.items()}
Call = tuple[str, tuple[Any, ...]]


class HostEvent:
    def __init__(self, reached: Callable[[], bool]) -> None:
        self.query = reached


class HostStream(CudaStream):
    """A stream on which everything is done at once, but for what `busy` says."""

    device = torch.device("cuda", 0)

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        self.handle = 77
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


class HostWorld:
    """Where the ranks of one communicator meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.posted: dict[int, dict[int, list[tuple[Call, bytes]]]] = {}
        self.aborted = False

    def exchange(self, sequence: int, rank: int, calls: list[Call]) -> list[list[tuple[Call, bytes]]] | None:
        """Give every rank's calls, with what each sends; None where an abort came first."""
        posted = [(call, snapshot(call, self.size)) for call in calls]
        with self.condition:
            slot = self.posted.setdefault(sequence, {})
            slot[rank] = posted
            self.condition.notify_all()
            self.condition.wait_for(lambda: len(slot) == self.size or self.aborted)
            return None if len(slot) < self.size else [slot[peer] for peer in range(self.size)]

    def abort(self) -> None:
        with self.condition:
            self.aborted = True
            self.condition.notify_all()


class HostNccl:
    """One rank's NCCL."""

    version = 23203

    def __init__(self, world: HostWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.log: list[str] = []
        self.fails: dict[str, int] = {}
        self.state = SUCCESS
        self.busy = False
        self.max_ctas: int | None = None
        self.interfaces: list[str | None] = []
        """NCCL_SOCKET_IFNAME, at each moment of its start at which it may look there."""
        self._sequence = 0
        self._group: list[Call] | None = None

    def as_library(self) -> NcclLibrary:
        return cast(NcclLibrary, self)

    def stream(self) -> HostStream:
        return HostStream(lambda: self.busy)

    def unique_id(self) -> bytes:
        self.interfaces.append(os.environ.get("NCCL_SOCKET_IFNAME"))
        if "ncclGetUniqueId" in self.fails:
            raise self.error("ncclGetUniqueId", self.fails["ncclGetUniqueId"])
        return bytes(range(128))

    def init_rank(self, size: int, identity: bytes, rank: int, max_ctas: int | None = None) -> int:
        assert (size, rank, len(identity)) == (self.world.size, self.rank, 128)
        self.interfaces.append(os.environ.get("NCCL_SOCKET_IFNAME"))
        if "ncclCommInitRankConfig" in self.fails:
            raise self.error("ncclCommInitRankConfig", self.fails["ncclCommInitRankConfig"])
        self.max_ctas = max_ctas
        self._submit([("init", ())])
        return 1 + rank

    def async_error(self, comm: int) -> int:
        assert comm == 1 + self.rank
        return self.fails.get("ncclCommGetAsyncError", self.state)

    def error(self, function: str, result: int, where: str = "") -> NcclError:
        return NcclError(f"{function} failed{where and ' in '}{where}: {result}")

    def ncclCommFinalize(self, comm: int) -> int:
        return self._submit([("finalize", ())])

    def ncclCommDestroy(self, comm: int) -> int:
        self.log.append("destroy")
        return SUCCESS

    def ncclCommAbort(self, comm: int) -> int:
        self.log.append("abort")
        self.world.abort()
        self.busy = False
        return SUCCESS

    def ncclGroupStart(self) -> int:
        assert self._group is None
        self._group = []
        return SUCCESS

    def ncclGroupEnd(self) -> int:
        assert self._group is not None
        calls, self._group = self._group, None
        if "ncclGroupEnd" in self.fails:
            return self.fails["ncclGroupEnd"]
        return self._submit(calls) if calls else SUCCESS

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nccl"):
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            *arguments, comm, stream = arguments  # type: ignore[assignment]
            assert (comm, stream) == (1 + self.rank, 77)
            if name in self.fails:
                return self.fails[name]
            call = (name, tuple(arguments))
            if self._group is not None:
                self._group.append(call)
                return SUCCESS
            return self._submit([call])

        return function

    def _submit(self, calls: list[Call]) -> int:
        self.log += [name for name, _ in calls]
        assert self.state == SUCCESS, "a call before the last one was on the stream"
        self.state = IN_PROGRESS
        sequence, self._sequence = self._sequence, self._sequence + 1
        threading.Thread(target=self._run, args=(sequence, calls), daemon=True).start()
        return IN_PROGRESS

    def _run(self, sequence: int, calls: list[Call]) -> None:
        everyone = self.world.exchange(sequence, self.rank, calls)
        if everyone is None:
            return
        carry_out(everyone, self.rank)
        if calls[0][0] == "init":
            self.interfaces.append(os.environ.get("NCCL_SOCKET_IFNAME"))
        self.state = SUCCESS


def memory(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    nbytes = count * dtype.itemsize
    buffer = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype)


def snapshot(call: Call, size: int) -> bytes:
    """Copy what a call sends."""
    name, arguments = call
    if name in ("init", "finalize", "ncclRecv"):
        return b""
    address, count, code = (arguments[0], *arguments[1:3]) if name == "ncclSend" else (arguments[0], *arguments[2:4])
    count *= size if name == "ncclReduceScatter" else 1
    return bytes(memory(address, count, DTYPES[code]).view(torch.uint8).tolist())


def carry_out(everyone: list[list[tuple[Call, bytes]]], rank: int) -> None:
    """Write what this rank receives."""
    for index, ((name, arguments), _) in enumerate(everyone[rank]):
        if name in ("init", "finalize", "ncclSend"):
            continue
        if name == "ncclRecv":
            address, count, code, peer = arguments
            nth = [call for call, _ in everyone[rank][:index] if call[0] == "ncclRecv" and call[1][3] == peer]
            sent = [(call, data) for call, data in everyone[peer] if call[0] == "ncclSend" and call[1][3] == rank]
            (_, told), data = sent[len(nth)]
            assert told[1:3] == (count, code)
            memory(address, count, DTYPES[code]).copy_(values(data, DTYPES[code]))
            continue
        same = [rankwise[index] for rankwise in everyone]
        # Addresses differ between ranks; everything else must be the same.
        assert all(call[0] == name and call[1][2:] == arguments[2:] for call, _ in same)
        _, target, count, code, *rest = arguments
        dtype = DTYPES[code]
        tensors = [values(data, dtype) for _, data in same]
        if name == "ncclAllGather":
            memory(target, count * len(tensors), dtype).copy_(torch.cat(tensors))
        elif name == "ncclBroadcast":
            memory(target, count, dtype).copy_(tensors[rest[0]])
        elif name == "ncclAllReduce":
            memory(target, count, dtype).copy_(reduced(tensors, OPERATOR_NAMES[rest[0]]))
        elif name == "ncclReduceScatter":
            part = reduced(tensors, OPERATOR_NAMES[rest[0]])[rank * count : (rank + 1) * count]
            memory(target, count, dtype).copy_(part)
        elif name == "ncclReduce":
            if rest[1] == rank:
                memory(target, count, dtype).copy_(reduced(tensors, OPERATOR_NAMES[rest[0]]))
        else:
            raise AssertionError(name)


def values(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)


def reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce as NCCL does: in the tensors' own dtype, without NaN in minima and maxima, means by multiplying first."""
    dtype = tensors[0].dtype
    if dtype in (torch.uint32, torch.uint64):
        assert op in ("sum", "product")
        signed = torch.int32 if dtype is torch.uint32 else torch.int64
        return reduced([tensor.view(signed) for tensor in tensors], op).view(dtype)
    if op == "mean":
        assert dtype.is_floating_point
        scale = torch.tensor(1.0 / len(tensors), dtype=torch.float64).to(dtype)
        tensors = [tensor * scale for tensor in tensors]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        if op in ("sum", "mean"):
            total = total + tensor
        elif op == "product":
            total = total * tensor
        elif dtype.is_floating_point:
            total = torch.fmin(total, tensor) if op == "min" else torch.fmax(total, tensor)
        else:
            total = torch.minimum(total, tensor) if op == "min" else torch.maximum(total, tensor)
    return total


class Gathering:
    """Gives ranks, which are threads, the values of all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._condition = threading.Condition()
        self._rounds: dict[int, dict[int, str]] = {}

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        rounds = itertools.count()

        def gather(value: Any) -> list[Any]:
            with self._condition:
                values = self._rounds.setdefault(next(rounds), {})
                values[rank] = json.dumps(value)
                self._condition.notify_all()
                assert self._condition.wait_for(lambda: len(values) == self._size, 30)
                return [json.loads(values[peer]) for peer in range(self._size)]

        return gather


def run_ranks(size: int, task: Callable[[int], T]) -> list[T]:
    """Run a task on each rank's thread; raises the first error."""
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = task(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for error in errors:
        if error is not None:
            raise error
    return results
