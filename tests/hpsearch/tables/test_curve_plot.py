"""Curves drawn with letters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.tables.trial_page import curve_lines


def test_a_line_that_falls_goes_from_the_left_above_to_the_right_beneath():
    lines = curve_lines([(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)], 10, 4, draws=False)
    columns = [line.index("*") for line in lines[:4]]
    assert columns == sorted(columns)
    assert columns[0] < columns[-1]


def test_braille_has_eight_dots_a_letter():
    lines = curve_lines([(1, 0.0), (9, 1.0)], 40, 5)
    assert all(0x2800 < ord(letter) < 0x2900 for line in lines[:5] for letter in line.split("│")[1].strip())
    assert lines[0].startswith("1 │")
    assert lines[4].startswith("0 │")


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(1, math.inf), (2, -math.inf)]])
def test_nothing_finite_is_no_curve(points):
    assert curve_lines(points, 40, 5) == []


POINTS = st.lists(st.tuples(st.integers(0, 10**6), st.floats()), max_size=30, unique_by=lambda point: point[0])


@settings(deadline=None, max_examples=60)
@given(POINTS.map(sorted), st.integers(1, 100), st.integers(2, 9), st.booleans())
def test_any_curve_is_drawn_within_its_lines(points, width, height, draws):
    lines = curve_lines(points, width, height, draws)
    assert len(lines) == (height + 2 if any(math.isfinite(value) for _, value in points) else 0)
    assert draws or all(line.isascii() for line in lines)
    assert all(len(line) <= max(width, 40) for line in lines)
