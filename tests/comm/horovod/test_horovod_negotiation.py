"""What ranks of hpsearch_comm.horovod decide from each other's messages, without any rank."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpsearch_comm.errors import CommError
from hpsearch_comm.horovod.negotiation import JOIN, Decision, Negotiation
from hpsearch_comm.horovod.request import ReduceOp, Request

SUM = Request("allreduce.x", "allreduce", (("float32", (3, 2)),), ReduceOp.SUM)
GATHER = Request("allgather.x", "allgather", (("float32", (3, 2)),))
JOINED = Request(JOIN, JOIN)
ROOT = Request("broadcast.x", "broadcast", (("float32", (3, 2)),), numbers=(0,))


def negotiations(size: int) -> list[Negotiation]:
    return [Negotiation(rank, range(size)) for rank in range(size)]


def all_joined(last: int) -> Decision:
    return Decision(replace(JOINED, numbers=(last,)))


def cycle(ranks: list[Negotiation], *said: list[Request], joining: tuple[int, ...] = ()) -> list[Decision]:
    """Let all ranks exchange what they say; return what all of them have decided alike."""
    pairs = enumerate(zip(ranks, said, strict=True))
    messages = [
        json.loads(json.dumps(negotiation.write([*requests, *([JOINED] if rank in joining else [])])))
        for rank, (negotiation, requests) in pairs
    ]
    decisions = [negotiation.process_messages(messages) for negotiation in ranks]
    assert all(others == decisions[0] for others in decisions)
    return decisions[0]


@settings(suppress_health_check=[HealthCheck.large_base_example])
@given(st.data())
def test_each_name_is_decided_once_when_all_have_announced_it_and_alike_on_all_ranks(data):
    size = data.draw(st.integers(1, 3))
    names = [f"allreduce.{letter}" for letter in "abcd"]
    waiting = [[replace(SUM, name=name) for name in data.draw(st.permutations(names))] for _ in range(size)]
    ranks, announced, decided = negotiations(size), {name: 0 for name in names}, []
    while any(waiting):
        said = []
        for requests in waiting:
            count = min(data.draw(st.integers(0, 4)), len(requests))
            said.append([requests.pop(0) for _ in range(count)])
            for request in said[-1]:
                announced[request.name] += 1
        for decision in cycle(ranks, *said):
            assert not decision.refusal
            assert announced[decision.request.name] == size
            decided.append(decision.request.name)
        for rank, negotiation in enumerate(ranks):
            open_names = {name for name in names if announced[name] and name not in decided}
            assert negotiation.open == bool(open_names)
            mine = {request.name for request in waiting[rank]}
            assert negotiation.is_awaited == bool(open_names & mine)
    assert sorted(decided) == names


shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
requests = st.builds(
    Request,
    st.just("x"),
    st.sampled_from(["allreduce", "allgather", "broadcast", "reducescatter"]),
    st.lists(st.tuples(st.sampled_from(["float32", "int64"]), shapes), max_size=2).map(tuple),
    st.sampled_from([ReduceOp.SUM, ReduceOp.MAX]),
    st.sampled_from([(0,), (1,)]),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1.0, 2.0]),
)


def without_rows(request: Request) -> Any:
    rest = tuple((dtype, len(shape), shape[1:]) for dtype, shape in request.tensors)
    return replace(request, tensors=()), rest if request.kind == "allgather" else request.tensors


@given(st.lists(requests, min_size=1, max_size=3))
def test_what_differs_in_anything_but_gathered_rows_is_refused(said):
    (decision,) = cycle(negotiations(len(said)), *([request] for request in said))
    alike = len({without_rows(request) for request in said}) == 1
    scalar = said[0].kind in ("allgather", "reducescatter") and any(not shape for _, shape in said[0].tensors)
    assert (decision.refusal == "") == (alike and not scalar)


@given(st.lists(requests, min_size=2, max_size=2))
def test_a_request_can_be_sent_and_read(said):
    assert [Request.read(json.loads(json.dumps(request.write()))) for request in said] == said


def test_a_request_is_written_out_once_and_is_a_number_from_then_on():
    ranks = negotiations(2)
    rows = [replace(GATHER, tensors=(("float32", (count, 2)),)) for count in (1, 5)]
    assert ranks[0].write([SUM]) == [SUM.write()]
    cycle(ranks, [SUM, rows[0]], [SUM, rows[1]])
    for negotiation in ranks:
        assert negotiation.write([SUM, *rows]) == [0, 1, 2]
    assert cycle(ranks, [rows[1]], [rows[0]]) == [Decision(rows[1])]
    assert cycle(ranks, [SUM], [SUM]) == [Decision(SUM)]


def test_what_was_refused_has_no_number():
    ranks = negotiations(2)
    assert cycle(ranks, [SUM], [replace(SUM, op=ReduceOp.MAX)])[0].refusal
    assert ranks[0].write([SUM]) == [SUM.write()]


def test_names_that_never_come_again_get_no_number():
    ranks = negotiations(2)
    unnamed = replace(SUM, name="allreduce.noname.7")
    cycle(ranks, [unnamed], [unnamed])
    assert ranks[0].write([unnamed]) == [unnamed.write()]


def test_ranks_that_have_joined_are_waited_for_by_nobody():
    ranks = negotiations(3)
    assert cycle(ranks, [], [], [], joining=(1,)) == []
    assert [negotiation.is_awaited for negotiation in ranks] == [True, False, True]
    assert all(negotiation.open for negotiation in ranks)
    assert cycle(ranks, [SUM], [], []) == []
    assert ranks[0].absent(SUM.name) == [2]
    assert ranks[0].absent(GATHER.name) == []
    assert cycle(ranks, [], [], [SUM], joining=(2,)) == [Decision(SUM)]
    assert cycle(ranks, [SUM], [], [], joining=(0,)) == [Decision(SUM), all_joined(0)]
    assert not any(negotiation.open for negotiation in ranks)
    assert cycle(ranks, [SUM], [], []) == []


def test_what_a_rank_announced_before_it_joined_counts():
    ranks = negotiations(2)
    other = replace(SUM, tensors=(("float32", (4,)),))
    assert cycle(ranks, [SUM], [], joining=(0,)) == []
    (decision,) = cycle(ranks, [], [other])
    assert decision.refusal


@pytest.mark.parametrize("request_", [GATHER, ROOT, *(replace(SUM, op=op) for op in list(ReduceOp)[3:])])
def test_what_zeros_would_change_is_refused_while_ranks_have_joined(request_):
    ranks = negotiations(2)
    cycle(ranks, [], [], joining=(1,))
    (decision,) = cycle(ranks, [request_], [])
    assert decision.refusal
    assert "while rank 1 has joined" in decision.refusal
    assert cycle(ranks, [], [], joining=(0,)) == [all_joined(0)]
    assert cycle(ranks, [request_], [request_]) == [Decision(request_)]


@pytest.mark.parametrize("request_", [replace(SUM, op=op) for op in list(ReduceOp)[:3]])
def test_sums_go_on_while_ranks_have_joined(request_):
    ranks = negotiations(2)
    cycle(ranks, [], [], joining=(1,))
    assert cycle(ranks, [request_], []) == [Decision(request_)]


def test_the_ranks_of_a_process_set_are_named_by_their_numbers_in_the_job():
    ranks = [Negotiation(rank, [3, 8]) for rank in range(2)]
    (decision,) = cycle(ranks, [SUM], [replace(SUM, op=ReduceOp.MAX)])
    assert decision.refusal
    assert decision.refusal.endswith("is Sum on rank 3 and Max on rank 8")
    cycle(ranks, [SUM], [])
    assert ranks[0].absent(SUM.name) == [8]
    assert cycle(ranks, [], [], joining=(0, 1)) == [Decision(SUM), all_joined(8)]


@pytest.mark.parametrize("message", [[9], [[1, 2]], ["leave"], {"a": 1}, 7])
def test_a_message_that_is_none_is_an_error(message):
    with pytest.raises(CommError, match="can't be read"):
        Negotiation(0, range(2)).process_messages([[], message])
