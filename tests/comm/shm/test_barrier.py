"""Futexes and barriers in shared memory; and how many cores there are to wait on."""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from hpsearch_comm.errors import CommError, CommTimeoutError, ConfigurationError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.header import Signature
from hpsearch_comm.shm import futex
from hpsearch_comm.shm.barrier import BESIDE_LOOK, LINE, LOOK, SPIN, Barrier, Words
from hpsearch_comm.shm.cores import core_quota, usable_cores
from hpsearch_comm.shm.memfd import Memfd, tensor_over
from tests.comm.forming import wait_until

ASLEEP = 0


@pytest.fixture
def words() -> Words:
    """Return a page of words."""
    with closing(Memfd(mmap.PAGESIZE)) as memfd:
        mapping = memfd.map()
    return Words(tensor_over(mapping, 0, mmap.PAGESIZE), memoryview(mapping))


@pytest.fixture
def abort_state() -> Iterator[AbortState]:
    with closing(AbortState()) as abort_state:
        yield abort_state


def barriers(words: Words, size: int) -> list[Barrier]:
    arrivals = [(4 + 2 * index) * LINE for index in range(size)]
    return [Barrier(words, arrivals, ASLEEP, index, range(size)) for index in range(size)]


def operation(rank: int, abort_state: AbortState, timeout: float = 30.0, spin: bool = False) -> Operation:
    return Operation(rank, Signature(0, "barrier", "direct").pack(), timeout, abort_state, spin=spin)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("first", [0, 1, 2, 0xFFFFFFFA], ids=["0", "1", "2", "before the numbers begin again"])
@pytest.mark.parametrize("spin", [False, True])
def test_nobody_passes_a_barrier_before_everybody_has_come(words, abort_state, size, first, spin):
    meeting = barriers(words, size)
    for index, barrier in enumerate(meeting):
        barrier._count = first
        barrier.may_spin = spin
        words.view[(4 + 2 * index) * LINE // 4] = first
    rounds = 12
    come = [0] * size

    def on_rank(rank: int) -> bool:
        in_step = True
        for turn in range(rounds):
            come[rank] = turn + 1
            meeting[rank].wait(operation(rank, abort_state, spin=spin))
            in_step &= all(turn + 1 <= others <= turn + 2 for others in come)
        return in_step

    with ThreadPoolExecutor(size) as pool:
        assert all(pool.map(on_rank, range(size)))


def test_a_barrier_names_all_that_it_waits_for(words, abort_state):
    one, _, third, _ = barriers(words, 4)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(third.wait, operation(2, abort_state))
        wait_until(lambda: words.view[(4 + 2 * 2) * LINE // 4] == 1)  # it has come
        with pytest.raises(CommTimeoutError, match="for rank 1 and rank 3 in barrier 0"):
            one.wait(operation(0, abort_state, timeout=0.3))
        with pytest.raises(CommError):
            other.result()


def test_a_barrier_ends_with_the_group(words, abort_state):
    one, _ = barriers(words, 2)
    abort_state.on_change(one.wake)
    about_to_wait = threading.Event()

    def wait() -> None:
        about_to_wait.set()
        one.wait(operation(0, abort_state))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        about_to_wait.wait()
        abort_state.fail(PeerLost("rank 1 has died", 1))
        with pytest.raises(PeerLost):
            waiting.result()


def test_a_barrier_that_everybody_has_reached_is_passed_whatever_has_become_of_the_group(words, abort_state):
    """What a rank did before it left, or before the group ended, still counts."""
    one, two = barriers(words, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.wait, operation(0, abort_state))
        two.wait(operation(1, abort_state))
        first.result()
    words.view[(4 + 2 * 1) * LINE // 4] = 2
    abort_state.fail(PeerLost("rank 1 has died", 1))
    one.wait(operation(0, abort_state))


@pytest.mark.parametrize(
    ("may_spin", "spin", "looks"),
    [(True, True, (SPIN, LOOK)), (False, True, (0.0, LOOK)), (True, False, (0.0, BESIDE_LOOK))],
)
def test_a_thread_beside_its_callers_holds_no_core_and_soon_sleeps(words, abort_state, may_spin, spin, looks):
    barrier, _ = barriers(words, 2)
    barrier.apart, barrier.may_spin = True, may_spin
    assert barrier.looks(operation(0, abort_state, spin=spin)) == looks
    assert BESIDE_LOOK < LOOK / 10


def test_a_rank_that_comes_while_we_look_and_then_leaves_has_come(words, abort_state, monkeypatch):
    one, two = barriers(words, 2)
    check = Wait.check

    def check_late(wait: Wait, awaited: list[int]) -> None:
        if 1 not in abort_state.departed:
            two.wait(operation(1, abort_state))
            abort_state.mark_departed(1)
        check(wait, awaited)

    monkeypatch.setattr(Wait, "check", check_late)
    one.wait(operation(0, abort_state))
    with pytest.raises(PeerLost, match="rank 1 has closed the group"):
        one.wait(operation(0, abort_state))


def test_a_machine_without_futexes_is_told_what_to_do(words, monkeypatch):
    futex.check_works(words.base + 512, words.view, 512 // 4)
    monkeypatch.setattr(futex, "_number", -1)
    with pytest.raises(ConfigurationError, match='transport="tcp"'):
        futex.check_works(words.base + 512, words.view, 512 // 4)


def test_the_size_of_a_segment_is_sealed():
    with closing(Memfd(4096)) as memfd:
        for nbytes in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(memfd._descriptor, nbytes)


def test_memory_that_is_not_there_is_an_error_that_says_so():
    with closing(Memfd(1 << 62)) as memfd, pytest.raises(CommError, match="bytes of shared memory can't be had"):
        memfd.map()


def test_cores_are_those_of_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert usable_cores() == {1, 5}


def test_a_quota_is_the_tightest_on_the_way_to_the_root(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/machine/job\n")
    job = tmp_path / "machine" / "job"
    job.mkdir(parents=True)
    assert core_quota(membership, tmp_path) == math.inf
    (job / "cpu.max").write_text("max 100000\n")
    (tmp_path / "machine" / "cpu.max").write_text("350000 100000\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert core_quota(membership, tmp_path) == 3.5


def test_a_quota_of_the_first_version_of_control_groups(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("5:memory:/job\n4:cpu,cpuacct:/job\n")
    job = tmp_path / "cpu" / "job"
    job.mkdir(parents=True)
    (job / "cpu.cfs_period_us").write_text("50000\n")
    (job / "cpu.cfs_quota_us").write_text("-1\n")
    assert core_quota(membership, tmp_path) == math.inf
    (job / "cpu.cfs_quota_us").write_text("75000\n")
    assert core_quota(membership, tmp_path) == 1.5


def test_a_container_that_sees_only_its_own_root(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/../../unseen\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert core_quota(membership, tmp_path) == 1
    assert core_quota(tmp_path / "none", tmp_path) == math.inf
