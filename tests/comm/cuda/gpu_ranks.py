"""Two ranks on one GPU, in processes of their own: with the bare parts, joined with a pipe, or with groups."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas
from hpsearch_comm.cuda.nccl import start_nccl, start_together
from hpsearch_comm.cuda.process_group import ThroughProcessGroup
from hpsearch_comm.cuda.staging import ThroughHost
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.work_queue import Turn
from tests.comm.cuda.bare_collectives import BareCollectives, bare_turn
from tests.comm.thread_ranks import SECRET

PATIENCE = 120.0
Connection = multiprocessing.connection.Connection


class Rank:
    """One of two ranks in processes of their own on one GPU, with a pipe to the other.

    Attributes:
        reason: Why the two can't use NCCL together, and the test is to be skipped; None where they can.
    """

    def __init__(self, rank: int, other: Connection) -> None:
        self.rank = rank
        self.other = other
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        self.facts = [DeviceFacts(**values) for values in self.gather(asdict(local_facts(self.device)))]
        self.reason = can_use_nccl(self.facts)

    def gather(self, value: Any) -> list[Any]:
        """Return both ranks' values; they must be short, since both ranks send first."""
        self.other.send(value)
        theirs = self.other.recv()
        return [value, theirs] if self.rank == 0 else [theirs, value]


class Pair(Rank):
    """A rank with the bare parts of each way. It is itself the way of CPU tensors."""

    stream = None

    def __init__(self, rank: int, other: Connection, timeout: float) -> None:
        super().__init__(rank, other)
        self.abort_state = AbortState()
        self.staging = ThroughHost(self.stream_beside(), self, self.abort_state)
        self.nccl: BareCollectives | None = None
        if self.reason is None:

            def start(store: Any) -> Any:
                return start_nccl(store, rank, 2, self.device, most_ctas(self.facts), None)

            process_group, store = start_together(start, self.gather, PATIENCE, self.abort_state.check)
            collectives = ThroughProcessGroup(process_group, store, self.stream_beside(), rank, 2, self.abort_state)
            self.nccl = BareCollectives(collectives, self.current, timeout)

    def stream_beside(self) -> CudaStream:
        return CudaStream.beside(self.device)

    def current(self) -> CudaStream:
        return CudaStream.current(self.device)

    def exchange(self, chunk: torch.Tensor) -> torch.Tensor:
        """Return the other rank's chunk; rank 0 sends first, so that neither waits for space in the pipe."""
        data = ctypes.string_at(chunk.data_ptr(), chunk.nbytes)
        if self.rank == 0:
            self.other.send_bytes(data)
            theirs = self.other.recv_bytes()
        else:
            theirs = self.other.recv_bytes()
            self.other.send_bytes(data)
        return torch.frombuffer(bytearray(theirs), dtype=chunk.dtype)

    def through_host(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        turn = bare_turn("allreduce", tensor, op)
        turn.rank, turn.stream, turn.ready = self.rank, self.current(), self.current().record()
        self.staging.run(turn, tensor, tensor, None)
        return tensor

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """Reduce a tensor on the CPU in place."""
        reduction = turn.reduction
        theirs = self.exchange(tensor)
        first, second = (tensor, theirs) if self.rank == 0 else (theirs, tensor)
        total = reduction.view(first).to(reduction.accumulate, copy=True)
        reduction.combine(total, reduction.view(second))
        reduction.finish(total, 2)
        reduction.view(out).copy_(total)

    def close(self) -> None:
        if self.nccl is not None:
            self.nccl.close()
        self.abort_state.close()


class Groups(Rank):
    """A rank with a group for each way."""

    def __init__(self, rank: int, other: Connection, timeout: float) -> None:
        super().__init__(rank, other)
        self.timeout = timeout
        # Where NCCL can be used it must start: a group that was left to choose would go through host memory.
        self.nccl = self.group("nccl" if self.reason is None else "auto")
        self.host = self.group("host")

    def group(self, cuda: str) -> comm.Group:
        listener = comm.Listener("127.0.0.1")
        return comm.Group(
            self.rank,
            2,
            rendezvous=comm.KnownAddresses(self.gather(listener.address.to_text())),
            secret=SECRET,
            listener=listener,
            cuda=cuda,
            timeout=self.timeout,
        )

    def close(self) -> None:
        self.nccl.close()
        self.host.close()


def run(rank: int, other: Connection, results: Connection, make: type[Any], task: Any, timeout: float) -> None:
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    try:
        pair = make(rank, other, timeout)
        results.send(("done", task(pair)) if pair.reason is None else ("skip", pair.reason))
        pair.close()
    except BaseException:
        results.send(("error", f"rank {rank}: {traceback.format_exc()}"))


def on_two_ranks(task: Callable[[Any], Any], timeout: float = 60.0, make: type[Any] = Pair) -> list[Any]:
    """Run a task on both ranks, with what `make` makes, and return its results; skip if NCCL can't be shared."""
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    processes, channels = [], []
    for rank in range(2):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(rank, ends[rank], theirs, make, task, timeout))
        process.start()
        theirs.close()
        processes.append(process)
        channels.append(mine)
    for end in ends:
        end.close()
    try:
        outcomes = []
        for channel in channels:
            assert channel.poll(PATIENCE)
            try:
                outcomes.append(channel.recv())
            except EOFError:
                outcomes.append(("died", None))
    finally:
        ends_well = []
        for process, channel in zip(processes, channels, strict=True):
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
            ends_well.append(process.exitcode == 0)
            process.close()
            channel.close()
    for outcome, value in outcomes:
        if outcome == "skip":
            pytest.skip(value)
        assert outcome != "error", value
    assert all(ends_well), "a rank didn't end, or crashed, after its task"
    return [value for _, value in outcomes]
