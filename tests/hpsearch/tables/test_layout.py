"""Tables on terminals of any width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.tables.layout import WHOLE, Column, Screen, cut_to, display_width, screen_of, table_text
from hpsearch.tables.wording import numbers

COLUMNS = [
    Column("trial", ["1", "22"], is_kept=True),
    Column("state", ["complete", "x"], is_text=True),
    Column("loss", ["0.5", ""]),
    Column("why", ["", "日本 é"], is_text=True),
]


def test_numbers_stand_at_the_right_and_words_at_the_left():
    assert table_text(COLUMNS) == (
        "\n"
        " trial   state      loss   why\n"
        " ────────────────────────────────\n"
        "     1   complete    0.5\n"
        "    22   x                 日本 é\n"
        "\n"
    )


def test_what_cannot_differ_and_does_not_is_named_once_beneath():
    columns = [COLUMNS[0], Column("lr", ["0.1", "0.1"], is_constant=True), Column("seed", ["1", "2"], is_constant=True)]
    text = table_text(columns)
    assert text.splitlines()[1].split() == ["trial", "seed"]
    assert text.endswith("\nthe same in all: lr=0.1\n")
    assert table_text([Column("lr", ["0.1"], is_constant=True)]).splitlines()[1].split() == ["lr"]


def test_columns_without_room_are_left_out_from_the_right_and_named():
    text = table_text(COLUMNS, Screen(20), "with --columns")
    assert text.splitlines()[1].split() == ["trial", "state"]
    assert text.endswith("left out, as there is no room: loss, why; see them with --columns\n")


def test_what_is_kept_is_there_however_narrow_the_terminal_is():
    assert table_text(COLUMNS, Screen(1)).splitlines()[1].split() == ["trial"]


def test_a_long_text_is_cut_before_a_column_is_left_out():
    columns = [COLUMNS[0], Column("why", ["x" * 90, "y"], is_text=True), Column("loss", ["1", "2"])]
    lines = table_text(columns, Screen(60)).splitlines()
    assert lines[1].split() == ["trial", "why", "loss"]
    assert [display_width(line) for line in lines[2:4]] == [60, 60]
    assert "…" in lines[3]
    assert "xxx..." in table_text(columns, Screen(60, draws=False))


CELLS = st.text(st.characters(), max_size=40)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), st.integers(20, 90))
def test_no_line_is_wider_than_the_terminal(rows, width):
    columns = [Column("n", [str(place) for place in range(len(rows))], is_kept=True)]
    columns += [Column(f"c{place}", [row[place] for row in rows], is_text=True) for place in range(3)]
    table = table_text(columns, Screen(width)).partition("\n\n")[0]
    lines = table.split("\n")
    assert len(lines) == len(rows) + 3
    assert all(display_width(line) <= width for line in lines), lines
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("width", range(8))
def test_a_wide_letter_is_not_cut_in_half(width):
    assert display_width(cut_to("日本日本", width)) <= max(width, 1)


def test_a_file_is_no_terminal_and_an_encoding_may_have_no_lines():
    assert screen_of(io.StringIO()).width is None
    assert screen_of(io.TextIOWrapper(io.BytesIO(), "ascii")) == Screen(None, draws=False)
    assert screen_of(io.TextIOWrapper(io.BytesIO(), "utf-8")) == WHOLE
    assert table_text(COLUMNS[:2], Screen(draws=False)).isascii()


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.123456, 0.5, None], ["0.1235", "0.5", ""]),
        ([0.12341, 0.12344], ["0.12341", "0.12344"]),
        ([0.1234561, 0.1234562], ["0.123456", "0.123456"]),
        ([float("nan"), float("nan"), float("inf"), 123456.7], ["nan", "nan", "inf", "123457"]),
    ],
)
def test_numbers_have_four_digits_or_those_that_tell_them_apart(values, texts):
    assert numbers(values) == texts
