"""What makes one trial better than another, against a simple oracle."""

from __future__ import annotations

import functools
import itertools
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective, is_valid
from hpsearch.trial import Goal

MINIMIZE, MAXIMIZE = Objective(Metric("loss")), Objective(Metric("score", "maximize"))

few_values = st.sampled_from([None, nan, -nan, inf, -inf, 0.0, -0.0, 1.0, -1.0])
"""So few that ties are common."""

values = st.dictionaries(st.integers(0, 40), few_values | st.floats() | st.none())
goals = st.sampled_from(["minimize", "maximize"])


def oracle(goal: Goal, one: tuple[int, float | None], other: tuple[int, float | None]) -> int:
    """Compare two trials as a person would, case by case."""
    (number, value), (other_number, other_value) = one, other
    by_number = -1 if number < other_number else 1
    if value is None or other_value is None:
        return by_number if value is other_value else 1 if value is None else -1
    if isnan(value) or isnan(other_value):
        return by_number if isnan(value) and isnan(other_value) else 1 if isnan(value) else -1
    if value == other_value:
        return by_number
    return -1 if (value < other_value) == (goal == "minimize") else 1


@given(values, goals)
def test_trials_rank_as_the_oracle_has_it_and_the_first_with_a_value_is_the_best(given, goal):
    objective = Objective(Metric("loss", goal))
    by_hand = sorted(given.items(), key=functools.cmp_to_key(functools.partial(oracle, goal)))
    ranked = objective.rank(given)
    assert ranked == [number for number, _ in by_hand]
    assert objective.best(given) == next((number for number in ranked if is_valid(given[number])), None)


@given(values, goals, st.randoms(use_true_random=False))
def test_the_order_in_which_trials_come_doesnt_matter(given, goal, chance):
    objective = Objective(Metric("loss", goal))
    items = list(given.items())
    chance.shuffle(items)
    assert objective.rank(dict(items)) == objective.rank(given)
    assert objective.best(dict(items)) == objective.best(given)


@given(few_values | st.floats(), few_values | st.floats(), goals)
def test_a_value_improves_on_another_where_it_would_rank_first_though_its_trial_has_the_higher_number(
    value, former, goal
):
    objective = Objective(Metric("loss", goal))
    assert objective.improves(value, former) == (objective.rank({0: former, 1: value}) == [1, 0])


@given(st.lists(few_values.filter(lambda value: value is not None)), goals, st.sampled_from(["last", "best"]))
def test_a_trials_value_is_its_last_or_its_best_and_of_equal_ones_the_newest(reported, goal, scope):
    objective = Objective(Metric("loss", goal, scope))
    kept, value = None, None
    for place, new in enumerate(reported):
        if objective.replaces(new, value):
            kept, value = place, new
    if scope == "last":
        assert kept == (len(reported) - 1 if reported else None)
    else:
        by_hand = objective.rank({-place: new for place, new in enumerate(reported)})  # ties to the newest
        assert kept == (-by_hand[0] if reported else None)


@pytest.mark.parametrize(
    ("objective", "ranked"), [(MINIMIZE, [3, 1, 4, 2, 0, 6, 5, 7]), (MAXIMIZE, [2, 1, 4, 3, 0, 6, 5, 7])]
)
def test_numbers_rank_by_the_goal_then_nan_then_failed_and_ties_go_to_the_lower_trial(objective, ranked):
    given = dict(enumerate((nan, 0.0, inf, -inf, -0.0, None, nan, None)))
    assert objective.rank(given) == ranked


def test_without_a_valid_value_there_is_no_best():
    for some in itertools.product((nan, None), repeat=2):
        assert MINIMIZE.best(dict(enumerate(some))) is None
    assert MINIMIZE.best({}) is None
    assert MINIMIZE.best({3: inf}) == 3


def test_a_report_without_the_metric_says_nothing_of_it():
    assert MINIMIZE.reported({"score": 1.0}) is None
    assert MAXIMIZE.reported({"loss": 2.0, "score": 1.0}) == 1.0
