"""What a few numbers say, against NumPy and SciPy."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpsearch.results.samples import Spread, mean_of_pairs, mean_of_two, signed_rank, spread

NUMBERS = st.floats(-1e6, 1e6)
FEW = st.lists(NUMBERS, min_size=2, max_size=12)


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.booleans())
def test_quartiles_are_those_by_value_whichever_is_better(values, more_is_better):
    found = spread(values, more_is_better)
    median, low, high = np.percentile(values, [50, 25, 75])
    assert (found.median, found.low, found.high) == pytest.approx((median, low, high), rel=1e-9, abs=1e-6)


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), min_size=1, max_size=8), st.booleans())
def test_quartiles_are_in_order_and_none_is_worse_than_all_numbers(values, more_is_better):
    found = spread(values, more_is_better)
    worst = -math.inf if more_is_better else math.inf
    if not {math.inf, -math.inf} & {*values}:  # of opposite ones there is nothing between
        low, median, high = (worst if one is None else one for one in (found.low, found.median, found.high))
        assert low <= median <= high
    mirrored = spread([None if value is None else -value for value in values], not more_is_better)
    negated = [None if one is None else -one for one in (found.median, found.high, found.low)]
    assert [mirrored.median, mirrored.low, mirrored.high] == pytest.approx(negated)


def test_what_lies_beyond_all_numbers_and_between_huge_ones():
    assert spread([1.0, None, 3.0], more_is_better=False) == Spread(3.0, 2.0, None)
    assert spread([1.0, None, 3.0], more_is_better=True) == Spread(1.0, None, 2.0)
    assert spread([math.inf, 1.0], more_is_better=False) == Spread(math.inf, math.inf, math.inf)
    assert spread([-math.inf, math.inf], more_is_better=False) == Spread(None, None, None)
    huge = spread([-1.7e308, 1.7e308], more_is_better=True)
    assert [huge.median, huge.low, huge.high] == pytest.approx([0.0, -0.85e308, 0.85e308])


@given(FEW)
def test_the_interval_of_pairs_is_students(differences):
    if np.std(differences) < 1e-9:
        return
    mean, interval = mean_of_pairs(differences)
    assert mean == pytest.approx(np.mean(differences), rel=1e-9, abs=1e-9)
    assert interval == pytest.approx(tuple(stats.ttest_1samp(differences, 0).confidence_interval(0.95)), rel=1e-6)


@given(FEW, FEW)
def test_the_interval_of_two_samples_is_welchs(one, other):
    if min(np.std(one), np.std(other)) < 1e-3:
        return
    mean, interval = mean_of_two(one, other)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert mean == pytest.approx(np.mean(one) - np.mean(other), rel=1e-6, abs=1e-6)
    assert interval == pytest.approx(tuple(expected), rel=1e-6, abs=1e-6)


def test_an_interval_of_tiny_numbers_is_no_point():
    mean, interval = mean_of_two([1e-200, 2e-200], [3e-200, 9e-200])
    scaled, expected = mean_of_two([1.0, 2.0], [3.0, 9.0])
    assert interval is not None
    assert expected is not None
    assert mean * 1e200 == pytest.approx(scaled)
    assert [end * 1e200 for end in interval] == pytest.approx(expected)


def test_equal_numbers_have_an_interval_of_a_point_and_a_single_one_has_none():
    assert mean_of_pairs([0.5, 0.5, 0.5]) == (0.5, (0.5, 0.5))
    assert mean_of_two([2.0, 2.0], [1.0, 1.0]) == (1.0, (1.0, 1.0))
    assert mean_of_two([2.0], [1.0, 1.5]) == (0.75, None)


def from_zero(differences: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs with these differences."""
    return [(difference, 0.0) for difference in differences]


@given(st.lists(st.integers(-4, 6), min_size=1, max_size=10))
def test_the_test_counts_all_signs_with_ties_and_without_zeros(differences):
    known = [difference for difference in differences if difference]
    ranks = stats.rankdata(np.abs(known)) if known else []
    observed = abs(sum(math.copysign(rank, one) for rank, one in zip(ranks, known, strict=True)))
    sums = [
        abs(sum(sign * rank for sign, rank in zip(signs, ranks, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(known))
    ]
    assert signed_rank(from_zero(differences)) == pytest.approx(np.mean([total >= observed - 1e-9 for total in sums]))


@pytest.mark.parametrize("count", [1, 6, 13, 30, 45])
def test_the_test_without_ties_is_scipys_exact_one(count):
    draws = random.Random(count)
    differences = [draws.gauss(0.4, 1.0) for _ in range(count)]
    assert signed_rank(from_zero(differences)) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)


def test_where_most_differences_are_nought_the_few_others_are_no_evidence():
    assert signed_rank(from_zero([0.0] * 15 + [1.0] * 5)) == 2 / 2**5
    assert signed_rank(from_zero([0.0] * 6)) == 1.0


# Numerators of accuracies, which are decimals, thirds and sevenths; the difference of the first pair is 1, too.
ONE, OTHER = [97, 95, 96, 93, 98, 92, 50], [96, 96, 95, 92, 96, 94, 50]


@pytest.mark.parametrize("parts", [1, 100, 300, 128, 360, 1797, 10_000, 3_000_000])
@pytest.mark.parametrize("kind", [float, np.float32])
def test_differences_that_tie_but_for_rounding_tie(parts, kind):
    pairs = [(float(kind(one / parts)), float(kind(other / parts))) for one, other in zip(ONE, OTHER, strict=True)]
    assert signed_rank(pairs) == 50 / 64  # of ranks 2.5, -2.5, 2.5, 2.5, 5.5, -5.5


def test_differences_that_are_nearly_equal_dont_tie():
    pairs = [(0.5 + rank * 1e-12, 0.5 + 8e-12 * (rank == 1)) for rank in range(1, 7)]
    assert signed_rank(pairs) == signed_rank(from_zero([-7, 2, 3, 4, 5, 6]))
    counts = [4_000_000.0 + rank for rank in (-6, 2, 3, 4, 5, 7)]
    assert signed_rank([(count, 4_000_000.0) for count in counts]) == signed_rank(from_zero([-6, 2, 3, 4, 5, 7]))
