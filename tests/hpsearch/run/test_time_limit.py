"""The time that a sweep may take, which a pause stops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.run.time_limit import TimeLimit


class Clock(SimulatedBackend):
    """A backend of which the clock alone is used."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.woken: list[float] = []

    def now(self) -> float:
        return self.time

    def wake(self, when: float) -> None:
        self.woken.append(when)


def test_it_is_up_when_what_former_runs_left_is_over():
    clock = Clock()
    limit = TimeLimit(clock, 60.0, 45.0)
    limit.begin()
    clock.time += 14.5
    assert not limit.is_up
    clock.time += 0.5
    assert limit.is_up
    assert limit.elapsed == 15.0
    assert clock.woken == [1015.0]


def test_without_a_limit_it_is_never_up_and_wakes_nobody():
    clock = Clock()
    limit = TimeLimit(clock, None, 1e9)
    limit.begin()
    limit.pause()
    clock.time += 1e9
    limit.resume()
    assert not limit.is_up
    assert clock.woken == []


def test_where_nothing_is_left_it_is_up_at_once():
    limit = TimeLimit(Clock(), 60.0, 60.0)
    limit.begin()
    assert limit.is_up


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=20))
def test_pauses_count_as_elapsed_and_not_towards_the_limit(parts):
    clock = Clock()
    limit = TimeLimit(clock, 60.0, 0.0)
    limit.begin()
    running = 0
    for is_pause, seconds in parts:
        if is_pause:
            limit.pause()
        assert limit.is_paused == is_pause
        clock.time += seconds
        running += 0 if is_pause else seconds
        assert limit.is_up == (not is_pause and running >= 60)
        if is_pause:
            limit.resume()
    assert limit.elapsed == sum(seconds for _, seconds in parts)
    assert clock.woken[-1] == pytest.approx(1000.0 + 60.0 + limit.elapsed - running)
