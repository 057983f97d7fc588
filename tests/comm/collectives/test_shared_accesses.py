"""No two ranks use a byte of shared memory at once, one of them writing, whatever collectives follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.collectives.shm import chain, direct, direct_allreduce, pipeline
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm import shm_segment as segments
from hpsearch_comm.shm import slots
from hpsearch_comm.shm.shm_segment import ShmSegment, Staging
from tests.comm.collectives.shared_accesses import Accesses
from tests.comm.shm.shm_world import ShmWorld, allreduce_directly

CHUNK = 512
"""Bytes of a chunk and of a slot: short, so that a few numbers fill many of them."""
LITTLE = 8
"""Elements of float32 that take the quickest way."""
MEDIUM = 30
"""Elements that take one shot unless they lie in a shared buffer."""

SUM = reduction_for("sum", torch.float32)
HALF = reduction_for("mean", torch.bfloat16)

Way = Callable[[ShmSegment, Operation, torch.Tensor], object]


def two_shots(shm: ShmSegment) -> int:
    """Return a number of elements that take several chunks of every part, but no chain."""
    shm.cores = shm.size
    return 3 * shm.size * CHUNK // 4 - 5


def in_a_chain(shm: ShmSegment) -> int:
    """Return a number of elements for a chain that is longer than the number of slots."""
    shm.cores = 1
    return (4 * shm.size + 3) * CHUNK // 4 + 7


def allreduce(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    allreduce_directly(shm, operation, tensor, SUM, tensor)


def allreduce_to_out(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    allreduce_directly(shm, operation, tensor, SUM, torch.empty_like(tensor))


def allreduce_from_elsewhere(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    allreduce_directly(shm, operation, torch.ones_like(tensor), SUM, tensor)


def allreduce_of_bfloat16(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    allreduce_directly(shm, operation, tensor.view(torch.bfloat16), HALF, tensor.view(torch.bfloat16))


def broadcast(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    direct.broadcast(shm, operation, tensor, shm.size - 1)


def allgather(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    direct.allgather(shm, operation, [tensor[start:stop] for start, stop in split(tensor.numel(), shm.size)])


def reduce_scatter(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    parts = split(tensor.numel(), shm.size)
    direct.reduce_scatter(shm, operation, tensor, parts, SUM, tensor[slice(*parts[shm.index])])


def reduce_and_gather_parts(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    """Do what two levels do: the owners go on with their parts in between."""
    parts = split(tensor.numel(), max(1, shm.size - 1))
    direct.reduce_parts(shm, operation, tensor, parts, SUM)
    if shm.index < len(parts):
        tensor[slice(*parts[shm.index])].mul_(2)
    direct.gather_parts(shm, operation, tensor, parts)


def barrier(shm: ShmSegment, operation: Operation, tensor: torch.Tensor) -> None:
    shm.meet(operation)


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        allreduce,
        allreduce_to_out,
        allreduce_from_elsewhere,
        allreduce_of_bfloat16,
        broadcast,
        allgather,
        reduce_scatter,
        reduce_and_gather_parts,
        barrier,
    )
}
LENGTHS: dict[str, Callable[[ShmSegment], int]] = {
    "nothing": lambda shm: 0,
    "little": lambda shm: LITTLE,
    "medium": lambda shm: MEDIUM,
    "two shots": two_shots,
    "chain": in_a_chain,
}
PLACES: dict[str, Callable[[ShmSegment], bool]] = {
    "own memory": lambda shm: False,
    "shared buffer": lambda shm: True,
    "shared buffer of some": lambda shm: shm.index % 2 == 0,
}

Step = tuple[str, str, str]
STEPS = st.tuples(st.sampled_from(sorted(WAYS)), st.sampled_from(sorted(LENGTHS)), st.sampled_from(sorted(PLACES)))


@pytest.fixture(scope="module")
def short_chunks() -> Iterator[pytest.MonkeyPatch]:
    """Make everything that is cut into chunks some hundred times shorter."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module, name, nbytes in (
            (segments, "CHUNK", CHUNK),
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
    with ShmWorld(request.param) as world:
        yield world


def accesses_of(world: ShmWorld, steps: list[Step]) -> Accesses:
    """Run collectives one after another on every rank, which changes its tensor right before and after each."""
    accesses = Accesses(world.size)

    def on_rank(rank: int) -> None:
        shm = world.segments[rank]
        longest = max(length(shm) for length in LENGTHS.values())
        buffer = shm.empty(world.operation(rank, operation="empty"), 4 * longest).view(torch.float32)
        for name, length, place in steps:
            numel = LENGTHS[length](shm)
            tensor = buffer[:numel] if PLACES[place](shm) else torch.empty(numel)
            with accesses.of(shm, f"{name} of {length} in {place}"):
                tensor.fill_(rank)
                WAYS[name](shm, world.operation(rank), tensor)
                tensor.fill_(rank)

    with pytest.MonkeyPatch.context() as monkeypatch:
        accesses.watch_counts(monkeypatch)
        accesses.watch_copies(monkeypatch, chain, pipeline, direct, direct_allreduce)
        world.run(on_rank)
    return accesses


@given(steps=st.lists(STEPS, min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_no_collective_uses_what_another_rank_may_still_be_writing(world, steps):
    assert accesses_of(world, steps).races() == []


LONG_CHAIN = [("allreduce", "chain", "own memory")]
SHOTS = [("allreduce", "medium", "own memory")] * 3


def test_a_slot_that_is_taken_too_early_would_be_found_out(short_chunks, monkeypatch):
    with ShmWorld(3) as world:
        for shm in world.segments.values():
            places = shm.slots._number
            view = shm.slots.view
            monkeypatch.setattr(
                shm.slots, "view", lambda chunk, *kind, view=view, fewer=places - 1: view(chunk % fewer, *kind)
            )
        assert accesses_of(world, LONG_CHAIN).races()


def test_a_sum_that_is_copied_too_early_would_be_found_out(short_chunks, monkeypatch):
    with ShmWorld(3) as world:
        for shm in world.segments.values():
            slots = shm.slots
            monkeypatch.setattr(
                slots, "may_copy", lambda chunk, slots=slots: slots._reached([slots._added[1]], chunk + 1)
            )
        assert accesses_of(world, LONG_CHAIN).races()


def test_a_side_less_would_be_found_out(short_chunks, monkeypatch):
    row = Staging.row
    monkeypatch.setattr(Staging, "row", lambda staging, turn, dtype, numel: row(staging, 0, dtype, numel))
    with ShmWorld(2) as world:
        assert accesses_of(world, SHOTS).races()
