"""Two ranks on one GPU: through NCCL and through pinned host memory they get the same sums."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas
from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.errors import CommTimeoutError, PeerLost
from hpsearch_comm.fate import Fate
from hpsearch_comm.reduction import reduction_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch built for CUDA"),
]

PATIENCE = 120.0
CASES = [
    (torch.float32, "sum"),
    (torch.float32, "mean"),
    (torch.float32, "max"),
    (torch.float64, "product"),
    (torch.float16, "sum"),
    (torch.bfloat16, "mean"),
    (torch.int16, "sum"),
    (torch.uint16, "max"),
    (torch.int64, "min"),
    (torch.bool, "max"),
    (torch.complex64, "sum"),
    (torch.float8_e4m3fn, "sum"),
]
NUMELS = [1, 1000, 3_000_001]
Connection = multiprocessing.connection.Connection


def sample(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7 * rank + numel)
    if dtype.is_complex:
        return torch.randn(numel, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(numel, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, (numel,), generator=generator).to(dtype)


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


def run(rank: int, other: Connection, results: Connection, task: Callable[[Pair], Any], timeout: float) -> None:
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    try:
        pair = Pair(rank, other, timeout)
        results.send(("skip", pair.reason) if pair.nccl is None else ("done", task(pair)))
        pair.staging.close()
        if pair.nccl is not None:
            pair.nccl.close()
        pair.fate.close()
    except BaseException as error:
        results.send(("error", f"{type(error).__name__}: {error}"))


def on_two_ranks(task: Callable[[Pair], Any], timeout: float = 60.0) -> list[Any]:
    """Run a task on both ranks and give what they return; skips where NCCL can't be shared."""
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    processes, channels = [], []
    for rank in range(2):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(rank, ends[rank], theirs, task, timeout))
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


def compare_sums(pair: Pair) -> list[str]:
    assert pair.nccl is not None
    wrong = []
    for dtype, op in CASES:
        for numel in NUMELS:
            start = sample(pair.rank, numel, dtype).to(pair.device)
            through_nccl = pair.nccl.allreduce(start.clone(), op).wait()
            through_host = pair.through_host(start.clone(), op)
            if not torch.equal(through_nccl.view(torch.uint8), through_host.view(torch.uint8)):
                wrong.append(f"{op} of {numel} {dtype}")
    return wrong


def move(pair: Pair) -> list[bool]:
    nccl, rank, device = pair.nccl, pair.rank, pair.device
    assert nccl is not None
    right = []
    for numel in NUMELS:
        tensors = [sample(peer, numel, torch.bfloat16).to(device) for peer in range(2)]
        right.append(torch.equal(nccl.broadcast(tensors[rank].clone(), 1).wait(), tensors[1]))
        whole = torch.zeros(2 * numel, dtype=torch.bfloat16, device=device)
        right.append(torch.equal(nccl.allgather(tensors[rank], whole, [numel] * 2).wait(), torch.cat(tensors)))
        counts = [numel, numel // 2]
        uneven = torch.zeros(sum(counts), dtype=torch.bfloat16, device=device)
        nccl.allgather(tensors[rank][: counts[rank]], uneven, counts).wait()
        right.append(torch.equal(uneven, torch.cat([tensors[0], tensors[1][: counts[1]]])))
        both = [torch.cat([tensor.float(), tensor.float()]) for tensor in tensors]
        for parts in ([numel, numel], [2 * numel - 1, 1]):
            out = torch.zeros(parts[rank], device=device)
            nccl.reduce_scatter(both[rank], "sum", out, parts).wait()
            right.append(torch.equal(out, (both[0] + both[1]).split(parts)[rank]))  # type: ignore[no-untyped-call]
        receives = [torch.zeros(numel, dtype=torch.bfloat16, device=device) for _ in range(2)]
        nccl.alltoall([tensors[rank] + peer for peer in range(2)], receives).wait()
        right += [torch.equal(receives[peer], tensors[peer] + rank) for peer in range(2)]
    return right


def run_beside_the_caller(pair: Pair) -> bool:
    """Work queued before the call is seen by it; work of a stream of the caller's own likewise."""
    assert pair.nccl is not None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        tensor = torch.zeros(2_000_000, device=pair.device)
        for _ in range(200):
            tensor += 1
        work = pair.nccl.allreduce(tensor, "sum")
        through_nccl = work.wait().clone()
        for _ in range(100):
            tensor += 1
        pair.through_host(tensor, "sum")
        tensor += 1
    stream.synchronize()
    return bool((through_nccl == 400).all()) and bool((tensor == 1001).all())


def seconds_of(reduce: Callable[[], None]) -> float:
    for _ in range(3):
        reduce()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(5):
        reduce()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / 5


def time_both(pair: Pair) -> list[tuple[int, float, float]]:
    nccl = pair.nccl
    assert nccl is not None
    figures = []
    for nbytes in (1024, 2**20, 2**26):
        tensor = torch.zeros(nbytes // 4, device=pair.device)

        def through_nccl(tensor: torch.Tensor = tensor) -> None:
            nccl.allreduce(tensor, "sum").wait()

        def through_host(tensor: torch.Tensor = tensor) -> None:
            pair.through_host(tensor, "sum")

        figures.append((nbytes, seconds_of(through_nccl), seconds_of(through_host)))
    return figures


def die_while_the_other_waits(pair: Pair) -> str:
    assert pair.nccl is not None
    tensor = torch.ones(1000, device=pair.device)
    pair.nccl.allreduce(tensor, "sum").wait()
    if pair.rank == 1:
        os._exit(0)

    def watch() -> None:
        try:
            pair.other.recv_bytes()
        except (EOFError, OSError):
            pair.fate.fail(PeerLost("rank 1 has died", 1))

    threading.Thread(target=watch, daemon=True).start()
    try:
        pair.nccl.allreduce(tensor, "sum").wait()
    except PeerLost as error:
        torch.cuda.synchronize()  # comes back, since the abort has ended the kernel
        return str(error)
    return "no error"


def call_without_the_other(pair: Pair) -> str:
    assert pair.nccl is not None
    tensor = torch.ones(1000, device=pair.device)
    pair.nccl.allreduce(tensor, "sum").wait()
    if pair.rank == 0:
        try:
            pair.nccl.allreduce(tensor, "sum").wait()
        except CommTimeoutError as error:
            pair.other.send("enough")
            torch.cuda.synchronize()
            return str(error)
        return "no error"
    return str(pair.other.recv())


def test_sums_are_the_same_through_nccl_and_through_host_memory():
    assert on_two_ranks(compare_sums) == [[], []]


def test_moves_bring_every_element():
    for right in on_two_ranks(move):
        assert all(right), right


def test_streams_wait_for_each_other():
    assert on_two_ranks(run_beside_the_caller) == [True, True]


def test_a_figure_for_each_way():
    for nbytes, nccl, host in on_two_ranks(time_both)[0]:
        print(f"{nbytes:>12,} bytes: {nccl * 1e6:10.0f} us through NCCL, {host * 1e6:10.0f} us through host memory")


def test_dead_rank_ends_the_wait_and_the_kernel():
    assert on_two_ranks(die_while_the_other_waits) == ["rank 1 has died", None]


def test_rank_that_does_not_call_is_given_up():
    outcomes = on_two_ranks(call_without_the_other, timeout=5.0)
    assert "rank 0 waited" in outcomes[0]
    assert outcomes[1] == "enough"
