"""A decision's reason in words."""

from __future__ import annotations

from math import nan

import pytest

from hpsearch.schedulers.base import Outcome, ordinal, ran, ranked


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
