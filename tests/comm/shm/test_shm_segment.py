"""What ranks of one host share: who shares it, how long it lives, and that nothing of it is left behind."""

from __future__ import annotations

import gc
import mmap
import os
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.collectives.shm import direct
from hpsearch_comm.errors import CommError, CommTimeoutError, MismatchError, PeerLost, RefusedError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.shm.buffers import BufferTable
from hpsearch_comm.shm.memfd import Memfd
from hpsearch_comm.shm.shm_segment import ShmSegment
from tests.comm.leftovers import shared_memory_files
from tests.comm.shm.shm_world import ShmWorld, allreduce_directly, socket_pairs

SUM = reduction_for("sum", torch.float32)


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> None:
    """Free what they hold in tracebacks, so that what is left here is ours."""
    gc.collect()


def mapped() -> int:
    """Return the bytes of our mappings. Their number says nothing: the kernel joins those that happen to adjoin.

    Some may be those of an earlier test.
    """
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:hpsearch_comm" in line:
            start, stop = line.split(" ")[0].split("-")
            total += int(stop, 16) - int(start, 16)
    return total


def resident() -> int:
    """Return how many bytes of our shared memory this process has touched."""
    pages, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = "memfd:hpsearch_comm" in line
        elif ours and line.startswith("Rss:"):
            pages += int(line.split()[1]) * 1024
    return pages


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def distinct(tensor: torch.Tensor) -> list[float]:
    """Return the distinct values of a tensor, in ascending order."""
    return sorted(set(tensor.tolist()))


def empty(world: ShmWorld, rank: int, nbytes: int) -> torch.Tensor:
    return world.segments[rank].empty(world.operation(rank, operation="empty", shape=(nbytes,)), nbytes)


def allreduce(world: ShmWorld, rank: int, tensor: torch.Tensor) -> torch.Tensor:
    allreduce_directly(world.segments[rank], world.operation(rank), tensor, SUM, tensor)
    return tensor


def use_everything() -> None:
    with ShmWorld(3) as world:

        def on_rank(rank: int) -> None:
            tensor = empty(world, rank, 400_000).view(torch.float32)
            for numel in (1, 100_000):
                allreduce(world, rank, tensor[:numel])
                allreduce(world, rank, torch.ones(numel))

        world.run(on_rank)
        assert mapped() > 0


def test_nothing_is_left_of_groups_that_came_and_went():
    shared_memory_before = shared_memory_files()
    before = descriptors(), mapped()
    for _ in range(20):
        use_everything()
        assert (descriptors(), mapped()) == before
    assert shared_memory_files() == shared_memory_before


def test_a_group_that_has_only_small_things_to_say_takes_little_memory():
    before = resident()
    with ShmWorld(4) as world:
        world.run(lambda rank: allreduce(world, rank, torch.ones(256)))
        # Each of the four threads has its own mapping: pages that are shared count four times.
        assert resident() - before <= 4 * 16 * os.sysconf("SC_PAGESIZE")


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [2, 8, 12])
def test_the_memory_of_a_group_grows_with_the_number_of_its_ranks_and_no_faster(size):
    before = mapped()

    def work(world: ShmWorld, rank: int) -> None:
        shm, length = world.segments[rank], 90_001
        assert distinct(allreduce(world, rank, torch.full((size * 110_001,), float(rank)))) == [sum(range(size))]
        # One operation may have several steps, each of which begins with a meeting.
        operation, mine = world.operation(rank), torch.full((size, length), float(rank))
        parts = [(member * length, (member + 1) * length) for member in range(size)]
        direct.reduce_scatter(shm, operation, mine.view(-1), parts, SUM, share := torch.empty(length))
        assert distinct(share) == [sum(range(size))]
        direct.allgather(shm, operation, list(mine))
        assert [distinct(row) for row in mine] == [[member] for member in range(size)]
        direct.broadcast(shm, operation, share.fill_(rank), 1)
        assert distinct(share) == [1]

    with ShmWorld(size) as world:
        # Each thread has its own mapping of all of it.
        assert (mapped() - before) // size <= size * 21 << 20
        world.run(lambda rank: work(world, rank))
    assert mapped() == before


def test_a_tensor_outlives_its_group():
    before = mapped()
    with ShmWorld(2) as world:
        tensors = world.run(lambda rank: empty(world, rank, 1000).fill_(7))
    assert all(bool((tensor == 7).all()) for tensor in tensors)
    del tensors
    assert mapped() == before


def test_a_buffer_goes_with_the_last_tensor_over_it():
    with ShmWorld(2) as world:
        without = mapped()
        tensors = world.run(lambda rank: empty(world, rank, 1 << 20))
        assert mapped() == without + 2 * (1 + 2) * (1 << 20), "its own part and the whole, on each rank"
        slices = [tensor[5000:6000] for tensor in tensors]
        del tensors
        found = [world.segments[rank].find(slices[rank]) for rank in (0, 1)]
        assert [place[1] for place in found if place is not None] == [5000, 5000]
        del found, slices
        assert mapped() == without
        assert world.segments[0].find(torch.zeros(100)) is None


def test_buffers_are_told_apart_and_other_memory_is_not_found():
    with ShmWorld(2) as world:

        def on_rank(rank: int) -> list[tuple[int, int] | None]:
            first, second = empty(world, rank, 1000), empty(world, rank, 3 << 20)
            tensors = [first, first[999:], second[8:], second.view(torch.float32)[2:], torch.zeros(4), second[:0]]
            places = [world.segments[rank].find(tensor) for tensor in tensors]
            return [(place[0].number, place[1]) if place is not None else None for place in places]

        one, other = world.run(on_rank)
        assert one == other
        assert one[:5] == [(1, 0), (1, 999), (2, 8), (2, 8), None]


def test_other_memory_in_the_place_of_a_buffer_that_is_just_being_given_back_is_not_taken_for_it():
    """The memory is unmapped a moment before the table hears of it: another thread may have it again by then."""

    class Watched(Memfd):
        def map(self, offset: int = 0, nbytes: int | None = None) -> mmap.mmap:
            mapping = super().map(offset, nbytes)
            mappings.append(weakref.ref(mapping))
            return mapping

    class There:
        def data_ptr(self) -> int:
            return address

    mappings: list[weakref.ref[mmap.mmap]] = []
    found: list[object] = []
    table, there = BufferTable(), cast(torch.Tensor, There())
    with closing(Watched(4096)) as memfd:
        own = table.add(memfd, 1, 4096, 0, 1)
    address = own.data_ptr()
    assert table.find(there) is not None
    mapping = mappings[0]()
    assert mapping is not None
    # Of a mapping's references, the one that was made last is told first: before the table's own.
    watch = weakref.ref(mapping, lambda _: found.append(table.find(there)))
    del mapping, own
    assert watch() is None
    assert found == [None]
    assert len(table) == 0


def test_a_buffer_of_nothing_is_a_tensor_of_nothing():
    with ShmWorld(2) as world:
        assert [tensor.numel() for tensor in world.run(lambda rank: empty(world, rank, 0))] == [0, 0]


def test_a_buffer_is_zero_at_first_and_every_rank_has_its_own_part():
    with ShmWorld(3) as world:

        def on_rank(rank: int) -> torch.Tensor:
            tensor = empty(world, rank, 5000)
            assert not tensor.any()
            world.segments[rank].meet(world.operation(rank))
            tensor.fill_(rank + 1)
            world.segments[rank].meet(world.operation(rank))
            return tensor

        assert [distinct(tensor) for tensor in world.run(on_rank)] == [[1], [2], [3]]


def test_ranks_that_want_buffers_of_different_sizes_are_told():
    with ShmWorld(2) as world:
        outcomes = world.outcomes(lambda rank: empty(world, rank, 1000 + rank))
        assert [type(outcome) for outcome in outcomes.values()] == [MismatchError, MismatchError]
        assert "1,001 bytes" in str(outcomes[0])


def test_a_buffer_on_one_rank_that_was_given_up_on_another_is_used_by_copying():
    with ShmWorld(2) as world:

        def on_rank(rank: int) -> list[float]:
            kept = empty(world, rank, 400_000).view(torch.float32).fill_(1)
            tensor = torch.ones(100_000)
            if rank == 0:
                tensor = kept
            else:
                del kept
            return distinct(allreduce(world, rank, tensor))

        assert world.run(on_rank) == [[2], [2]]


def test_one_tensor_may_be_given_to_many_collectives_and_stays_alone_where_it_should():
    """What lies in a shared buffer may be read by peers while it is an input, and is written by none of them."""
    with ShmWorld(3) as world:
        numel = 100_002

        def on_rank(rank: int) -> bool:
            shm = world.segments[rank]
            shared = empty(world, rank, numel * 4).view(torch.float32).fill_(rank + 1)
            result = torch.empty(numel)
            allreduce_directly(shm, world.operation(rank), shared, SUM, result)
            right = distinct(result) == [6] and distinct(shared) == [rank + 1]
            direct.broadcast(shm, world.operation(rank), target := shared.clone(), 1)
            right &= distinct(target) == [2] and distinct(shared) == [rank + 1]
            third = numel // 3
            parts = [(index * third, (index + 1) * third) for index in range(3)]
            own = slice(*parts[rank])
            direct.reduce_scatter(shm, world.operation(rank), shared, parts, SUM, shared[own])
            right &= distinct(shared[own]) == [6]
            return right and (shared == rank + 1).sum().item() == numel - third

        assert world.run(on_rank) == [True] * 3


def test_threads_of_one_process_never_hold_a_core_while_they_wait():
    with ShmWorld(2) as world:
        assert not any(shm.may_spin for shm in world.segments.values())


def test_a_segment_of_one_needs_nobody():
    with ShmWorld([3]) as world:
        shm = world.segments[3]
        tensor = empty(world, 3, 40_000).view(torch.float32).fill_(2)
        assert distinct(allreduce(world, 3, tensor)) == [2]
        out = torch.zeros(10_000)
        allreduce_directly(shm, world.operation(3), tensor, SUM, out)
        direct.broadcast(shm, world.operation(3), tensor, 3)
        direct.reduce_scatter(shm, world.operation(3), tensor, [(0, 10_000)], SUM, out)
        direct.allgather(shm, world.operation(3), [tensor])
        shm.meet(world.operation(3))
        assert distinct(out) == [2]


def test_the_end_of_the_group_wakes_those_who_wait():
    with ShmWorld(2) as world:
        lost = PeerLost("rank 1 has died", 1)

        def on_rank(rank: int) -> None:
            if rank == 1:
                world.abort_states[0].fail(lost)
            else:
                world.segments[0].meet(world.operation(0))

        outcome = world.outcomes(on_rank)[0]
        assert type(outcome) is PeerLost
        assert outcome.rank == 1


def one_segment(
    ends: dict[int, dict[int, socket.socket]], abort_state: AbortState, timeout: float = 30.0
) -> ShmSegment:
    """Make rank 1's end of a segment of two."""
    return ShmSegment(1, [0, 1], ends[1], abort_state, timeout=timeout)


def test_a_peer_that_dies_before_it_shares_anything_is_lost():
    ends = socket_pairs([0, 1])
    ends[0][1].close()
    with closing(AbortState()) as abort_state, closing(ends[1][0]):
        with pytest.raises(PeerLost, match="rank 0 has died"):
            one_segment(ends, abort_state)
        assert isinstance(abort_state.error, PeerLost)


def test_a_peer_that_shares_nothing_in_time_is_named():
    ends = socket_pairs([0, 1])
    with (
        closing(AbortState()) as abort_state,
        closing(ends[0][1]),
        closing(ends[1][0]),
        pytest.raises(CommTimeoutError, match=r"waited .* for rank 0"),
    ):
        one_segment(ends, abort_state, timeout=0.1)


def test_memory_of_another_size_is_refused_and_given_back():
    ends = socket_pairs([0, 1])
    before, mapped_before = descriptors(), mapped()
    with closing(AbortState()) as abort_state, ThreadPoolExecutor(1) as pool:
        one = pool.submit(one_segment, ends, abort_state)
        # A peer of another version: more ranks, so more memory.
        with closing(AbortState()) as other_state, ThreadPoolExecutor(1) as other_pool:
            third = socket.socketpair()
            other = other_pool.submit(ShmSegment, 0, [0, 1, 2], {1: ends[0][1], 2: third[0]}, other_state, timeout=20.0)
            with pytest.raises(RefusedError, match="the same version of hpsearch_comm must run on every rank"):
                one.result()
            other_state.fail(CommError("over"))
            with pytest.raises(CommError, match="over"):
                other.result()
        for end in (ends[0][1], ends[1][0], *third):
            end.close()
    del one, other
    assert descriptors() == before - 2
    assert mapped() == mapped_before


def test_shared_memory_is_closed_once_more_without_harm():
    before = mapped()
    with ShmWorld(2) as world:
        for shm in world.segments.values():
            shm.close()
        for abort_state in world.abort_states.values():
            abort_state.fail(CommError("too late for the segment to hear"))
        assert mapped() == before


def test_closing_while_the_group_fails_is_safe():
    """The thread that sees the end wakes waits through words that another thread may be giving back."""
    for _ in range(20):
        with ShmWorld(2) as world:
            start = threading.Barrier(2)
            thread = threading.Thread(target=fail_often, args=(world.abort_states[0], start))
            thread.start()
            start.wait()
            world.segments[0].close()
            thread.join()


def fail_often(abort_state: AbortState, start: threading.Barrier) -> None:
    start.wait()
    for _ in range(50):
        abort_state.mark_departed(1)
