"""Where values lie on an axis, and which are marked."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpsearch.page.charts.scales import FAR, Linear, Log, Marked, Names, between, scale_of, scale_of_good

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.booleans(), st.booleans())
@example([1.0, 2.2e-309], True, False)
def test_every_value_lies_on_the_axis_and_marks_are_few(values, log, whole):
    scale = scale_of(values, log, whole)
    shares = [scale.fraction(value) for value in values]
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares)
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(shares[one] <= shares[other] + 1e-9 for one, other in itertools.pairwise(order))
    marks = scale.ticks()
    assert len(marks) <= 9
    assert all(-1e-6 <= scale.fraction(mark) <= 1 + 1e-6 for mark, _ in marks)


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e9))
def test_marks_of_a_range_say_what_they_stand_for(low, factor):
    for scale in (Linear(low, low * factor), Log(low, low * factor)):
        for mark, text in scale.ticks():
            assert isinstance(mark, float)
            assert float(text) == pytest.approx(mark, rel=0.01, abs=(scale.high - scale.low) / 50)


def test_marks_are_round():
    assert [text for _, text in Linear(0, 10).ticks()] == ["0", "2", "4", "6", "8", "10"]
    assert [text for _, text in Linear(0.2, 0.975).ticks()] == ["0.2", "0.4", "0.6", "0.8"]
    assert [text for _, text in Linear(0, 1.2).ticks()] == ["0", "0.2", "0.4", "0.6", "0.8", "1", "1.2"]
    assert [text for _, text in Log(1e-5, 0.1).ticks()] == ["1e-05", "0.0001", "0.001", "0.01", "0.1"]
    assert [text for _, text in Linear(1, 3, is_integer=True).ticks()] == ["1", "2", "3"]


def test_names_stand_evenly_and_what_is_not_finite_is_no_end():
    assert [Names(("a", "b")).fraction(name) for name in ("a", "b")] == [0.25, 0.75]
    assert scale_of([math.inf, 2.0, math.nan, -1e300]).fraction(2.0) == 0.5
    assert scale_of([]) == Linear(-0.03, 1.03)
    assert isinstance(scale_of([0.0, 1.0], log=True), Linear)


@pytest.mark.parametrize("value", [0.0, -1.0, -1e300])
def test_what_has_no_logarithm_lies_before_the_axis(value):
    assert Log(1.0, 10.0).fraction(value) < 0
    assert scale_of([2.0, 2.0], log=True).fraction(value) < 0


ANY = st.floats(allow_nan=False, allow_infinity=False)


@given(ANY, ANY, st.booleans(), st.booleans())
@example(1e200, 1e300, False, False)
@example(1e200, 1e300, True, False)
@example(0.0, 5e-324, False, True)
@example(1.0, 1.0000000000000002, False, False)
def test_a_scale_from_one_end_to_the_other_has_marks_in_order_whatever_the_ends(one, other, log, whole):
    low, high = sorted((one, other))
    scale = between(low, high, log, whole)
    marks = scale.ticks()
    assert 0 <= len(marks) <= 9
    places = [float(str(mark)) for mark, _ in marks]
    assert places == sorted(places)
    assert all(math.isfinite(scale.fraction(place)) for place in places)
    if abs(low) < FAR > abs(high):
        assert scale.fraction(low) == pytest.approx(0.0 if low < high else 0.5)
        assert scale.fraction(high) == pytest.approx(1.0 if low < high else 0.5)
    elif low < high:
        assert scale.fraction(low) <= scale.fraction(high)


@given(st.lists(ANY, min_size=1, max_size=6), st.booleans())
def test_a_scale_of_any_numbers_has_marks(values, log):
    scale = scale_of(values, log)
    assert len(scale.ticks()) <= 9
    assert all(-1e-9 <= scale.fraction(value) <= 1 + 1e-9 for value in values if abs(value) < FAR)


@pytest.mark.parametrize(
    ("scale", "marks", "texts"),
    [
        (Linear(1, 27, is_integer=True), (27.0, 1.0, 9.0, 3.0), ["1", "3", "5", "9", "15", "20", "25", "27"]),
        (Linear(1, 9, is_integer=True), (9.0, 1.0, 3.0), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]),
        (Log(1, 81), (81.0, 1.0, 27.0, 9.0, 3.0), ["1", "2", "3", "5", "9", "27", "50", "81"]),
        (Linear(1, 100, is_integer=True), (100.0, 1.0, 99.0, 200.0), ["1", "20", "40", "60", "80", "100"]),
    ],
)
def test_what_matters_is_marked_before_round_numbers(scale, marks, texts):
    assert [text for _, text in Marked(scale, marks).ticks(8)] == texts


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_few_bad_values_dont_press_the_good_ones_into_a_line(sign):
    values = [sign * value for value in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 90.0, 50.0)]
    scale, beyond = scale_of_good(values, sign > 0)
    assert list(beyond) == [sign * 50.0, sign * 90.0]
    assert abs(scale.fraction(sign * 1.6) - scale.fraction(sign * 1.0)) > 0.9


def test_values_by_which_the_axis_gets_little_longer_are_on_it():
    values = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 3.0]
    scale, beyond = scale_of_good(values, True)
    assert not beyond
    assert 0 <= scale.fraction(3.0) <= 1


@given(st.lists(st.floats(-1e200, 1e200), min_size=1), st.booleans())
def test_every_value_is_on_the_scale_or_beyond_it(values, less_is_better):
    scale, beyond = scale_of_good(values, less_is_better)
    kept = list(values)
    for value in beyond:
        kept.remove(value)
    assert all(-1e-9 <= scale.fraction(value) <= 1 + 1e-9 for value in kept)
