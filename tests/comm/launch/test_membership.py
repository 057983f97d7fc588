"""Which ranks meet where a job goes on without dead ones: every order of what can happen, against the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.launch.membership import Membership
from hpsearch_comm.roster import BUSY, DONE, Coming, Roster, read_message

HOSTS = [range(2), range(2, 5)]
RANKS = st.sampled_from([rank for ranks in HOSTS for rank in ranks])
EVENTS = st.lists(st.tuples(st.sampled_from(["come", "done", "busy", "dies", "ends well"]), RANKS), max_size=60)


def coming(rank: int, call: int = 0) -> Coming:
    return Coming(call, f"address of {rank}, {call}")


@given(EVENTS, st.integers(1, 5))
def test_those_who_come_meet_once_nobody_is_missing(events, least):
    membership = Membership(HOSTS, least)
    alive, done, waiting = {*range(5)}, set[int](), dict[int, Coming]()
    well, meetings = 0, 0
    for calls, (what, rank) in enumerate(events):
        if what == "come":
            membership.join(rank, coming(rank, calls), now=float(calls))
            if rank in alive:
                waiting[rank] = coming(rank, calls)
                done.discard(rank)
        elif what in {"done", "busy"}:
            membership.set_done(rank, what == "done")
            (done.add if what == "done" else done.discard)(rank)
        else:
            well += what == "ends well" and rank in alive
            membership.end(rank, succeeded=what == "ends well")
            alive.discard(rank)
            waiting.pop(rank, None)
        assert membership.suffices == (len(alive) + well >= least)
        assert (membership.alive, len(membership.succeeded)) == (alive, well)
        missing = alive - set(waiting) if waiting else set[int]()
        assert (membership.awaited, membership.late) == (sorted(missing), sorted(missing - done))
        rosters = membership.meet()
        if not waiting or missing:
            assert rosters == {}
        else:
            order = sorted(waiting)
            assert sorted(rosters) == order
            for number, member in enumerate(order):
                here = [other for other in order if (other < 2) == (member < 2)]
                addresses = tuple(waiting[other].address for other in order)
                place = here.index(member), len(here)
                assert rosters[member] == Roster(waiting[member].call, meetings, number, addresses, *place)
                assert (membership.name(member) == f"rank {member}") == (number == member)
            waiting, meetings = {}, meetings + 1
        assert (membership.waiting_since is not None) == bool(waiting)


def test_the_last_call_of_a_rank_counts_and_the_first_comer_says_since_when():
    membership = Membership([range(2)], 1)
    membership.join(0, coming(0, 0), now=1.0)
    membership.join(0, coming(0, 1), now=2.0)
    assert membership.waiting_since == 1.0
    membership.join(1, coming(1), now=3.0)
    assert membership.meet()[0] == Roster(1, 0, 0, ("address of 0, 1", "address of 1, 0"), 0, 2)
    assert membership.waiting_since is None


def test_what_ranks_and_launcher_say_arrives_as_it_was():
    roster = Roster(3, 2, 1, ("here", "there"), 1, 2)
    assert Roster.from_line(roster.to_line()) == roster
    assert roster.variables() == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert read_message(b'{"call": 2, "address": "here"}') == Coming(2, "here")
    assert [read_message(b'"done"'), read_message(b'"busy"')] == [DONE, BUSY]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"1", b'"go"', b'{"call": "2", "address": ""}', b'{"call": true}', b"\xff"]
)
def test_what_is_neither_is_an_error(line):
    with pytest.raises(ValueError, match=r".+"):
        read_message(line)
