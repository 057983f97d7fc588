"""What is called when an operation has ended, and torch's work over it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import hpsearch_comm as comm
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.torch_backend.work import CommWork


def test_a_callback_is_called_once_whether_it_comes_before_the_end_or_after():
    called: list[str] = []
    handle: Handle[int] = Handle("it")
    handle.add_done_callback(lambda: called.append("first"))
    handle.add_done_callback(lambda: called.append("second"))
    assert called == []
    handle.finish(3)
    assert called == ["first", "second"]
    handle.add_done_callback(lambda: called.append("late"))
    assert called == ["first", "second", "late"]


def test_callbacks_that_come_while_it_ends_are_called_once():
    for _ in range(200):
        handle: Handle[int] = Handle("it")
        called: list[int] = []
        begin = threading.Barrier(3)

        def add(handle: Handle[int] = handle, begin: threading.Barrier = begin, called: list[int] = called) -> None:
            begin.wait()
            handle.add_done_callback(lambda: called.append(1))

        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        handle.finish()
        for thread in threads:
            thread.join()
        assert called == [1, 1]


def test_what_a_gpu_does_calls_nobody_back():
    with pytest.raises(comm.UsageError, match="wait for its handle"):
        Handle[int]("it", launches=True).add_done_callback(lambda: None)


def test_a_work_puts_results_in_place_once_and_before_anybody_learns_of_its_end():
    handles = [Handle[int]("one"), Handle[int]("two")]
    finished: list[list[int]] = []
    work = CommWork(handles, [torch.ones(1)], finished.append)
    future = work.get_future()
    assert work.get_future() is future
    handles[1].finish(2)
    assert not work.is_completed()
    assert not future.done()
    with pytest.raises(dist.DistBackendError, match="one is still running"):
        work.wait(timedelta(seconds=0.01))
    handles[0].finish(1)
    assert future.wait()[0].item() == 1
    assert finished == [[1, 2]]
    assert work.wait()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].item() == 1
    assert finished == [[1, 2]]


def test_a_work_that_fails_says_so_every_time():
    lost = comm.PeerLost("rank 1 has died", 1)
    handle: Handle[int] = Handle("it")
    work = CommWork([handle], [], lambda _: pytest.fail("nothing has come"))
    future = work.get_future()
    handle.finish(error=lost)
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="PeerLost: rank 1 has died") as caught:
            work.wait()
        assert isinstance(caught.value.__cause__, comm.PeerLost)
        assert caught.value.__cause__.rank == 1
    with pytest.raises(RuntimeError, match="PeerLost: rank 1 has died"):
        future.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert work.exception() is lost


def test_a_result_that_doesnt_fit_is_an_error_of_this_rank():
    def refuse(_: list[int]) -> None:
        raise comm.UsageError("expected other splits")

    handle: Handle[int] = Handle("it")
    handle.finish(1)
    with pytest.raises(dist.DistBackendError, match="expected other splits"):
        CommWork([handle], [], refuse).wait()


def test_only_a_receive_has_a_source():
    with pytest.raises(dist.DistBackendError, match="only the work of a receive"):
        CommWork([], []).source_rank()
