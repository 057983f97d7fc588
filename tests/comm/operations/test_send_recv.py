"""Sends and receives: every dtype and layout arrives, each pair in its order, nothing holds up anything else."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.header import DTYPES
from tests.comm.collectives.test_conformance import values
from tests.comm.operations.message_ways import LONG, WAYS, run
from tests.comm.thread_ranks import run_ranks


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.some_cases(1)
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
