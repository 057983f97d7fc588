"""No two ranks use a byte of shared memory at once, one of them writing, whatever collectives follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.algorithms import chain, course, direct, direct_allreduce
from hpsearch_comm.algorithms.parts import split
from hpsearch_comm.memory import arena as arenas
from hpsearch_comm.memory import slots
from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.memory.staging import Staging
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import reduction_for
from tests.comm.arena_world import ArenaWorld
from tests.comm.shared_accesses import Accesses

CHUNK = 512
"""Bytes of a chunk and of a slot: short, so that a few numbers fill many of them."""
LITTLE = 8
"""Elements of float32 that take the quickest way."""
MEDIUM = 30
"""Elements that take one shot unless they lie in a shared buffer."""

SUM = reduction_for("sum", torch.float32)
HALF = reduction_for("mean", torch.bfloat16)

Way = Callable[[Arena, Operation, torch.Tensor], object]


def two_shots(arena: Arena) -> int:
    """Give elements that take several chunks of every part, but no chain."""
    arena.cores = arena.size
    return 3 * arena.size * CHUNK // 4 - 5


def in_a_chain(arena: Arena) -> int:
    """Give elements of a chain that is longer than there are slots."""
    arena.cores = 1
    return (4 * arena.size + 3) * CHUNK // 4 + 7


def allreduce(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.allreduce(arena, operation, tensor, SUM, tensor)


def allreduce_to_out(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.allreduce(arena, operation, tensor, SUM, torch.empty_like(tensor))


def allreduce_of_bfloat16(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.allreduce(arena, operation, tensor.view(torch.bfloat16), HALF, tensor.view(torch.bfloat16))


def broadcast(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.broadcast(arena, operation, tensor, arena.size - 1)


def allgather(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.allgather(arena, operation, [tensor[start:stop] for start, stop in split(tensor.numel(), arena.size)])


def reduce_scatter(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    parts = split(tensor.numel(), arena.size)
    direct.reduce_scatter(arena, operation, tensor, parts, SUM, tensor[slice(*parts[arena.index])])


def reduce_and_gather_parts(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    """Do what two levels do: the owners go on with their parts in between."""
    parts = split(tensor.numel(), max(1, arena.size - 1))
    direct.reduce_parts(arena, operation, tensor, parts, SUM)
    if arena.index < len(parts):
        tensor[slice(*parts[arena.index])].mul_(2)
    direct.gather_parts(arena, operation, tensor, parts)


def barrier(arena: Arena, operation: Operation, tensor: torch.Tensor) -> None:
    direct.barrier(arena, operation)


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        allreduce,
        allreduce_to_out,
        allreduce_of_bfloat16,
        broadcast,
        allgather,
        reduce_scatter,
        reduce_and_gather_parts,
        barrier,
    )
}
LENGTHS: dict[str, Callable[[Arena], int]] = {
    "nothing": lambda arena: 0,
    "little": lambda arena: LITTLE,
    "medium": lambda arena: MEDIUM,
    "two shots": two_shots,
    "chain": in_a_chain,
}
PLACES: dict[str, Callable[[Arena], bool]] = {
    "own memory": lambda arena: False,
    "shared buffer": lambda arena: True,
    "shared buffer of some": lambda arena: arena.index % 2 == 0,
}

Step = tuple[str, str, str]
STEPS = st.tuples(st.sampled_from(sorted(WAYS)), st.sampled_from(sorted(LENGTHS)), st.sampled_from(sorted(PLACES)))


@pytest.fixture(scope="module")
def short_chunks() -> Iterator[pytest.MonkeyPatch]:
    """Make everything that is cut into chunks some hundred times shorter."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module, name, nbytes in (
            (arenas, "CHUNK", CHUNK),
            (slots, "SLOT", CHUNK),
            (chain, "SLOT", CHUNK),
            (direct, "LITTLE", CHUNK // 4),
            (direct_allreduce, "SHORT", CHUNK),
            (direct_allreduce, "ONE_SHOT", 4 * CHUNK),
        ):
            monkeypatch.setattr(module, name, nbytes)
        yield monkeypatch


@pytest.fixture(scope="module", params=[2, 3, 4])
def world(request, short_chunks):
    with ArenaWorld(request.param) as world:
        yield world


def accesses_of(world: ArenaWorld, steps: list[Step]) -> Accesses:
    """Run collectives one after another on every rank, which changes its tensor right before and after each."""
    accesses = Accesses(world.size)

    def on_rank(rank: int) -> None:
        arena = world.arenas[rank]
        longest = max(length(arena) for length in LENGTHS.values())
        buffer = arena.empty(world.operation(rank, operation="empty"), 4 * longest).view(torch.float32)
        for name, length, place in steps:
            numel = LENGTHS[length](arena)
            tensor = buffer[:numel] if PLACES[place](arena) else torch.empty(numel)
            with accesses.of(arena, f"{name} of {length} in {place}"):
                tensor.fill_(rank)
                WAYS[name](arena, world.operation(rank), tensor)
                tensor.fill_(rank)

    with pytest.MonkeyPatch.context() as monkeypatch:
        accesses.watch_counts(monkeypatch)
        accesses.watch_copies(monkeypatch, chain, course, direct, direct_allreduce)
        world.run(on_rank)
    return accesses


@given(steps=st.lists(STEPS, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_collective_uses_what_another_rank_may_still_be_writing(world, steps):
    assert accesses_of(world, steps).races() == []


LONG_CHAIN = [("allreduce", "chain", "own memory")]
SHOTS = [("allreduce", "medium", "own memory")] * 3


def test_a_slot_that_is_taken_too_early_would_be_found_out(short_chunks, monkeypatch):
    with ArenaWorld(3) as world:
        for arena in world.arenas.values():
            places = arena.slots._number
            view = arena.slots.view
            monkeypatch.setattr(
                arena.slots, "view", lambda chunk, *kind, view=view, fewer=places - 1: view(chunk % fewer, *kind)
            )
        assert accesses_of(world, LONG_CHAIN).races()


def test_a_sum_that_is_copied_too_early_would_be_found_out(short_chunks, monkeypatch):
    with ArenaWorld(3) as world:
        for arena in world.arenas.values():
            slots = arena.slots
            monkeypatch.setattr(
                slots, "may_copy", lambda chunk, slots=slots: slots._reached([slots._added[1]], chunk + 1)
            )
        assert accesses_of(world, LONG_CHAIN).races()


def test_a_side_less_would_be_found_out(short_chunks, monkeypatch):
    row = Staging.row
    monkeypatch.setattr(Staging, "row", lambda staging, turn, dtype, numel: row(staging, 0, dtype, numel))
    with ArenaWorld(2) as world:
        assert accesses_of(world, SHOTS).races()
