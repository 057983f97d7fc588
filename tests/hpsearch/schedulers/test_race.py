"""Repeats of each configuration, one after the other or in a race."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.objective import Metric, Objective
from hpsearch.objective.repeats import paired_p_value
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Scheduler, Wait
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.race import Race

LOSS = Objective(Metric("loss"))

Value = Callable[[int, int], float | None]
"""Value of (configuration, repeat); None: it fails."""


def by_seed(noise: Sequence[float]) -> Value:
    """Return values that differ by 1 between configurations and by noise between repeats; nearly constant gaps."""
    return lambda configuration, repeat: configuration + noise[repeat] + 0.01 * ((configuration + repeat) % 3)


def lived(
    scheduler: Scheduler, value: Value, workers: int, seed: int = 0, size: int | None = None
) -> tuple[list[tuple[int, int]], dict[int, Decision]]:
    """Run all trials, in random order on some workers; return each one's (configuration, repeat), and the decisions."""
    chance = random.Random(seed)
    running: list[int] = []
    places: list[tuple[int, int]] = []
    decisions: dict[int, Decision] = {}
    while True:
        answer = scheduler.next() if len(running) < workers else Wait()
        if isinstance(answer, NewTrial):
            assert answer.configuration is not None
            if size is not None and answer.configuration >= size:
                assert scheduler.exhausted() == ()
                continue
            assert answer.number == len(places)
            places.append((answer.configuration, answer.repeat))
            running.append(answer.number)
        elif isinstance(answer, Done):
            assert not running
            return places, decisions
        else:
            trial = running.pop(chance.randrange(len(running)))
            for decision in scheduler.observe(Outcome(trial, 3, value(*places[trial]))):
                assert decision.trial not in decisions
                decisions[decision.trial] = decision


def test_without_a_race_all_repeats_of_a_configuration_come_before_the_next_one():
    places, decisions = lived(FullLength(3, 6, repeats=3), lambda *_: 1.0, workers=2)
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert {decision.reason for decision in decisions.values()} == {"ran all 3 iterations"}


@pytest.mark.parametrize("size", [0, 1, 3])
def test_the_end_of_the_searcher_ends_whole_configurations(size):
    places, _ = lived(FullLength(3, None, repeats=2), lambda *_: 1.0, workers=4, size=size)
    assert places == [(configuration, repeat) for configuration in range(size) for repeat in range(2)]


def test_a_race_eliminates_after_the_third_block_and_each_one_after_it():
    def value(configuration: int, repeat: int) -> float:
        gap = [0.0, 0.0, 0.05, 1.0][configuration]
        noise = [0.0, 0.03, -0.03, 0.01, 0.0][repeat] if configuration == 2 else 0.01 * (configuration + repeat) ** 2
        return gap + noise if configuration != 1 else 0.02 * (repeat % 2)

    scheduler = Race(LOSS, 5, 3, 20)
    assert scheduler.total() == (20, 60)
    places, decisions = lived(scheduler, value, workers=1)
    assert places[:12] == [(configuration, repeat) for repeat in range(3) for configuration in range(4)]
    assert [configuration for configuration, repeat in places if repeat == 3] == [0, 1, 2]
    assert scheduler.total() == (len(places), 3 * len(places))
    third = decisions[places.index((3, 2))].reason
    assert third.startswith("ran all 3 iterations; configuration 3 is eliminated after 3 repeats: mean 1.")
    assert "configuration 1 has 0.00666667 (paired t-test, p = " in third
    assert decisions[places.index((0, 2))].reason == "ran all 3 iterations; configuration 0 goes on after 3 repeats"
    assert decisions[places.index((0, 1))].reason == "ran all 3 iterations"


@given(st.integers(1, 6), st.integers(4, 6), st.integers(0, 99), st.integers(1, 8), st.booleans(), st.booleans())
def test_the_course_of_a_race_depends_on_no_order(configurations, repeats, seed, workers, is_grid, maximizes):
    chance = random.Random(seed)
    odd: list[float | None] = [None, math.nan, math.inf, 0.0]
    values = {
        (configuration, repeat): chance.choice([*odd, *[chance.gauss(configuration / 3, 0.5)] * 30])
        for configuration in range(configurations)
        for repeat in range(repeats)
    }
    objective = Objective(Metric("loss", "maximize" if maximizes else "minimize"))

    def race() -> Race:
        return Race(objective, repeats, 3, None if is_grid else configurations * repeats)

    size = configurations if is_grid else None
    alone = lived(race(), lambda *place: values[place], 1, size=size)
    scheduler = race()
    assert lived(scheduler, lambda *place: values[place], workers, seed, size) == alone
    places = alone[0]
    assert scheduler.total() == (len(places), 3 * len(places))
    kept = {configuration for configuration, repeat in places if repeat == repeats - 1}
    for configuration in kept:
        assert all(values[configuration, repeat] is not None for repeat in range(3))
    for repeat in range(3):
        assert [place[0] for place in places if place[1] == repeat] == list(range(configurations))


def test_of_all_that_are_left_none_is_worse_than_the_best_by_the_test():
    chance = random.Random(3)
    values = [[chance.gauss(configuration / 8, 0.2) for _ in range(8)] for configuration in range(8)]
    places, _ = lived(Race(LOSS, 8, 3, 64), lambda configuration, repeat: values[configuration][repeat], 3)
    left = list(range(8))
    for block in range(3, 8):
        best = min(left, key=lambda configuration: sum(values[configuration][:block]))
        left = [one for one in left if paired_p_value(values[best][:block], values[one][:block]) >= 0.05]
        assert [configuration for configuration, repeat in places if repeat == block] == left
    assert 1 <= len(left) < 8


def test_a_configuration_with_a_repeat_without_a_value_is_eliminated_unless_it_is_retried_before():
    scheduler = Race(LOSS, 4, 3, 8)
    for _ in range(6):
        scheduler.next()
    for trial in (0, 1, 2, 3, 5):
        scheduler.observe(Outcome(trial, 3, None if trial == 2 else 1.0))
    assert scheduler.may_withdraw(2)
    scheduler.withdraw(2)
    scheduler.observe(Outcome(4, 3, None))
    assert scheduler.next() == Wait()
    decisions = scheduler.observe(Outcome(2, 3, 1.0))
    assert [decision.trial for decision in decisions] == [2, 5]
    assert not scheduler.may_withdraw(4)
    assert scheduler.next() == NewTrial(6, 3, configuration=1, repeat=3)
    assert scheduler.next() == Wait()


def test_where_nothing_has_a_value_the_race_is_over():
    places, decisions = lived(Race(LOSS, 4, 3, 8), lambda *_: None, workers=2)
    assert len(places) == 6
    assert decisions == {}


def test_a_trial_that_waits_for_the_others_of_its_block_can_be_pruned():
    scheduler = Race(LOSS, 4, 3, 8)
    for _ in range(6):
        scheduler.next()
    for trial in (0, 1, 2, 3, 4):
        scheduler.observe(Outcome(trial, 3, 1.0))
    assert scheduler.prune(4) == ()
    with pytest.raises(ValueError, match="trial 3 is not running"):
        scheduler.prune(3)
    assert [decision.trial for decision in scheduler.observe(Outcome(5, 3, 1.0))] == [5]
    assert scheduler.next() == NewTrial(6, 3, configuration=1, repeat=3)


def test_a_race_takes_no_more_configurations():
    scheduler = Race(LOSS, 4, 3, 8)
    with pytest.raises(ValueError, match="compares all its configurations from its first block on"):
        scheduler.extend(12, {})
    scheduler.extend(None, {})
    assert scheduler.total() == (8, 24)
