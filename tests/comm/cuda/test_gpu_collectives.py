"""Two ranks on one GPU: through NCCL and through pinned host memory they get the same sums.

First by the parts themselves, joined with a pipe, and then through a group.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.errors import CommTimeoutError, PeerLost
from tests.comm.cuda.gpu_ranks import Groups, Pair, on_two_ranks
from tests.comm.thread_ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch built for CUDA"),
]

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
SIZES = [1024, 2**20, 2**26]
"""Bytes of what is timed."""


def sample(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7 * rank + numel)
    if dtype.is_complex:
        return torch.randn(numel, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(numel, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, (numel,), generator=generator).to(dtype)


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
        received = torch.zeros(2 * numel, dtype=torch.bfloat16, device=device)
        nccl.alltoall(torch.cat([tensors[rank], tensors[rank] + 1]), received, [numel] * 2, [numel] * 2).wait()
        right.append(torch.equal(received, torch.cat([tensor + rank for tensor in tensors])))
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
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4, device=pair.device)

        def through_nccl(tensor: torch.Tensor = tensor) -> None:
            nccl.allreduce(tensor, "sum").wait()

        def through_host(tensor: torch.Tensor = tensor) -> None:
            pair.through_host(tensor, "sum")

        figures.append((nbytes, seconds_of(through_nccl), seconds_of(through_host)))
    return figures


def show(capsys: pytest.CaptureFixture[str], what: str, figures: list[tuple[int, float, float]]) -> None:
    """Print figures where whoever runs the tests sees them without asking."""
    assert [nbytes for nbytes, _, _ in figures] == SIZES
    with capsys.disabled():
        print(f"\nallreduce of two ranks on {torch.cuda.get_device_name()}, {what}:")
        for nbytes, nccl, host in figures:
            print(f"{nbytes:>12,} bytes: {nccl * 1e6:10.0f} us through NCCL, {host * 1e6:10.0f} us through host memory")


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
            pair.abort_state.fail(PeerLost("rank 1 has died", 1))

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


def test_a_figure_for_each_way(capsys):
    show(capsys, "bare parts", on_two_ranks(time_both)[0])


def test_dead_rank_ends_the_wait_and_the_kernel():
    assert on_two_ranks(die_while_the_other_waits) == ["rank 1 has died", None]


def test_rank_that_does_not_call_is_given_up():
    outcomes = on_two_ranks(call_without_the_other, timeout=5.0)
    assert "rank 0 waited" in outcomes[0]
    assert outcomes[1] == "enough"


def compare_groups(groups: Groups) -> list[str]:
    wrong = []
    for dtype, op in CASES:
        for numel in NUMELS:
            start = sample(groups.rank, numel, dtype).to(groups.device)
            through_nccl = groups.nccl.allreduce(start.clone(), op)
            assert groups.nccl.last_algorithm == "nccl"
            through_host = groups.host.allreduce(start.clone(), op)
            assert groups.host.last_algorithm == "direct"
            if not torch.equal(through_nccl.view(torch.uint8), through_host.view(torch.uint8)):
                wrong.append(f"{op} of {numel} {dtype}")
    product = groups.nccl.allreduce(torch.full((5,), 1 + 1j, device=groups.device), "product")
    assert (groups.nccl.last_algorithm, groups.nccl.device_path) == ("direct", "nccl")
    assert product.tolist() == [2j] * 5
    return wrong


def move_in_groups(groups: Groups) -> None:
    rank, device = groups.rank, groups.device
    for group in (groups.nccl, groups.host):
        for numel in (0, *NUMELS):
            both = [sample(peer, numel, torch.bfloat16).to(device) for peer in range(2)]
            mine = both[rank].clone()
            assert group.broadcast(mine, 1) is mine
            assert torch.equal(mine, both[1])
            uneven = [both[0], both[1][: numel // 2]]
            assert torch.equal(group.allgather(uneven[rank]), torch.cat(uneven))
            total = both[0].float() + both[1].float()
            part = group.reduce_scatter(both[rank].float(), "sum")
            assert torch.equal(part, torch.tensor_split(total, 2)[rank])
            rows, counts = group.alltoall(both[rank], [numel - numel // 3, numel // 3])
            cut = numel - numel // 3
            assert torch.equal(rows, torch.cat([tensor[:cut] if rank == 0 else tensor[cut:] for tensor in both]))
            assert counts == [len(rows) // 2] * 2
        turned = torch.arange(60.0, device=device).view(6, 10).t()
        out = torch.zeros(6, 10, device=device).t()
        assert group.allreduce(turned, "sum", out) is out
        assert torch.equal(out, 2 * turned)
        gathered = torch.zeros(6, 20, device=device).t()
        assert torch.equal(group.allgather(turned, gathered), torch.cat([turned, turned]))
        assert group.allreduce(torch.tensor(float(rank), device=device)).item() == 0.5
        assert group.allgather(torch.tensor(rank, device=device)).tolist() == [0, 1]
        conjugated = torch.full((1_000_000,), 1 + 2j, device=device).conj()
        assert bool((group.allgather(conjugated) == 1 - 2j).all())
        assert bool((group.allreduce(conjugated.clone().conj(), "sum") == 2 + 4j).all())


def mix_asynchronous_calls(groups: Groups) -> None:
    """Calls on the GPU and on the CPU, from a stream of the caller's own, which goes on at once."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for group in (groups.nccl, groups.host):
        with torch.cuda.stream(stream):
            tensors, handles = [], []
            for index in range(20):
                tensor = torch.zeros(500_000, device=groups.device)
                for _ in range(20):
                    tensor += 1
                tensors.append(tensor)
                handles.append(group.allreduce_async(tensor, "sum"))
                handles.append(group.allreduce_async(torch.ones(100), "sum"))
                if index % 6 == 5:
                    assert group.allreduce(torch.ones(3, device=groups.device), "sum").tolist() == [2.0] * 3
            gathered = group.allgather_async(torch.full((1000,), float(groups.rank), device=groups.device))
            for handle in handles:
                handle.wait()
            # The results are used on this stream at once, and their memory comes back for new tensors.
            assert all(bool((tensor == 40).all()) for tensor in tensors)
            assert gathered.wait().sum().item() == 1000.0


def time_groups(groups: Groups) -> list[tuple[int, float, float]]:
    figures = []
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4, device=groups.device)

        def through_nccl(tensor: torch.Tensor = tensor) -> None:
            groups.nccl.allreduce(tensor, "sum")

        def through_host(tensor: torch.Tensor = tensor) -> None:
            groups.host.allreduce(tensor, "sum")

        figures.append((nbytes, seconds_of(through_nccl), seconds_of(through_host)))
    return figures


def disagree_in_a_group(groups: Groups) -> str:
    try:
        groups.nccl.allreduce(torch.ones(5 + groups.rank, device=groups.device), "sum")
    except comm.MismatchError as error:
        torch.cuda.synchronize()  # comes back, since nothing was launched
        return str(error)
    return "no error"


def die_in_a_group(groups: Groups) -> str:
    tensor = torch.ones(1000, device=groups.device)
    for group in (groups.host, groups.nccl):
        group.allreduce(tensor, "sum")
    if groups.rank == 1:
        os._exit(0)
    try:
        groups.nccl.allreduce(tensor, "sum")
    except PeerLost as error:
        torch.cuda.synchronize()
        return str(error)
    return "no error"


def test_groups_get_the_same_sums_through_nccl_and_through_host_memory():
    assert on_two_ranks(compare_groups, make=Groups) == [[], []]


def test_groups_move_every_element_both_ways():
    on_two_ranks(move_in_groups, make=Groups)


def test_asynchronous_calls_on_gpu_and_cpu_run_in_one_order():
    on_two_ranks(mix_asynchronous_calls, make=Groups)


def test_a_figure_for_each_way_of_a_group(capsys):
    show(capsys, "groups", on_two_ranks(time_groups, make=Groups)[0])


def test_ranks_of_a_group_that_disagree_are_told():
    for message in on_two_ranks(disagree_in_a_group, make=Groups):
        assert "sum of float32 [5], 20 bytes, on cuda, nccl" in message
        assert "sum of float32 [6], 24 bytes, on cuda, nccl" in message


def test_dead_rank_ends_the_wait_of_a_group():
    message, nothing = on_two_ranks(die_in_a_group, make=Groups)
    assert "has died" in message
    assert nothing is None


def test_threads_that_share_a_gpu_go_through_host_memory():
    def work(group: comm.Group) -> tuple[Any, ...]:
        tensor = torch.full((3_000_001,), float(group.rank), device="cuda")
        return bool((group.allreduce(tensor, "sum") == 1).all()), str(group.device_path)

    for right, path in run_ranks(2, work):
        assert right
        assert path.startswith("host memory: ")


def test_a_group_of_one_copies_on_the_callers_stream():
    with comm.Group(0, 1) as group:
        tensor = torch.arange(5.0, device="cuda")
        assert group.allreduce(tensor) is tensor
        out = torch.zeros(5, device="cuda")
        assert group.allreduce(tensor, out=out).tolist() == list(range(5))
        assert group.allgather(tensor).tolist() == list(range(5))
        assert group.reduce_scatter_async(tensor).wait().tolist() == list(range(5))
        assert group.alltoall(tensor).tolist() == list(range(5))
        assert group.device_path == "none: a group of one"


def test_a_cuda_graph_is_refused_and_the_group_goes_on():
    with comm.Group(0, 1) as group:
        tensor = torch.ones(5, device="cuda")
        group.allreduce(tensor)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor.add_(1)  # torch warns of a graph without work
            with pytest.raises(comm.UsageError, match="can't be part of a CUDA graph"):
                group.allreduce(tensor)
        assert group.allreduce(tensor).tolist() == [1.0] * 5
