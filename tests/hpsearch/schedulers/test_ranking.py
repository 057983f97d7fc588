"""Ranking, and the words for it."""

from __future__ import annotations

from math import inf, nan

import pytest

from hpsearch.schedulers.base import Outcome
from hpsearch.schedulers.ranking import rank
from hpsearch.schedulers.reasons import ordinal, ran, ranked
from hpsearch.trial import Goal


def order(goal: Goal, *values: float | None) -> list[int]:
    outcomes = [Outcome(trial, 1, value) for trial, value in enumerate(values)]
    forwards = [outcome.trial for outcome in rank(outcomes, goal)]
    assert forwards == [outcome.trial for outcome in rank(reversed(outcomes), goal)]
    return forwards


def test_the_goal_says_which_end_is_best():
    assert order("minimize", 2.0, 3.0, 1.0) == [2, 0, 1]
    assert order("maximize", 2.0, 3.0, 1.0) == [1, 0, 2]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_ties_go_to_the_lower_trial(goal):
    assert order(goal, 5.0, 5.0, 5.0) == [0, 1, 2]
    assert order(goal, 0.0, -0.0) == [0, 1]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_nan_ranks_after_all_numbers_and_failed_after_nan(goal):
    assert order(goal, None, nan, 1.0, None, nan) == [2, 1, 4, 0, 3]


def test_nan_ranks_after_the_worst_infinity():
    assert order("minimize", nan, inf, -inf, None) == [2, 1, 0, 3]
    assert order("maximize", nan, inf, -inf, None) == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (10, "10th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (102, "102nd"),
        (111, "111th"),
        (113, "113th"),
        (1003, "1003rd"),
    ],
)
def test_ordinals(number, word):
    assert ordinal(number) == word


def test_a_rank_in_words():
    assert ranked(Outcome(4, 9, 0.5), 2, 7, 9, 3) == "rung 2: 7th of 9, top 3 go on"
    assert ranked(Outcome(4, 9, 0.5), 0, 1, 3, 1) == "rung 0: 1st of 3, top 1 goes on"
    assert ranked(Outcome(4, 9, nan), 2, 7, 9, 3) == "rung 2: 7th of 9 (NaN), top 3 go on"


def test_how_far_a_trial_ran_in_words():
    assert ran(Outcome(0, 10, 0.5), 10) == "ran all 10 iterations"
    assert ran(Outcome(0, 1, 0.5), 1) == "ran its 1 iteration"
    assert ran(Outcome(0, 7, 0.5), 10) == "ended by itself after 7 of 10 iterations"
    assert ran(Outcome(0, 7, 0.5), None) == "ended by itself after 7 iterations"
    assert ran(Outcome(0, 1, 0.5), None) == "ended by itself after 1 iteration"
