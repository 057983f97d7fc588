"""A group beside its collectives: what it says of itself, what it refuses, how it ends, what it leaves behind."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.collectives import halving_doubling
from hpsearch_comm.failure import detector
from hpsearch_comm.timeline.merging import merge
from tests.comm.leftovers import shared_memory_files
from tests.comm.thread_ranks import SECRET, run_ranks


def alone(**options: Any) -> comm.Group:
    return comm.Group(0, 1, **options)


def test_it_says_who_is_where():
    def work(group: comm.Group) -> tuple[Any, ...]:
        return group.rank, group.size, group.local_rank, group.local_size, group.hosts

    hosts = ((0, 2), (1,))
    assert run_ranks(3, work, hosts=["a", "b", "a"]) == [(0, 3, 0, 2, hosts), (1, 3, 0, 1, hosts), (2, 3, 1, 2, hosts)]
    assert run_ranks(2, work) == [(0, 2, 0, 2, ((0, 1),)), (1, 2, 1, 2, ((0, 1),))]


def test_the_choice_of_an_algorithm_is_reported_and_can_be_forced():
    def work(group: comm.Group) -> str:
        group.allreduce(torch.ones(100))
        return group.last_algorithm

    assert run_ranks(2, work) == ["direct"] * 2
    assert run_ranks(2, work, algorithm="butterfly") == ["butterfly"] * 2
    assert run_ranks(2, work, transport="tcp", algorithm="ring") == ["ring"] * 2
    assert run_ranks(3, work, hosts=["a", "a", "b"], algorithm="hierarchical") == ["hierarchical"] * 3


@pytest.mark.parametrize(
    ("ranks", "options", "little", "much"),
    [
        (2, {}, "direct", "direct"),
        (3, {"hosts": ["a", "a", "b"]}, "hierarchical", "hierarchical"),
        (2, {"hosts": ["a", "b"]}, "butterfly", "butterfly"),
        (3, {"transport": "tcp"}, "butterfly", "ring"),
    ],
)
def test_where_the_ranks_are_and_how_much_it_is_choose_the_algorithm(ranks, options, little, much):
    def work(group: comm.Group) -> tuple[str, ...]:
        taken = []
        for nbytes in (4, halving_doubling.SHORT, halving_doubling.SHORT + 4):
            group.allreduce(torch.ones(nbytes // 4))
            taken.append(group.last_algorithm)
        return tuple(taken)

    assert run_ranks(ranks, work, **options) == [(little, little, much)] * ranks


def test_ranks_that_wait_for_each_other_on_different_ways_find_out():
    """One waits in shared memory for a rank that waits on a link for it."""

    def work(group: comm.Group) -> str:
        with pytest.raises(comm.MismatchError) as caught:
            group.allreduce(torch.ones(3)) if group.rank else group.empty(3)
        return str(caught.value)

    for message in run_ranks(2, work, algorithm="ring"):
        assert "rank 0 calls empty 0" in message
        assert "rank 1 calls allreduce 0" in message


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(
    ("step", "work"),
    [
        ("subgroup", lambda group: group.duplicate()),
        ("agreement", lambda group: comm.DataParallel(torch.nn.Linear(2, 2), group)),
    ],
)
def test_what_we_tell_each_other_ourselves_passes_for_no_call_of_a_users(transport, step, work):
    def call(group: comm.Group) -> str:
        with pytest.raises(comm.MismatchError) as caught:
            work(group) if group.rank else group.allgather_object("mine")
        return str(caught.value)

    for message in run_ranks(2, call, transport=transport):
        assert "rank 0 calls allgather_object 0" in message
        assert f"rank 1 calls {step} 0" in message


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("lengths", [(0, 0, 0), (1, 0, 30), (0, 246, 0), (247, 0, 2), (9, 5000, 777)])
def test_objects_of_all_lengths_come_through(transport, lengths):
    texts = ["".join(chr(97 + (rank * 7 + at) % 26) for at in range(length)) for rank, length in enumerate(lengths)]
    found = run_ranks(3, lambda group: group.allgather_object(texts[group.rank]), transport=transport)
    assert found == [texts] * 3


@pytest.mark.parametrize("length", [0, 1, 10])
def test_a_group_of_one_needs_nobody(length):
    with alone() as group:
        tensor = torch.arange(float(length))
        assert group.allreduce(tensor) is tensor
        assert tensor.tolist() == list(range(length))
        assert group.allreduce(tensor, out=torch.ones(length)).tolist() == list(range(length))
        assert group.broadcast(tensor) is tensor
        assert group.allgather(tensor).tolist() == list(range(length))
        assert group.reduce_scatter(tensor).tolist() == list(range(length))
        assert group.alltoall(tensor).tolist() == list(range(length))
        assert group.allgather_object(5) == [5]
        assert group.broadcast_object({"a": None}) == {"a": None}
        assert group.empty(length, 2).shape == (length, 2)
        assert group.allreduce_async(tensor).wait() is tensor
        with group.duplicate() as other:
            other.barrier()
        group.barrier()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1, "size": 1}, "rank must be from 0 to 0, got 1"),
        ({"rank": 0, "size": 0}, "size must be a number of ranks from 1, got 0"),
        ({"rank": 0, "size": 2}, "needs a rendezvous"),
        ({"rank": 0, "size": 2, "rendezvous": comm.KnownAddresses(["a", "b"])}, "needs a secret"),
        ({"rank": 0, "size": 1, "timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"rank": 0, "size": 1, "streams": 0}, "streams must be from 1 to 64, got 0"),
        ({"rank": 0, "size": 1, "streams": 65}, "streams must be from 1 to 64, got 65"),
        ({"rank": 0, "size": 1, "start_timeout": math.inf}, "start_timeout must be"),
        ({"rank": 0, "size": 1, "algorithm": "rings"}, "algorithm must be one of auto, direct"),
        ({"rank": 0, "size": 1, "transport": "udp"}, "transport must be one of auto, tcp, got 'udp'"),
        ({"rank": 0, "size": 1, "algorithm": "hierarchical"}, "hierarchical a host with more than one rank"),
        ({"rank": 0, "size": 1, "secret": b"short"}, "must be 32 bytes, got 5 bytes"),
        ({"rank": 0, "size": 1, "epoch": -1}, "epoch must be"),
        ({"rank": 0, "size": 1, "timeline": "/nowhere/trace.json"}, "/nowhere"),
    ],
)
def test_arguments_that_make_no_group_are_refused(options, message):
    with pytest.raises(comm.ConfigurationError, match=message):
        comm.Group(**options)


def test_after_close_it_says_so():
    group = alone()
    group.close()
    group.close()
    assert group.closed
    with pytest.raises(comm.GroupClosedError, match="the group is closed"):
        group.barrier()
    with pytest.raises(comm.GroupClosedError):
        group.allreduce_async(torch.ones(1))


def test_operations_that_are_under_way_are_finished_by_close():
    def work(group: comm.Group) -> comm.Handle[torch.Tensor]:
        return [group.allreduce_async(torch.ones(200_000), "sum") for _ in range(5)][-1]

    for handle in run_ranks(3, work):
        assert handle.done()
        assert (handle.wait() == 3).all()


def test_a_forked_child_is_refused_and_doesnt_end_the_group():
    with warnings.catch_warnings(), alone() as group:
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks
        child = os.fork()
        if child == 0:
            try:
                group.barrier()
            except comm.UsageError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        group.barrier()


def test_an_error_in_the_with_block_reaches_the_other_ranks():
    def work(group: comm.Group) -> None:
        if group.rank == 1:
            raise KeyError("fold")
        group.barrier()
        group.barrier()

    with pytest.raises((KeyError, comm.PeerLost)) as caught:
        run_ranks(3, work)
    assert "fold" in str(caught.value)


def test_groups_side_by_side_and_duplicates_dont_meet():
    def work(group: comm.Group) -> list[float]:
        other = group.duplicate()
        third = other.duplicate()
        groups = (group, other, third)
        # In another order on every rank: they are independent.
        order = [(group.rank + turn) % 3 for turn in range(3)]
        handles = {k: groups[k].allreduce_async(torch.full((1000,), float(group.rank + k))) for k in order}
        result = [handles[k].wait()[0].item() for k in range(3)]
        third.close()
        other.close()
        return result

    assert run_ranks(3, work) == [[1.0, 2.0, 3.0]] * 3


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("close", [True, False])
def test_a_duplicate_keeps_nothing_of_its_parent(size, close):
    def work(group: comm.Group) -> None:
        parent = group.duplicate()
        duplicate = parent.duplicate()
        parent.allreduce(torch.ones(3))
        gone = weakref.ref(parent)
        if close:
            parent.close()
        del parent
        gc.collect()
        assert gone() is None
        with duplicate.duplicate() as another:
            assert another.allreduce(torch.ones(3), "sum").tolist() == [size] * 3
        assert duplicate.allreduce(torch.ones(3), "sum").tolist() == [size] * 3
        duplicate.close()
        assert group.allreduce(torch.ones(3), "sum").tolist() == [size] * 3

    run_ranks(size, work)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"transport": "tcp"}, {"hosts": ["a", "a", "b"]}])
def test_a_hundred_groups_leave_nothing_behind(options):
    def work(group: comm.Group) -> None:
        shared = group.empty(1000)
        group.allreduce(shared)
        group.allreduce_async(torch.ones(10)).wait()

    run_ranks(3, work, **options)
    gc.collect()
    files, threads, mappings = open_files(), threading.active_count(), mapped()
    segments = shared_memory_files()
    for _ in range(33):
        run_ranks(3, work, **options)
    gc.collect()
    assert open_files() == files
    assert threading.active_count() == threads
    assert mapped() < mappings + 30
    assert shared_memory_files() <= segments


def test_a_group_that_is_forgotten_gives_everything_back():
    gc.collect()
    files, threads = open_files(), threading.active_count()
    group = alone()
    group.allreduce(torch.ones(3))
    del group
    gc.collect()
    assert open_files() == files
    assert threading.active_count() == threads


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_close_that_is_interrupted_gives_everything_back(monkeypatch, transport):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def work(group: comm.Group) -> comm.Group:
        group.allreduce(torch.ones(3))
        with pytest.raises(KeyboardInterrupt):
            group.close()
        return group

    gc.collect()
    files, threads = open_files(), threading.active_count()
    monkeypatch.setattr(detector, "_drain", interrupt)
    groups = run_ranks(2, work, transport=transport)
    assert all(group.closed for group in groups)
    assert open_files() == files
    assert threading.active_count() == threads


def test_a_group_that_is_forgotten_finishes_what_was_called():
    def work(group: comm.Group) -> comm.Handle[torch.Tensor]:
        other = group.duplicate()
        return other.allreduce_async(torch.ones(1_000_000), "sum")

    gc.collect()
    threads = threading.active_count()
    for handle in run_ranks(2, work):
        assert (handle.wait() == 2).all()
    gc.collect()
    assert threading.active_count() == threads


def test_many_threads_may_call_at_once():
    def work(group: comm.Group) -> None:
        groups = [group.duplicate() for _ in range(3)]
        failures: list[BaseException] = []

        def call(number: int) -> None:
            try:
                for turn in range(30):
                    own = torch.full((500 + turn,), float(number))
                    groups[number % 3].allreduce(own, "sum") if number < 3 else None
                    common = torch.ones(500)
                    (group.allreduce_async(common, "sum").wait() if turn % 2 else group.allreduce(common, "sum"))
                    assert (common == 2).all()
                    assert number >= 3 or (own == 2 * number).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        for number in (2, 0, 1) if group.rank else (0, 1, 2):
            groups[number].close()

    run_ranks(2, work)


def test_a_timeline_of_all_ranks(tmp_path):
    trace = tmp_path / "trace.json"

    def work(group: comm.Group) -> None:
        group.allreduce(torch.ones(1000))
        with group.timeline.backward():
            group.allreduce_async(torch.ones(100_000)).wait()

    run_ranks(3, work, timeline=str(trace), hosts=["a", "a", "b"], algorithm="hierarchical")
    assert merge(trace, list(tmp_path.iterdir())) == []
    events = json.loads(trace.read_text())["traceEvents"]
    operations = [event for event in events if event.get("name") == "allreduce"]
    assert {event["pid"] for event in operations} == {0, 1, 2}
    assert len(operations) == 6
    assert {event["args"]["bytes"] for event in operations} == {4000, 400_000}
    assert {event["args"]["algorithm"] for event in operations} == {"hierarchical"}


def test_the_secret_isnt_shown():
    assert "secret" not in repr(alone(secret=SECRET))
    assert SECRET.hex() not in repr(comm.Group(0, 1, secret=SECRET)._options)
