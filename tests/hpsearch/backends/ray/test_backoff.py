from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.backends.ray.replacing import FIRST_SECONDS, MOST_SECONDS, Backoff


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
    assert backoff.given_back == 3
    assert backoff.ask(10.0 + FIRST_SECONDS - 0.1) == 0
    assert backoff.ask(10.0 + FIRST_SECONDS) == 3
    assert backoff.given_back == 0
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
