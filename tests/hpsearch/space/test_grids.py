"""The points of a grid, against arithmetic that rounds nothing."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.space import Distribution, IntUniform, LogIntUniform, LogUniform, Uniform

VERY_PRECISE = Context(prec=120)
BOUNDS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2, unique=True)
POSITIVE = st.lists(st.floats(min_value=5e-324, allow_infinity=False), min_size=2, max_size=2, unique=True)
WRITTEN = st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=2, unique=True)
POINTS = st.integers(2, 40)


def unique(values: list) -> list:
    return list(dict.fromkeys(values))


@settings(deadline=None, max_examples=80)
@given(bounds=BOUNDS, points=POINTS)
def test_a_linear_grid_is_right_to_the_last_bit(bounds, points):
    low, high = sorted(bounds)
    first, last = Fraction(repr(low)), Fraction(repr(high))
    exact = [first + (last - first) * Fraction(place, points - 1) for place in range(points)]
    assert Uniform(low, high, points=points).grid() == unique([float(point) for point in exact])


@settings(deadline=None, max_examples=80)
@given(bounds=POSITIVE, points=POINTS)
def test_a_logarithmic_grid_is_right_to_the_last_bit(bounds, points):
    low, high = sorted(bounds)
    first, last = (VERY_PRECISE.ln(Decimal(repr(bound))) for bound in (low, high))
    inner = [
        VERY_PRECISE.exp(VERY_PRECISE.divide(first * (points - 1 - place) + last * place, Decimal(points - 1)))
        for place in range(1, points - 1)
    ]
    assert LogUniform(low, high, points=points).grid() == unique([low, *map(float, inner), high])


@settings(deadline=None, max_examples=80)
@given(written=WRITTEN, shift=st.integers(0, 6), points=st.sampled_from([2, 3, 5, 6, 9, 11, 21, 26]))
def test_a_linear_grid_between_short_decimals_holds_short_decimals(written, shift, points):
    low, high = (Decimal(number).scaleb(-shift) for number in sorted(written))
    grid = Uniform(float(low), float(high), points=points).grid()
    exact = [low + (high - low) * place / (points - 1) for place in range(points)]
    assert [repr(value) for value in grid] == [repr(float(point)) for point in exact]
    assert all(len(Decimal(repr(value)).normalize().as_tuple().digits) <= 13 for value in grid)


@settings(deadline=None, max_examples=40)
@given(bounds=st.sets(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2), points=POINTS)
def test_an_integer_grid_is_rounded_once_however_large_its_integers(bounds, points):
    low, high = sorted(bounds)
    exact = [low + Fraction((high - low) * place, points - 1) for place in range(points)]
    assert IntUniform(low, high, points=points).grid() == unique([round(point) for point in exact])


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (Uniform(1e13, 1e13 + 4, points=5), [1e13, 1e13 + 1, 1e13 + 2, 1e13 + 3, 1e13 + 4]),
        (Uniform(-1, 1, points=11), [-1.0, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Uniform(0.1, 0.5, points=5), [0.1, 0.2, 0.3, 0.4, 0.5]),
        (Uniform(0, 1, points=4), [0.0, 1 / 3, 2 / 3, 1.0]),
        (Uniform(-1.7e308, 1.7e308, points=3), [-1.7e308, 0.0, 1.7e308]),
        (LogUniform(1e-5, 1, points=6), [1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0]),
        (LogUniform(0.2, 20, points=3), [0.2, 2.0, 20.0]),
        (LogUniform(1, 1 + 2**-51, points=3), [1.0, 1 + 2**-52, 1 + 2**-51]),
        (LogIntUniform(2**60, 2**62, points=3), [2**60, 2**61, 2**62]),
        (Uniform(0, 1, step=0.1, points=4), [0.0, 0.3, 0.7, 1.0]),
    ],
)
def test_grids_hold_the_numbers_that_people_expect(distribution: Distribution, values):
    assert [repr(value) for value in distribution.grid()] == [repr(value) for value in values]


def test_the_middle_of_a_symmetric_grid_is_zero_and_no_dust():
    for points in range(3, 200, 2):
        assert Uniform(-0.3, 0.3, points=points).grid()[points // 2] == 0.0


def test_a_long_logarithmic_grid_ends_as_exactly_as_it_began():
    grid = LogUniform(1e-300, 1e300, points=6001).grid()
    assert len(grid) == 6001
    assert grid[::10] == [float(f"1e{exponent}") for exponent in range(-300, 301)]
    assert math.isclose(grid[1] / grid[0], 10**0.1)
