"""Which stream does what for torch's works and futures, and which stream waits. Those here work on the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

import hpsearch_comm as comm
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.torch_backend.process_group import CommProcessGroup
from hpsearch_comm.torch_backend.work import CallersStreams, CommWork
from tests.comm.host_devices import DeviceRanks, HostEvent, HostStream


class NotedStream(HostStream):
    """A stream that notes what is asked of it."""

    log: ClassVar[list[Any]] = []
    stack = threading.local()

    def __init__(self, name: str, device: int = 0) -> None:
        super().__init__()
        self.name = name
        self.device = torch.device("cuda", device)

    @classmethod
    def current(cls, device: torch.device) -> NotedStream:
        found: list[NotedStream] = getattr(cls.stack, "streams", [])
        return next((stream for stream in reversed(found) if stream.device == device), NotedStream("default"))

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.stack.streams = [*getattr(self.stack, "streams", []), self]
        yield
        self.stack.streams.pop()

    def record(self) -> HostEvent:
        event = super().record()
        event.name = f"event on {self.name}"  # type: ignore[attr-defined]
        self.log.append(f"record {self.name}")
        return event

    def follow(self, event: Any) -> None:
        self.log.append(f"{self.name} follows {event.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(NotedStream, "log", found)
    # torch makes those of a device only where it is built for that.
    monkeypatch.setattr(CallersStreams, "devices", [])
    return found


def note_current(log: list[Any]) -> Callable[[Any], None]:
    return lambda _: log.append(f"step on {NotedStream.current(torch.device('cuda', 0)).name}")


def test_what_comes_behind_an_operation_goes_on_the_callers_stream_and_whoever_waits_follows_it(log):
    handle = Handle[int]("it")
    work = CommWork(
        [handle], [torch.ones(1)], note_current(log), streams=CallersStreams([NotedStream("caller")], False)
    )
    handle.finish(1)
    with NotedStream("waiter").scope():
        work.wait()
    work.wait()
    behind = ["step on caller", "record caller"]
    assert log == [*behind, "waiter follows event on caller", "default follows event on caller"]


def test_nobody_waits_for_the_callers_stream_where_nothing_is_done_on_it(log):
    handle = Handle[int]("it")
    work = CommWork([handle], [torch.ones(1)], streams=CallersStreams([NotedStream("caller")], False))
    handle.finish(1)
    work.wait()
    assert log == []


def test_in_a_group_of_one_the_operation_itself_is_on_the_callers_stream(log):
    handle = Handle[int]("it")
    work = CommWork([handle], [torch.ones(1)], streams=CallersStreams([NotedStream("caller")], True))
    handle.finish(1)
    work.wait()
    assert log == ["record caller", "default follows event on caller"]


def test_what_was_called_without_async_op_is_followed_too(log):
    CommWork([], [torch.ones(1)], streams=CallersStreams([NotedStream("caller")], False)).wait()
    assert log == ["record caller", "default follows event on caller"]


def test_a_work_is_completed_when_the_gpu_has_done_what_comes_behind_it(log):
    stream, handle, busy = NotedStream("caller"), Handle[int]("it"), [True]
    stream.busy = lambda: busy[0]
    work = CommWork([handle], [torch.ones(1)], note_current(log), streams=CallersStreams([stream], False))
    assert not work.is_completed()
    handle.finish(1)
    assert not work.is_completed()
    work.wait()  # which the stream does, and not the host
    assert not work.is_completed()
    busy[0] = False
    assert work.is_completed()
    assert work.is_success()


def test_a_future_is_completed_on_the_callers_stream(log):
    handle = Handle[int]("it")
    work = CommWork(
        [handle], [torch.ones(1)], note_current(log), streams=CallersStreams([NotedStream("caller")], False)
    )
    done = torch.futures.collect_all([work.get_future()])
    then = done.then(lambda _: log.append(f"then on {NotedStream.current(torch.device('cuda', 0)).name}"))
    handle.finish(1)
    then.wait()
    assert log == ["step on caller", "record caller", "then on caller"]


def test_a_joined_work_waits_on_the_streams_of_all(log):
    handles, works = [Handle[int]("one"), Handle[int]("two"), Handle[int]("three")], []
    for number, handle in enumerate(handles[:2]):
        streams = CallersStreams([NotedStream(f"caller {number}", number)], False)
        works.append(CommWork([handle], [torch.ones(1)], lambda _: log.append("step"), streams=streams))
    joined = CommWork.joined([*works, CommWork(handles[2:], [torch.ones(1)])])
    for handle in handles:
        handle.finish(1)
    with NotedStream("zero", 0).scope(), NotedStream("one", 1).scope():
        joined.wait()
    own = [f"caller {number} follows event on caller {number}" for number in range(2)]
    steps = [entry for number in range(2) for entry in ("step", f"record caller {number}", own[number])]
    assert log[:8] == [*steps, "record caller 0", "record caller 1"]
    assert {"zero follows event on caller 0", "one follows event on caller 1"} <= set(log[8:])


@pytest.mark.parametrize("later", [True, False])
def test_collectives_of_a_process_group_follow_and_lead_streams(log, monkeypatch, later):
    ranks = DeviceRanks(1)
    monkeypatch.setattr(ranks.parts[0], "current", NotedStream.current)
    options = dist.distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined]
    options.asyncOp = later
    with comm.Group(0, 1) as group:
        ranks.join(group)
        outputs = [torch.zeros(3)]
        with NotedStream("caller").scope():
            work = CommProcessGroup(group, b"", 60.0).allgather([outputs], [torch.ones(3)], options)
        with NotedStream("waiter").scope():
            work.wait()
    assert outputs[0].tolist() == [1.0] * 3
    assert log[-2:] == ["record caller", "waiter follows event on caller"]


def test_messages_go_through_host_memory_of_their_own(log, monkeypatch):
    ranks = DeviceRanks(1)
    monkeypatch.setattr(ranks.parts[0], "current", NotedStream.current)
    with comm.Group(0, 1) as group:
        ranks.join(group)
        process_group, travelling = CommProcessGroup(group, b"", 60.0), []
        for name in ("send_async", "recv_async"):
            method = getattr(group, name)

            def noted(tensor: torch.Tensor, *rest: Any, method: Any = method) -> Any:
                travelling.append(tensor)
                return method(tensor, *rest)

            monkeypatch.setattr(group, name, noted)
        given, room = torch.arange(3.0), torch.zeros(3)
        with NotedStream("caller").scope():
            works = [process_group.send([given], 0, 0), process_group.recv([room], 0, 0)]
        with NotedStream("waiter").scope():
            for work in works:
                work.wait()
    assert room.tolist() == [0.0, 1.0, 2.0]
    assert [tensor.data_ptr() not in (given.data_ptr(), room.data_ptr()) for tensor in travelling] == [True] * 2
    assert log[-2:] == ["record caller", "waiter follows event on caller"]


def test_nothing_is_waited_for_while_a_cuda_graph_is_captured(log, monkeypatch):
    def refuse(device: torch.device) -> NotedStream:
        raise comm.UsageError("a collective can't be part of a CUDA graph")

    monkeypatch.setattr(NotedStream, "current", staticmethod(refuse))
    work = CommWork([Handle[int]("it")], [torch.ones(1)], streams=CallersStreams([NotedStream("caller")], False))
    with pytest.raises(dist.DistBackendError, match="part of a CUDA graph"):
        work.wait()


def test_nothing_is_put_on_a_stream_on_which_a_cuda_graph_is_captured(log, monkeypatch):
    captured, current = ["caller"], NotedStream.current

    def refuse(device: torch.device) -> NotedStream:
        if current(device).name in captured:
            raise comm.UsageError("a collective can't be part of a CUDA graph")
        return current(device)

    monkeypatch.setattr(NotedStream, "current", staticmethod(refuse))
    for finish in (note_current(log), None):
        handle = Handle[int]("it")
        streams = CallersStreams([NotedStream("caller")], False)
        work = CommWork([handle], [torch.ones(1)], finish, streams=streams)
        future = work.get_future()
        handle.finish(1)
        with pytest.raises(RuntimeError, match="part of a CUDA graph"):
            future.wait()
        if finish is not None:
            with pytest.raises(dist.DistBackendError, match="part of a CUDA graph"):
                work.wait()
    assert log == []
