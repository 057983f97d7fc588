"""Allreduce in a chain: the bits of the slow and obvious way, on ranks that are threads."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.collectives.shm import chain
from hpsearch_comm.collectives.shm.chunks import SERIAL
from hpsearch_comm.errors import CommTimeoutError
from hpsearch_comm.shm.slots import SLOT
from tests.comm.collectives.torch_uses import TorchUses
from tests.comm.meeting import given_time
from tests.comm.shm.shm_world import ShmWorld, allreduce_directly, reduced, same_bits, some_values


@pytest.fixture(scope="module", params=[2, 3, 5])
def world(request):
    """Yield ranks that share a core, so that a chain pays off from one chunk per rank."""
    with ShmWorld(request.param) as world:
        for shm in world.segments.values():
            shm.cores = 1
        yield world


def test_it_pays_where_the_steps_in_which_it_fills_cost_little():
    assert not chain.pays(3, 2, 3 * SLOT - 1)
    assert chain.pays(3, 2, 3 * SLOT)
    assert not chain.pays(3, 3, 4 * 3 * SLOT - 1)
    assert chain.pays(3, 3, 4 * 3 * SLOT)


REDUCED = [("mean", torch.float32), ("mean", torch.bfloat16), ("min", torch.float16), ("product", torch.uint16)]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("op", "dtype", "out"),
    [
        pytest.param(*reduced, out, marks=() if out == bool(place % 2) else pytest.mark.exhaustive)
        for out in (False, True)
        for place, reduced in enumerate(REDUCED)
    ],
)
def test_every_rank_gets_the_result_to_the_bit(world, op, dtype, out):
    reduction = reduction_for(op, dtype)
    for more in (0, 1, 12_345):
        numel = world.size * SLOT // reduction.accumulate.itemsize + more
        values = [some_values(rank, numel, dtype) for rank in world.ranks]

        def on_rank(rank: int, values: list[torch.Tensor] = values) -> torch.Tensor:
            tensor = values[rank].clone()
            result = torch.empty_like(tensor) if out else tensor
            operation = world.operation(rank, shape=tuple(tensor.shape))
            allreduce_directly(world.segments[rank], operation, tensor, reduction, result)
            assert not out or same_bits(tensor, values[rank]), "the input changed"
            return result

        expected = reduced(values, reduction)
        turns = {shm.slots.turn for shm in world.segments.values()}
        assert all(same_bits(result, expected) for result in world.run(on_rank))
        assert {shm.slots.turn for shm in world.segments.values()} == {turns.pop() + world.size + (more > 0)}


def test_tensors_that_lie_in_a_shared_buffer_on_some_ranks_only(world):
    numel = world.size * SLOT // 4 + 77
    values = [some_values(rank, numel) for rank in world.ranks]

    def on_rank(rank: int) -> torch.Tensor:
        shm = world.segments[rank]
        buffer = shm.empty(world.operation(rank, operation="empty", shape=(4 * numel,)), 4 * numel)
        tensor = buffer.view(torch.float32).copy_(values[rank]) if rank else values[rank].clone()
        allreduce_directly(shm, world.operation(rank), tensor, reduction_for("sum", torch.float32), tensor)
        return tensor.clone()

    expected = reduced(values, reduction_for("sum", torch.float32))
    assert all(same_bits(result, expected) for result in world.run(on_rank))


@pytest.mark.some_cases(1)
def test_chains_among_other_operations_do_not_disturb_each_other(world):
    """What a slow rank still copies out, a fast one must not overwrite with its next operation."""
    reduction = reduction_for("sum", torch.int64)
    lengths = [(world.size + extra) * SLOT // 8 + 5 for extra in (0, 1, 2)] + [10, 300_000]

    def on_rank(rank: int) -> bool:
        shm = world.segments[rank]
        for turn, numel in itertools.product(range(4), lengths):
            values = torch.arange(numel) * (turn + 1)
            tensor = values + rank
            allreduce_directly(shm, world.operation(rank), tensor, reduction, tensor)
            if not torch.equal(tensor, values * world.size + sum(range(world.size))):
                return False
        return True

    assert all(world.run(on_rank))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_call_of_torch_is_so_long_that_it_starts_threads_beside_the_callers(world, monkeypatch, dtype):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    reduction = reduction_for("mean", dtype)

    def on_rank(rank: int) -> int:
        tensor = torch.ones((world.size + 1) * SLOT // 4, dtype=dtype)
        used: list[int] = []
        with TorchUses(lambda tensor, _: used.append(tensor.numel())):
            allreduce_directly(world.segments[rank], world.operation(rank), tensor, reduction, tensor)
        return max(used, default=0)

    assert max(world.run(on_rank)) <= SERIAL


def test_the_bits_do_not_depend_on_how_many_threads_torch_has(world, monkeypatch):
    """Calls are shorter where torch's own threads must be kept out."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    values = [some_values(rank, world.size * SLOT // 4 + 9) for rank in world.ranks]

    def on_rank(rank: int) -> torch.Tensor:
        tensor = values[rank].clone()
        operation = world.operation(rank)
        allreduce_directly(world.segments[rank], operation, tensor, reduction_for("mean", torch.float32), tensor)
        return tensor

    expected = reduced(values, reduction_for("mean", torch.float32))
    assert all(same_bits(result, expected) for result in world.run(on_rank))


def test_tensors_that_are_reduced_in_place_leave_the_slots_as_they_are(world):
    """The choice of the chain is made before the ranks know where their tensors lie."""
    numel = world.size * SLOT // 4
    reduction = reduction_for("sum", torch.float32)

    def on_rank(rank: int) -> bool:
        shm = world.segments[rank]
        shared = shm.empty(world.operation(rank, operation="empty", shape=(4 * numel,)), 4 * numel)
        for tensor in (shared.view(torch.float32).fill_(1), torch.ones(numel), torch.ones(numel)):
            allreduce_directly(shm, world.operation(rank), tensor, reduction, tensor)
            if not torch.equal(tensor, torch.full((numel,), float(world.size))):
                return False
        return True

    assert all(world.run(on_rank))


def test_counts_pass_the_end_of_their_words():
    with ShmWorld(3) as world:
        begin = (1 << 32) - 2
        for shm in world.segments.values():
            shm.cores = 1
            shm.slots.turn = begin
            for word in (*shm.slots._added, *shm.slots._copied):
                shm.slots._view[word] = begin

        def on_rank(rank: int) -> torch.Tensor:
            tensor = torch.full((7 * SLOT // 4,), float(rank))
            allreduce_directly(
                world.segments[rank], world.operation(rank), tensor, reduction_for("sum", torch.float32), tensor
            )
            return tensor

        assert all(bool((tensor == 3).all()) for tensor in world.run(on_rank))


def test_a_rank_that_is_stuck_is_named_by_all_others(world):
    """Also by those that wait for another one, which waits for it."""
    stuck = world.ranks[world.size // 2]
    outcomes = given_time(
        lambda soon: stuck_in_the_middle(world.size, stuck, soon), lambda found: blamed(found) == {stuck}
    )
    assert blamed(outcomes) == {stuck}
    assert {type(error) for error in outcomes.values()} == {CommTimeoutError}


def blamed(outcomes: dict[int, Any]) -> set[int | None]:
    return {getattr(outcome, "rank", None) for outcome in outcomes.values()}


def stuck_in_the_middle(size: int, stuck: int, timeout: float) -> dict[int, Any]:
    """Return the outcomes of the other ranks if one is stuck until all of them have given up."""
    with ShmWorld(size) as others:
        released, given_up = threading.Event(), threading.Barrier(others.size - 1, action=lambda: released.set())
        for shm in others.segments.values():
            shm.cores = 1
        of = others.segments[stuck].slots
        tell = of.tell_added

        def late(chunk: int) -> None:
            released.wait(30)
            tell(chunk)

        of.tell_added = late  # type: ignore[method-assign]

        def on_rank(rank: int) -> None:
            tensor = torch.ones((others.size + 2) * SLOT // 4)
            try:
                operation = others.operation(rank, timeout=timeout)
                allreduce_directly(
                    others.segments[rank], operation, tensor, reduction_for("sum", torch.float32), tensor
                )
            except CommTimeoutError:
                if rank != stuck:
                    given_up.wait(30)
                raise

        outcomes = others.outcomes(on_rank)
    return {rank: outcome for rank, outcome in outcomes.items() if rank != stuck}
