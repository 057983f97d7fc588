"""The value of a configuration over its repeats, and the paired t-test."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpsearch.config.checks import InvalidKey
from hpsearch.objective.repeats import Repeats, deviation, paired_p_value

NUMBERS = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)


@given(PAIRS)
def test_the_p_value_is_scipys(pairs):
    first, second = zip(*pairs, strict=True)
    differences = [one - other for one, other in pairs]
    if max(differences) - min(differences) > 1e-6 * max(map(abs, differences)):  # else SciPy warns of lost precision
        assert paired_p_value(first, second) == pytest.approx(stats.ttest_rel(first, second).pvalue, abs=1e-12)
    assert 0 <= paired_p_value(first, second) == paired_p_value(second, first) <= 1
    assert paired_p_value(first, first) == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0], [2.0, 3.0], 0.0),
        ([1.0, math.inf], [2.0, 3.0], 0.0),
        ([1.0, math.inf], [2.0, math.inf], 1.0),
        ([-math.inf, math.inf], [2.0, 3.0], 1.0),
        ([1e308, -1e308], [-1e308, 1e308], 1.0),
        ([1e-320, 2e-320, 3e-320], [3e-320, 1e-320, 2e-320], 1.0),
    ],
)
def test_where_no_test_is_possible_equal_means_have_1_and_others_0(first, second, expected):
    assert paired_p_value(first, second) == expected


@given(st.lists(NUMBERS, min_size=1, max_size=9), st.floats(0, 1))
def test_a_value_is_the_mean_or_numpys_quantile(values, quantile):
    assert Repeats(9).value(values) == statistics.mean(values)
    assert Repeats(9, quantile).value(values) == pytest.approx(np.quantile(values, quantile), abs=1e-6)


def test_infinities_and_nan_come_through():
    assert Repeats(2).value([1.0, math.inf]) == math.inf
    assert math.isnan(Repeats(2).value([-math.inf, math.inf]))
    assert Repeats(3, 0.5).value([math.inf, 1.0, 2.0]) == 2.0
    assert Repeats(3, 1).value([math.inf, 1.0, 2.0]) == math.inf
    assert math.isnan(Repeats(3, 0.5).value([1.0, math.nan, 2.0]))


def test_the_deviation_is_of_a_sample():
    assert deviation([1.0]) is None
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(deviation([1.0, math.inf]) or 0.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n": 0}, "n: must be at least 1, got 0"),
        ({"n": 5, "quantile": 1.5}, "quantile: must be from 0 to 1, got 1.5"),
        ({"n": 5, "quantile": -0.5}, "quantile: must be at least 0, got -0.5"),
        ({"n": 3, "racing": True}, "n: must be more than 3 where racing is true, got 3"),
        ({"n": 5, "racing": True, "quantile": 0.5}, "quantile: must not be given where racing is true"),
    ],
)
def test_settings_without_a_meaning_are_refused(keys, message):
    with pytest.raises(InvalidKey) as error:
        Repeats(**keys)
    assert message in str(error.value)
