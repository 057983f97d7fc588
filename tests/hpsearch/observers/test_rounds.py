from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.observers.rounds import Rounds

SECONDS = st.floats(0.0, 100.0)
TRIALS = st.lists(st.integers(1, 32), min_size=1, max_size=60)


def told(numbers: list[int], base: float, each: float) -> Rounds:
    rounds = Rounds()
    for trials in numbers:
        for _ in range(trials):
            rounds.add(trials, base / trials + each)
    return rounds


@given(SECONDS, SECONDS, TRIALS, st.floats(1.0, 50.0), st.floats(1.0, 16.0))
def test_what_rounds_take_lies_between_the_bounds(base, each, numbers, count, beside):
    bounds = told(numbers, base, each).seconds(count, count * beside)
    assert bounds is not None
    truth = base * count + each * count * beside
    assert bounds[0] <= truth * (1 + 1e-6) + 1e-9
    assert bounds[1] >= truth * (1 - 1e-6) - 1e-9


@given(SECONDS, SECONDS, st.floats(1.0, 50.0), st.floats(1.0, 16.0))
def test_where_the_number_of_trials_has_varied_both_are_what_they_take(base, each, count, beside):
    low, high = told([16, 12, 8, 4], base, each).seconds(count, count * beside) or (0.0, 0.0)
    assert low == high == pytest.approx(base * count + each * count * beside, rel=1e-6, abs=1e-6)


def test_before_the_first_round_nothing_is_known():
    assert Rounds().seconds(3.0, 6.0) is None


def test_what_lies_long_ago_counts_for_little():
    rounds = told([8] * 20, 8.0, 0.0)
    for _ in range(8 * 200):
        rounds.add(8, 1.0 / 8)
    low, high = rounds.seconds(1.0, 8.0) or (0.0, 0.0)
    assert low == pytest.approx(1.0, rel=0.05)
    assert high == pytest.approx(1.0, rel=0.05)
