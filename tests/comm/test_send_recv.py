"""Sends and receives: every dtype and layout arrives, each pair in its order, nothing holds up anything else."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES
from hpsearch_comm.operations.lanes import IncomingLane, Lane, OutgoingLane
from hpsearch_comm.operations.mailbox import Mailbox
from hpsearch_comm.operations.messages import Receive, Send
from hpsearch_comm.transport.link import Combine, Link, Transfer
from tests.comm.test_conformance import values
from tests.comm.thread_ranks import run_ranks

WAYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "tcp": {"transport": "tcp"},
    "hosts": {"hosts": "aabab"},
}
LONG = 700_001
"""More than all slots of a link in shared memory hold, and more than a socket's buffers take."""


def run(way: str, size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[Any]:
    options = WAYS[way] | options
    hosts = options.pop("hosts", None)
    return run_ranks(size, work, hosts=list(hosts[:size]) if hosts else None, **options)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_dtype_and_length_arrives(way):
    def work(group: comm.Group) -> None:
        for dtype in DTYPES:
            for length in (0, 1, 67, LONG):
                if group.rank == 0:
                    mine = values(0, length, dtype)
                    assert group.send(mine, 1) is mine
                else:
                    theirs = torch.zeros(length, dtype=dtype)
                    assert group.recv(theirs, 0) is theirs
                    assert torch.equal(theirs.view(torch.uint8), values(0, length, dtype).view(torch.uint8))

    run(way, 2, work)


def test_tensors_of_any_layout(way):
    def work(group: comm.Group) -> None:
        table = values(7, 6000, torch.float32).view(60, 100)
        complex_ = torch.complex(table, table + 1)
        sent = [table.t(), table[::2, 1::3], complex_.conj(), complex_.conj().imag, torch.tensor(3.5), table[:0], table]
        if group.rank == 0:
            for tensor in sent:
                group.send(tensor, 1)
            group.send(torch.nn.Parameter(table), 1)
            return
        into = [
            torch.zeros(100, 60),
            torch.zeros(100, 30).t()[:, ::3].new_zeros(60, 33)[::2],
            torch.zeros(60, 100, dtype=torch.complex64).conj(),
            torch.zeros(100, 60).t(),
            torch.tensor(0.0),
            torch.zeros(0, 100),
            torch.zeros(60, 200)[:, ::2],
            torch.nn.Parameter(torch.zeros(60, 100)),
        ]
        for tensor, expected in zip(into, [*sent, table], strict=True):
            assert group.recv(tensor, 0) is tensor
            assert torch.equal(tensor, expected)

    run(way, 2, work)


def test_a_tensor_that_isnt_contiguous_may_change_when_send_async_has_returned(way):
    def work(group: comm.Group) -> None:
        if group.rank == 0:
            table = torch.ones(LONG, 2)
            handle = group.send_async(table[:, 0], 1)
            table.zero_()
            group.barrier()
            handle.wait()
        else:
            group.barrier()
            assert (group.recv(torch.zeros(LONG), 0) == 1).all()

    run(way, 2, work)


def test_each_pair_has_its_own_order(way):
    def work(group: comm.Group) -> None:
        others = [rank for rank in range(3) if rank != group.rank]
        into = {rank: [torch.zeros(length) for length in (3, 50_000, 0, 7)] for rank in others}
        receiving = [group.recv_async(tensor, rank) for rank in others for tensor in into[rank]]
        sending = [
            group.send_async(torch.full((length,), 10.0 * group.rank + place), rank)
            for place, length in enumerate((3, 50_000, 0, 7))
            for rank in others
        ]
        for handle in (*sending, *receiving):
            handle.wait()
        for rank in others:
            for place, tensor in enumerate(into[rank]):
                assert (tensor == 10 * rank + place).all()

    run(way, 3, work)


def test_both_may_send_first_or_receive_first(way):
    def work(group: comm.Group) -> None:
        peer = 1 - group.rank
        for receive_first in (True, False):
            theirs = torch.zeros(LONG)
            handles: list[comm.Handle[torch.Tensor]] = []
            if receive_first:
                handles.append(group.recv_async(theirs, peer))
            handles.append(group.send_async(torch.ones(LONG), peer))
            if not receive_first:
                handles.append(group.recv_async(theirs, peer))
            for handle in handles:
                handle.wait()
            assert (theirs == 1).all()

    run(way, 2, work)


def test_a_send_to_one_rank_waits_for_no_other(way):
    def work(group: comm.Group) -> None:
        if group.rank == 0:
            to_2 = group.send_async(torch.ones(LONG), 2)
            from_2 = group.recv_async(torch.zeros(3), 2)
            group.send(torch.ones(LONG), 1)
            group.recv(torch.zeros(1), 1)
            assert not from_2.done()
            assert not to_2.done()
            group.send(torch.ones(1), 1)
            to_2.wait()
            from_2.wait()
        elif group.rank == 1:
            group.recv(torch.zeros(LONG), 0)
            group.send(torch.ones(1), 0)
            group.recv(torch.zeros(1), 0)
            group.send(torch.ones(1), 2)
        else:
            group.recv(torch.zeros(1), 1)  # until then it takes no part
            group.recv(torch.zeros(LONG), 0)
            group.send(torch.ones(3), 0)

    run(way, 3, work)


def test_collectives_and_messages_dont_wait_for_each_other(way):
    def work(group: comm.Group) -> None:
        if group.rank == 0:
            collective = group.allreduce_async(torch.ones(3))
            group.send(torch.ones(5), 1)
            group.recv(torch.zeros(2), 1)
            collective.wait()
            message = group.recv_async(torch.zeros(4), 1)
            group.allreduce(torch.ones(LONG))
            group.barrier()
            message.wait()
        else:
            group.recv(torch.zeros(5), 0)
            group.send(torch.ones(2), 0)
            group.allreduce(torch.ones(3))
            group.allreduce(torch.ones(LONG))
            group.barrier()
            group.send(torch.ones(4), 0)

    run(way, 2, work)


def test_tags_are_matched_whatever_comes_first(way):
    def work(group: comm.Group) -> None:
        tags = [3, 1, 2, 1]
        if group.rank == 0:
            handles = [group.send_async(torch.full((LONG // 9,), float(k)), 1, tag) for k, tag in enumerate(tags)]
            for handle in handles:
                handle.wait()
        else:
            first, second, third, fourth = (torch.zeros(LONG // 9) for _ in tags)
            group.recv(first, 0, tag=1)
            late = group.recv_async(second, 0, tag=1)
            group.recv(third, 0, tag=3)
            group.recv(fourth, 0, tag=2)
            late.wait()
            assert [tensor[-1].item() for tensor in (first, second, third, fourth)] == [1, 3, 0, 2]

    run(way, 2, work)


def test_a_message_from_any_rank_says_where_it_came_from(way):
    def work(group: comm.Group) -> None:
        if group.rank:
            for count in range(5):
                group.send(torch.tensor([group.rank, count]), 0)
            return
        came: dict[int, list[int]] = {rank: [] for rank in range(1, 5)}
        for _ in range(20):
            handle = group.recv_async(torch.zeros(2, dtype=torch.int64))
            rank, count = handle.wait().tolist()
            assert handle.source == rank
            came[rank].append(count)
        assert came == {rank: [0, 1, 2, 3, 4] for rank in range(1, 5)}

    run(way, 5, work)


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
            while 1 not in subgroup._abort_state.left:
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


def test_a_rank_may_send_to_itself(way):
    def work(group: comm.Group) -> None:
        receive = group.recv_async(torch.zeros(3), group.rank)
        group.send(torch.ones(3), group.rank)
        assert receive.wait().tolist() == [1, 1, 1]
        mine = torch.full((2,), 5.0)
        group.send(mine, group.rank)
        mine.zero_()
        handle = group.recv_async(torch.zeros(2))
        assert handle.wait().tolist() == [5, 5]
        assert handle.source == group.rank

    run(way, 2, work)


def test_in_a_group_of_one_a_rank_may_send_to_itself():
    with comm.Group(0, 1, timeout=0.2) as group:
        group.send(torch.ones(3), 0, tag=2)
        assert group.recv(torch.zeros(3), 0, tag=2).tolist() == [1, 1, 1]
        with pytest.raises(comm.CommTimeoutError, match="for rank 0 in send_recv"):
            group.recv(torch.zeros(3))


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


def test_autograd_learns_that_a_tensor_was_received():
    def work(group: comm.Group) -> None:
        if group.rank == 0:
            group.send(torch.ones(3), 1)
            return
        weight = torch.ones(3, requires_grad=True)
        factor = torch.full((3,), 2.0)
        product = weight * factor
        group.recv(factor, 0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.backward(product.sum())

    run_ranks(2, work)


def test_many_threads_may_send_and_receive_at_once(way):
    def work(group: comm.Group) -> None:
        failures: list[BaseException] = []

        def talk(tag: int) -> None:
            try:
                for turn in range(20):
                    receive = group.recv_async(torch.zeros(100 * tag + turn), 1 - group.rank, tag)
                    group.send(torch.full((100 * tag + turn,), float(turn)), 1 - group.rank, tag)
                    assert (receive.wait() == turn).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    run(way, 2, work)


@pytest.mark.parametrize("way", WAYS)
def test_any_order_of_calls_gives_each_receive_its_message(way):
    """A plain list of messages is the oracle: the first of its tag that nobody has received."""

    @settings(max_examples=8, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        tags = data.draw(st.lists(st.integers(0, 2), max_size=12))
        order = data.draw(st.permutations(tags))
        lengths = [data.draw(st.sampled_from([0, 1, 5, 40_000])) for _ in range(3)]
        expected, left = [], list(enumerate(tags))
        for tag in order:
            entry = next(entry for entry in left if entry[1] == tag)
            left.remove(entry)
            expected.append(entry[0])

        def work(group: comm.Group) -> list[float]:
            if group.rank == 0:
                sends = [
                    group.send_async(torch.full((lengths[tag] + 1,), float(k)), 1, tag) for k, tag in enumerate(tags)
                ]
                for send in sends:
                    send.wait()
                return []
            receives = [group.recv_async(torch.zeros(lengths[tag] + 1), 0, tag) for tag in order]
            return [receive.wait()[-1].item() for receive in receives]

        assert run(way, 2, work)[1] == expected

    check()


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
