"""One piece of memory that all ranks of a group have: what is in it, its locks, and what becomes of it."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hpsearch_comm import CommError, CommTimeoutError, Group, MismatchError, PeerLost, SharedMemory, UsageError
from hpsearch_comm.shm.memfd import check_available
from tests.comm.leftovers import shared_memory_files
from tests.comm.process_ranks import ProcessRanks
from tests.comm.shm.test_shm_segment import mapped
from tests.comm.thread_ranks import run_ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    before = shared_memory_files()
    with ProcessRanks("tests.comm.shm.sharing") as server:
        yield server
    assert shared_memory_files() <= before


def raised(kind: type[Exception], task: Any) -> str:
    with pytest.raises(kind) as caught:
        task()
    return str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_have_the_same_bytes_zero_at_first(size):
    def work(group: Group) -> tuple[list[float], list[float]]:
        memory = group.share(40, locks=2)
        numbers = memory.data.view(torch.float32)
        before = numbers.tolist()
        group.barrier()
        numbers[group.rank] = 1.5 + group.rank
        group.barrier()
        return before, numbers.tolist()

    expected = [1.5 + rank for rank in range(size)] + [0.0] * (10 - size)
    assert run_ranks(size, work) == [([0.0] * 10, expected)] * size


def test_pieces_are_apart_and_outlive_their_group():
    def work(group: Group) -> tuple[SharedMemory, SharedMemory]:
        one, other = group.share(1 << 20), group.share(3, locks=100)
        one.data.fill_(1)
        group.barrier()
        assert other.data.tolist() == [0, 0, 0]
        assert group.share(0).data.numel() == 0
        return one, other

    pieces = run_ranks(2, work)
    pieces[0][0].data[7] = 5
    assert pieces[1][0].data[7] == 5
    assert [len(other.locks) for _, other in pieces] == [100, 100]


def test_it_goes_with_the_last_tensor_over_it():
    gc.collect()
    before = mapped()
    ((data, _),) = [run_ranks(2, lambda group: group.share(1 << 20, locks=3).data)]
    assert mapped() > before
    del data, _
    assert mapped() == before


def test_ranks_that_want_other_memory_are_told_of_both():
    def work(group: Group) -> str:
        return raised(MismatchError, lambda: group.share(8, locks=1 + group.rank))

    for text in run_ranks(2, work):
        assert "share 0 (uint8 [8], 8 bytes, locks 1, direct)" in text
        assert "share 0 (uint8 [8], 8 bytes, locks 2, direct)" in text


@pytest.mark.parametrize(
    ("options", "hosts"), [({"hosts": ["a", "a", "b"]}, "[[0, 1], [2]]"), ({"transport": "tcp"}, "[[0], [1], [2]]")]
)
def test_ranks_that_share_no_memory_are_refused_and_the_group_goes_on(options, hosts):
    def work(group: Group) -> tuple[str, float]:
        text = raised(UsageError, lambda: group.share(8))
        return text, float(group.allreduce(torch.ones(()), "sum"))

    for text, total in run_ranks(3, work, **options):
        assert f"share needs all ranks on one host, got {hosts}" in text
        assert total == 3


@pytest.mark.parametrize(("nbytes", "locks"), [(-1, 0), (True, 0), (1.0, 0), (1 << 47, 0), (8, -1), (8, None)])
def test_arguments_that_are_no_numbers_are_refused(nbytes, locks):
    with Group(0, 1) as group:
        assert "of share must be a number from 0" in raised(UsageError, lambda: group.share(nbytes, locks))
        assert group.share(8).data.numel() == 8


def test_a_collective_does_not_write_into_it():
    """Each rank would overwrite what others still read."""

    def work(group: Group) -> list[float]:
        inside = group.share(16).data.view(torch.float32)
        own = torch.full((4,), 2.0)
        writing = (
            lambda: group.allreduce(inside),
            lambda: group.allreduce(own, out=inside),
            lambda: group.allgather(own[: 4 // group.size], out=inside[1:]),
            lambda: group.reduce_scatter(own, out=inside[: 4 // group.size]),
        )
        for task in writing:
            assert "got memory of Group.share: pass tensor.clone()" in raised(UsageError, task)
        if group.rank == 1:
            assert "got memory of Group.share" in raised(UsageError, lambda: group.broadcast(inside))
        group.barrier()
        return list(group.allreduce(inside, out=own).tolist())  # reading is well

    assert run_ranks(2, work) == [[0.0] * 4] * 2


def test_a_lock_loses_no_update(ranks):
    outcomes = ranks.call(3, "counted", 2000)
    assert [outcome.result for outcome in outcomes] == [6000.0] * 3


@pytest.mark.parametrize("first", [True, False])
def test_a_holder_that_is_killed_is_named_to_all_who_come_and_wait(ranks, first):
    outcomes = ranks.call(3, "killed_holding", 1, first)
    assert outcomes[1].code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert (outcome.error, outcome.rank) == ("PeerLost", 1), outcome
        assert "rank 1 has died while it held lock 1 of the shared memory" in outcome.text


@pytest.mark.parametrize("how", ["killed_behind", "told_while_working", "killed_before_it_says_so"])
def test_a_rank_that_is_killed_is_named_to_those_who_wait_for_it_or_work(ranks, how):
    outcomes = ranks.call(3, how, 2)
    for outcome in outcomes[:2]:
        assert (outcome.error, outcome.rank) == ("PeerLost", 2), outcome


def test_a_thread_that_ends_with_a_lock_is_a_holder_that_has_died():
    def work(group: Group) -> str:
        memory = group.share(0, locks=1)
        if group.rank == 0:
            thread = threading.Thread(target=memory.locks[0].__enter__)
            thread.start()
            thread.join()
        group.barrier()
        return raised(PeerLost, memory.locks[0].__enter__)

    for text in run_ranks(2, work):
        assert "rank 0 has died while it held lock 0" in text


def test_a_lock_that_its_holder_keeps_is_given_up_at_the_deadline():
    given_up = threading.Event()

    def work(group: Group) -> str:
        memory = group.share(0, locks=1)
        if group.rank == 0:
            with memory.locks[0]:
                group.barrier()
                given_up.wait()
            return raised(CommError, group.barrier)
        group.barrier()
        try:
            return raised(CommTimeoutError, memory.locks[0].__enter__)
        finally:
            given_up.set()

    for text in run_ranks(2, work, timeout=0.5):
        assert "for rank 0 in lock 0, without any progress" in text


def test_a_lock_is_given_back_after_an_error_and_not_taken_twice():
    def work(group: Group) -> str:
        (lock,) = group.share(0, locks=1).locks
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), lock:
                1 // 0  # noqa: B018
        with lock:
            return raised(UsageError, lock.__enter__)

    assert set(run_ranks(2, work)) == {"this thread holds lock 0 of the shared memory already: give it back first"}


def test_waiting_ends_when_all_have_come_as_far():
    order: list[str] = []

    def work(group: Group) -> None:
        memory = group.share(0)
        for _ in range(3 if group.rank == 0 else 4):
            memory.advance()
        if group.rank == 0:
            memory.wait()
            order.append("the others were there")
            group.barrier()
        memory.advance()
        if group.rank > 0:
            group.barrier()

    run_ranks(3, work)
    assert order == ["the others were there"]


def test_a_rank_that_stays_behind_is_named_at_the_deadline():
    given_up = threading.Event()

    def work(group: Group) -> str:
        memory = group.share(0)
        if group.rank == 1:
            given_up.wait()
            return raised(CommError, group.barrier)
        memory.advance()
        try:
            return raised(CommTimeoutError, memory.wait)
        finally:
            given_up.set()

    for text in run_ranks(3, work, timeout=0.5):
        assert "for rank 1 in await_counts 1, without any progress" in text


@pytest.mark.exhaustive
def test_a_slow_rank_is_waited_for_as_long_as_it_goes_on():
    pause = threading.Event()

    def work(group: Group) -> None:
        memory = group.share(0)
        for _ in range(6):
            if group.rank == 1:
                pause.wait(1.0)
            memory.advance()
        memory.wait()

    run_ranks(2, work, timeout=3.0)


def test_mounts_and_ipc_names_of_ones_own_keep_no_rank_from_sharing(ranks):
    outcomes = ranks.call(2, "across_namespaces")
    if outcomes[1].result == []:
        pytest.skip("only root can make namespaces")
    assert [outcome.result for outcome in outcomes] == [[1, 2, 0, 0]] * 2


def test_more_than_a_process_may_map_is_an_error_with_the_size(ranks):
    outcomes = ranks.call(2, "beyond_the_limit", 1 << 32)
    for outcome in outcomes:
        assert "4,294,971,392 bytes of shared memory can't be had (Cannot allocate memory)" in outcome.text


def test_more_than_there_is_on_the_machine_is_an_error_with_both_sizes():
    for text in run_ranks(2, lambda group: raised(CommError, lambda: group.share(1 << 46))):
        assert "70,368,744,181,760 bytes of shared memory can't be had, as what is free is " in text


def test_what_is_free_and_the_limits_of_containers_count(tmp_path):
    meminfo, membership = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal:        4096 kB\nMemAvailable:    2048 kB\n")
    membership.write_text("0::/job\n")
    places = {"meminfo": meminfo, "membership": membership, "root": tmp_path}
    check_available(2 << 20, **places)
    assert "as what is free is 2,097,152 bytes" in raised(CommError, lambda: check_available((2 << 20) + 1, **places))
    (tmp_path / "job").mkdir()
    (tmp_path / "memory.max").write_text("max\n")
    check_available(2 << 20, **places)
    (tmp_path / "job" / "memory.max").write_text("1000000\n")
    check_available(1_000_000, **places)
    assert "as the container's limit is 1,000,000 bytes" in raised(
        CommError, lambda: check_available(1_000_001, **places)
    )
    membership.write_text("9:memory:/\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("500000\n")
    assert "as the container's limit is 500,000 bytes" in raised(CommError, lambda: check_available(500_001, **places))
    check_available(1 << 50, tmp_path / "none", tmp_path / "none", tmp_path)
