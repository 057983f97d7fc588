"""Which worker a trial goes to where workers run several beside each other."""

from __future__ import annotations

import pytest

from hpsearch.backends.gangs import Gang
from hpsearch.backends.slots import STUCK_SECONDS, Flight, Slot, Slots
from hpsearch.task import Company, Task
from hpsearch.trial import Segment, Trial


def flight_of(trial: int, end: int | None = 1, company: Company = ()) -> Flight:
    """Return a task that may be a lane."""
    segment = Segment(trial, 0, end, None, 1)
    return Flight(Gang(Task(Trial(trial, {}, 0, "random"), segment, None, 4, company)), 0)


class Pool:
    """Workers of four lanes each."""

    def __init__(self, workers: int) -> None:
        self.slots = Slots(lanes=4)
        for number in range(workers):
            slot = Slot(number, f"worker {number}", lanes=4)
            self.slots.add(slot)
            self.slots.make_ready(slot, 0.0)

    def send(self, trial: int, end: int | None = 1, company: Company = ()) -> tuple[Slot, Flight]:
        flight = flight_of(trial, end, company)
        (slot,) = self.slots.choose_for(flight.task)
        self.slots.send(slot, flight, 1.0)
        return slot, flight


def test_trials_go_to_the_worker_with_the_fewest_until_all_are_full():
    pool = Pool(2)
    sent = [pool.send(trial) for trial in range(8)]
    assert [slot.handle for slot, _ in sent] == [0, 1] * 4
    assert pool.slots.capacity() == 0
    assert pool.slots.choose(8) is None
    pool.slots.land(*sent[3], 2.0, 1.0)
    assert pool.slots.capacity() == 1
    assert pool.send(8)[0].handle == 1


def test_all_clocks_run_from_the_start_and_nothing_is_taken_back():
    pool = Pool(1)
    flights = [pool.send(trial)[1] for trial in range(4)]
    assert {flight.since for flight in flights} == {1.0}
    assert not pool.slots.recall(1.0 + 2 * STUCK_SECONDS)
    assert pool.slots.capacity() == 0


@pytest.mark.parametrize(("there", "elsewhere", "where"), [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1), (2, 3, 0)])
def test_a_trial_goes_back_to_where_it_left_its_object_unless_another_worker_has_less_to_do(there, elsewhere, where):
    pool = Pool(2)
    first, flight = pool.send(0)
    pool.slots.land(first, flight, 2.0, 1.0)
    for trial, slot in enumerate([pool.slots.all[0]] * there + [pool.slots.all[1]] * elsewhere, 1):
        pool.slots.send(slot, flight_of(trial), 2.0)
    assert pool.send(0)[0].handle == where


def test_a_trial_goes_to_the_worker_whose_lanes_have_least_to_do_yet_and_not_to_the_one_that_has_fewest():
    pool = Pool(2)
    first, second = pool.slots.all
    long, _ = pool.send(0, end=9)
    assert long is first
    assert [pool.send(trial)[0] for trial in range(1, 5)] == [second] * 4
    assert pool.send(5)[0] is first  # the other is full
    pool.slots.land(second, second.flights[0], 2.0, 1.0)
    assert pool.send(6)[0] is second


def test_what_has_been_trained_already_is_no_more_to_do():
    pool = Pool(2)
    first = pool.slots.all[0]
    pool.send(0, end=20)
    pool.send(1, end=9)
    first.trained += 16
    assert pool.send(2)[0] is first


def test_where_ends_are_open_the_worker_with_the_fewest_is_taken():
    pool = Pool(2)
    assert [pool.send(trial, end=None)[0].handle for trial in range(8)] == [0, 1] * 4


def test_lanes_are_no_tasks_that_wait():
    pool = Pool(1)
    for trial in range(4):
        pool.send(trial)
        assert not pool.slots.sent_ahead()


def test_workers_are_free_as_if_each_lane_had_one_for_itself():
    pool = Pool(4)
    slots = pool.slots.all
    assert pool.slots.unshared() == 4
    shared = [flight_of(trial) for trial in range(3)]
    for flight in shared:
        pool.slots.send(slots[0], flight, 1.0)
    assert pool.slots.unshared() == 1
    pool.slots.send(slots[1], flight_of(3), 1.0)
    pool.slots.send(slots[2], flight_of(4), 1.0)
    assert pool.slots.unshared() == 0
    for flight in shared:
        pool.slots.land(slots[0], flight, 2.0, 1.0)
    assert pool.slots.unshared() == 2


def test_nothing_is_sent_to_the_workers_of_a_gang():
    pool = Pool(3)
    task = Task(Trial(7, {}, 0, "random"), Segment(7, 0, 1, None, 1, 2), None)
    chosen, gang = pool.slots.choose_for(task), Gang(task)
    for rank, slot in enumerate(chosen):
        pool.slots.send(slot, Flight(gang, rank), 1.0)
    assert [slot.runs_whole for slot in pool.slots.all].count(True) == 2
    assert (pool.slots.capacity(), pool.slots.unshared()) == (4, 1)
    assert {pool.send(trial)[0] in chosen for trial in range(4)} == {False}
    assert not pool.slots.choose_gang(8, 1)


def test_nothing_runs_beside_a_trial_that_is_to_be_alone():
    pool = Pool(2)
    task = Task(Trial(0, {}, 0, "random"), Segment(0, 0, 1, None, 1), None)
    (slot,), flight = pool.slots.choose_for(task), Flight(Gang(task), 0)
    pool.slots.send(slot, flight, 1.0)
    assert pool.slots.capacity() == 4
    assert {pool.send(trial)[0].handle for trial in range(1, 5)} == {1}
    assert not pool.slots.choose_for(task)
    pool.slots.land(slot, flight, 2.0, 1.0)
    assert pool.slots.choose_for(task) == (slot,)


def test_nothing_runs_beside_trials_of_a_company_but_those_of_it():
    pool = Pool(2)
    first, _ = pool.send(0, company=(0, 1, 2))
    assert pool.slots.capacity() == 4
    other, _ = pool.send(9)
    assert other is not first
    assert pool.send(1, company=(0, 1, 2))[0] is first
    assert [pool.send(trial)[0] for trial in range(10, 13)] == [other] * 3
    assert pool.slots.choose(13) is None
    assert pool.slots.choose(4, (4, 5)) is None, "it needs a worker that has nothing to do"
    assert pool.send(2, company=(0, 1, 2))[0] is first


def test_a_company_takes_another_worker_where_its_own_is_full_or_drained():
    pool, company = Pool(3), tuple(range(6))
    first = [pool.send(trial, company=company)[0] for trial in range(4)]
    assert first == [pool.slots.all[0]] * 4
    assert pool.slots.join(flight_of(4, company=company).task) == ()
    second, _ = pool.send(4, company=company)
    assert second is pool.slots.all[1]
    pool.slots.drain(second, "it kept growing")
    assert pool.send(5, company=company)[0] is pool.slots.all[2]


def test_a_worker_takes_whoever_comes_again_once_its_company_has_ended():
    pool = Pool(1)
    sent = [pool.send(trial, company=(0, 1)) for trial in range(2)]
    assert pool.slots.capacity() == 0
    pool.slots.land(*sent[0], 2.0, 1.0)
    assert pool.slots.capacity() == 0
    pool.slots.land(*sent[1], 3.0, 1.0)
    assert pool.slots.capacity() == 4
    assert [pool.send(trial)[0].handle for trial in range(4)] == [0] * 4


def test_a_company_whose_worker_is_gone_begins_anew_on_another():
    pool, company = Pool(2), (0, 1)
    first, _ = pool.send(0, company=company)
    assert len(pool.slots.remove(first)) == 1
    assert pool.slots.join(flight_of(1, company=company).task) == ()
    assert pool.send(1, company=company)[0] is pool.slots.all[0]


def test_those_whose_turn_it_isnt_join_their_company_and_take_no_worker_that_is_free():
    pool = Pool(2)
    first, _ = pool.send(0, company=(0, 1))
    assert pool.slots.join(flight_of(1, company=(0, 1)).task) == (first,)
    assert pool.slots.join(flight_of(2, company=(2, 3)).task) == ()
    assert pool.slots.join(flight_of(4).task) == ()
    assert pool.slots.choose_for(flight_of(2, company=(2, 3)).task) == (pool.slots.all[1],)


def test_a_worker_that_is_drained_ends_what_it_has_and_takes_no_more():
    pool = Pool(1)
    slot, flight = pool.send(0)
    pool.slots.drain(slot, "it kept growing")
    assert pool.slots.capacity() == 0
    pool.slots.land(slot, flight, 2.0, 1.0)
    assert pool.slots.capacity() == 0
    assert not slot.flights


def test_what_a_lost_worker_held_is_given_back_and_nobody_is_sent_there():
    pool = Pool(2)
    sent = [pool.send(trial) for trial in range(4)]
    lost = pool.slots.remove(sent[0][0])
    assert lost == [sent[0][1], sent[2][1]]
    assert pool.send(0)[0].handle == 1
