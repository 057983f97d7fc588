"""A group beside its collectives: what it says of itself, what it refuses, how it ends, what it leaves behind."""

from __future__ import annotations

import enum
import gc
import json
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.engine import Engine
from hpsearch_comm.operation import Operation
from hpsearch_comm.turns import Prepared
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
    assert run_ranks(2, work, transport="tcp", cost_model={"tcp_alpha": 1e-3}) == ["butterfly"] * 2
    assert run_ranks(3, work, hosts=["a", "a", "b"], algorithm="hierarchical") == ["hierarchical"] * 3


def test_rank_0s_cost_model_counts_for_all(tmp_path):
    file = tmp_path / "model.json"
    file.write_text(json.dumps(comm.CostModel(tcp_alpha=7.0).to_dict()))
    seen = []

    def work(group: comm.Group) -> None:
        seen.append(group._model.tcp_alpha)

    run_ranks(2, work, cost_model=str(file))
    assert seen == [7.0, 7.0]


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
    ("call", "message"),
    [
        (lambda group: group.allreduce([1.0]), r"allreduce takes a torch.Tensor, got list"),
        (lambda group: group.allreduce(torch.ones(3).to_sparse()), r"a dense tensor, got one of layout sparse_coo"),
        (lambda group: group.allreduce(torch.ones(3), "avg"), r'did you mean op="mean"'),
        (lambda group: group.allreduce(torch.ones(3), 5), r"op must be one of sum, mean"),
        (lambda group: group.allreduce(torch.ones(3), ["sum"]), r"op must be one of sum, mean"),
        (lambda group: group.allreduce(torch.ones(3), numpy.array(["sum"])), r"op must be one of sum, mean"),
        (lambda group: group.allreduce(torch.ones(3), b"sum"), r"op must be one of sum, mean"),
        (lambda group: group.allreduce(torch.ones(3, dtype=torch.int64)), r'use op="sum"'),
        (lambda group: group.allreduce(torch.ones(3), out=torch.ones(4)), r"float32 \[3\] on cpu, got .*float32 \[4\]"),
        (lambda group: group.allreduce(torch.ones(3), out=torch.ones(3).double()), r"got torch.float64"),
        (lambda group: group.broadcast(torch.ones(3), root=1), r"root must be a rank from 0 to 0, got 1"),
        (lambda group: group.broadcast(torch.ones(3), root=True), r"root must be a rank"),
        (lambda group: group.broadcast(torch.ones(3), root=False), r"root must be a rank.*got False"),
        (lambda group: group.broadcast(torch.ones(3), root=numpy.bool_(False)), r"root must be a rank"),
        (lambda group: group.broadcast(torch.ones(3), root=0.0), r"root must be a rank.*got 0.0"),
        (lambda group: group.reduce_scatter(torch.tensor(1.0)), r"one without dimensions"),
        (lambda group: group.alltoall(torch.tensor(1.0)), r"one without dimensions"),
        (lambda group: group.alltoall(torch.ones(3), [1, 2]), r"splits must be 1 numbers from 0.*got \[1, 2\]"),
        (lambda group: group.alltoall(torch.ones(3), [1.5, 1.5]), r"splits must be whole numbers.*got \[1.5, 1.5\]"),
        (lambda group: group.alltoall(torch.ones(3), 3), r"splits must be whole numbers.*got 3"),
        (lambda group: group.alltoall(torch.ones(1), [True]), r"splits must be whole numbers.*got \[True\]"),
        (lambda group: group.alltoall(torch.ones(1), torch.tensor([True])), r"splits must be whole numbers"),
        (lambda group: group.allgather_object({1: 2}), r"dicts with text keys"),
        (lambda group: group.allgather_object([{"a": {None: 1}}]), r"the key None would become text"),
        (lambda group: group.allgather_object({1, 2}), r"got set"),
        (lambda group: group.broadcast_object(torch.ones(1)), r"got Tensor"),
        (lambda group: group.empty(-1), r"numbers from 0, got \(-1,\)"),
        (lambda group: group.empty(3.0), r"numbers from 0, got \(3.0,\)"),
        (lambda group: group.empty(True), r"numbers from 0, got \(True,\)"),
        (lambda group: group.empty(1 << 62, 4), r"too large"),
        (lambda group: group.empty(3, dtype="float32"), r"dtype must be a torch.dtype, got 'float32'"),
        (lambda group: group.empty(3, dtype=torch.complex32), r"no collectives of torch.complex32"),
    ],
)
def test_a_mistake_is_refused_before_anything_travels_and_the_group_goes_on(call, message):
    with alone() as group:
        with pytest.raises(comm.UsageError, match=message):
            call(group)
        assert group.allreduce(torch.ones(2)).tolist() == [1, 1]


class Op(str, enum.Enum):  # noqa: UP042, as programs have it
    """Operators as a program may name them."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class Other(str):
    """Text that looks like another one wherever it is compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


PLAIN = {"sum": 3.0, "mean": 1.5, "max": 2.0, "min": 1.0, "product": 2.0}
KINDS: list[Callable[[str], Any]] = [
    str,
    numpy.str_,
    Other,
    lambda name: {"sum": Op.SUM, "mean": Op.MEAN, "max": Op.MAX}.get(name, name),
]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(PLAIN)), st.integers(0, len(KINDS) - 1)), min_size=2, max_size=12))
def test_an_operator_of_any_kind_of_text_is_the_one_that_it_names(calls):
    def work(group: comm.Group) -> list[float]:
        mine = 1.0 + group.rank
        found = [group.allreduce(torch.full((4,), mine), KINDS[kind](name))[0].item() for name, kind in calls]
        return found + [
            group.reduce_scatter(torch.full((4,), mine), KINDS[kind](name))[0].item() for name, kind in calls
        ]

    assert run_ranks(2, work) == [[PLAIN[name] for name, _ in calls] * 2] * 2


def test_a_mistaken_operator_is_refused_after_a_good_one_of_the_same_kind():
    with alone() as group:
        group.allreduce(torch.ones(3), Op.SUM)
        for wrong in (None, 5, Other("avg"), b"sum"):
            with pytest.raises(comm.UsageError, match="op must be one of sum, mean"):
                group.allreduce(torch.ones(3), wrong)  # type: ignore[arg-type]


class Place(enum.IntEnum):
    FIRST = 0
    SECOND = 1


NUMBERS: list[Callable[[int], Any]] = [int, numpy.int64, numpy.uint8, Place, torch.tensor]


@pytest.mark.parametrize("number", NUMBERS)
def test_whole_numbers_of_any_kind_will_do(number):
    def work(group: comm.Group) -> list[Any]:
        return [
            group.broadcast(torch.full((2,), 1.0 + group.rank), root=number(1)).tolist(),
            group.broadcast_object(group.rank, root=number(1)),
            group.alltoall(torch.tensor([5.0, 6.0]), [number(1), number(1)])[1],
            list(group.empty(number(1), number(0)).shape),
            list(group.empty(torch.Size([1, 2])).shape),  # type: ignore[arg-type]
        ]

    assert run_ranks(2, work) == [[[2.0, 2.0], 1, [1, 1], [1, 0], [1, 2]]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1, "size": 1}, "rank must be from 0 to 0, got 1"),
        ({"rank": 0, "size": 0}, "size must be a number of ranks from 1, got 0"),
        ({"rank": 0, "size": 2}, "needs a rendezvous"),
        ({"rank": 0, "size": 2, "rendezvous": comm.KnownAddresses(["a", "b"])}, "needs a secret"),
        ({"rank": 0, "size": 1, "timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"rank": 0, "size": 1, "start_timeout": math.inf}, "start_timeout must be"),
        ({"rank": 0, "size": 1, "algorithm": "rings"}, "algorithm must be one of auto, direct"),
        ({"rank": 0, "size": 1, "transport": "udp"}, "transport must be one of auto, tcp, got 'udp'"),
        ({"rank": 0, "size": 1, "algorithm": "hierarchical"}, "hierarchical a host with more than one rank"),
        ({"rank": 0, "size": 1, "cost_model": "/nowhere.json"}, "cost_model '/nowhere.json' must be a JSON file"),
        ({"rank": 0, "size": 1, "cost_model": {"alpha": 1}}, "got alpha"),
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


@pytest.mark.parametrize("options", [{}, {"transport": "tcp"}, {"hosts": ["a", "a", "b"]}])
@pytest.mark.parametrize("length", [2, 40_000])
def test_a_mistake_that_shows_when_something_has_travelled_is_told_at_the_end_and_the_group_goes_on(length, options):
    def work(group: comm.Group) -> None:
        rank, rows = group.rank, (1 + group.rank) * length
        expected = torch.cat([torch.full(((1 + other) * length, 2), float(other)) for other in range(3)])
        mine = torch.full((rows, 2), float(rank))
        calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda out: group.allgather(mine, out=out),
            lambda out: group.allgather_async(mine, out=out).wait(),
            lambda out: group.allgather(mine, out=out.t().contiguous().t()),
        ]
        for wrong in (6 * length - 1, 6 * length + 1, 0):
            for call in calls:
                if rank == 1:
                    out = torch.full((wrong, 2), 9.0)
                    with pytest.raises(comm.UsageError, match=rf"must be .* \[{6 * length}, 2\].*got .*\[{wrong}, 2\]"):
                        call(out)
                    assert (out == 9).all()
                else:
                    assert torch.equal(call(torch.empty(6 * length, 2)), expected)
        assert torch.equal(group.allgather(mine), expected)
        assert group.allreduce(torch.ones(3), "sum").tolist() == [3.0] * 3

    run_ranks(3, work, **options)


def test_other_mistakes_in_where_a_result_goes_show_before_anything_travels():
    def work(group: comm.Group) -> None:
        mine = torch.ones(4, 2)
        wrong = [torch.ones(8, 3), torch.ones(8), torch.tensor(1.0), torch.ones(8, 2).double(), torch.ones(8, 2, 1)]
        if group.rank == 1:
            for out in [*wrong, torch.ones(8, 2, device="meta")]:
                with pytest.raises(comm.UsageError, match=r"out of allgather must be torch\.float32"):
                    group.allgather(mine, out=out)
            for out in [*wrong, torch.ones(3, 2)]:
                with pytest.raises(comm.UsageError, match="out of reduce_scatter must be"):
                    group.reduce_scatter(mine, out=out)
            for splits in ([4], [2, 3], [5, -1], [1, 1, 2]):
                with pytest.raises(comm.UsageError, match="splits must be 2 numbers"):
                    group.alltoall(mine, splits)
        assert (group.allgather(mine, out=torch.empty(8, 2)) == 1).all()

    run_ranks(2, work)


def test_an_operation_behind_one_that_failed_does_not_begin():
    began: list[str] = []
    go = threading.Event()

    def fail(_operation: Operation) -> None:
        go.wait(20)
        raise comm.PeerLost("rank 1 has died", 1)

    with alone() as group:
        call = group._prepare.barrier().call
        torn = group._turns.later(Prepared(call, fail))
        behind = group._turns.later(Prepared(call, lambda _operation: began.append("asynchronous")))
        blocking: list[BaseException] = []

        def wait_behind() -> None:
            try:
                group._turns.now(Prepared(call, lambda _operation: began.append("blocking")))
            except comm.CommError as error:
                blocking.append(error)

        waiting = threading.Thread(target=wait_behind)
        last = group._turns._engine._last  # type: ignore[union-attr]
        waiting.start()
        while group._turns._engine._last is last:  # type: ignore[union-attr]
            time.sleep(0.002)
        go.set()
        waiting.join()
        for handle in (torn, behind):
            with pytest.raises(comm.PeerLost, match="rank 1 has died"):
                handle.wait()
        assert [str(error) for error in blocking] == ["rank 1 has died"]
        assert began == []


class InterruptedLock:
    """A lock behind whose `acquire` an interruption comes, as Ctrl-C may."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.locked = lock.locked
        self.release = lock.release
        self.interruptions = 1

    def acquire(self, *arguments: Any, **named: Any) -> bool:
        taken: bool = self._lock.acquire(*arguments, **named)
        if taken and self.interruptions:
            self.interruptions -= 1
            raise KeyboardInterrupt
        return taken


def test_a_wait_that_is_interrupted_at_its_end_can_be_repeated():
    handle: comm.Handle[int] = comm.Handle("allreduce 1")
    handle._finished = InterruptedLock(handle._finished)  # type: ignore[assignment]
    outcomes: list[object] = []

    def wait() -> None:
        try:
            outcomes.append(handle.wait(20))
        except BaseException as error:
            outcomes.append(type(error))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    handle.finish(5)
    for thread in waiting:
        thread.join()
    assert outcomes.count(5) == 3 - outcomes.count(KeyboardInterrupt)
    assert handle.done()
    assert handle.wait(5) == 5
    assert handle.wait() == 5


def interrupting(group: comm.Group) -> list[Callable[[], object]]:
    """What a signal's handler may call."""
    return [
        group.barrier,
        lambda: group.allreduce(torch.ones(3)),
        lambda: group.allreduce_async(torch.ones(3)),
        group.duplicate,
        group.close,
        lambda: group.close(KeyError("late")),
    ]


def refused(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        with pytest.raises(comm.UsageError, match="within one of its own operations"):
            call()


def test_what_interrupts_an_operation_can_use_the_group_no_more_than_end_it_and_the_group_goes_on(monkeypatch):
    with alone() as group:
        call = group._prepare.barrier().call
        group._turns.now(Prepared(call, lambda _operation: refused(interrupting(group))))
        handle = group.allreduce_async(torch.ones(3))
        submit = Engine.submit

        def interrupted(engine: Engine, name: str, task: Callable[[], Any]) -> comm.Handle[Any]:
            refused(interrupting(group))
            return submit(engine, name, task)

        monkeypatch.setattr(Engine, "submit", interrupted)
        group.allreduce_async(torch.ones(3)).wait()
        handle.wait()
        group.barrier()
        assert not group.closed


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
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    content = json.loads(trace.read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    operations = [event for event in events if event.get("name") == "allreduce"]
    assert {event["pid"] for event in operations} == {0, 1, 2}
    assert len(operations) == 6
    assert {event["args"]["bytes"] for event in operations} == {4000, 400_000}
    assert {event["args"]["algorithm"] for event in operations} == {"hierarchical"}


def test_the_secret_isnt_shown():
    assert "secret" not in repr(alone(secret=SECRET))
    assert SECRET.hex() not in repr(comm.Group(0, 1, secret=SECRET)._options)
