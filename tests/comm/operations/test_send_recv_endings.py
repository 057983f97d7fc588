"""Sends and receives that can't be carried out: mistakes, peers that leave, deadlines, the end of a group."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.lanes import IncomingLane, Lane, OutgoingLane
from hpsearch_comm.operations.messages import Mailbox, Receive, Send
from hpsearch_comm.operations.point_to_point import PointToPoint
from hpsearch_comm.transport.link import Combine, Link, Transfer
from tests.comm.operations.message_ways import LONG, WAYS, run
from tests.comm.thread_ranks import run_ranks


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_rank_that_has_left_is_no_reason_not_to_receive_from_another(way):
    def work(group: comm.Group) -> None:
        subgroup = group.duplicate()
        if group.rank == 1:
            subgroup.close()
            group.barrier()
            return
        if group.rank == 2:
            group.barrier()
            subgroup.send(torch.ones(3), 0)
            group.recv(torch.zeros(1), 0)
        else:
            receive = subgroup.recv_async(torch.zeros(3))
            group.barrier()
            while 1 not in subgroup._abort_state.departed:
                time.sleep(0.001)
            assert receive.wait().tolist() == [1, 1, 1]
            assert receive.source == 2
            with pytest.raises(comm.PeerLost, match="rank 1 has closed the group"):
                subgroup.recv(torch.zeros(3), 1)
            group.send(torch.zeros(1), 2)

    run(way, 3, work)


def test_from_any_rank_nothing_comes_when_all_have_left(way):
    def work(group: comm.Group) -> None:
        other = group.duplicate()
        if group.rank == 0:
            with pytest.raises(comm.PeerLost, match="has closed the group"):
                other.recv(torch.zeros(3))
        other.close()

    run(way, 3, work)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4), torch.zeros(3, dtype=torch.int32), torch.zeros(3, 1)], ids=["length", "dtype", "shape"]
)
def test_another_dtype_or_shape_is_an_error_on_both_sides(way, wrong):
    def work(group: comm.Group) -> str:
        def call() -> None:
            if group.rank:
                group.recv(wrong, 0, tag=4)
            else:
                group.send(torch.ones(3), 1, tag=4)
                group.recv(torch.zeros(1), 1)

        with pytest.raises(comm.MismatchError) as caught:
            call()
        assert (wrong == 0).all()
        with pytest.raises(comm.MismatchError):
            group.barrier()
        return str(caught.value)

    for message in run(way, 2, work):
        assert "rank 0 calls send_recv 0 (float32 [3], 12 bytes, tag 4)" in message
        assert f"rank 1 calls send_recv 0 ({str(wrong.dtype)[6:]} {list(wrong.shape)}" in message


def test_another_shape_to_itself_is_an_error_too():
    with comm.Group(0, 1) as group:
        group.send(torch.ones(3), 0)
        with pytest.raises(comm.MismatchError, match=r"float32 \[4\].*float32 \[3\]"):
            group.recv(torch.zeros(4))


@pytest.mark.parametrize("source", [0, None])
def test_what_doesnt_come_is_given_up_after_the_timeout(way, source):
    def work(group: comm.Group) -> None:
        if group.rank == 0:
            while group._abort_state.error is None:
                time.sleep(0.001)
            with pytest.raises(comm.CommTimeoutError, match="rank 1 waited"):
                group.send(torch.zeros(3), 1)
        else:
            with pytest.raises(comm.CommTimeoutError, match=r"rank 1 waited .* s for rank 0 in send_recv 0"):
                group.recv(torch.zeros(3), source)

    run(way, 2, work, timeout=0.3)


def test_what_isnt_taken_is_given_up_after_the_timeout(way):
    def work(group: comm.Group) -> None:
        with pytest.raises(comm.CommTimeoutError, match=r"waited .* in (send_recv 0|barrier 0)"):
            group.barrier() if group.rank else group.send(torch.zeros(10 * LONG), 1)

    run(way, 2, work, timeout=0.3)


class SlowTransfer(Transfer):
    """Moves when it is told to."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.done = False
        self.moves = False

    def advance(self) -> bool:
        return self.moves


class SlowLink(Link):
    """Whose transfers move when they are told to."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.transfer = SlowTransfer(peer)

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        return self.transfer

    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        return self.transfer

    def close(self) -> None:
        pass


@pytest.mark.parametrize("outgoing", [True, False])
def test_the_deadline_starts_afresh_whenever_something_moves(monkeypatch, outgoing):
    clock = [0.0]
    monkeypatch.setattr("hpsearch_comm.failure.operation.time", SimpleNamespace(monotonic=lambda: clock[0]))
    link, mailbox = SlowLink(1), Mailbox()
    with contextlib.closing(AbortState()) as abort_state:

        def operation(packed: bytes) -> Operation:
            return Operation(0, packed, 10.0, abort_state)

        lane: Lane = IncomingLane(link, operation, mailbox, abort_state)
        mailbox.post(Receive.of(torch.zeros(3), 1, 0, 2))
        if outgoing:
            lane = sending = OutgoingLane(link, operation)
            sending.queue.append(Send.of(torch.zeros(3), 1, 0, 2))
        for _ in range(5):
            link.transfer.moves = True
            assert lane.step()
            link.transfer.moves = False
            assert not lane.step()
            lane.check()
            clock[0] += 9.0
            lane.check()
        clock[0] += 2.0
        with pytest.raises(comm.CommTimeoutError, match=r"rank 0 waited 11\.0 s for rank 1 in send_recv 0"):
            lane.check()


def test_a_receive_from_itself_has_a_deadline_of_its_own(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("hpsearch_comm.failure.operation.time", SimpleNamespace(monotonic=lambda: clock[0]))
    link = SlowLink(1)
    with contextlib.closing(AbortState()) as abort_state:
        messages = PointToPoint(0, {1: link}, abort_state, 10.0)
        messages._receive(Receive.of(torch.zeros(3), None, 0, 2))
        messages._check_anyone()
        clock[0] = 7.0
        messages._receive(Receive.of(torch.zeros(3), 0, 1, 2))
        messages._check_anyone()
        messages._send_to_itself(Send.of(torch.zeros(3), 0, 0, 2))  # for the first receive
        clock[0] = 14.0
        messages._check_anyone()  # the second receive has only waited since 7
        messages._receive(Receive.of(torch.zeros(3), 1, 0, 2))
        link.transfer.moves = True
        messages._move()  # other traffic is no progress of the second receive
        clock[0] = 17.5
        with pytest.raises(comm.CommTimeoutError, match=r"rank 0 waited 10\.5 s for rank 0 in send_recv"):
            messages._check_anyone()
        messages.close()


def test_close_sends_what_is_to_be_sent_and_gives_up_what_hasnt_come(way):
    def work(group: comm.Group) -> None:
        other = group.duplicate()
        if group.rank == 0:
            sends = [other.send_async(torch.ones(LONG), 1) for _ in range(3)]
            receive = other.recv_async(torch.zeros(3), 1)
            other.close()
            for send in sends:
                send.wait()
            with pytest.raises(comm.GroupClosedError, match="recv from rank 1 was given up"):
                receive.wait()
            with pytest.raises(comm.GroupClosedError):
                other.send(torch.ones(1), 1)
        else:
            for _ in range(3):
                assert (other.recv(torch.zeros(LONG), 0) == 1).all()
            other.close()

    run(way, 2, work)


def test_an_error_ends_what_is_pending(way):
    called = threading.Event()

    def work(group: comm.Group) -> None:
        if group.rank == 1:
            called.wait()
            raise KeyError("fold")
        handles: list[comm.Handle[torch.Tensor]] = [
            group.recv_async(torch.zeros(3), 1),
            group.recv_async(torch.ones(1)),
        ]
        handles += [group.send_async(torch.zeros(LONG), 1)]
        called.set()
        for handle in handles:
            with pytest.raises(comm.PeerLost, match="fold"):
                handle.wait()
        with pytest.raises(comm.PeerLost, match="fold"):
            group.send(torch.zeros(1), 1)

    with pytest.raises(KeyError, match="fold"):
        run(way, 2, work)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda group: group.send(torch.ones(1), 2), "target must be a rank from 0 to 1, got 2"),
        (lambda group: group.send(torch.ones(1), None), "target must be a rank from 0 to 1, got None"),
        (lambda group: group.recv(torch.ones(1), -1), "source must be a rank from 0 to 1, got -1"),
        (lambda group: group.recv(torch.ones(1), True), "source must be a rank"),
        (lambda group: group.recv(torch.ones(1), 0, -1), "tag must be a whole number from 0 to"),
        (lambda group: group.send(torch.ones(1), 1, 2**63), "tag must be a whole number from 0 to"),
        (lambda group: group.send([1.0], 1), "send takes a torch.Tensor, got list"),
        (lambda group: group.send(torch.ones(1, device="meta"), 1), "send takes a tensor on the CPU, got one on meta"),
        (lambda group: group.recv(torch.ones(1).expand(3), 1), "recv's tensor must have memory of its own"),
    ],
)
def test_mistakes_are_refused_and_the_group_goes_on(call, message):
    def work(group: comm.Group) -> None:
        with pytest.raises(comm.UsageError, match=message):
            call(group)
        peer = 1 - group.rank
        receive = group.recv_async(torch.zeros(1), peer)
        group.send(torch.ones(1), peer)
        receive.wait()

    run_ranks(2, work)


def test_a_group_that_is_closed_in_the_thread_of_its_messages_gives_everything_back():
    """As where it is forgotten, which any thread may find out."""
    gc.collect()
    files, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    closed = threading.Event()

    def close() -> None:
        group.close()
        closed.set()

    group = comm.Group(0, 1)
    other = group.recv_async(torch.zeros(2), 0, tag=1)
    first = group.recv_async(torch.zeros(1), 0)
    first.add_done_callback(close)
    group.send_async(torch.ones(1), 0)
    assert closed.wait(60)
    assert first.wait().tolist() == [1]
    with pytest.raises(comm.GroupClosedError):
        other.wait()
    messages = group._messages._thread
    assert messages is not None
    messages.join()
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == files
