"""How an operation through NCCL ends where it doesn't end well, and how a communicator is closed."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
import torch

from hpsearch_comm.cuda import nccl_session
from hpsearch_comm.errors import CommTimeoutError, GroupClosedError, NcclError, PeerLost
from tests.comm.forming import PATIENCE
from tests.comm.host_devices import wait_for
from tests.comm.host_nccl import HostEvent, run_ranks
from tests.comm.meeting import given_time
from tests.comm.nccl_world import worlds


@pytest.fixture
def make_world():
    with worlds() as make:
        yield make


def test_a_failed_group_wakes_the_wait_and_aborts(make_world):
    world = make_world(2)
    communicator, abort_state = world.communicators[0], world.abort_states[0]
    lost = PeerLost("rank 1 has died", 1)
    threading.Thread(target=abort_state.fail, args=(lost,)).start()
    # Rank 1 never comes, so the call stays under way until the group fails.
    with pytest.raises(PeerLost, match="rank 1 has died"):
        communicator.allreduce(torch.ones(2), "sum")
    wait_for(lambda: "abort" in world.nccl[0].log)
    with pytest.raises(PeerLost):
        communicator.allreduce(torch.ones(2), "sum")
    communicator.close()
    assert world.nccl[0].log.count("abort") == 1


def test_an_aborted_kernel_is_no_result(make_world):
    world = make_world(2)
    for nccl in world.nccl:
        nccl.busy = True  # the kernels don't end

    def launch(rank: int):
        return world.communicators[rank].allreduce(torch.ones(2), "sum")

    works = run_ranks(2, launch)
    assert not works[0].done()
    for abort_state in world.abort_states:
        abort_state.fail(PeerLost("rank 2 has died", 2))
    wait_for(lambda: all("abort" in nccl.log for nccl in world.nccl))
    # The abort has made the kernels end, and yet there is nothing to be had.
    assert works[0].done()
    for work in works:
        with pytest.raises(PeerLost, match="rank 2 has died"):
            work.wait()


def test_operation_without_an_end_is_given_up(make_world):
    def meet(soon: float):
        world = make_world(2, timeout=soon)
        world.nccl[0].busy = True

        def reduce(rank: int):
            work = world.communicators[rank].allreduce(torch.ones(3), "sum")
            try:
                return work.wait()
            except CommTimeoutError as error:
                return error

        try:
            return world, run_ranks(2, reduce)
        except CommTimeoutError as error:  # one came too late for the other
            return world, [error] * 2

    world, (error, result) = given_time(meet, lambda found: not isinstance(found[1][1], CommTimeoutError))
    assert result.tolist() == [2.0] * 3
    assert type(error) is CommTimeoutError
    assert re.search(r"rank 0 waited .* in allreduce \(sum of float32 \[3\], 12 bytes\)", str(error))
    assert isinstance(world.abort_states[0].error, CommTimeoutError)
    wait_for(lambda: "abort" in world.nccl[0].log)


def test_peer_that_never_comes_is_given_up(make_world):
    world = make_world(2, timeout=0.2)
    with pytest.raises(CommTimeoutError, match=r"in broadcast \(uint8 \[4\], 4 bytes, root 0\) through NCCL"):
        world.communicators[0].broadcast(torch.zeros(4, dtype=torch.uint8), 0)


def test_a_long_wait_for_a_peer_is_told_before_it_is_given_up(make_world, monkeypatch, caplog):
    monkeypatch.setattr("hpsearch_comm.cuda.nccl_session.FIRST_REMINDER", 0.05)
    world = make_world(2, timeout=0.5)
    with pytest.raises(CommTimeoutError):
        world.communicators[0].broadcast(torch.zeros(4, dtype=torch.uint8), 0)
    assert re.search(r"rank 0 has waited \d+ s for its peers in broadcast \(uint8 .*gives up after 0.5 s", caplog.text)


def test_wait_with_a_timeout_of_its_own_leaves_the_operation_alone(make_world):
    world = make_world(1)
    world.nccl[0].busy = True
    work = world.communicators[0].allreduce(torch.ones(2), "sum")
    with pytest.raises(CommTimeoutError, match="is still under way; it goes on"):
        work.wait(0.01)
    assert world.abort_states[0].error is None
    world.nccl[0].busy = False
    assert work.wait().tolist() == [1.0, 1.0]


def test_two_threads_may_wait_for_one_work(make_world, monkeypatch):
    world = make_world(1)
    work = world.communicators[0].allreduce(torch.ones(2), "sum")
    session = work._session
    wait = session.wait

    class Overtaken:
        """A session in which another thread's wait comes to its end whenever this one has looked."""

        @property
        def aborted(self) -> bool:
            work.wait()
            return False

        @property
        def wait(self):
            work._session = session
            work.wait()
            return wait

    for call in (work.done, work.wait):
        work._session = Overtaken()
        work._ended = HostEvent(lambda: True)
        call()


def test_error_of_nccl_ends_the_group(make_world):
    world = make_world(1)
    world.nccl[0].fails["ncclAllReduce"] = 5
    with pytest.raises(NcclError, match=r"ncclAllReduce failed in allreduce \(mean of float32"):
        world.communicators[0].allreduce(torch.ones(2))
    assert isinstance(world.abort_states[0].error, NcclError)


def test_error_within_a_group_of_calls_closes_the_group(make_world):
    world = make_world(2)
    world.nccl[0].fails["ncclSend"] = 4
    with pytest.raises(NcclError, match="ncclSend failed in alltoall"):
        world.communicators[0].alltoall(torch.ones(2), torch.ones(2), [1, 1], [1, 1])
    assert world.nccl[0]._group is None


def test_dead_peer_is_named_although_nccl_saw_it_first(make_world, monkeypatch):
    monkeypatch.setattr(nccl_session, "GRACE_SECONDS", PATIENCE)
    world = make_world(1)
    nccl, abort_state = world.nccl[0], world.abort_states[0]
    nccl.busy = True
    work = world.communicators[0].allreduce(torch.ones(2), "sum")
    nccl.fails["ncclCommGetAsyncError"] = 6
    make_error = nccl.error

    def error_and_then_the_watcher(*arguments):
        threading.Thread(target=abort_state.fail, args=(PeerLost("rank 1 has died", 1),)).start()
        return make_error(*arguments)

    monkeypatch.setattr(nccl, "error", error_and_then_the_watcher)
    with pytest.raises(PeerLost, match="rank 1 has died"):
        work.wait()


def test_peer_that_has_left_with_work_undone_is_lost(make_world):
    world = make_world(2)
    world.abort_states[0].mark_left(1)
    with pytest.raises(PeerLost, match=r"rank 1 has closed the group while rank 0 is still in allreduce"):
        world.communicators[0].allreduce(torch.ones(2), "sum")


def test_peer_that_has_left_is_not_missed_while_this_rank_still_computes(make_world, monkeypatch):
    monkeypatch.setattr(nccl_session, "GRACE_SECONDS", 0.0)
    world = make_world(1)
    nccl, abort_state = world.nccl[0], world.abort_states[0]
    nccl.busy = True
    looks = itertools.count()

    def reached() -> bool:
        """What was queued before ends after some looks, and the operation itself soon after that."""
        nccl.busy = next(looks) < 20
        return not nccl.busy

    work = world.communicators[0].allreduce(torch.ones(2), "sum", ready=HostEvent(reached))
    abort_state.mark_left(1)
    assert work.wait().tolist() == [1.0, 1.0]


def test_close_is_taken_by_all_together_and_twice(make_world):
    world = make_world(3)
    run_ranks(3, lambda rank: world.communicators[rank].close())
    for nccl in world.nccl:
        assert nccl.log == ["init", "finalize", "destroy"]
    world.communicators[0].close()
    with pytest.raises(GroupClosedError, match="is closed"):
        world.communicators[0].allreduce(torch.ones(1))


def test_close_finishes_what_is_under_way(make_world):
    world = make_world(2)
    for nccl in world.nccl:
        nccl.busy = True  # the kernels don't end

    def launch_and_close(rank: int) -> None:
        communicator, nccl = world.communicators[rank], world.nccl[rank]
        communicator.allreduce(torch.ones(2), "sum")
        closing = threading.Thread(target=communicator.close)
        closing.start()
        closing.join(0.05)
        assert "finalize" not in nccl.log
        nccl.busy = False
        closing.join()

    run_ranks(2, launch_and_close)
    for nccl in world.nccl:
        assert nccl.log == ["init", "ncclAllReduce", "finalize", "destroy"]


def test_close_without_the_others_aborts(make_world):
    world = make_world(2)
    world.communicators[0].close(timeout=0.05)
    assert world.nccl[0].log == ["init", "finalize", "abort"]


def test_results_from_before_a_lonely_close_still_count(make_world):
    world = make_world(2)
    works = run_ranks(2, lambda rank: world.communicators[rank].allreduce(torch.ones(2), "sum"))
    world.communicators[0].close(timeout=0.05)
    assert world.nccl[0].log == ["init", "ncclAllReduce", "finalize", "abort"]
    assert works[0].done()
    assert works[0].wait().tolist() == [2.0, 2.0]


def test_close_of_a_failed_group_aborts_at_once(make_world):
    world = make_world(1)
    world.abort_states[0].fail(NcclError("x"))
    world.communicators[0].close()
    wait_for(lambda: "abort" in world.nccl[0].log)
    assert "finalize" not in world.nccl[0].log
