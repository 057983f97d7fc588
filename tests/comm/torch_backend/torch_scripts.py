"""What ranks of torch.distributed do, on any backend: each gives numbers, to be compared between backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from torch.futures import Future

dist: Any = torch.distributed
"""Whose stubs say of all that gives a work that it may give nothing."""

OPERATORS = ("SUM", "PRODUCT", "MIN", "MAX")
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
)


def drawn(make: Callable[[], Any]) -> Any:
    """Make a tensor or a module with the CPU's random numbers, and move it to the default device."""
    with torch.device("cpu"):
        made = make()
    return made.to(torch.get_default_device())


def values(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    found: torch.Tensor = drawn(lambda: _values(rank, shape, dtype))
    return found


def _values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * sum(shape) + rank)
    if dtype.is_complex:
        return torch.randint(-3, 4, (*shape, 2), generator=generator).float().view(*shape, 2).movedim(-1, 0)[0] * (
            1 + 2j
        ).real + 1j * torch.randint(-3, 4, shape, generator=generator)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def plain(tensor: torch.Tensor) -> Any:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.double().tolist() if tensor.is_floating_point() else tensor.tolist()


def finished(work: Any, how: str) -> None:
    """Wait for an operation in one of several ways."""
    if how == "blocking":
        assert work is None
    elif isinstance(work, Future):  # as some give it
        work.wait()
    elif work is not None:
        work.get_future().wait() if how == "future" else work.wait()
        if torch.get_default_device().type == "cuda":
            torch.cuda.synchronize()  # only the stream has waited
        assert work.is_completed()


def collectives(how: str) -> list[Any]:
    """Call every collective of dense tensors, on each dtype that Gloo has."""
    rank, size, later = dist.get_rank(), dist.get_world_size(), how != "blocking"
    results: list[Any] = []

    def keep(*tensors: torch.Tensor) -> None:
        results.extend(plain(tensor) for tensor in tensors)

    for dtype in DTYPES:
        for op in OPERATORS:
            if dtype.is_complex and op != "SUM":
                continue
            tensor = values(rank, 5, dtype=dtype)
            finished(dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=later), how)
            keep(tensor)
        tensor = values(rank, 3, 2, dtype=dtype)
        finished(dist.broadcast(tensor, size - 1, async_op=later), how)
        keep(tensor)
        outputs = [torch.zeros(3, 2, dtype=dtype) for _ in range(size)]
        finished(dist.all_gather(outputs, values(rank, 3, 2, dtype=dtype), async_op=later), how)
        keep(*outputs)
        output = torch.zeros(2 * size, 3, dtype=dtype)
        finished(dist.all_gather_into_tensor(output, values(rank, 2, 3, dtype=dtype), async_op=later), how)
        keep(output)
        if dtype in (torch.bool, torch.complex64):  # which Gloo doesn't gather
            continue
        outputs = [torch.zeros(4, dtype=dtype) for _ in range(size if rank == 1 else 0)]
        finished(dist.gather(values(rank, 4, dtype=dtype), outputs or None, dst=1, async_op=later), how)
        keep(*outputs)
        inputs = [values(other, 4, dtype=dtype) for other in range(size)] if rank == 1 else None
        output = torch.zeros(4, dtype=dtype)
        finished(dist.scatter(output, inputs, src=1, async_op=later), how)
        keep(output)
        sent = values(rank, 2 * size, 3, dtype=dtype)
        output = torch.zeros(2 * size, 3, dtype=dtype)
        finished(dist.all_to_all_single(output, sent, async_op=later), how)
        keep(output)
    for op in OPERATORS:
        tensor = values(rank, 4)
        finished(dist.reduce(tensor, 0, getattr(dist.ReduceOp, op), async_op=later), how)
        keep(*([tensor] if rank == 0 else []))
        output = torch.zeros(3)
        inputs = [values(10 * rank + other, 3) for other in range(size)]
        finished(dist.reduce_scatter(output, inputs, getattr(dist.ReduceOp, op), async_op=later), how)
        keep(output)
        output, tensor = torch.zeros(2, 3), values(rank, 2 * size, 3)
        finished(dist.reduce_scatter_tensor(output, tensor, getattr(dist.ReduceOp, op), async_op=later), how)
        keep(output)
    for op in ("BAND", "BOR", "BXOR"):
        for dtype in (torch.int32, torch.uint8, torch.bool):
            tensor = values(rank, 6, dtype=dtype)
            finished(dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=later), how)
            keep(tensor)
    splits = [(rank + other) % 3 for other in range(size)]
    output = torch.zeros(sum(splits), 2)
    sent = torch.full((sum(splits), 2), float(rank))
    finished(dist.all_to_all_single(output, sent, splits, splits, async_op=later), how)
    keep(output)
    outputs = [torch.zeros(3) for _ in range(size)]
    finished(dist.all_to_all(outputs, [values(10 * rank + other, 3) for other in range(size)], async_op=later), how)
    keep(*outputs)
    tensors = [values(rank, 3), values(rank, 2, 2)]
    finished(dist.all_reduce_coalesced(tensors, async_op=later), how)
    keep(*tensors)
    with dist.distributed_c10d._coalescing_manager(async_ops=later) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    keep(*tensors)
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 2]]), torch.ones(2, 3), (5, 3))
    finished(dist.all_reduce(sparse, async_op=later), how)
    keep(sparse.to_dense())
    for empty in (torch.zeros(0), torch.zeros(2, 0, 3)):
        finished(dist.all_reduce(empty, async_op=later), how)
        keep(empty)
    finished(dist.barrier(async_op=later), how)
    return results


def objects() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    told: list[Any] = [rank, {"a": (1, 2)}] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, src=1)
    own: list[Any] = [None]
    dist.scatter_object_list(own, [[other] * 3 for other in range(size)] if rank == 0 else None, src=0)
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank * 2, collected, dst=0)
    if rank == 0:
        dist.send_object_list([{"to": other} for other in range(3)], dst=1)
    elif rank == 1:
        received: list[Any] = [None] * 3
        dist.recv_object_list(received, src=0)
        own += received
    return [gathered, told, own, collected]


def groups() -> list[Any]:
    """Subgroups, whose ranks torch translates: the roots are global ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results: list[Any] = []
    for members in ([0, 2], [2, 1], [1], list(range(size))):
        group = dist.new_group(members)
        if rank not in members:
            continue
        tensor = torch.tensor([10.0 + rank])
        dist.all_reduce(tensor, group=group)
        results.append(tensor.item())
        tensor = torch.tensor([10.0 + rank])
        dist.broadcast(tensor, src=max(members), group=group)
        results.append([tensor.item(), dist.get_rank(group), dist.get_world_size(group)])
        outputs = [torch.zeros(1) for _ in members] if rank == min(members) else None
        dist.gather(torch.tensor([1.0 + rank]), outputs, dst=min(members), group=group)
        results.append([output.item() for output in outputs or []])
        if len(members) == 2:
            peer = sum(members) - rank
            theirs = torch.zeros(2)
            works = [dist.irecv(theirs, peer, group), dist.isend(torch.full((2,), float(rank)), peer, group)]
            for work in works:
                work.wait()
            results.append(theirs.tolist())
            if rank == members[0]:
                dist.send(torch.ones(1), peer, group)
            else:
                results.append(dist.recv(theirs[:1], None, group))
        dist.barrier(group)
        dist.destroy_process_group(group)
    return results


def messages(length: int) -> list[Any]:
    """Sends and receives in every order that doesn't lock up on Gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results: list[Any] = []
    right, left = (rank + 1) % size, (rank - 1) % size
    for receive_first in (True, False):
        theirs, others = torch.zeros(length), torch.zeros(length)
        operations = [
            dist.P2POp(dist.isend, torch.full((length,), 1.0 + rank), right),
            dist.P2POp(dist.isend, torch.full((length,), 5.0 + rank), left),
            dist.P2POp(dist.irecv, theirs, left),
            dist.P2POp(dist.irecv, others, right),
        ]
        if size == 2:  # both directions are one pair, whose messages are in order
            operations[2:] = [dist.P2POp(dist.irecv, theirs, left), dist.P2POp(dist.irecv, others, left)]
        for work in dist.batch_isend_irecv(operations[2:] + operations[:2] if receive_first else operations):
            work.wait()
        results.append([theirs.sum().item(), others.sum().item()])
    if rank == 0:
        tagged = [dist.isend(torch.full((length,), float(tag)), 1, tag=tag) for tag in (5, 6, 5)]
        for work in tagged:
            work.wait()
    elif rank == 1:
        rooms = [torch.zeros(length) for _ in range(3)]
        works = [dist.irecv(room, 0, tag=tag) for room, tag in zip(rooms, (6, 5, 5), strict=True)]
        for work in works:
            work.wait()
        results.append([room.sum().item() for room in rooms])
    dist.barrier()
    if rank:
        dist.send(torch.full((2,), float(rank)), 0)
    else:
        came = {}
        for _ in range(size - 1):
            room = torch.zeros(2)
            came[dist.recv(room)] = room.tolist()
        results.append([came[other] for other in range(1, size)])
    numbers = torch.arange(4).to(torch.complex64) * 1j
    if rank == 0:
        dist.send(numbers, 1)
    elif rank == 1:
        dist.recv(room := torch.zeros(4, dtype=torch.complex64), 0)
        results.append(plain(room))
    return results


def beyond_gloo() -> None:
    """What Gloo refuses, gets wrong or has no way for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(2, 3).t() for _ in range(size)]
    dist.all_gather(outputs, values(rank, 2, 3).t())
    assert all(torch.equal(output, values(other, 2, 3).t()) for other, output in enumerate(outputs))
    tensor = torch.full((2, 3), float(rank)).t()
    dist.broadcast(tensor, 1)
    assert (tensor == 1).all()
    stacked = torch.zeros(3, size, 2).transpose(0, 1)
    dist.all_gather_into_tensor(stacked, torch.full((3, 2), float(rank)))
    assert [torch.unique(row).tolist() for row in stacked] == [[other] for other in range(size)]
    share = torch.zeros(3, 2).t()
    dist.reduce_scatter_tensor(share, torch.ones(size, 2, 3))
    assert (share == size).all()
    own = torch.zeros(1 + rank)
    dist.reduce_scatter(own, [torch.full((1 + other,), 1.0 + rank) for other in range(size)])
    assert (own == sum(range(1, size + 1))).all()
    rooms = [torch.zeros(1 + rank, 2) for _ in range(size)]
    dist.all_to_all(rooms, [torch.full((1 + other, 2), float(rank)) for other in range(size)])
    assert [torch.unique(room).tolist() for room in rooms] == [[other] for other in range(size)]
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert (mean == sum(range(size)) / size).all()
    short = torch.full((3,), rank, dtype=torch.int16)
    dist.all_reduce(short)
    assert short.tolist() == [sum(range(size))] * 3
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(size))
    with dist.distributed_c10d._coalescing_manager(device=torch.get_default_device(), async_ops=True) as manager:
        ones = [torch.ones(3), torch.ones(4)]
        for one in ones:
            dist.all_reduce(one)
    manager.wait()
    assert all((one == size).all() for one in ones)
    room = torch.zeros(3)
    works = [dist.isend(torch.ones(3), rank), dist.irecv(room, rank)]
    assert works[1].get_future().wait()[0] is room
    assert room.tolist() == [1, 1, 1]
    if rank == 0:
        dist.send(torch.arange(6.0).view(2, 3).t(), 1)
    elif rank == 1:
        dist.recv(turned := torch.zeros(2, 3).t(), 0)
        assert torch.equal(turned, torch.arange(6.0).view(2, 3).t())
    with torch.inference_mode():
        inferred = torch.ones(3)
        outputs = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(outputs, inferred, async_op=True).get_future().wait()
        dist.all_reduce(inferred, async_op=True).wait()
    assert inferred.tolist() == [size] * 3
    assert all(output.tolist() == [1, 1, 1] for output in outputs)
    # What a function of autograd gives gets its history while the result is still being written into it.
    for collective, length, value in ((dist.reduce_scatter_tensor, 3, size), (dist.all_to_all_single, 3 * size, 1)):
        late, whole = torch.zeros(length), torch.ones(3 * size)
        if rank:
            dist.recv(torch.zeros(1), 0)
        work = collective(late, whole, async_op=True)
        late.requires_grad_()
        if rank == 0:
            for other in range(1, size):
                dist.send(torch.zeros(1), other)
        work.wait()
        assert torch.unique(late.detach()).tolist() == [value]
    # Autograd isn't told of a collective, but it sees that a tensor has changed.
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.broadcast(parameter, 0)
    weight = torch.ones(3, requires_grad=True)
    product = weight * (factor := torch.ones(3))
    dist.all_reduce(factor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product.sum())


def callbacks() -> list[float]:
    """What hangs on a future calls collectives and waits for them, several deep."""

    def again(depth: int) -> Callable[[Future[Any]], list[float]]:
        def then(future: Future[Any]) -> list[float]:
            (tensor,) = future.wait()
            if depth == 0:
                return [tensor[0].item()]
            work = dist.all_reduce(tensor.clone(), async_op=True)
            found: list[float] = work.get_future().then(again(depth - 1)).wait()
            return [tensor[0].item(), *found]

        return then

    found: list[float] = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again(3)).wait()
    return found


def callbacks_of_many() -> list[float]:
    """What hangs on futures of operations that are all under way calls collectives of equal tensors."""

    def again(future: Future[Any]) -> float:
        (tensor,) = future.value()
        dist.all_reduce(tensor)
        return float(tensor[0])

    works = [dist.all_reduce(torch.full((3,), float(number)), async_op=True) for number in range(30)]
    doubled = [work.get_future().then(again) for work in works]
    told: list[int] = []
    works[0].get_future().add_done_callback(lambda _: told.append(threading.get_ident()))
    assert told == [threading.get_ident()]
    return [future.wait() for future in doubled]


def callbacks_of_messages() -> float:
    """What hangs on the future of a message doesn't keep this rank from sending what the other waits for."""
    other, room = 1 - dist.get_rank(), torch.zeros(3)
    doubled = dist.irecv(room, other).get_future().then(lambda future: 2 * future.value()[0][0])
    dist.send(torch.full((3,), float(other)), other)
    return float(doubled.wait())


def forgotten_inputs() -> None:
    """Tensors that nobody holds any longer while they travel."""
    works = []
    for turn in range(20):
        tensor = torch.full((100_000,), float(turn))
        works.append((dist.all_reduce(tensor, async_op=True), torch.zeros(100_000)))
        del tensor
    for turn, (work, _) in enumerate(works):
        work.wait()
        assert (work.result()[0] == turn * dist.get_world_size()).all()
    rank = dist.get_rank()
    room = torch.zeros(300_000)
    receive = dist.irecv(room, 1 - rank)
    send = dist.isend(torch.full((300_000,), float(rank)), 1 - rank)
    torch.full((300_000,), 9.0)  # into memory that was given back too early
    send.wait()
    receive.wait()
    assert (room == 1 - rank).all()


def two_threads() -> None:
    """Two groups in two threads, in no common order."""
    groups = [dist.new_group(), dist.new_group()]
    failures: list[BaseException] = []

    def work(group: Any, factor: float) -> None:
        try:
            for turn in range(50):
                tensor = torch.full((1000,), factor * turn)
                if turn % 2:
                    dist.all_reduce(tensor, group=group)
                else:
                    dist.all_reduce(tensor, group=group, async_op=True).wait()
                assert (tensor == 2 * factor * turn).all()
        except BaseException as error:
            failures.append(error)

    order = groups if dist.get_rank() else groups[::-1]
    threads = [threading.Thread(target=work, args=(group, 1.0 + groups.index(group))) for group in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
