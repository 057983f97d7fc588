from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hpsearch.backends.gangs import Gang
from hpsearch.backends.slots import MOST_FLIGHTS, SEND_AHEAD_SECONDS, STUCK_SECONDS, Flight, Slot, Slots
from hpsearch.task import Task
from hpsearch.trial import Segment, Trial

SHORT = 0.75 * SEND_AHEAD_SECONDS
"""Of what takes so long one is sent ahead."""


class Pool:
    """Slots with a clock, told of whole steps."""

    def __init__(self, workers: int = 0, nodes: str = "", ahead: bool = True) -> None:
        self.slots: Slots = Slots(ahead)
        self.clock = 0.0
        self.trials = 0
        for node in nodes or " " * workers:
            self.add(node)

    def add(self, node: str = " ") -> Slot:
        slot = Slot(len(self.slots.all), f"worker {len(self.slots.all)}", node)
        self.slots.add(slot)
        self.slots.make_ready(slot, self.clock)
        return slot

    def send(self, trial: int | None = None) -> tuple[Slot, Flight]:
        if trial is None:
            trial = self.trials
            self.trials += 1
        slot = self.slots.choose(trial)
        assert slot is not None
        flight = self.flight(trial)
        self.slots.send(slot, flight, self.clock)
        return slot, flight

    def flight(self, trial: int) -> Flight:
        task = Task(Trial(trial, {}, 0, "random"), Segment(trial, 0, 1, None, 1), None)
        return Flight(Gang(task), 0)

    def land(self, slot: Slot, flight: Flight, after: float = 0.0) -> None:
        self.clock += after
        self.slots.land(slot, flight, self.clock, None if flight.recalled else after)

    def warm_up(self, seconds: float = SHORT, count: int = 32) -> None:
        """Let as many segments pass as it takes to know how long they are."""
        for _ in range(count):
            self.land(*self.send(), seconds)


def test_a_tasks_clock_begins_when_nothing_of_another_trial_is_closed_before_it():
    pool = Pool(1)
    _, flight = pool.send()
    flight.closing = 7
    assert pool.slots.waits(flight)
    pool.slots.begin(flight, 9.0)
    assert flight.since == 9.0
    assert not pool.slots.waits(flight)


def test_the_clock_of_a_gang_begins_with_the_last_of_its_workers():
    pool = Pool(2)
    task = Task(Trial(0, {}, 0, "random"), Segment(0, 0, 1, None, 1, 2), None)
    gang = Gang(task)
    first, second = (Flight(gang, rank, closing=rank or None) for rank in range(2))
    for slot, flight in zip(pool.slots.all, (first, second), strict=True):
        pool.slots.send(slot, flight, 0.0)
    assert pool.slots.waits(first)
    pool.slots.begin(second, 4.0)
    assert (first.since, second.since) == (4.0, 4.0)


def test_a_task_sent_ahead_has_no_clock_before_the_one_before_it_has_landed():
    pool = Pool(1)
    pool.warm_up()
    slot, first = pool.send()
    _, second = pool.send()
    second.closing = first.task.segment.trial
    pool.slots.begin(second, 3.0)
    assert second.since == math.inf
    pool.clock = 5.0
    pool.land(slot, first)
    assert second.since == 5.0


def test_a_retired_worker_takes_nothing_more():
    pool = Pool(1)
    slot, flight = pool.send()
    pool.land(slot, flight)
    pool.slots.retire(slot, 2.0)
    assert (pool.slots.capacity(), pool.slots.choose(0), slot.retired_since) == (0, None, 2.0)


def test_a_worker_takes_tasks_once_it_is_ready():
    pool = Pool()
    slot: Slot = Slot(0, "worker 0")
    pool.slots.add(slot)
    assert pool.slots.capacity() == 0
    assert pool.slots.choose(0) is None
    pool.slots.make_ready(slot, 5.0)
    assert pool.slots.capacity() == 1
    assert pool.slots.choose(0) is slot
    assert slot.idle_since == 5.0


def test_each_worker_has_one_task_and_then_there_is_no_room():
    pool = Pool(2)
    (one, _), (other, _) = pool.send(), pool.send()
    assert one is not other
    assert pool.slots.capacity() == 0
    assert pool.slots.choose(9) is None
    assert pool.slots.busy() == 2


def test_a_trial_goes_back_to_the_worker_that_ran_it_last_if_that_is_free():
    pool = Pool(3)
    flown = [pool.send() for _ in range(3)]
    for slot, flight in flown:
        pool.land(slot, flight)
    for trial in (2, 0, 1):
        assert pool.slots.choose(trial) is flown[trial][0]
    slot, _ = pool.send(1)
    assert slot is flown[1][0]
    elsewhere, flight = pool.send(1)  # its worker is busy now
    assert elsewhere is not slot
    pool.land(elsewhere, flight)
    assert pool.slots.choose(1) is elsewhere


def test_of_free_workers_the_one_that_is_free_the_longest_is_taken():
    pool = Pool(3)
    flown = [pool.send() for _ in range(3)]
    for number in (1, 2, 0):
        pool.land(*flown[number], after=1.0)
    assert [slot.handle for slot in pool.slots.free()] == [1, 2, 0]
    assert pool.slots.choose(99) is flown[1][0]


def test_a_second_task_is_sent_ahead_only_after_many_short_ones():
    pool = Pool(2)
    pool.warm_up(count=31)
    pool.send()
    pool.send()
    assert pool.slots.capacity() == 0
    pool = Pool(2)
    pool.warm_up(count=32)
    assert pool.slots.capacity() == 4
    first, second = pool.send(), pool.send()
    assert pool.slots.capacity() == 2
    ahead, flight = pool.send()
    assert ahead is first[0]
    assert flight.since == math.inf
    assert pool.slots.capacity() == 1
    assert pool.send()[0] is second[0]
    assert pool.slots.capacity() == 0
    assert pool.slots.choose(99) is None


def test_the_shorter_the_tasks_the_more_are_sent_ahead_to_the_worker_with_least_to_do():
    for seconds, ahead in ((0.99, 1), (0.49, 2), (0.3, 3), (1 / 7.1, 7), (0.01, 7), (0.0, 7)):
        pool = Pool(2)
        pool.warm_up(seconds * SEND_AHEAD_SECONDS)
        assert pool.slots.capacity() == 2 * (1 + ahead)
        loads: list[int] = []
        while pool.slots.capacity():
            assert pool.slots.sent_ahead() == (len(loads) >= 4)
            slot, _ = pool.send()
            loads.append(len(slot.flights))
        assert loads == sorted(loads)
        assert {len(slot.flights) for slot in pool.slots.all} == {1 + ahead}
        assert 1 + ahead <= MOST_FLIGHTS


def test_one_long_task_ends_the_sending_ahead_until_it_is_forgotten():
    pool = Pool(1)
    pool.warm_up()
    pool.warm_up(seconds=1.0, count=1)
    pool.send()
    assert pool.slots.capacity() == 0
    pool = Pool(1)
    pool.warm_up(seconds=1.0, count=1)
    pool.warm_up(count=32)
    pool.send()
    assert pool.slots.capacity() == 1


def test_what_waits_behind_a_long_task_is_stuck_until_it_was_recalled():
    pool = Pool(1)
    pool.warm_up()
    slot, head = pool.send()
    _, behind = pool.send()
    assert pool.slots.recall(pool.clock + STUCK_SECONDS) == []
    later = pool.clock + STUCK_SECONDS + 0.01
    assert pool.slots.recall(later) == [(slot, behind)]
    assert behind.recalled
    assert pool.slots.recall(later) == []
    pool.land(slot, behind, after=10.0)  # taken back: it says nothing of how long segments are
    assert pool.slots.capacity() == 0
    assert pool.slots.recall(later) == []
    pool.land(slot, head)
    assert pool.slots.busy() == 0
    pool.send()
    assert pool.slots.capacity() == 1


def test_nothing_more_is_sent_behind_a_long_task():
    pool = Pool(1)
    pool.warm_up(0.49 * SEND_AHEAD_SECONDS)
    slot, head = pool.send()
    assert pool.slots.capacity() == 2
    assert pool.slots.recall(pool.clock + 2 * STUCK_SECONDS) == []
    assert (pool.slots.capacity(), pool.slots.choose(99)) == (0, None)
    pool.land(slot, head)
    assert pool.slots.capacity() == 3


def test_the_second_tasks_time_counts_from_the_end_of_the_first():
    pool = Pool(1)
    pool.warm_up()
    slot, head = pool.send()
    _, behind = pool.send()
    pool.land(slot, head, after=7.0)
    assert behind.since == pool.clock
    assert pool.slots.recall(pool.clock) == []


def test_a_worker_that_is_gone_gives_back_what_it_had_and_takes_nothing_more():
    pool = Pool(2)
    pool.warm_up()
    slot, head = pool.send()
    pool.send()
    _, behind = pool.send()
    assert pool.slots.remove(slot) == [head, behind]
    assert slot.dead
    assert slot not in pool.slots.all
    assert pool.slots.choose(head.task.segment.trial) is not slot
    assert pool.slots.remove(slot) == []


def test_nothing_is_sent_ahead_where_segments_may_be_wide():
    pool = Pool(1, ahead=False)
    pool.warm_up()
    pool.send()
    assert pool.slots.capacity() == 0
    assert pool.slots.choose(99) is None


def gang_of(pool: Pool, trial: int, width: int) -> list[int]:
    """Choose a gang and send its task; return the workers' numbers by rank."""
    chosen = pool.slots.choose_gang(trial, width)
    gang = Gang(Task(Trial(trial, {}, 0, "random"), Segment(trial, 0, 1, None, 1, width), None))
    for rank, slot in enumerate(chosen):
        pool.slots.send(slot, Flight(gang, rank), pool.clock)
    return [slot.handle for slot in chosen]


def free_all(pool: Pool) -> None:
    for slot in pool.slots.all:
        for flight in list(slot.flights):
            pool.land(slot, flight)


def test_a_gang_takes_free_workers_of_one_node_and_leaves_large_nodes_to_others():
    pool = Pool(nodes="aaabb")
    assert gang_of(pool, 0, 2) == [3, 4]
    assert gang_of(pool, 1, 2) == [0, 1]
    assert gang_of(pool, 2, 2) == []
    assert pool.slots.capacity() == 1


def test_a_gang_goes_back_to_its_node_and_its_workers_and_rank_0_leads():
    pool = Pool(nodes="bbaaa")
    assert gang_of(pool, 0, 3) == [2, 3, 4]
    free_all(pool)
    assert gang_of(pool, 1, 1) == [0]
    free_all(pool)
    assert gang_of(pool, 0, 2) == [2, 3]
    free_all(pool)
    slot, flight = pool.send(0)
    assert slot.handle == 2
    pool.land(slot, flight)
    assert gang_of(pool, 0, 4) == [2, 4, 3, 1]


def test_the_ranks_of_a_node_stand_together_and_the_fullest_nodes_are_taken():
    pool = Pool(nodes="abcbcbd")
    assert gang_of(pool, 0, 5) == [1, 3, 5, 2, 4]
    free_all(pool)
    pool.send(1)  # worker 0, of node a
    assert [slot.node for slot in pool.slots.choose_gang(1, 6)] == ["b", "b", "b", "c", "c", "d"]


def test_the_node_that_ran_the_trial_last_comes_first_though_another_is_fuller():
    pool = Pool(nodes="abb")
    slot, flight = pool.send(5)
    assert slot.node == "a"
    pool.land(slot, flight)
    assert [slot.node for slot in pool.slots.choose_gang(5, 3)] == ["a", "b", "b"]
    assert [slot.node for slot in pool.slots.choose_gang(5, 2)] == ["b", "b"]


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.integers(2, 12), st.none() | st.integers(0, 11))
def test_a_gang_is_of_one_node_where_it_can_be_and_ranks_stand_together(nodes, width, last):
    pool = Pool(nodes="".join(nodes))
    if last is not None and last < len(nodes):
        slot = pool.slots.all[last]
        pool.slots.send(slot, flight := pool.flight(0), pool.clock)
        pool.land(slot, flight)
    chosen = pool.slots.choose_gang(0, width)
    assert len(chosen) == (width if width <= len(nodes) else 0)
    assert len({slot.handle for slot in chosen}) == len(chosen)
    stand = [slot.node for slot in chosen]
    changes = sum(one != other for one, other in itertools.pairwise(stand))
    assert changes == max(len(set(stand)) - 1, 0)
    if chosen:
        assert (len(set(stand)) == 1) == (max(nodes.count(node) for node in nodes) >= width)
    if last is not None and last < len(nodes) and nodes.count(nodes[last]) >= width:
        assert chosen[0].handle == last


class SlotsMachine(RuleBasedStateMachine):
    """Whatever happens to the workers, the sums are right and nobody gets what they can't take."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    @rule()
    def add(self) -> None:
        self.pool.add()

    @precondition(lambda self: self.pool.slots.capacity() > 0)
    @rule(trial=st.none() | st.integers(0, 5))
    def send(self, trial: int | None) -> None:
        before = self.pool.slots.capacity()
        slot, flight = self.pool.send(trial)
        assert slot.ready
        assert not slot.dead
        assert len(slot.flights) <= MOST_FLIGHTS
        assert slot.flights[-1] is flight
        assert self.pool.slots.capacity() == before - 1

    @precondition(lambda self: self.pool.slots.busy() > 0)
    @rule(data=st.data(), seconds=st.sampled_from([SHORT, SHORT / 3, SHORT / 30, 1.0]))
    def land(self, data: st.DataObject, seconds: float) -> None:
        slot = data.draw(st.sampled_from([slot for slot in self.pool.slots.all if slot.flights]))
        self.pool.land(slot, slot.flights[0], seconds)

    @precondition(lambda self: any(len(slot.flights) > 1 for slot in self.pool.slots.all))
    @rule()
    def recall(self) -> None:
        self.pool.clock += 2 * STUCK_SECONDS
        for slot, flight in self.pool.slots.recall(self.pool.clock):
            assert flight is slot.flights[-1]
            self.pool.land(slot, flight)
        assert all(len(slot.flights) <= 1 for slot in self.pool.slots.all)

    @precondition(lambda self: len(self.pool.slots.all) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.pool.slots.all))
        flights = list(slot.flights)
        assert self.pool.slots.remove(slot) == flights

    @precondition(lambda self: self.pool.slots.all)
    @rule()
    def hurry(self) -> None:
        """Many short tasks in a row."""
        for _ in range(32):
            if self.pool.slots.capacity() > 0:
                self.pool.land(*self.pool.send(), SHORT)

    @invariant()
    def sums_are_right(self) -> None:
        slots = self.pool.slots
        free = [slot for slot in slots.all if not slot.flights]
        open_ones = [len(slot.flights) for slot in slots.all if not slot.blocked]
        assert {id(slot) for slot in slots.free()} == {id(slot) for slot in free}
        capacities = {sum(max(most - load, 0) for load in open_ones) for most in range(1, MOST_FLIGHTS + 1)}
        assert slots.capacity() in capacities
        assert slots.busy() == len(slots.all) - len(free)
        assert (slots.choose(0) is None) == (slots.capacity() == 0)
        assert len(slots._by_warm) <= len(slots.all)
        for slot in slots.all:
            assert all(flight.since == math.inf for flight in list(slot.flights)[1:])
            assert not slot.flights or slot.flights[0].since <= self.pool.clock


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)
