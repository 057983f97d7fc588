"""What ranks of torch.distributed do with several tensors at once, and with functional collectives, on any backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
import torch.distributed._functional_collectives as functional_collectives

from tests.comm.torch_backend.torch_scripts import plain, values

dist: Any = torch.distributed
"""Whose stubs say of all that gives a work that it may give nothing."""
functions: Any = functional_collectives
"""Which have no types."""

SHAPES = ((3,), (2, 2), (1, 4, 2))


def coalesced(later: bool) -> list[Any]:
    """Call the coalesced collectives: gathers and shares of several tensors in one operation."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results: list[Any] = []
    for dtype in (torch.float32, torch.int64):
        tensors = [values(rank, *shape, dtype=dtype) for shape in SHAPES]
        outputs = [[torch.zeros(shape, dtype=dtype) for shape in SHAPES] for _ in range(size)]
        future = dist.all_gather_coalesced(outputs, tensors, async_op=later)
        if later:
            future.wait()
        results.append([plain(output) for each in outputs for output in each])
        gathered = [torch.zeros(size * shape[0], *shape[1:], dtype=dtype) for shape in SHAPES]
        with dist.distributed_c10d._coalescing_manager(async_ops=later) as manager:
            for output, tensor in zip(gathered, tensors, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        manager.wait()
        results.append([plain(output) for output in gathered])
        for op in ("SUM", "MAX"):
            shares = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
            with dist.distributed_c10d._coalescing_manager(async_ops=later) as manager:
                for shape, share in zip(SHAPES, shares, strict=True):
                    given = values(rank, size * shape[0], *shape[1:], dtype=dtype)
                    dist.reduce_scatter_tensor(share, given, getattr(dist.ReduceOp, op))
            manager.wait()
            results.append([plain(share) for share in shares])
    return results


def functional() -> list[Any]:
    """Call the functional collectives, which give new tensors; in a group of all ranks and in one of two."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = _functional(dist.group.WORLD, rank, size)
    members = [size - 1, 0]
    group = dist.new_group(members)
    return results + (_functional(group, dist.get_rank(group), 2) if rank in members else [])


def _functional(group: Any, rank: int, size: int) -> list[Any]:
    results: list[Any] = []

    def keep(*tensors: torch.Tensor) -> None:
        results.extend(plain(functions.wait_tensor(tensor)) for tensor in tensors)

    for op in ("sum", "min", "max", "product"):
        keep(functions.all_reduce(values(rank, 4), op, group))
    keep(*functions.all_reduce_coalesced([values(rank, *shape) for shape in SHAPES], "sum", group))
    keep(functions.broadcast(values(rank, 4), size - 1, group))
    for dim in (0, 1):
        keep(functions.all_gather_tensor(values(rank, 2, 3), dim, group))
        keep(functions.reduce_scatter_tensor(values(rank, 2 * size, 3 * size), "sum", dim, group))
    keep(*functions.all_gather_into_tensor_coalesced([values(rank, *shape) for shape in SHAPES], group))
    whole = [values(rank, size * 2, size), values(rank, 3, size)]
    keep(*functions.reduce_scatter_tensor_coalesced(whole, "sum", [0, 1], group))
    keep(functions.all_to_all_single(values(rank, size, 3), None, None, group))
    splits = [(rank + other) % 3 for other in range(size)]
    keep(functions.all_to_all_single(values(rank, sum(splits), 2), splits, splits, group))
    keep(functions.permute_tensor(values(rank, 4), [(other + 1) % size for other in range(size)], group))
    leaf = values(rank, 2, 3).requires_grad_()
    gathered = functions.all_gather_tensor_autograd(leaf, 0, group)
    share = functions.reduce_scatter_tensor_autograd(gathered * (1 + rank), "sum", 0, group)
    swapped = functions.all_to_all_single_autograd(share.repeat(size, 1), [2] * size, [2] * size, group)
    (swapped * values(10 + rank, 2 * size, 3)).sum().backward()
    assert leaf.grad is not None
    keep(swapped.detach(), leaf.grad)
    return results
