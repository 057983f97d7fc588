"""The table of trials: its visible part fits the terminal and stays still while scrolling; its order is kept."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.space import Space, Uniform
from hpsearch.tables.layout import display_width
from hpsearch.tables.trial_columns import Columns, TrialColumn, in_order
from hpsearch.trial import TrialRow, TrialState
from hpsearch.watch.trial_table import GAP, Window, window_of
from tests.hpsearch.support.scripted import sweep_of

TEXTS = st.text(max_size=30)
VALUES = st.sampled_from([None, math.nan, -1.0, 0, 0.5, 2, "a", "b", [1], True])
VALUED = TrialColumn("x", lambda row: row.params["x"])


def row(number: int, cells: list[str]) -> TrialRow:
    params = {str(index): cell for index, cell in enumerate(cells)}
    return TrialRow(number, TrialState.RUNNING, 3, 0.5, params, "random", None, None, 0.0, "")


def valued(number: int, value: object) -> TrialRow:
    return replace(row(number, []), params={"x": value})


def text_column(head: str, index: int, kept: bool) -> TrialColumn:
    return TrialColumn(head, lambda row: row.params[str(index)], is_text=True, is_kept=kept)


def width_of(window: Window) -> int:
    return sum(display_width(cell) + GAP for cell in window.head) - GAP


@given(
    st.lists(st.tuples(st.text(max_size=8), st.booleans()), min_size=1, max_size=5),
    st.lists(st.lists(TEXTS, min_size=5, max_size=5), max_size=4),
    st.integers(1, 150),
    st.integers(0, 6),
)
def test_it_fits_and_each_line_is_as_wide_as_the_others(heads, cells, room, skipped):
    columns = [text_column(head, index, kept) for index, (head, kept) in enumerate(heads)]
    rows = [row(number, texts) for number, texts in enumerate(cells)]
    window = window_of(rows, columns, {}, room, skipped)
    assert len(window.cells) == len(rows)
    for line in window.cells:
        assert [*map(display_width, line)] == [*map(display_width, window.head)]
    assert len(window.columns) + len(window.left_out) == len(columns)
    kept = [column for column in columns if column.is_kept]
    assert [column for column in window.columns if column.is_kept] == kept
    if len(window.columns) > len(kept):
        assert width_of(window) <= room
    for column, start in zip(window.columns, window.starts, strict=True):
        assert window.column_at(start) is column


def test_columns_that_were_wide_stay_wide():
    widths, column = dict[str, int](), text_column("x", 0, True)
    first = window_of([row(0, ["a longer text"])], [column], widths, 80)
    second = window_of([row(1, ["short"])], [column], widths, 80)
    assert width_of(first) == width_of(second) == len("a longer text")


def test_a_parameter_may_be_called_like_a_column():
    sweep = sweep_of(parameters=Space.from_parameters({"state": Uniform(0.0, 1.0), "loss": Uniform(0.0, 1.0)}))
    columns, one = Columns(sweep), replace(row(0, []), params={"state": 0.25, "loss": 0.75})
    window = window_of([one], columns.all, {}, 120)
    assert [head.strip() for head in window.head][:6] == ["trial", "state", "iterations", "loss", "state", "loss"]
    assert [cell.strip() for cell in window.cells[0]][:6] == ["0", "running", "3", "0.5", "0.25", "0.75"]


def test_floats_that_differ_look_different_and_structures_stand_as_one_text():
    rows = [valued(number, value) for number, value in enumerate([0.12345, 0.12346])]
    assert VALUED.cells(rows) == ["0.12345", "0.12346"]


def test_columns_come_with_the_trials_that_have_them():
    columns = Columns(sweep_of())
    heads = [column.head for column in columns.all]
    assert not columns.see([replace(row(0, []), params={"x": 0.5})])
    assert columns.see([replace(row(1, []), params={"x": 0.5, "momentum": 0.9}, width=2, parent=0)])
    assert {column.head for column in columns.all} - set(heads) == {"momentum", "width", "parent"}
    assert columns.first.head == "loss"


@given(st.lists(VALUES, max_size=8), st.booleans())
def test_each_trial_has_one_place_and_those_with_equal_values_are_in_order(values, descending):
    rows = [valued(number, value) for number, value in enumerate(values)]
    keys = {row.number: VALUED.sorts_by(row) for row in rows}
    found = in_order(keys, descending)
    assert sorted(found) == list(range(len(rows)))
    having = [(keys[trial], trial) for trial in found if keys[trial] is not None]
    assert having == sorted(having, reverse=descending)
    assert [keys[trial] for trial in found[len(having) :]] == [None] * (len(rows) - len(having))


def test_those_without_a_value_come_last_either_way():
    values = [None, 2.0, math.nan, 1.0]
    rows = [valued(number, value) for number, value in enumerate(values)]
    for descending, expected in [(False, [3, 1, 0, 2]), (True, [1, 3, 0, 2])]:
        assert in_order({row.number: VALUED.sorts_by(row) for row in rows}, descending) == expected
