"""The order of a group's operations, and what comes between them: a failure, an interruption, a signal's handler."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.work_queue import Prepared, WorkQueue


def test_an_operation_behind_one_that_failed_does_not_begin():
    began: list[str] = []
    go = threading.Event()

    def fail(_operation: Operation) -> None:
        go.wait(20)
        raise comm.PeerLost("rank 1 has died", 1)

    with comm.Group(0, 1) as group:
        call = group._prepare.barrier().call
        torn = group._work_queue.submit(Prepared(call, fail))
        behind = group._work_queue.submit(Prepared(call, lambda _operation: began.append("asynchronous")))
        blocking: list[BaseException] = []

        def wait_behind() -> None:
            try:
                group._work_queue.run(Prepared(call, lambda _operation: began.append("blocking")))
            except comm.CommError as error:
                blocking.append(error)

        waiting = threading.Thread(target=wait_behind)
        last = group._work_queue._last
        waiting.start()
        while group._work_queue._last is last:
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


class LateLock:
    """The lock of a handle, whose operation ends only when somebody waits for it."""

    def __init__(self, handle: comm.Handle[int]) -> None:
        self._handle = handle
        self._lock: Any = handle._finished
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        self._handle.finish(7)
        return bool(self._lock.acquire(timeout=timeout))


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 60])
def test_a_wait_may_have_any_limit(timeout):
    handle: comm.Handle[int] = comm.Handle("allreduce 1")
    handle._finished = LateLock(handle)  # type: ignore[assignment]
    assert handle.wait(timeout) == 7


@pytest.mark.parametrize("timeout", [0, -1, -60, math.nan])
def test_a_wait_whose_time_is_over_ends_at_once(timeout):
    handle: comm.Handle[int] = comm.Handle("allreduce 1")
    with pytest.raises(comm.CommTimeoutError):
        handle.wait(timeout)


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
    with comm.Group(0, 1) as group:
        call = group._prepare.barrier().call
        group._work_queue.run(Prepared(call, lambda _operation: refused(interrupting(group))))
        handle = group.allreduce_async(torch.ones(3))
        submit = WorkQueue._submit

        def interrupted(*arguments: Any) -> comm.Handle[Any]:
            refused(interrupting(group))
            return submit(*arguments)

        monkeypatch.setattr(WorkQueue, "_submit", interrupted)
        group.allreduce_async(torch.ones(3)).wait()
        handle.wait()
        group.barrier()
        assert not group.closed
