"""What may be passed to a group's operations, and what is refused: when, and with what the group goes on."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.operations.host_operations import decode
from tests.comm.thread_ranks import run_ranks


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
        (
            lambda group: group.alltoall(torch.ones(3), [1, 2]),
            r"splits must be 1 whole numbers of at least 0.*got \[1, 2\]",
        ),
        (lambda group: group.alltoall(torch.ones(3), [1.5, 1.5]), r"splits must be 1 whole numbers.*got \[1.5, 1.5\]"),
        (lambda group: group.alltoall(torch.ones(3), 3), r"splits must be 1 whole numbers.*got 3"),
        (lambda group: group.alltoall(torch.ones(1), [True]), r"splits must be 1 whole numbers.*got \[True\]"),
        (lambda group: group.alltoall(torch.ones(1), torch.tensor([True])), r"splits must be 1 whole numbers"),
        (lambda group: group.allgather_object({1: 2}), r"dicts with text keys"),
        (lambda group: group.allgather_object([{"a": {None: 1}}]), r"the key None would become text"),
        (lambda group: group.allgather_object({1, 2}), r"got set"),
        (lambda group: group.broadcast_object(torch.ones(1)), r"got Tensor"),
        (lambda group: group.empty(-1), r"numbers of at least 0, got \(-1,\)"),
        (lambda group: group.empty(3.0), r"numbers of at least 0, got \(3.0,\)"),
        (lambda group: group.empty(True), r"numbers of at least 0, got \(True,\)"),
        (lambda group: group.empty(1 << 62, 4), r"too large"),
        (lambda group: group.empty(3, dtype="float32"), r"dtype must be a torch.dtype, got 'float32'"),
        (lambda group: group.empty(3, dtype=torch.complex32), r"no collectives of torch.complex32"),
    ],
)
def test_a_mistake_is_refused_before_anything_travels_and_the_group_goes_on(call, message):
    with comm.Group(0, 1) as group:
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
    with comm.Group(0, 1) as group:
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
                with pytest.raises(comm.UsageError, match="splits must be 2 whole numbers"):
                    group.alltoall(mine, splits)
        assert (group.allgather(mine, out=torch.empty(8, 2)) == 1).all()

    run_ranks(2, work)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_object_are_an_error_of_ours(data):
    with pytest.raises(comm.CommError, match="can't be read as JSON"):
        decode(data)
