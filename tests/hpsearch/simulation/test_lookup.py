from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError, TrainableError
from hpsearch.simulation.lookup import ExactRows, NearestRows, check_columns
from hpsearch.space import Categorical, Constant, IntUniform, LogNormal, LogUniform, Normal, Space, Uniform

SPACE = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0),
        "layers": IntUniform(1, 9),
        "optimizer": ["sgd", "adam", None],
        "noise": Normal(1.0, 2.0),
        "group": {"decay": Uniform(0.0, 0.5), "fixed": 3},
    }
)

ROWS = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-5, 10.0),  # beyond the range, too
        "layers": st.integers(0, 12),
        "optimizer": st.sampled_from(["sgd", "adam", None]),
        "noise": st.floats(-9.0, 9.0),
        "group.decay": st.floats(-0.2, 0.7),
        "group.fixed": st.sampled_from([3, 4]),
    }
)


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The squared distance, one parameter at a time."""
    squares: list[float] = [
        ((math.log(one["lr"]) - math.log(other["lr"])) / math.log(1e4)) ** 2,
        ((one["layers"] - other["layers"]) / 8) ** 2,
        float(one["optimizer"] != other["optimizer"]),
        (quantile(one["noise"]) - quantile(other["noise"])) ** 2,
        ((one["group.decay"] - other["group.decay"]) / 0.5) ** 2,
        float(one["group.fixed"] != other["group.fixed"]),
    ]
    return sum(squares)


def quantile(value: float) -> float:
    return 0.5 * (1.0 + math.erf((value - 1.0) / 2.0 / math.sqrt(2.0)))


@settings(deadline=None, max_examples=80)
@given(rows=st.lists(ROWS, min_size=1, max_size=30), number=st.integers(0, 1000))
def test_the_nearest_row_is_that_of_the_least_distance(rows, number):
    known = [*rows, *({**rows[0], "group.fixed": 3, "optimizer": choice} for choice in ("sgd", "adam", None))]
    params = SPACE.draw(7, number)
    found = NearestRows(columns_of(known), SPACE).find(params)
    least = min(distance(row, params) for row in known)
    assert distance(known[found], params) == pytest.approx(least, rel=1e-9, abs=1e-12)


def test_of_rows_at_one_distance_the_first_is_taken():
    space = Space.from_parameters({"x": Uniform(0.0, 1.0)})
    assert NearestRows({"x": [0.9, 0.25, 0.25, 0.75]}, space).find({"x": 0.5}) == 1


def test_rounding_decides_between_no_two_rows():
    """7 is as far from 6 as from 8, but not in floating point."""
    for low in range(-3, 4):
        for high in range(low + 4, low + 24):
            space = Space.from_parameters({"x": IntUniform(low, high)})
            for middle in range(low + 1, high):
                rows = [middle + 1, middle - 1]
                for columns in (rows, rows[::-1]):
                    assert NearestRows({"x": columns}, space).find({"x": middle}) == 0


def test_rows_are_found_by_their_very_values():
    space = Space.from_parameters({"x": [1, 2], "kind": ["a", None, True]})
    rows = ExactRows({"x": [1.0, 2.0, 2.0], "kind": ["a", None, True]}, space)
    assert [rows.find({"x": x, "kind": kind}) for x, kind in ((1, "a"), (2, None), (2, True))] == [0, 1, 2]
    with pytest.raises(TrainableError, match=r"no row with x=2, kind='a': .*rows: nearest"):
        rows.find({"x": 2, "kind": "a"})
    with pytest.raises(TrainableError):
        rows.find({"x": 2, "kind": 1})  # not True


def test_of_equal_rows_the_first_is_taken():
    assert ExactRows({"x": [5, 5]}, Space.from_parameters({"x": [5]})).find({"x": 5}) == 0


@pytest.mark.parametrize("choices", [Categorical([16, 32]), Constant(32)])
def test_a_choice_that_no_row_has_is_refused(choices):
    space = Space.from_parameters({"batch": choices, "x": Uniform(0.0, 1.0)})
    with pytest.raises(InvalidKey, match=r"batch.* no 32\n.*give numbers a range"):
        NearestRows({"batch": [16.0, 31.0], "x": [0.0, 1.0]}, space)


@pytest.mark.parametrize("distribution", [LogUniform(0.1, 1.0), LogNormal()])
@pytest.mark.parametrize("value", [-1.0, "text", None, math.nan, math.inf])
def test_a_column_that_has_no_place_on_the_axis_is_refused(distribution, value):
    with pytest.raises(SweepError, match="column for x must hold numbers"):
        NearestRows({"x": [0.5, value]}, Space.from_parameters({"x": distribution}))


def test_table_and_sweep_must_have_the_same_parameters():
    space = Space.from_parameters({"lr": Uniform(0.0, 1.0)})
    check_columns({"lr": [1.0]}, space)
    with pytest.raises(SweepError, match=r"none for lr: did you mean Lr\?"):
        check_columns({"Lr": [1.0]}, space)
    with pytest.raises(SweepError, match=r"lacks depth: add it to parameters.*\(the table has 1, 2\)"):
        check_columns({"lr": [1.0, 1.0, 1.0], "depth": [1, 2, 2]}, space)
