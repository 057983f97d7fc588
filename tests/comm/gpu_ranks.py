"""Two ranks on one GPU, in processes of their own: as bare parts joined with a pipe, or with groups."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas
from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.fate import Fate
from hpsearch_comm.reduction import reduction_for
from tests.comm.thread_ranks import SECRET

PATIENCE = 120.0
Connection = multiprocessing.connection.Connection


class Pair:
    """One of two ranks in processes of their own, with a pipe to the other."""

    def __init__(self, rank: int, other: Connection, timeout: float) -> None:
        self.rank = rank
        self.other = other
        self.fate = Fate()
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        self.other.send(local_facts(self.device).to_json())
        theirs, mine = DeviceFacts.from_json(self.other.recv()), local_facts(self.device)
        facts = [mine, theirs] if rank == 0 else [theirs, mine]
        self.reason = can_use_nccl(facts)
        self.staging = HostStaging(self.device, self.fate)
        self.nccl: NcclCommunicator | None = None
        if self.reason is None:
            ctas = most_ctas(facts)
            self.nccl = NcclCommunicator(rank, 2, self.device, self.share, self.fate, timeout, max_ctas=ctas)

    def share(self, identity: bytes | None) -> bytes:
        if identity is None:
            return self.other.recv_bytes()
        self.other.send_bytes(identity)
        return identity

    def exchange(self, chunk: torch.Tensor) -> torch.Tensor:
        """Give the other rank's chunk; rank 0 sends first, so that neither waits for room in the pipe."""
        data = chunk.contiguous().view(torch.uint8).numpy().tobytes()
        if self.rank == 0:
            self.other.send_bytes(data)
            theirs = self.other.recv_bytes()
        else:
            theirs = self.other.recv_bytes()
            self.other.send_bytes(data)
        return torch.frombuffer(bytearray(theirs), dtype=torch.uint8).view(chunk.dtype) if theirs else chunk

    def through_host(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        reduction = reduction_for(op, tensor.dtype)

        def collective(chunk: torch.Tensor) -> None:
            if not chunk.numel():
                return
            theirs = self.exchange(chunk)
            first, second = (chunk, theirs) if self.rank == 0 else (theirs, chunk)
            total = reduction.view(first).to(reduction.accumulate, copy=True)
            reduction.combine(total, reduction.view(second))
            reduction.finish(total, 2)
            reduction.view(chunk).copy_(total)

        return self.staging.elementwise(tensor, collective)

    def close(self) -> None:
        self.staging.close()
        if self.nccl is not None:
            self.nccl.close()
        self.fate.close()


class Groups:
    """One of two ranks in processes of their own, with a group for each way."""

    def __init__(self, rank: int, other: Connection, timeout: float) -> None:
        self.rank = rank
        self.other = other
        self.timeout = timeout
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        self.nccl = self.group("auto")
        self.nccl.allreduce(torch.ones(1, device=self.device))
        self.reason = None if self.nccl.device_path == "nccl" else self.nccl.device_path
        self.host = self.group("host")

    def group(self, cuda: str) -> comm.Group:
        listener = comm.Listener("127.0.0.1")
        mine = listener.address.to_text()
        self.other.send(mine)
        theirs = str(self.other.recv())
        rendezvous = comm.KnownAddresses([mine, theirs] if self.rank == 0 else [theirs, mine])
        return comm.Group(
            self.rank, 2, rendezvous=rendezvous, secret=SECRET, listener=listener, cuda=cuda, timeout=self.timeout
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
    except BaseException as error:
        results.send(("error", f"{type(error).__name__}: {error}"))


def on_two_ranks(task: Callable[[Any], Any], timeout: float = 60.0, make: type[Any] = Pair) -> list[Any]:
    """Run a task on both ranks, with what `make` gives, and give what they return; skips where NCCL can't be shared."""
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
        for process, channel in zip(processes, channels, strict=True):
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
            channel.close()
    for outcome, value in outcomes:
        if outcome == "skip":
            pytest.skip(value)
        assert outcome != "error", value
    return [value for _, value in outcomes]
