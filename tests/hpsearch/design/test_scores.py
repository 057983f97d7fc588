"""95 % intervals of scores on test rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpsearch.design.scores import interval


@pytest.mark.parametrize(
    ("hits", "rows", "expected"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_accuracy_has_wilsons(hits, rows, expected):
    """The examples of Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    true = np.zeros(rows, np.int64)
    given = np.tile([0.0, 1.0], (rows, 1))
    given[:hits] = [1.0, 0.0]
    assert interval("accuracy", given, true) == pytest.approx(expected, abs=5e-5)


@given(some.integers(0, 50), some.integers(2, 50))
def test_accuracys_holds_the_share_and_stays_between_0_and_1(hits, misses):
    rows = hits + misses
    given = np.tile([0.0, 1.0], (rows, 1))
    given[:hits] = [1.0, 0.0]
    low, high = interval("accuracy", given, np.zeros(rows, np.int64)) or (1.0, 0.0)
    assert 0 <= low <= hits / rows <= high <= 1


def test_others_hold_the_score_and_are_the_same_each_time():
    chance = np.random.default_rng(0)
    true = chance.standard_normal(200)
    given = true + 0.5 * chance.standard_normal(200)
    found = interval("rmse", given, true)
    assert found == interval("rmse", given, true)
    assert found is not None
    assert found[0] < 0.5 < found[1]
    assert found[1] - found[0] == pytest.approx(2 * 1.96 * 0.5 / 400**0.5, rel=0.25)  # of a normal error's deviation


def test_there_is_none_of_one_row_nor_of_what_is_no_number():
    assert interval("rmse", np.array([1.0]), np.array([1.0])) is None
    assert interval("rmse", np.array([1.0, np.nan]), np.array([1.0, 2.0])) is None
