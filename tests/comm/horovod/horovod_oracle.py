"""Compares what hpsearch_comm.horovod gives with what every rank can work out by itself.

Each rank makes the tensors of all ranks from the same seed. Numbers are small whole ones: no sum is rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import hpsearch_comm.horovod as hvd
from hpsearch_comm.horovod.execution import combine

DTYPES = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (3, 4), (2, 0, 3), (70_000,)]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
FACTORS = [(1.0, 1.0), (0.5, 1.0), (1.0, 3.0), (0.75, 2.5)]


def tensors_of_all(seed: int, dtype: torch.dtype, shape: Sequence[int], size: int | None = None) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lowest = 0 if dtype is torch.uint8 else -3
    count = hvd.size() if size is None else size
    return [torch.randint(lowest, 4, tuple(shape), generator=generator).to(dtype) for _ in range(count)]


def reductions() -> Iterator[tuple[torch.dtype, int, tuple[float, float]]]:
    """Yield every dtype with every op, and the factors in turn: any two of the three meet."""
    for (dtype, op), factors in zip(itertools.product(DTYPES, OPS), itertools.cycle(FACTORS), strict=False):
        yield dtype, op, factors


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1 else (tensor.to(torch.float64) * factor).to(tensor.dtype)


def reduced(tensors: Sequence[torch.Tensor], op: int, prescale: float = 1.0, postscale: float = 1.0) -> torch.Tensor:
    """Reduce in 64 bits, and go through the tensors' own dtype where a factor is applied to it."""
    dtype = tensors[0].dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    stack = torch.stack([scaled(tensor, prescale) for tensor in tensors]).to(wide)
    if op == hvd.Min:
        result = stack.amin(0)
    elif op == hvd.Max:
        result = stack.amax(0)
    elif op == hvd.Product:
        result = stack.prod(0)
    elif op == hvd.Average and dtype.is_floating_point:
        return scaled((stack.sum(0) / len(tensors)).to(dtype), postscale)
    else:
        result = stack.sum(0)
    result = scaled(result.to(dtype), postscale)
    return torch.div(result, len(tensors), rounding_mode="trunc") if op == hvd.Average else result


def same(result: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert result.dtype is expected.dtype, what
    assert result.shape == expected.shape, what
    close = 2e-3 if result.dtype is torch.float16 else 1e-6
    torch.testing.assert_close(result, expected, rtol=close, atol=close, msg=lambda text: f"{what}: {text}")


def allreduces() -> int:
    """Try every way of an allreduce, all in the background first, so that they go together."""
    checks: list[Callable[[], None]] = []
    rank, seed = hvd.rank(), 0

    def later(
        handle: int, expected: Sequence[torch.Tensor], places: Sequence[torch.Tensor] | None, what: object
    ) -> None:
        def check() -> None:
            result = hvd.synchronize(handle)
            results = result if isinstance(result, tuple) else (result,)
            for result, tensor in zip(results, expected, strict=True):
                same(result, tensor, what)
            for result, place in zip(results, places or (), strict=places is not None):
                assert result is place

        checks.append(check)

    for dtype, op, (prescale, postscale) in reductions():
        alls = [tensors_of_all(seed := seed + 1, dtype, shape) for shape in SHAPES]
        expected = [reduced(tensors, op, prescale, postscale) for tensors in alls]
        factors: dict[str, Any] = {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
        what = dtype, op, prescale, postscale
        mine = [tensors[rank].clone() for tensors in alls]
        for tensor, result in zip(mine, expected, strict=True):
            later(hvd.allreduce_async(tensor, **factors), [result], None, what)
            place = tensor.clone()
            later(hvd.allreduce_async_(place, **factors), [result], [place], what)
        later(hvd.grouped_allreduce_async(mine, **factors), expected, None, what)
        places = [tensor.clone() for tensor in mine]
        later(hvd.grouped_allreduce_async_(places, **factors), expected, places, what)
        for tensor, tensors in zip(mine, alls, strict=True):
            assert torch.equal(tensor, tensors[rank])
    for check in checks:
        check()
    return len(checks)


def synchronous_ways() -> None:
    alls = tensors_of_all(7, torch.float32, (4, 2))
    mine = alls[hvd.rank()]
    total, mean = reduced(alls, hvd.Sum), reduced(alls, hvd.Average)
    same(hvd.allreduce(mine), mean, "allreduce")
    same(hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16), total, "compressed")
    same(hvd.allreduce_(place := mine.clone(), op=hvd.Sum), total, "allreduce_")
    same(place, total, "allreduce_")
    for result in hvd.grouped_allreduce([mine, mine], op=hvd.Sum, compression=hvd.Compression.fp16):
        same(result, total, "grouped_allreduce")
    places = [mine.clone(), mine.clone()]
    for result in (*hvd.grouped_allreduce_(places, op=hvd.Sum), *places):
        same(result, total, "grouped_allreduce_")
    # Memory that isn't in one piece, and a parameter.
    strided = torch.zeros(4, 6)[:, ::3].copy_(mine)
    same(hvd.allreduce_(strided, op=hvd.Sum), total, "strided")
    same(hvd.allreduce(mine.t(), op=hvd.Sum), total.t().contiguous(), "transposed")
    parameter = torch.nn.Parameter(mine.clone())
    assert hvd.allreduce_(parameter, op=hvd.Sum) is parameter
    same(parameter.detach(), total, "parameter")
    assert hvd.broadcast_(parameter, root_rank=0) is parameter
    assert hvd.grouped_allreduce([]) == []


def gathers() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype, rest in itertools.product([*DTYPES, torch.int16, torch.bool], [(), (2,), (2, 3), (0,)]):
        alls = [tensors_of_all(11 + of, dtype, ((of + 2) % size, *rest))[of] for of in range(size)]
        same(hvd.allgather(alls[rank]), torch.cat(alls), (dtype, rest))
        for result in hvd.grouped_allgather([alls[rank], alls[rank]]):
            same(result, torch.cat(alls), (dtype, rest))
        for root in range(size):
            ours = tensors_of_all(13, dtype, (3, *rest))
            mine = ours[rank].clone()
            same(hvd.broadcast(mine, root), ours[root], (dtype, rest))
            assert torch.equal(mine, ours[rank])
            assert hvd.broadcast_(mine, root) is mine
            same(mine, ours[root], (dtype, rest))


def alltoalls() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype, rest in itertools.product(DTYPES, [(), (2,), (2, 3)]):
        splits = [[(source + 2 * target) % 3 for target in range(size)] for source in range(size)]
        alls = [tensors_of_all(17, dtype, (sum(splits[of]) + of % 2, *rest))[of] for of in range(size)]
        coming = [splits[source][rank] for source in range(size)]
        expected = torch.cat([torch.split(alls[of][: sum(splits[of])], splits[of])[rank] for of in range(size)])
        for kind in (torch.int32, torch.int64):
            rows, counts = hvd.alltoall(alls[rank], torch.tensor(splits[rank], dtype=kind))
            same(rows, expected, (dtype, rest))
            assert counts.tolist() == coming
            assert counts.dtype is kind
        rows, counts = hvd.synchronize(hvd.alltoall_async(alls[rank], splits[rank]))
        same(rows, expected, (dtype, rest))
        assert counts.tolist() == coming
        even = tensors_of_all(19, dtype, (2 * size, *rest))
        same(hvd.alltoall(even[rank]), torch.cat([each[2 * rank : 2 * rank + 2] for each in even]), (dtype, rest))


def reducescatters() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype, op, (prescale, postscale) in reductions():
        for rows in (size, 2 * size + 1, 0):
            alls = tensors_of_all(23, dtype, (rows, 2))
            expected = reduced(alls, op, prescale, postscale).tensor_split(size)[rank]
            factors: dict[str, Any] = {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
            same(hvd.reducescatter(alls[rank], **factors), expected, (dtype, op, rows))
            handle = hvd.grouped_reducescatter_async([alls[rank]] * 2, **factors)
            for result in (*hvd.synchronize(handle), *hvd.grouped_reducescatter([alls[rank]] * 2, **factors)):
                same(result, expected, (dtype, op, rows))
    result = hvd.reducescatter(torch.ones(size), compression=hvd.Compression.fp16, op=hvd.Sum)
    same(result, torch.full((1,), float(size)), "compressed")


def gradient(function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor, weight: torch.Tensor) -> Any:
    leaf = tensor.clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(leaf), leaf, weight)
    return grad


def gradients() -> None:
    """Compare with Horovod's: those of allreduce, alltoall and reducescatter add up, the others are means."""
    rank, size = hvd.rank(), hvd.size()
    weights = tensors_of_all(29, torch.float64, (size, 2))
    mine, weight = torch.ones(size, 2, dtype=torch.float64), weights[rank]
    total, mean = reduced(weights, hvd.Sum), reduced(weights, hvd.Average)
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), mine, weight), total, "sum")
    same(gradient(lambda x: hvd.allreduce(x, prescale_factor=0.5), mine, weight), mean * 0.5, "mean")
    same(gradient(lambda x: hvd.grouped_allreduce([x, x])[1], mine, weight), mean, "grouped")
    same(gradient(lambda x: hvd.broadcast(x, 1), mine, weight), mean * (rank == 1), "broadcast")
    rows = tensors_of_all(31, torch.float64, (size * (size + 1) // 2, 2))
    own = torch.split(reduced(rows, hvd.Average), [of + 1 for of in range(size)])[rank]
    short = torch.ones(rank + 1, 2, dtype=torch.float64)
    same(gradient(hvd.allgather, short, rows[rank]), own, "allgather")
    same(gradient(lambda x: hvd.grouped_allgather([x, mine])[0], short, rows[rank]), own, "grouped_allgather")
    back = torch.cat([each[rank : rank + 1] for each in weights])
    same(gradient(lambda x: hvd.alltoall(x), mine, weight), back, "alltoall")
    longer = torch.ones(size + 3, 2, dtype=torch.float64)
    kept = torch.cat([back, torch.zeros(3, 2, dtype=torch.float64)])
    same(gradient(lambda x: hvd.alltoall(x, [1] * size)[0], longer, weight), kept, "alltoall of some rows")
    part = weight[:1]
    gathered = torch.cat([each[:1] for each in weights])
    same(gradient(lambda x: hvd.reducescatter(x), mine, part), gathered, "reducescatter")
    doubled = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=2.0), mine, part)
    same(doubled, gathered * size * 2, "reducescatter")


def sparse_reductions() -> None:
    rank, size = hvd.rank(), hvd.size()
    dense = [tensor * (torch.arange(12).view(6, 2) % 3 == 0) for tensor in tensors_of_all(37, torch.float32, (6, 2))]
    for op in (hvd.Sum, hvd.Average):
        waits = [hvd.sparse_allreduce_async(dense[rank].to_sparse(dims), f"s{dims}", op) for dims in (1, 2)]
        for wait in waits:
            result = wait()
            assert result.is_sparse
            same(result.to_dense(), reduced(dense, op), op)
    empty = torch.zeros(6, 2).to_sparse() if rank else dense[rank].to_sparse()
    same(hvd.sparse_allreduce_async(empty, None, hvd.Sum)().to_dense(), dense[0], "empty on others")
    assert size > 1


def adasums() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype, shape in itertools.product([torch.float16, torch.float32, torch.float64], [(5,), (2, 3), (), (0,)]):
        alls = [tensor + 0.25 for tensor in tensors_of_all(41, dtype, shape)]
        level = [tensor.to(torch.float64).flatten() for tensor in alls]
        while len(level) > 1:
            level = [combine(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
        expected = level[0].view(shape).to(dtype)
        same(hvd.allreduce(alls[rank], op=hvd.Adasum), expected, (dtype, shape))
        results = hvd.grouped_allreduce([alls[rank], alls[rank] * 2], op=hvd.Adasum, postscale_factor=0.5)
        for result, factor in zip(results, (0.5, 1.0), strict=True):
            same(result, scaled(expected, factor), (dtype, shape))
    assert math.log2(size).is_integer()
