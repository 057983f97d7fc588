"""What every kind of link must do, driven by a mesh, whatever lies under it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch_comm.errors import CommError, CommTimeoutError, MismatchError, PeerLost
from hpsearch_comm.header import DTYPES, Signature
from tests.comm.meeting import given_time
from tests.comm.transport.link_world import WORLDS, LinkWorld

pytestmark = pytest.mark.some_cases(8)

MakeWorld = Callable[[int], AbstractContextManager[LinkWorld]]

LENGTHS = (0, 1, 3, 1000, 65_536, 65_537, 300_001, 2_500_003)
"""Elements of float32: nothing, less than a header, on both sides of a chunk, and more than all buffers hold."""


@pytest.fixture(params=sorted(WORLDS))
def make_world(request: pytest.FixtureRequest) -> MakeWorld:
    return WORLDS[request.param]


def noise(numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return elements of any dtype with all kinds of bits; only 0 and 1 for bool."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def add(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    mine.add_(theirs)


def swap(world: LinkWorld, rank: int, sent: torch.Tensor, step: int = 0, spin: bool = False) -> torch.Tensor:
    """Send to the next rank while receiving as much from the previous one."""
    operation = world.operation(rank, spin=spin)
    operation.step = step
    received = torch.empty_like(sent)
    following, previous = (rank + 1) % world.size, (rank - 1) % world.size
    world.meshes[rank].exchange(operation, [(following, sent)], [(previous, received, None)])
    return received


def swap_noise(world: LinkWorld, rank: int, *, numel: int, dtype: torch.dtype, step: int) -> torch.Tensor:
    return swap(world, rank, noise(numel, dtype, seed=rank), step)


@pytest.mark.some_cases(16)
@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("numel", LENGTHS)
def test_what_is_sent_arrives_both_ways_at_once(make_world: MakeWorld, numel: int, spin: bool) -> None:
    with make_world(2) as world:
        received = world.run(lambda rank: swap(world, rank, noise(numel, seed=rank), spin=spin))
        assert same_bits(received[0], noise(numel, seed=1))
        assert same_bits(received[1], noise(numel, seed=0))


@pytest.mark.some_cases(16)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_bit_by_bit(make_world: MakeWorld, dtype: torch.dtype) -> None:
    with make_world(2) as world:
        for step, numel in enumerate((0, 1, 777, 300_007)):
            received = world.run(partial(swap_noise, world, numel=numel, dtype=dtype, step=step))
            assert same_bits(received[0], noise(numel, dtype, seed=1))


@pytest.mark.some_cases(16)
@pytest.mark.parametrize(
    ("numel", "dtype"),
    [(numel, torch.float32) for numel in LENGTHS]
    + [(100_003, dtype) for dtype in (torch.bfloat16, torch.complex128, torch.int8)],
    ids=str,
)
def test_every_element_is_folded_once(make_world: MakeWorld, numel: int, dtype: torch.dtype) -> None:
    def fold(rank: int) -> torch.Tensor:
        mine = (torch.arange(numel) % 50 + rank).to(dtype)
        theirs = mine.clone()
        world.meshes[rank].exchange(world.operation(rank), [(1 - rank, theirs)], [(1 - rank, mine, add)])
        return mine

    with make_world(2) as world:
        for folded in world.run(fold):
            assert torch.equal(folded, (torch.arange(numel) % 50 * 2 + 1).to(dtype))


def test_combine_sees_chunks_in_their_places(make_world: MakeWorld) -> None:
    numel = 2_000_003
    seen: list[tuple[int, int]] = []

    def receive(rank: int) -> None:
        mine = torch.zeros(numel)

        def note(place: torch.Tensor, arrived: torch.Tensor) -> None:
            start = (place.data_ptr() - mine.data_ptr()) // 4
            assert torch.equal(arrived, torch.arange(numel)[start : start + len(place)].float())
            seen.append((start, len(place)))

        world.meshes[rank].exchange(world.operation(rank), [], [(0, mine, note)])
        assert not mine.any()

    def send(rank: int) -> None:
        world.meshes[rank].exchange(world.operation(rank), [(1, torch.arange(numel).float())], [])

    with make_world(2) as world:
        world.run(lambda rank: receive(rank) if rank else send(rank))
    assert sum(length for _, length in seen) == numel
    assert len({start for start, _ in seen}) == len(seen)


def test_messages_of_mixed_sizes_follow_each_other(make_world: MakeWorld) -> None:
    sizes = [1, 0, 70_000, 3, 0, 900_000, 65_504, 65_536, 2, 131_072, 5] * 2

    def talk(rank: int) -> list[torch.Tensor]:
        return [swap(world, rank, noise(numel, seed=step + rank), step) for step, numel in enumerate(sizes)]

    with make_world(2) as world:
        first, second = world.run(talk)
        for step, numel in enumerate(sizes):
            assert same_bits(first[step], noise(numel, seed=step + 1))
            assert same_bits(second[step], noise(numel, seed=step))


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("numel", [1, 400_001])
def test_a_ring_turns(make_world: MakeWorld, size: int, numel: int) -> None:
    with make_world(size) as world:
        received = world.run(lambda rank: swap(world, rank, noise(numel, seed=rank)))
        for rank in range(size):
            assert same_bits(received[rank], noise(numel, seed=(rank - 1) % size))


@pytest.mark.parametrize("numel", [0, 1, 200_001])
def test_everybody_sends_to_everybody_at_once(make_world: MakeWorld, numel: int) -> None:
    size = 4

    def scatter(rank: int) -> dict[int, torch.Tensor]:
        peers = [peer for peer in range(size) if peer != rank]
        received = {peer: torch.empty(numel + rank) for peer in peers}
        world.meshes[rank].exchange(
            world.operation(rank),
            [(peer, torch.full((numel + peer,), float(10 * rank + peer))) for peer in peers],
            [(peer, received[peer], None) for peer in peers],
        )
        return received

    with make_world(size) as world:
        for rank, received in enumerate(world.run(scatter)):
            for peer, tensor in received.items():
                assert torch.equal(tensor, torch.full((numel + rank,), float(10 * peer + rank)))


def test_nothing_to_exchange_returns_at_once(make_world: MakeWorld) -> None:
    with make_world(2) as world:
        world.meshes[0].exchange(world.operation(0), [], [])


def test_what_was_sent_may_be_changed_afterwards(make_world: MakeWorld) -> None:
    def talk(rank: int) -> list[torch.Tensor]:
        received = []
        sent = torch.zeros(100_000)
        for step in range(10):
            sent.fill_(step)
            received.append(swap(world, rank, sent, step))
            sent.fill_(-1)
        return received

    with make_world(2) as world:
        for received in world.run(talk):
            assert [set(tensor.tolist()) for tensor in received] == [{float(step)} for step in range(10)]


DISAGREEMENTS = [
    (Signature(7, "allreduce", "ring", torch.float32, (8,), "sum"), "sum of float32 [8]"),
    (Signature(7, "allreduce", "ring", torch.float32, (3, 4), "mean"), "mean of float32 [3, 4]"),
    (Signature(7, "broadcast", "tree", torch.float32, (3, 4), root=1), "broadcast 7"),
    (Signature(8, "allreduce", "ring", torch.float32, (3, 4), "sum"), "allreduce 8"),
]


@pytest.mark.parametrize(("other", "shown"), DISAGREEMENTS)
@pytest.mark.parametrize("numel", [12, 2_000_000])
def test_ranks_that_disagree_each_see_both_sides(
    make_world: MakeWorld, other: Signature, shown: str, numel: int
) -> None:
    def exchange(rank: int) -> None:
        operation = world.operation(rank, other) if rank else world.operation(rank)
        world.meshes[rank].exchange(operation, [(1 - rank, torch.zeros(numel))], [(1 - rank, torch.zeros(numel), add)])

    with make_world(2) as world:
        outcomes = world.outcomes(lambda: exchange(0), lambda: exchange(1))
        for rank, error in enumerate(outcomes):
            assert isinstance(error, MismatchError), error
            assert "allreduce 7 (sum of float32 [3, 4], 48 bytes, ring)" in str(error)
            assert shown in str(error)
            assert world.abort_states[rank].error is error


def test_ranks_that_expect_other_lengths_or_steps_disagree(make_world: MakeWorld) -> None:
    def exchange(rank: int, numel: int, step: int) -> None:
        operation = world.operation(rank)
        operation.step = step
        world.meshes[rank].exchange(operation, [(1 - rank, torch.zeros(numel))], [(1 - rank, torch.zeros(numel), None)])

    for numel, step in ((11, 0), (10, 1), (900_000, 0)):
        with make_world(2) as world:
            for error in world.outcomes(lambda: exchange(0, 10, 0), partial(exchange, 1, numel, step)):
                assert isinstance(error, MismatchError), error
                assert "message 0 of 40 bytes" in str(error)
                assert f"message {step} of {4 * numel} bytes" in str(error)


@pytest.mark.parametrize("spin", [False, True])
def test_a_silent_peer_is_named_with_the_operation(make_world: MakeWorld, spin: bool) -> None:
    with make_world(3) as world:
        operation = world.operation(0, timeout=0.2, spin=spin)
        with pytest.raises(
            CommTimeoutError, match=r"waited \d+\.\d s for rank 2 in allreduce 7 \(.*48 bytes, ring\)"
        ) as e:
            world.meshes[0].exchange(operation, [(1, torch.zeros(5))], [(2, torch.zeros(5), None)])
        assert e.value.rank == 2
        assert world.abort_states[0].error is e.value


def test_a_peer_that_stops_reading_is_named(make_world: MakeWorld) -> None:
    with make_world(2) as world:
        operation = world.operation(0, timeout=0.2)
        with pytest.raises(CommTimeoutError, match="for rank 1"):
            world.meshes[0].exchange(operation, [(1, torch.zeros(20_000_000))], [])


def test_every_bit_of_progress_renews_the_deadline(make_world: MakeWorld) -> None:
    rest = threading.Event()
    tensor = torch.zeros(3_500_000)
    rests = 0

    def meet(soon: float) -> list[Any]:
        def rest_a_little(_mine: torch.Tensor, _theirs: torch.Tensor) -> None:
            nonlocal rests
            rests += 1
            rest.wait(soon / 50)  # this is the slow peer

        def transfer(rank: int) -> None:
            sends, receives = ([], [(0, tensor, rest_a_little)]) if rank else ([(1, tensor)], [])
            world.meshes[rank].exchange(world.operation(rank, timeout=soon), sends, receives)

        nonlocal rests
        rests = 0
        with make_world(2) as world:
            return world.outcomes(partial(transfer, 0), partial(transfer, 1))

    assert given_time(meet, lambda outcomes: outcomes == [None, None]) == [None, None]
    assert rests > 2 * 50


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("kind", ["send", "receive"])
def test_the_group_ending_wakes_an_exchange(make_world: MakeWorld, kind: str, spin: bool) -> None:
    large = torch.zeros(20_000_000)
    with make_world(3) as world:
        operation = world.operation(0, spin=spin)
        sends, receives = ([(1, large)], []) if kind == "send" else ([], [(1, large, None)])
        reason = PeerLost("rank 2 has died", 2)
        threading.Timer(0.1, lambda: world.abort_states[0].fail(reason)).start()
        with pytest.raises(PeerLost, match="rank 2 has died") as e:
            world.meshes[0].exchange(operation, sends, receives)
        assert e.value is not reason


def test_what_a_peer_sent_before_it_left_still_counts(make_world: MakeWorld) -> None:
    with make_world(2) as world:
        sent = noise(1000)
        world.meshes[0].exchange(world.operation(0), [(1, sent)], [])
        world.meshes[0].close()
        world.abort_states[1].mark_departed(0)
        received = torch.empty(1000)
        operation = world.operation(1)
        world.meshes[1].exchange(operation, [], [(0, received, None)])
        assert same_bits(received, sent)
        operation.step = 1
        with pytest.raises(PeerLost, match="rank 0 has closed the group while this rank still needs it") as e:
            world.meshes[1].exchange(operation, [], [(0, received, None)])
        assert e.value.rank == 0


def test_a_large_message_survives_that_its_sender_leaves_meanwhile(make_world: MakeWorld) -> None:
    numel = 5_000_000

    def send() -> None:
        world.meshes[0].exchange(world.operation(0), [(1, noise(numel))], [])
        world.abort_states[1].mark_departed(0)
        world.meshes[0].close()

    def receive() -> torch.Tensor:
        received = torch.empty(numel)
        world.meshes[1].exchange(world.operation(1), [], [(0, received, None)])
        return received

    with make_world(2) as world:
        _, received = world.outcomes(send, receive)
        assert same_bits(received, noise(numel))


def test_another_peer_leaving_disturbs_nobody(make_world: MakeWorld) -> None:
    def talk(rank: int) -> bool:
        peer = 1 - rank
        for step in range(20):
            operation = world.operation(rank)
            operation.step = step
            received = torch.empty(3000)
            world.meshes[rank].exchange(operation, [(peer, noise(3000, seed=step))], [(peer, received, None)])
            assert same_bits(received, noise(3000, seed=step))
            if step == 5:
                world.abort_states[rank].mark_departed(2)
        return True

    with make_world(3) as world:
        assert world.outcomes(lambda: talk(0), lambda: talk(1)) == [True, True]


def test_an_error_while_folding_ends_the_group(make_world: MakeWorld) -> None:
    def fail(_mine: torch.Tensor, _theirs: torch.Tensor) -> None:
        raise ValueError("no such sum")

    with make_world(2) as world:
        world.meshes[1].exchange(world.operation(1), [(0, torch.zeros(5))], [])
        with pytest.raises(ValueError, match="no such sum"):
            world.meshes[0].exchange(world.operation(0), [], [(1, torch.zeros(5), fail)])
        with pytest.raises(CommError, match=r"broke off allreduce 7 .*ValueError: no such sum"):
            world.abort_states[0].check()


class Memory(bytearray):
    """Of a tensor whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_a_tensor_lives_no_longer_than_its_message(make_world: MakeWorld) -> None:
    def talk(rank: int) -> list[Memory | None]:
        memories = [Memory(nbytes) for nbytes in (8_000_000, 8_000_000, 40, 40)]
        tensors = [torch.frombuffer(memory, dtype=torch.float32) for memory in memories]
        seen = [weakref.ref(memory) for memory in memories]
        del memories
        for step in range(2):
            operation = world.operation(rank)
            operation.step = step
            world.meshes[rank].exchange(operation, [(1 - rank, tensors.pop())], [(1 - rank, tensors.pop(), add)])
        return [reference() for reference in seen]

    with make_world(2) as world:
        assert world.run(talk) == [[None] * 4] * 2


def test_closing_gives_every_descriptor_back(make_world: MakeWorld) -> None:
    with make_world(2):  # whatever is opened once per process is open now
        pass
    gc.collect()
    before = sorted(Path("/proc/self/fd").iterdir())
    with make_world(3) as world:
        world.run(lambda rank: swap(world, rank, noise(100_000)))
    gc.collect()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_closing_twice_is_harmless(make_world: MakeWorld) -> None:
    with make_world(2) as world:
        world.meshes[0].close()
        world.meshes[0].close()
