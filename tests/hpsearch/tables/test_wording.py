from __future__ import annotations

import pytest

from hpsearch.tables.wording import amount_of, by_width, counted, duration, number, params_line, shortened, up_to


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (86_399.6, "1 d 0 h"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_name_two_units_at_most(seconds: float, text: str):
    assert duration(seconds) == text


def test_numbers_are_short_and_integers_whole():
    assert [number(value) for value in (0.0123456, 12345.6, 1e-9, 123456789)] == [
        "0.01235",
        "12346",
        "1e-09",
        "123456789",
    ]


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, ""),
        ({1: 1}, "1 segment on 1 worker"),
        ({3: 9, 1: 27}, "27 segments on 1 worker each, 9 on 3"),
        ({12: 1, 4: 2}, "2 segments on 4 workers each, 1 on 12"),
    ],
)
def test_counts_by_width_go_from_narrow_to_wide(counts, text):
    assert by_width(counts, "segment") == text


def test_one_is_no_plural_and_many_have_their_thousands_apart():
    told = [counted(count, "trial") for count in (0, 1, 2, 12_000)]
    assert told == ["0 trials", "1 trial", "2 trials", "12,000 trials"]


def test_iterations_beyond_the_plan_are_no_part_of_it():
    assert [amount_of(48, None), amount_of(48, 51), amount_of(51, 51)] == ["48", "48 of 51", "51 of 51"]
    assert amount_of(1060, 1051) == "1,060 (1,051 planned)"  # some were run again from zero


def test_a_rung_without_a_last_iteration_runs_to_the_end():
    assert [up_to(3), up_to(None)] == ["to iteration 3", "to their end"]


def test_params_stand_in_one_line():
    params = {"opt.lr": 0.0123456, "name": "sgd", "widths": [8, 4], "on": True, "none": None}
    assert params_line(params) == "opt.lr=0.01235  name=sgd  widths=[8, 4]  on=true  none=null"


def test_long_and_many_lines_are_cut():
    assert shortened("one\ntwo", 10) == "one"
    assert shortened("a" * 11, 10) == "a" * 9 + "…"
    assert shortened("", 10) == ""
