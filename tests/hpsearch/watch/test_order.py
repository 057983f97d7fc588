"""Trials stay in the order of a column, however they change."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.trial import TrialRow, TrialState
from hpsearch.watch.columns import TrialColumn
from hpsearch.watch.trial_table import Order

VALUES = st.sampled_from([None, math.nan, -1.0, 0, 0.5, 2, "a", "b", [1], True])
COLUMN = TrialColumn("x", lambda row: row.params["x"])


def row(number: int, value: object) -> TrialRow:
    return TrialRow(number, TrialState.WAITING, 0, None, {"x": value}, "random", None, None, 0.0, "")


@given(st.lists(VALUES, max_size=8), st.lists(st.tuples(st.integers(0, 11), VALUES)), st.booleans())
def test_it_is_what_sorting_anew_gives(first, changes, descending):
    rows = {number: row(number, value) for number, value in enumerate(first)}
    order = Order(COLUMN.sorts_by, rows.values(), descending)
    for number, value in changes:
        rows[number] = row(number, value)
        order.take(rows[number])
        assert number in order
    anew = Order(COLUMN.sorts_by, rows.values(), descending)
    found = [order[place] for place in range(len(order))]
    assert found == [anew[place] for place in range(len(anew))]
    assert sorted(found) == sorted(rows)
    assert [order.place(number) for number in found] == list(range(len(found)))


def test_those_without_a_value_come_last_either_way():
    values = [None, 2.0, math.nan, 1.0]
    rows = [row(number, value) for number, value in enumerate(values)]
    for descending, expected in [(False, [3, 1, 0, 2]), (True, [1, 3, 0, 2])]:
        order = Order(COLUMN.sorts_by, rows, descending)
        assert [order[place] for place in range(4)] == expected
