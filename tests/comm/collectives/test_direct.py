"""Collectives through shared memory against the slow and obvious way, to the bit, on ranks that are threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import Reduction, reduction_for
from hpsearch_comm.collectives.shm import direct, direct_allreduce
from hpsearch_comm.errors import CommTimeoutError, MismatchError, PeerLost, UsageError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, REDUCTIONS
from hpsearch_comm.shm.shm_segment import CHUNK, ShmSegment
from tests.comm.collectives.pairwise import every_second
from tests.comm.meeting import given_time
from tests.comm.shm.shm_world import ShmWorld, allreduce_directly, reduced, same_bits, some_values

pytestmark = pytest.mark.some_cases(12)

SIZES = [1, 2, 3, 5]
SMALL = 128 * 1024 // 4
LENGTHS = [0, 1, 7, SMALL - 1, SMALL + 1, 65_001, 100_003, 3 * CHUNK // 4 + 1, 5 * CHUNK // 4]
"""Elements of float32: nothing, less than there are ranks, on both sides of every limit, one chunk and several."""

Place = Callable[[ShmWorld, int, torch.Tensor], torch.Tensor]


def in_own_memory(world: ShmWorld, rank: int, values: torch.Tensor) -> torch.Tensor:
    return values


def in_shared_memory(world: ShmWorld, rank: int, values: torch.Tensor) -> torch.Tensor:
    """Put them into a shared buffer, 64 bytes from its start."""
    nbytes = values.nbytes
    operation = world.operation(rank, operation="empty", shape=(nbytes + 64,))
    tensor = world.segments[rank].empty(operation, nbytes + 64)[64:].view(values.dtype)
    return tensor.copy_(values)


def anywhere(world: ShmWorld, rank: int, values: torch.Tensor) -> torch.Tensor:
    """Put them into a shared buffer on odd ranks only, at another place on each."""
    operation = world.operation(rank, operation="empty", shape=(values.nbytes,))
    buffer = world.segments[rank].empty(operation, values.nbytes + 64 * world.size)
    return buffer[64 * rank :][: values.nbytes].view(values.dtype).copy_(values) if rank % 2 else values


def apart(world: ShmWorld, rank: int, values: torch.Tensor) -> torch.Tensor:
    """Put them into a shared buffer, at another place on each rank."""
    operation = world.operation(rank, operation="empty", shape=(values.nbytes,))
    buffer = world.segments[rank].empty(operation, values.nbytes + 64 * world.size)
    return buffer[64 * rank :][: values.nbytes].view(values.dtype).copy_(values)


PLACES = [in_own_memory, in_shared_memory, anywhere, apart]


@pytest.fixture(scope="module", params=SIZES)
def world(request):
    with ShmWorld(request.param) as world:
        yield world


@pytest.fixture(scope="module")
def three():
    with ShmWorld([2, 5, 9]) as world:
        yield world


def allreduce(
    world: ShmWorld,
    values: Sequence[torch.Tensor],
    op: str = "mean",
    place: Place = in_own_memory,
    out: bool = False,
    spin: bool = False,
) -> list[torch.Tensor]:
    reduction = reduction_for(op, values[0].dtype)

    def on_rank(rank: int) -> torch.Tensor:
        index = world.ranks.index(rank)
        tensor: torch.Tensor = place(world, rank, values[index].clone())
        result = torch.empty_like(tensor) if out else tensor
        allreduce_directly(
            world.segments[rank], world.operation(rank, shape=tuple(tensor.shape)), tensor, reduction, result
        )
        if out:
            assert same_bits(tensor, values[index]), "the input changed"
        return result.clone()

    return world.run(on_rank)


@pytest.mark.some_cases(24)
@pytest.mark.parametrize(("numel", "place", "out"), every_second(LENGTHS, PLACES, (False, True)))
def test_every_rank_gets_the_mean_to_the_bit(world, numel, place, out):
    values = [some_values(rank, numel) for rank in world.ranks]
    expected = reduced(values, reduction_for("mean", torch.float32))
    for result in allreduce(world, values, place=place, out=out):
        assert same_bits(result, expected)


def reducible() -> list[tuple[str, torch.dtype]]:
    """List the operators with the dtypes that they mean something for."""
    pairs = []
    for op in REDUCTIONS[1:]:
        for dtype in DTYPES:
            try:
                reduction_for(op, dtype)
            except UsageError:
                continue
            pairs.append((op, dtype))
    return pairs


@pytest.mark.some_cases(12)
@pytest.mark.parametrize(("op", "dtype"), reducible())
def test_every_operator_of_every_dtype_on_three_ranks(three, op, dtype):
    for nbytes, place in ((1000, in_own_memory), (4 * CHUNK, in_own_memory), (500_000, in_shared_memory)):
        values = [some_values(rank, nbytes // dtype.itemsize + 1, dtype) for rank in three.ranks]
        expected = reduced(values, reduction_for(op, dtype))
        for result in allreduce(three, values, op, place):
            assert same_bits(result, expected)


@pytest.mark.parametrize("apart", [False, True], ids=["in place", "out"])
def test_what_goes_into_a_shared_buffer_is_reduced_there(three, monkeypatch, apart):
    """Also from elsewhere: a copy into the buffer costs less than any way through other memory."""
    reduction = reduction_for("sum", torch.float32)
    reduced_there: list[torch.Tensor] = []
    in_place = direct_allreduce._in_place

    def noted(*given: Any) -> None:
        reduced_there.append(given[2])
        in_place(*given)

    monkeypatch.setattr(direct_allreduce, "_in_place", noted)

    def on_rank(rank: int) -> bool:
        out = in_shared_memory(three, rank, torch.zeros(SMALL + 1) if apart else torch.ones(SMALL + 1))
        tensor = torch.ones(SMALL + 1) if apart else out
        allreduce_directly(three.segments[rank], three.operation(rank), tensor, reduction, out)
        return torch.equal(out, torch.full((SMALL + 1,), 3.0)) and (not apart or bool((tensor == 1).all()))

    assert all(three.run(on_rank))
    assert len(reduced_there) == three.size


@pytest.mark.parametrize("place", [in_own_memory, in_shared_memory])
@pytest.mark.parametrize("numel", [1001, CHUNK])
def test_a_tensor_that_begins_at_an_odd_byte_of_memory(three, numel, place):
    values = [some_values(rank, numel + 1, torch.int8) for rank in three.ranks]
    reduction = reduction_for("sum", torch.int8)

    def on_rank(rank: int) -> torch.Tensor:
        tensor: torch.Tensor = place(three, rank, values[three.ranks.index(rank)].clone())[1:]
        allreduce_directly(
            three.segments[rank], three.operation(rank, shape=tuple(tensor.shape)), tensor, reduction, tensor
        )
        return tensor.clone()

    expected = reduced(values, reduction)[1:]
    assert all(same_bits(result, expected) for result in three.run(on_rank))


@pytest.mark.some_cases(24)
@pytest.mark.parametrize(("root", "numel", "place"), every_second((0, -1), (0, 5, SMALL, 300_001, CHUNK), PLACES))
def test_broadcast(world, root, numel, place):
    root = world.ranks[root]

    def on_rank(rank: int) -> torch.Tensor:
        tensor: torch.Tensor = place(world, rank, some_values(rank, numel))
        direct.broadcast(world.segments[rank], world.operation(rank, operation="broadcast", root=root), tensor, root)
        return tensor.clone()

    expected = some_values(root, numel)
    assert all(same_bits(result, expected) for result in world.run(on_rank))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("numel", [0, 5, SMALL, 200_001])
def test_allgather_of_parts_of_unequal_length(world, numel, place):
    lengths = [max(0, numel - 3000 * rank) if rank != 1 else 0 for rank in world.ranks]
    stops = [sum(lengths[: index + 1]) for index in range(world.size)]
    expected = torch.cat([some_values(rank, lengths[rank]) for rank in world.ranks])

    def on_rank(rank: int) -> torch.Tensor:
        tensor: torch.Tensor = place(world, rank, torch.zeros(sum(lengths)))
        parts = [tensor[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)]
        parts[rank].copy_(some_values(rank, lengths[rank]))
        direct.allgather(world.segments[rank], world.operation(rank, operation="allgather"), parts)
        return tensor.clone()

    assert all(same_bits(result, expected) for result in world.run(on_rank))


@pytest.mark.some_cases(24)
@pytest.mark.parametrize(
    ("numel", "dtype", "place", "within"),
    every_second((0, 3, SMALL, 300_001), (torch.float32, torch.bfloat16), PLACES, (False, True)),
)
def test_reduce_scatter(world, numel, dtype, place, within):
    values = [some_values(rank, numel, dtype) for rank in world.ranks]
    reduction = reduction_for("mean", dtype)
    expected = reduced(values, reduction)
    parts = split(numel, world.size)

    def on_rank(rank: int) -> torch.Tensor:
        start, stop = parts[rank]
        tensor: torch.Tensor = place(world, rank, values[rank].clone())
        out = tensor[start:stop] if within else torch.empty(stop - start, dtype=dtype)
        operation = world.operation(rank, operation="reduce_scatter")
        direct.reduce_scatter(world.segments[rank], operation, tensor, parts, reduction, out)
        assert within or same_bits(tensor, values[rank]), "the input changed"
        return out.clone()

    assert same_bits(torch.cat(world.run(on_rank)), expected)


@pytest.mark.some_cases(24)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("numel", [2, 1001, 300_001])
@pytest.mark.parametrize("most", [1, 2])
def test_parts_are_reduced_by_fewer_owners_and_gathered_by_all(world, most, numel, place):
    owners = min(most, world.size)
    values = [some_values(rank, numel) for rank in world.ranks]
    reduction = reduction_for("sum", torch.float32)
    expected = reduced(values, reduction) * 2
    parts = split(numel, owners)

    def on_rank(rank: int) -> torch.Tensor:
        tensor: torch.Tensor = place(world, rank, values[rank].clone())
        operation = world.operation(rank)
        direct.reduce_parts(world.segments[rank], operation, tensor, parts, reduction)
        if rank < owners:
            # What would be done between hosts.
            start, stop = parts[rank]
            tensor[start:stop] *= 2
        direct.gather_parts(world.segments[rank], operation, tensor, parts)
        return tensor.clone()

    assert all(same_bits(result, expected) for result in world.run(on_rank))


def test_parts_of_float32_are_reduced_for_a_tensor_of_bfloat16(three):
    """Partial sums stay wide until the last addition, wherever it is made."""
    values = [some_values(rank, 1001) for rank in three.ranks]
    expected = reduced(values, reduction_for("sum", torch.float32))

    def on_rank(rank: int) -> torch.Tensor:
        tensor: torch.Tensor = values[three.ranks.index(rank)].clone()
        operation = three.operation(rank)
        direct.reduce_parts(three.segments[rank], operation, tensor, [(0, 1001)], reduction_for("sum", torch.bfloat16))
        return tensor

    assert same_bits(three.run(on_rank)[0], expected)


@pytest.mark.some_cases(1)
def test_many_kinds_of_operations_in_a_row_do_not_disturb_each_other(world):
    """What a slow rank still reads, a fast one must not overwrite with its next operation."""
    reduction = reduction_for("sum", torch.int64)
    lengths = [3, 70_001, 9, 200_000, 131_072, 1, 8192, 70_000, 300_000]
    bound = max(lengths)

    def on_rank(rank: int) -> list[bool]:
        shm, right = world.segments[rank], []
        shared = in_shared_memory(world, rank, torch.zeros(bound, dtype=torch.int64))
        for turn in range(6):
            for numel in lengths:
                values = torch.arange(numel) * (turn + 1)
                operation = world.operation(rank)
                for tensor in (values + rank, shared[:numel].copy_(values + rank)):
                    allreduce_directly(shm, operation, tensor, reduction, tensor)
                    right.append(torch.equal(tensor, values * world.size + sum(range(world.size))))
                root = world.ranks[numel % world.size]
                tensor = values + rank
                direct.broadcast(shm, operation, tensor, root)
                right.append(torch.equal(tensor, values + root))
                parts = split(numel, world.size)
                out = torch.empty(parts[rank][1] - parts[rank][0], dtype=torch.int64)
                direct.reduce_scatter(shm, operation, tensor, parts, reduction, out)
                right.append(torch.equal(out, (values + root)[slice(*parts[rank])] * world.size))
        return right

    assert all(all(right) for right in world.run(on_rank))


@pytest.mark.parametrize("cores", [1, 64])
def test_the_bits_do_not_depend_on_how_many_threads_torch_has(three, monkeypatch, cores):
    """Calls are longer where torch's own threads help, and shorter where they must be kept out."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for shm in three.segments.values():
        monkeypatch.setattr(shm, "cores", cores)
    for place, dtype in itertools.product((in_own_memory, in_shared_memory), (torch.float32, torch.bfloat16)):
        values = [some_values(rank, 900_001, dtype) for rank in three.ranks]
        expected = reduced(values, reduction_for("mean", dtype))
        assert all(same_bits(result, expected) for result in allreduce(three, values, place=place, spin=True))


MEETINGS: dict[str, Callable[[ShmSegment, Operation, torch.Tensor, Reduction], object]] = {
    "barrier": lambda shm, operation, tensor, _: shm.meet(operation),
    "broadcast": lambda shm, operation, tensor, _: direct.broadcast(shm, operation, tensor, shm.members[0]),
    "allreduce": lambda shm, operation, tensor, reduction: allreduce_directly(
        shm, operation, tensor, reduction, tensor
    ),
    "reduce_scatter": lambda shm, operation, tensor, reduction: direct.reduce_scatter(
        shm, operation, tensor, [(0, tensor.numel())] + [(0, 0)] * (shm.size - 1), reduction, tensor
    ),
    "allgather": lambda shm, operation, tensor, _: direct.allgather(shm, operation, [tensor] * shm.size),
}


@pytest.mark.parametrize("other", sorted(MEETINGS))
@pytest.mark.parametrize("numel", [3, 300_001])
def test_every_rank_is_told_that_one_calls_something_else(numel, other):
    with ShmWorld(3) as world:

        def on_rank(rank: int) -> None:
            name, length = (other, numel + 5) if rank == 1 else ("allreduce", numel)
            tensor = torch.zeros(length)
            operation = world.operation(rank, operation=name, shape=(length,), dtype=torch.float32)
            MEETINGS[name](world.segments[rank], operation, tensor, reduction_for("sum", torch.float32))

        for rank, error in world.outcomes(on_rank).items():
            assert type(error) is MismatchError
            assert "rank 1" in str(error)
            assert f"[{numel}]" in str(error)
            assert f"[{numel + 5}]" in str(error) or other == "barrier"
            assert world.abort_states[rank].error is not None


def test_a_rank_that_never_comes_is_named_by_the_deadline():
    def meet(soon: float) -> dict[int, Any]:
        with ShmWorld(3) as world:

            def on_rank(rank: int) -> None:
                if rank != 2:
                    world.segments[rank].meet(world.operation(rank, timeout=soon, operation="barrier"))

            return world.outcomes(on_rank)

    def blamed(outcomes: dict[int, Any]) -> set[int | None]:
        return {getattr(outcomes[rank], "rank", None) for rank in (0, 1)}

    outcomes = given_time(meet, lambda outcomes: blamed(outcomes) == {2})
    assert blamed(outcomes) == {2}
    for rank in (0, 1):
        assert type(outcomes[rank]) is CommTimeoutError
        assert f"rank {rank} waited" in str(outcomes[rank])
    assert outcomes[2] is None


def test_a_rank_that_has_left_is_not_waited_for():
    with ShmWorld(2) as world:
        world.abort_states[0].mark_departed(1)
        with pytest.raises(PeerLost, match="rank 1 has closed the group"):
            world.segments[0].meet(world.operation(0, operation="barrier"))
