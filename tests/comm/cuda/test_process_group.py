"""Collectives of CUDA tensors through a process group of torch's, for which Gloo stands in: start, operations, end."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from hpsearch_comm.cuda import nccl, process_group
from hpsearch_comm.cuda.nccl import start_together
from hpsearch_comm.cuda.process_group import ThroughProcessGroup, supports
from hpsearch_comm.errors import CommError, CommTimeoutError, GroupClosedError, NcclError, PeerLost
from hpsearch_comm.failure import abort
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.header import DTYPES
from tests.comm.cuda.bare_collectives import BareCollectives
from tests.comm.forming import PATIENCE
from tests.comm.host_devices import HostEvent, HostStream, StandIn, wait_for
from tests.comm.meeting import given_time


class Gathering:
    """Returns ranks, which are threads, the values of all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._condition = threading.Condition()
        self._rounds: dict[int, dict[int, str]] = {}

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        rounds = itertools.count()

        def gather(value: Any) -> list[Any]:
            with self._condition:
                values = self._rounds.setdefault(next(rounds), {})
                values[rank] = json.dumps(value)
                self._condition.notify_all()
                assert self._condition.wait_for(lambda: len(values) == self._size, PATIENCE)
                return [json.loads(values[peer]) for peer in range(self._size)]

        return gather


class World:
    """Ranks, which are threads, with a stand-in each."""

    def __init__(self, size: int, timeout: float = 30.0) -> None:
        self.size = size
        self.timeout = timeout
        self.abort_states = [AbortState() for _ in range(size)]
        self.nccl = [StandIn() for _ in range(size)]
        self.gathering = Gathering(size)
        self.collectives: list[BareCollectives] = []

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Run work on each rank; raises the first error."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))

    def start(self, rank: int, timeout: float = PATIENCE) -> BareCollectives:
        """Start a rank, in its thread."""
        abort_state, stand_in = self.abort_states[rank], self.nccl[rank]
        start = partial(stand_in.start, rank=rank, size=self.size)
        started, store = start_together(start, self.gathering.of(rank), timeout, abort_state.check)
        collectives = ThroughProcessGroup(started, store, stand_in.stream(), rank, self.size, abort_state)
        return BareCollectives(collectives, HostStream, self.timeout)

    def close(self) -> None:
        for stand_in in self.nccl:
            stand_in.hangs.clear()
            stand_in.aborted.set()
        for abort_state in self.abort_states:
            abort_state.close()


@pytest.fixture
def make_ranks() -> Iterator[Callable[..., World]]:
    """Return what makes ranks that haven't started; they are ended with the test."""
    made: list[World] = []

    def make(size: int, timeout: float = 30.0) -> World:
        made.append(World(size, timeout))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def make_world(make_ranks: Callable[..., World]) -> Callable[..., World]:
    """Return what makes ranks that have started."""

    def make(size: int, timeout: float = 30.0) -> World:
        world = make_ranks(size, timeout)
        world.collectives = world.run(world.start)
        return world

    return make


# How ranks start.


def start(world: World, rank: int, timeout: float = PATIENCE) -> BareCollectives | str:
    """Return the rank's collectives, or why there are none."""
    try:
        return world.start(rank, timeout)
    except NcclError as error:
        return str(error)


def test_all_ranks_start(make_ranks):
    world = make_ranks(3)
    assert all(isinstance(started, BareCollectives) for started in world.run(partial(start, world)))
    assert [stand_in.log for stand_in in world.nccl] == [["started"]] * 3


@pytest.mark.parametrize("rank", range(3))
def test_where_it_does_not_start_on_one_rank_all_are_told_and_none_has_it(make_ranks, rank):
    world = make_ranks(3)
    world.nccl[rank].fails["start"] = RuntimeError("out of memory\nException raised from ...")
    message = f"NCCL hasn't started on rank {rank}: out of memory"
    assert world.run(partial(start, world)) == [message] * 3
    assert all(abort_state.error is None for abort_state in world.abort_states)


def test_a_rank_that_had_started_when_another_failed_aborts(make_ranks):
    world = make_ranks(2)
    world.nccl[0].start = lambda store, rank, size: world.nccl[0]
    world.nccl[1].fails["start"] = RuntimeError("out of memory")
    assert world.run(partial(start, world)) == ["NCCL hasn't started on rank 1: out of memory"] * 2
    wait_for(lambda: world.nccl[0].log == ["abort"])


def test_ranks_that_do_not_find_each_other_give_up(make_ranks):
    world = make_ranks(3)
    world.nccl[2].hangs.add("start")
    for message in world.run(partial(start, world, timeout=0.1)):
        assert re.match(r"NCCL hasn't started on rank \d: it was still waiting for its peers after 0.1 s", message)
        assert "NCCL_SOCKET_IFNAME" in message
    assert all(abort_state.error is None for abort_state in world.abort_states)


def test_a_group_that_fails_meanwhile_ends_the_start(make_ranks):
    world = make_ranks(3)

    def work(rank: int) -> str:
        if rank == 2:
            world.gathering.of(2)([False, None, {}])
            for abort_state in world.abort_states:
                abort_state.fail(PeerLost("rank 2 has died", 2))
            return "died"
        with pytest.raises(PeerLost, match="rank 2 has died"):
            world.start(rank)
        return "told"

    assert world.run(work) == ["told", "told", "died"]


def test_a_mistake_of_this_package_is_no_reason_to_go_on_without_nccl(make_ranks):
    world = make_ranks(1)
    world.nccl[0].fails["start"] = TypeError("a mistake")
    with pytest.raises(TypeError, match="a mistake"):
        world.start(0)


def test_torch_is_told_to_end_nothing_by_itself_and_users_do_not_see_it(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    seen: dict[str, Any] = {}

    class Options:
        def __init__(self, is_high_priority_stream: bool) -> None:
            self.config = type("Config", (), {})()

    class FakeNccl:
        def __init__(self, *arguments: Any) -> None:
            seen["arguments"] = arguments
            seen["environment"] = {name: value for name, value in os.environ.items() if "NCCL" in name}

        def eager_connect_single_device(self, device: torch.device) -> None:
            seen["device"] = device

    FakeNccl.Options = Options  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    device = torch.device("cuda", 1)
    nccl.start_nccl("store", 2, 5, device, 4, "eth7")
    *arguments, options = seen["arguments"]
    assert (arguments, seen["device"], options.config.max_ctas) == (["store", 2, 5], device, 4)
    assert options._timeout.days == 365
    environment = seen["environment"]
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth7"
    assert {value for name, value in environment.items() if name.startswith("TORCH_NCCL")} == {"0"}
    assert environment["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "TORCH_NCCL_ENABLE_MONITORING" not in os.environ
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    nccl.start_nccl("store", 2, 5, device, None, "eth7")
    assert seen["environment"]["NCCL_SOCKET_IFNAME"] == "ib0"


# What operations give.


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_nccl_cannot_do_as_the_cpu_does_goes_through_host_memory(dtype):
    assert supports("none", dtype)
    plain = dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    whole = dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
    found = {op for op in ("sum", "mean", "min", "max", "product", "band", "bor", "bxor") if supports(op, dtype)}
    if plain:
        assert found == {"sum", "mean", "product"}
    elif dtype.is_complex:
        assert found == {"sum", "mean"}
    else:
        assert found == ({"sum", "mean", "min", "max", "product"} if whole else set())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3])
def test_halves_are_averaged_in_float32_where_16_bits_would_be_off(make_world, dtype, size):
    world = make_world(size)
    expected = torch.tensor([1.0 * (size - 1) / 2 + 1, 255.0]).to(dtype)

    def reduce(rank: int) -> tuple[Any, ...]:
        collectives, values = world.collectives[rank], torch.tensor([1.0 + rank, 255.0]).to(dtype)
        part = torch.zeros(1, dtype=dtype)
        rows = values[:1].repeat(size)
        collectives.reduce_scatter(rows, "mean", part, [1] * size).wait()
        return collectives.allreduce(values).wait(), part

    for total, part in world.run(reduce):
        assert torch.equal(total, expected)
        assert torch.equal(part, expected[:1])


def test_strides_shapes_and_out_are_kept(make_world):
    world = make_world(2)

    def reduce(rank: int):
        collectives = world.collectives[rank]
        strided = torch.arange(12.0).reshape(3, 4)[:, ::2] + rank
        turned = (torch.arange(6.0).reshape(2, 3) + rank).t()
        out = torch.zeros(3, 2).t().contiguous().t()
        assert collectives.allreduce(turned, "sum").wait() is turned
        assert collectives.allreduce(strided, "sum", out).wait() is out
        scalar = collectives.allreduce(torch.tensor(float(rank)), "sum").wait()
        parameter = torch.full((3,), float(rank), requires_grad=True)
        collectives.allreduce(parameter, "mean").wait()
        return turned, strided, out, scalar, parameter.detach()

    for rank, (turned, strided, out, scalar, parameter) in enumerate(world.run(reduce)):
        assert torch.equal(turned, (2 * torch.arange(6.0).reshape(2, 3) + 1).t())
        assert torch.equal(strided, torch.arange(12.0).reshape(3, 4)[:, ::2] + rank)
        assert torch.equal(out, 2 * torch.arange(12.0).reshape(3, 4)[:, ::2] + 1)
        assert scalar.item() == 1.0
        assert parameter.tolist() == [0.5] * 3


@pytest.mark.parametrize("counts", [[4, 4], [6, 2]])
def test_results_go_into_tensors_of_any_layout(make_world, counts):
    world = make_world(2)

    def move(rank: int):
        collectives = world.collectives[rank]
        gathered = torch.zeros(2, 4).t()
        collectives.allgather(torch.arange(1.0 * counts[rank]) + 10 * rank, gathered, counts).wait()
        whole = torch.arange(8.0) + rank
        kept = whole.clone()
        part = torch.zeros(counts[rank], 2)[:, 0]
        collectives.reduce_scatter(whole, "sum", part, counts).wait()
        assert torch.equal(whole, kept)
        inside = whole[1 : 1 + counts[rank]]
        collectives.reduce_scatter(whole, "sum", inside, counts).wait()
        return gathered, part, inside

    rows = torch.cat([torch.arange(1.0 * count) + 10 * rank for rank, count in enumerate(counts)]).view(4, 2)
    sums = (2 * torch.arange(8.0) + 1).tensor_split([counts[0]])
    for rank, (gathered, part, inside) in enumerate(world.run(move)):
        assert torch.equal(gathered, rows)
        assert torch.equal(part, sums[rank])
        assert torch.equal(inside, part)


def test_every_call_follows_the_callers_stream_and_keeps_its_memory(make_world):
    bare = make_world(1).collectives[0]
    stream = bare.collectives.stream
    assert isinstance(stream, HostStream)
    mine, out = torch.ones(2), torch.ones(2)
    ready = HostEvent()
    bare.allreduce(mine, "sum", out, ready).wait()
    assert stream.followed == [ready]
    bare.broadcast(mine).wait()
    bare.allgather(mine, out, [2]).wait()
    bare.reduce_scatter(mine, "sum", out, [2]).wait()
    bare.alltoall(mine, out, [2], [2]).wait()
    assert len(stream.followed) == 5
    assert [kept.data_ptr() for kept in stream.kept] == [
        tensor.data_ptr() for tensor in (mine, out, mine, mine, out, mine, out, mine, out)
    ]


def test_empty_tensors_ask_nothing_of_nccl(make_world):
    world = make_world(2)

    def empty(rank: int) -> None:
        collectives = world.collectives[rank]
        collectives.allreduce(torch.zeros(0, 3), "sum").wait()
        collectives.broadcast(torch.zeros(0), 0).wait()
        collectives.allgather(torch.zeros(0), torch.zeros(0), [0, 0]).wait()
        collectives.reduce_scatter(torch.zeros(0), "sum", torch.zeros(0), [0, 0]).wait()

    world.run(empty)
    assert world.nccl[0].log == ["started"]


def test_several_works_may_be_under_way(make_world):
    world = make_world(2)

    def launch(rank: int):
        collectives = world.collectives[rank]
        works = [collectives.allreduce(torch.tensor([float(index + rank)]), "sum") for index in range(5)]
        return [work.wait().item() for work in reversed(works)], [work.done() for work in works]

    assert world.run(launch) == [([9.0, 7.0, 5.0, 3.0, 1.0], [True] * 5)] * 2


def test_autograd_learns_what_was_changed_in_place(make_world):
    world = make_world(2)

    def reduce(rank: int) -> list[int]:
        collectives = world.collectives[rank]
        reduced, root, out, gathered = torch.ones(2), torch.ones(2), torch.ones(1), torch.ones(4)
        collectives.allreduce(reduced, "sum").wait()
        collectives.broadcast(root, 0).wait()
        collectives.reduce_scatter(torch.ones(2), "sum", out, [1, 1]).wait()
        collectives.allgather(torch.ones(2), gathered, [2, 2]).wait()
        return [tensor._version for tensor in (reduced, root, out, gathered)]

    # Gloo itself counts too, what it writes into views of them.
    for rank, versions in enumerate(world.run(reduce)):
        assert all(version >= 1 for index, version in enumerate(versions) if (index, rank) != (1, 0)), versions


# How they end.


def test_a_failed_group_wakes_the_wait_and_aborts(make_world):
    world = make_world(2)
    bare, abort_state = world.collectives[0], world.abort_states[0]
    threading.Thread(target=abort_state.fail, args=(PeerLost("rank 1 has died", 1),)).start()
    # Rank 1 never comes, so the call stays under way until the group fails.
    with pytest.raises(PeerLost, match="rank 1 has died"):
        bare.allreduce(torch.ones(2), "sum").wait()
    wait_for(lambda: "abort" in world.nccl[0].log)
    with pytest.raises(PeerLost):
        bare.allreduce(torch.ones(2), "sum")
    bare.close()
    assert world.nccl[0].log.count("abort") == 1


def test_an_aborted_kernel_is_no_result(make_world):
    world = make_world(2)
    for stand_in in world.nccl:
        stand_in.busy = True  # the kernels don't end
    works = world.run(lambda rank: world.collectives[rank].allreduce(torch.ones(2), "sum"))
    assert not works[0].done()
    for abort_state in world.abort_states:
        abort_state.fail(PeerLost("rank 2 has died", 2))
    wait_for(lambda: all("abort" in stand_in.log for stand_in in world.nccl))
    # The abort has made the kernels end, and yet there is nothing to be had.
    assert works[0].done()
    for work in works:
        with pytest.raises(PeerLost, match="rank 2 has died"):
            work.wait()


def test_an_abort_that_hangs_holds_nobody_up(make_world):
    world = make_world(2)
    stand_in, abort_state = world.nccl[0], world.abort_states[0]
    stand_in.busy = True
    stand_in.hangs.add("abort")
    works = world.run(lambda rank: world.collectives[rank].allreduce(torch.ones(2), "sum"))
    abort_state.fail(PeerLost("rank 1 has died", 1))
    assert works[0].done()
    with pytest.raises(PeerLost, match="rank 1 has died"):
        works[0].wait()
    world.collectives[0].close()
    assert stand_in.log == ["started", "allreduce"]


def test_operation_without_an_end_is_given_up(make_world):
    def meet(soon: float):
        world = make_world(2, timeout=soon)
        world.nccl[0].busy = True

        def reduce(rank: int):
            try:
                return world.collectives[rank].allreduce(torch.ones(3), "sum").wait()
            except CommTimeoutError as error:
                return error

        return world, world.run(reduce)

    world, (error, result) = given_time(meet, lambda found: not isinstance(found[1][1], CommTimeoutError))
    assert result.tolist() == [2.0] * 3
    assert type(error) is CommTimeoutError
    assert re.search(r"rank 0 waited .* in allreduce 0 \(sum of float32 \[3\], 12 bytes, on cuda, nccl\)", str(error))
    assert isinstance(world.abort_states[0].error, CommTimeoutError)
    wait_for(lambda: "abort" in world.nccl[0].log)


def test_a_long_wait_for_a_peer_is_told_before_it_is_given_up(make_world, monkeypatch, caplog):
    monkeypatch.setattr(process_group, "FIRST_REMINDER", 0.05)
    world = make_world(1, timeout=0.5)
    world.nccl[0].busy = True
    with pytest.raises(CommTimeoutError, match=r"in broadcast 0 \(uint8 \[4\], 4 bytes, root 0, on cuda, nccl\)"):
        world.collectives[0].broadcast(torch.zeros(4, dtype=torch.uint8), 0).wait()
    assert re.search(r"rank 0 has waited \d+ s for its peers in broadcast 0 .*gives up after 0.5 s", caplog.text)


def test_wait_with_a_timeout_of_its_own_leaves_the_operation_alone(make_world):
    world = make_world(1)
    world.nccl[0].busy = True
    work = world.collectives[0].allreduce(torch.ones(2), "sum")
    with pytest.raises(CommTimeoutError, match="is still running: wait again"):
        work.wait(0.01)
    assert world.abort_states[0].error is None
    world.nccl[0].busy = False
    assert work.wait().tolist() == [1.0, 1.0]


def test_error_of_a_call_ends_the_group(make_world):
    world = make_world(1)
    world.nccl[0].fails["allreduce"] = RuntimeError("unhandled system error\nat ...")
    with pytest.raises(NcclError, match=r"NCCL failed in allreduce 0 \(mean of float32 .*: unhandled system error"):
        world.collectives[0].allreduce(torch.ones(2))
    assert isinstance(world.abort_states[0].error, NcclError)


class FailedWork:
    """A work that torch calls completed, behind which the stream never comes."""

    def __init__(self, seen: Callable[[], object] = lambda: None) -> None:
        self._seen = seen

    def is_completed(self) -> bool:
        return True

    def exception(self) -> RuntimeError:
        self._seen()
        return RuntimeError("remote process exited")

    def wait(self) -> None:
        pass


def test_an_error_in_the_background_ends_the_group(make_world, monkeypatch):
    monkeypatch.setattr(abort, "_VERDICT", 0.01)
    world = make_world(1)
    world.nccl[0].busy = True
    monkeypatch.setattr(world.nccl[0], "allreduce", lambda *_: FailedWork())
    with pytest.raises(NcclError, match=r"NCCL failed in allreduce .*: remote process exited"):
        world.collectives[0].allreduce(torch.ones(2)).wait()


def test_dead_peer_is_named_although_nccl_saw_it_first(make_world, monkeypatch):
    monkeypatch.setattr(abort, "_VERDICT", PATIENCE)
    world = make_world(1)
    abort_state = world.abort_states[0]
    world.nccl[0].busy = True

    def watch() -> None:
        threading.Thread(target=abort_state.fail, args=(PeerLost("rank 1 has died", 1),)).start()

    monkeypatch.setattr(world.nccl[0], "allreduce", lambda *_: FailedWork(watch))
    with pytest.raises(PeerLost, match="rank 1 has died"):
        world.collectives[0].allreduce(torch.ones(2)).wait()


def test_peer_that_has_left_with_work_undone_is_lost(make_world):
    world = make_world(1)
    world.nccl[0].busy = True
    world.abort_states[0].mark_departed(1)
    with pytest.raises(PeerLost, match=r"rank 1 has closed the group while rank 0 is still in allreduce"):
        world.collectives[0].allreduce(torch.ones(2), "sum").wait()


def test_peer_that_has_left_is_not_missed_while_this_rank_still_computes(make_world, monkeypatch):
    monkeypatch.setattr(process_group, "GRACE_SECONDS", 0.0)
    world = make_world(1)
    stand_in, abort_state = world.nccl[0], world.abort_states[0]
    stand_in.busy = True
    looks = itertools.count()

    def reached() -> bool:
        """What was queued before ends after some looks, and the operation itself soon after that."""
        stand_in.busy = next(looks) < 20
        return not stand_in.busy

    work = world.collectives[0].allreduce(torch.ones(2), "sum", ready=HostEvent(reached))
    abort_state.mark_departed(1)
    assert work.wait().tolist() == [1.0, 1.0]


def test_close_is_taken_by_all_together_and_twice(make_world):
    world = make_world(3)
    world.run(lambda rank: world.collectives[rank].close())
    assert [stand_in.log for stand_in in world.nccl] == [["started", "shutdown"]] * 3
    world.collectives[0].close()
    with pytest.raises(GroupClosedError, match="is closed"):
        world.collectives[0].allreduce(torch.ones(1))


def test_close_finds_the_shutdown_of_torch_2_6(make_world, monkeypatch):
    monkeypatch.setattr(StandIn, "_shutdown", StandIn.shutdown, raising=False)
    monkeypatch.delattr(StandIn, "shutdown")
    world = make_world(2)
    world.run(lambda rank: world.collectives[rank].close())
    assert [stand_in.log for stand_in in world.nccl] == [["started", "shutdown"]] * 2


def test_close_finishes_what_is_under_way(make_world):
    world = make_world(2)
    for stand_in in world.nccl:
        stand_in.busy = True  # the kernels don't end

    def launch_and_close(rank: int) -> None:
        bare, stand_in = world.collectives[rank], world.nccl[rank]
        bare.allreduce(torch.ones(2), "sum")
        closing = threading.Thread(target=bare.close)
        closing.start()
        closing.join(0.05)
        assert "shutdown" not in stand_in.log
        stand_in.busy = False
        closing.join()

    world.run(launch_and_close)
    assert [stand_in.log for stand_in in world.nccl] == [["started", "allreduce", "shutdown"]] * 2


def test_results_from_before_a_close_that_hangs_still_count(make_world):
    world = make_world(2)
    world.nccl[0].hangs.add("shutdown")
    works = world.run(lambda rank: world.collectives[rank].allreduce(torch.ones(2), "sum"))
    world.collectives[0].close(timeout=0.05)
    wait_for(lambda: world.nccl[0].log == ["started", "allreduce", "abort"])
    assert works[0].done()
    assert works[0].wait().tolist() == [2.0, 2.0]


def test_close_of_an_operation_without_an_end_aborts(make_world):
    world = make_world(1)
    world.nccl[0].busy = True
    work = world.collectives[0].allreduce(torch.ones(2), "sum")
    world.collectives[0].close(timeout=0.05)
    wait_for(lambda: "abort" in world.nccl[0].log)
    with pytest.raises(CommError):
        work.wait()


def test_close_of_a_failed_group_aborts_at_once(make_world):
    world = make_world(1)
    world.abort_states[0].fail(NcclError("x"))
    world.collectives[0].close()
    wait_for(lambda: "abort" in world.nccl[0].log)
    assert "shutdown" not in world.nccl[0].log


def test_a_closed_one_is_freed_though_the_group_remembers_its_abort_state(make_world):
    world = make_world(2)

    def use(rank: int) -> None:
        world.collectives[rank].allreduce(torch.ones(3)).wait()
        world.collectives[rank].close()

    world.run(use)
    closed = [weakref.ref(bare.collectives) for bare in world.collectives]
    assert all(bare.collectives._last is None for bare in world.collectives)
    world.collectives.clear()
    gc.collect()
    assert [one() for one in closed] == [None, None]
    world.abort_states[0].fail(CommError("nobody listens"))
