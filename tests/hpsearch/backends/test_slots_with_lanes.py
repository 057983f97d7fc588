"""Which worker a trial goes to where workers run several beside each other."""

from __future__ import annotations

import pytest

from hpsearch.backends.gangs import Gang
from hpsearch.backends.slots import STUCK_SECONDS, Flight, Slot, Slots
from hpsearch.task import Task
from hpsearch.trial import Segment, Trial


class Pool:
    """Workers of four lanes each."""

    def __init__(self, workers: int) -> None:
        self.slots = Slots(lanes=4)
        for number in range(workers):
            slot = Slot(number, f"worker {number}", lanes=4)
            self.slots.add(slot)
            self.slots.make_ready(slot, 0.0)

    def send(self, trial: int) -> tuple[Slot, Flight]:
        slot = self.slots.choose(trial)
        assert slot is not None
        flight = Flight(Gang(Task(Trial(trial, {}, 0, "random"), Segment(trial, 0, 1, None, 1), None)), 0)
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


@pytest.mark.parametrize(("others", "where"), [(1, 0), (3, 1)])
def test_a_trial_goes_back_to_where_it_left_its_object_unless_that_worker_has_more_to_do(others, where):
    pool = Pool(2)
    first, flight = pool.send(0)
    pool.slots.land(first, flight, 2.0, 1.0)
    for trial in range(1, 1 + others):
        slot = pool.slots.all[0]
        flight = Flight(Gang(Task(Trial(trial, {}, 0, "random"), Segment(trial, 0, 1, None, 1), None)), 0)
        pool.slots.send(slot, flight, 2.0)
    assert pool.send(0)[0].handle == where


def test_nothing_runs_beside_a_trial_that_is_to_be_alone():
    pool = Pool(2)
    slot, flight = pool.send(0)
    pool.slots.set_alone(slot, True)
    assert pool.slots.capacity() == 4
    assert {pool.send(trial)[0].handle for trial in range(1, 5)} == {1}
    assert pool.slots.choose_idle() is None
    pool.slots.land(slot, flight, 2.0, 1.0)
    pool.slots.set_alone(slot, False)
    assert pool.slots.choose_idle() is slot


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
