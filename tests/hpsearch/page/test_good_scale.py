"""A scale of the good values, and what lies beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.page.charts import scale_of_good


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_few_bad_values_dont_press_the_good_ones_into_a_line(sign):
    values = [sign * value for value in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 90.0, 50.0)]
    scale, beyond = scale_of_good(values, sign > 0)
    assert list(beyond) == [sign * 50.0, sign * 90.0]
    assert abs(scale.share(sign * 1.6) - scale.share(sign * 1.0)) > 0.9


def test_values_by_which_the_axis_gets_little_longer_are_on_it():
    values = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 3.0]
    scale, beyond = scale_of_good(values, True)
    assert not beyond
    assert 0 <= scale.share(3.0) <= 1


@given(st.lists(st.floats(-1e200, 1e200), min_size=1), st.booleans())
def test_every_value_is_on_the_scale_or_beyond_it(values, less_is_better):
    scale, beyond = scale_of_good(values, less_is_better)
    kept = list(values)
    for value in beyond:
        kept.remove(value)
    assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in kept)
