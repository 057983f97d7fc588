"""Which workers are to run nothing more, or are given back, and when a node fails: without any worker."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.backends.gangs import CLOSE_SECONDS, GRACE_SECONDS, Gang
from hpsearch.backends.replacing import (
    FIRST_SECONDS,
    MOST_FAILURES,
    MOST_SECONDS,
    Backoff,
    FailingNodes,
    Overdue,
    overdue,
    why_replaced,
)
from hpsearch.backends.slots import Flight, Slot, Slots
from hpsearch.errors import BackendError
from hpsearch.task import Result, Task
from hpsearch.trial import Failure, Segment, Trial


def flight_of(trial: int, timeout: float | None, width: int = 1, lanes: int = 1) -> Flight:
    task = Task(Trial(trial, {}, 0, "random"), Segment(trial, 0, 1, None, 1, width), timeout, lanes)
    return Flight(Gang(task), 0)


LANES = 4


def pool(*flights: Flight, lanes: int = 1, closes: bool = False) -> tuple[Slots, Slot]:
    slots, slot = Slots(lanes=lanes), Slot(0, "worker", lanes=lanes, closes=closes)
    slots.add(slot)
    slots.make_ready(slot, 0.0)
    for flight in flights:
        slots.send(slot, flight, 0.0)
    return slots, slot


def test_a_task_that_runs_over_its_timeout_ends_its_worker_and_is_to_blame():
    flight = flight_of(0, 5.0)
    slots, slot = pool(flight)
    assert not list(overdue(slots, 5.0))
    assert list(overdue(slots, 5.1)) == [Overdue(slot, flight)]
    slot.timed_out = flight
    assert not list(overdue(slots, 9.0))  # it is on its way


def test_a_task_without_a_timeout_may_take_for_ever():
    slots, _ = pool(flight_of(0, None))
    assert not list(overdue(slots, 1e9))


def test_the_others_of_a_gang_that_is_done_are_given_some_time():
    flight = flight_of(0, None, width=2)
    flight.gang.landed(0, Result(0, 1, 1, None, (), False, 1.0, None), 1.0)
    slots, slot = pool(flight)
    assert not list(overdue(slots, 1.0 + GRACE_SECONDS))
    (late,) = overdue(slots, 1.1 + GRACE_SECONDS)
    assert (late.slot, late.kind, late.timed_out) == (slot, "late", None)


def test_a_close_that_hangs_costs_its_worker_and_is_told():
    flight = flight_of(1, 1.0)
    flight.closing = 7
    slots, _ = pool(flight)
    flight.since = 0.0
    assert not list(overdue(slots, CLOSE_SECONDS))  # the task's own clock doesn't run
    (late,) = overdue(slots, CLOSE_SECONDS + 0.1)
    assert late.notice is not None
    assert "trial 7: its close()" in late.notice.text
    assert late.timed_out is None
    assert late.notice.text in late.reason


def test_a_retired_worker_that_does_not_close_is_given_up():
    slots, slot = pool()
    slot.warm = 3
    slots.retire(slot, 1.0)
    assert not list(overdue(slots, 1.0 + CLOSE_SECONDS))
    (late,) = overdue(slots, 1.1 + CLOSE_SECONDS)
    assert late.notice is not None
    assert "trial 3" in late.notice.text


@pytest.mark.parametrize(("limits", "allowed"), [([2.0, 3.0, 4.0], 9.0), ([2.0], 2.0)])
def test_lanes_may_be_silent_for_as_long_as_all_of_them_together_may_run(limits, allowed):
    flights = [flight_of(trial, limit, lanes=LANES) for trial, limit in enumerate(limits)]
    slots, slot = pool(*flights, lanes=4)
    slot.round_since = 10.0
    assert not list(overdue(slots, 10.0 + allowed))
    (late,) = overdue(slots, 10.1 + allowed)
    assert late.timed_out is (flights[0] if len(flights) == 1 else None)  # of several nobody knows which one it was


def test_one_lane_without_a_limit_lets_the_round_take_for_ever():
    slots, _ = pool(flight_of(0, 1.0, lanes=LANES), flight_of(1, None, lanes=LANES), lanes=4)
    assert not list(overdue(slots, 1e9))


def result(kind: str = "", stuck: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> Result:
    failure = Failure(kind, "said", "") if kind else None  # type: ignore[arg-type]
    return Result(0, 1, 1, None, (), False, 1.0, failure, stuck=stuck, module_changes=modules)


@pytest.mark.parametrize(
    ("ran", "memory", "scripts", "reason"),
    [
        (result(), 2 << 30, False, None),
        (result(), 4 << 30, False, "it kept growing"),
        (result("raised"), 1 << 30, False, "raised there"),
        (result("raised"), 1 << 30, True, None),
        (result("contract"), 1 << 30, False, None),
        (result(stuck=("cwd",)), 1 << 30, False, "left settings behind"),
        (result(modules=("mods.lr",)), 1 << 30, False, "left changed values of its modules behind"),
    ],
)
def test_a_worker_is_replaced_after_what_may_have_harmed_it(ran, memory, scripts, reason):
    slot = Slot(0, "worker")
    assert why_replaced(slot, result(), 1 << 30, scripts) is None
    said = why_replaced(slot, ran, memory, scripts)
    assert said is None if reason is None else reason in (said or "")


def test_what_ran_over_its_timeout_is_why_the_next_one_has_a_new_worker():
    slot = Slot(0, "worker", timed_out=flight_of(0, 1.0))
    assert "ran over its timeout" in (why_replaced(slot, result(), 0, False) or "")


def fail(nodes: FailingNodes, node: str, times: int) -> None:
    for _ in range(times):
        nodes.failed(node, f"node {node}", "OSError: no room")


def test_the_error_names_the_node_and_what_its_last_worker_failed_with() -> None:
    nodes = FailingNodes("before they began")
    fail(nodes, "10.0.0.1", MOST_FAILURES - 1)
    with pytest.raises(
        BackendError, match=r"3 workers in a row failed on node 10\.0\.0\.1 before they began; .*no room"
    ):
        fail(nodes, "10.0.0.1", 1)


def test_a_node_has_another_go_whenever_a_worker_does_well_there() -> None:
    nodes = FailingNodes("")
    for _ in range(5):
        fail(nodes, "a", MOST_FAILURES - 1)
        nodes.did_well("a")


def test_what_goes_well_elsewhere_doesnt_count() -> None:
    nodes = FailingNodes("")
    fail(nodes, "a", MOST_FAILURES - 1)
    fail(nodes, "b", MOST_FAILURES - 1)
    nodes.did_well("b")
    with pytest.raises(BackendError, match="node a"):
        fail(nodes, "a", 1)


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def test_it_is_due_when_too_little_was_held_for_some_time_without_getting_more():
    backoff = Backoff(middle)
    assert not backoff.is_due(0.0, True, 1)
    assert not backoff.is_due(FIRST_SECONDS - 0.1, True, 1)
    assert backoff.is_due(FIRST_SECONDS, True, 1)
    assert not backoff.is_due(FIRST_SECONDS, True, 2)  # it got one more
    assert backoff.is_due(2 * FIRST_SECONDS, True, 2)
    assert not backoff.is_due(2 * FIRST_SECONDS, False, 2)
    assert not backoff.is_due(3 * FIRST_SECONDS - 0.1, True, 2)


def test_what_was_given_back_is_asked_for_again_once_after_a_while():
    backoff = Backoff(middle)
    assert backoff.ask(0.0) == 0
    backoff.give_way(10.0, 3)
    assert backoff.released == 3
    assert backoff.ask(10.0 + FIRST_SECONDS - 0.1) == 0
    assert backoff.ask(10.0 + FIRST_SECONDS) == 3
    assert backoff.released == 0
    assert backoff.ask(1000.0) == 0


def test_the_whiles_grow_to_a_bound_until_there_are_workers_enough():
    backoff = Backoff(middle)
    now, waits = 0.0, []
    for _ in range(6):
        began = now
        while not backoff.is_due(now, True, 1):
            now += 0.25
        waits.append(now - began)
        backoff.give_way(now, 1)
    assert waits == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]
    backoff.settle()
    assert not backoff.is_due(now, True, 1)
    assert backoff.is_due(now + FIRST_SECONDS, True, 1)


def test_where_nobody_else_wants_the_room_it_goes_on_waiting():
    backoff = Backoff(middle)
    backoff.is_due(0.0, True, 1)
    assert backoff.is_due(FIRST_SECONDS, True, 1)
    backoff.wait_on()
    assert not backoff.is_due(FIRST_SECONDS, True, 1)
    assert backoff.is_due(2 * FIRST_SECONDS, True, 1)


class Sweep:
    """Needs `need` workers at once, and asks for as many."""

    def __init__(self, need: int, draw: random.Random) -> None:
        self.need = need
        self.held = 0
        self.asked = need
        self.backoff = Backoff(draw.uniform)


@given(st.integers(1, 8), st.lists(st.integers(2, 8), min_size=2, max_size=4), st.integers(0, 2**32 - 1))
def test_of_sweeps_in_each_others_way_one_gets_all_that_it_needs(spare, needs, seed):
    """A cluster whose room fits the largest need, and less than all; it gives each place to whoever asked first."""
    draw = random.Random(seed)
    sweeps = [Sweep(need, draw) for need in needs]
    room = min(max(needs) + spare - 1, sum(needs) - 1)
    queue = [sweep for sweep in sweeps for _ in range(sweep.need)]
    draw.shuffle(queue)
    now = 0.0
    while not any(sweep.held == sweep.need for sweep in sweeps):
        now += 0.25
        assert now < 600.0, "they stand in each other's way for ever"
        for sweep in sweeps:
            queue += [sweep] * sweep.backoff.ask(now)
            stuck = 0 < sweep.held < sweep.need
            if sweep.backoff.is_due(now, stuck, sweep.held) and stuck:
                given = sweep.held + queue.count(sweep)
                queue = [other for other in queue if other is not sweep]
                sweep.held = 0
                sweep.backoff.give_way(now, given)
            while queue and sum(one.held for one in sweeps) < room:
                queue.pop(0).held += 1
