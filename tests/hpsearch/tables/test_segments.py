from __future__ import annotations

import csv
import io
import json

import pytest

from hpsearch.events import Dropped, Ended, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.results.segments import SegmentRow, segment_rows
from hpsearch.tables.trials import segments_to_csv, segments_to_json, segments_to_table
from hpsearch.trial import Failure, Segment

OPENED = Opened("ray", 4, "me@here:1", "hpsearch run")
WIDE = "nothing else can start"
NAN = "width 4: loss NaN after 0.5"


def started(trial: int, attempt: int, start: int, end: int | None, width: int = 1, reason: str = "") -> Started:
    return Started(Segment(trial, start, end, None, attempt, width), None, reason)


EVENTS: list[Event] = [
    OPENED,
    started(0, 1, 0, 3, reason="no more are free"),
    started(1, 1, 0, 3, reason="no more are free"),
    Finished(1, 1, 3, "c", (), False, 2.5),
    Finished(0, 1, 1, "c", (), True, 1.25),
    started(0, 2, 1, 3, 4, WIDE),
    Saved(0, 2, 2, "c2", ()),
    Reverted(0, 2, 1, NAN, 4.0, None),
    started(0, 3, 1, 3, reason="it went wrong on more workers"),
    Lost(0, 3, "node 7 died"),
    Dropped(0, "missing"),
    started(0, 4, 0, 3),
    Failed(0, 4, Failure("raised", "ValueError: a\rb", "Traceback"), True, ()),
    started(0, 5, 0, 3),
    Finished(0, 5, 3, "c", (), True, 1.0),  # cut at its very end
    started(1, 2, 3, None, 4, WIDE),
    OPENED,
    started(1, 3, 3, None),
    Ended("interrupted"),
    OPENED,
    started(1, 4, 3, None, 2),
]


def test_every_started_segment_is_told_with_its_width_the_reason_and_how_it_ended():
    rows = segment_rows(EVENTS, live=True)
    assert rows == [
        SegmentRow(0, 1, 0, 3, 1, "no more are free", "cut", "", 1.25),
        SegmentRow(1, 1, 0, 3, 1, "no more are free", "finished", "", 2.5),
        SegmentRow(0, 2, 1, 3, 4, WIDE, "reverted", NAN, 4.0),
        SegmentRow(0, 3, 1, 3, 1, "it went wrong on more workers", "lost", "node 7 died", None),
        SegmentRow(0, 4, 0, 3, 1, "", "failed", "ValueError: a\rb", None),
        SegmentRow(0, 5, 0, 3, 1, "", "finished", "", 1.0),
        SegmentRow(1, 2, 3, None, 4, WIDE, "interrupted", "", None),
        SegmentRow(1, 3, 3, None, 1, "", "interrupted", "", None),
        SegmentRow(1, 4, 3, None, 2, "", "running", "", None),
    ]
    assert segment_rows([], live=True) == []


def test_what_had_not_ended_when_the_last_process_died_was_interrupted():
    live, dead = segment_rows(EVENTS, live=True), segment_rows(EVENTS, live=False)
    assert dead[:-1] == live[:-1]
    assert (live[-1].ended, dead[-1].ended) == ("running", "interrupted")


@pytest.mark.parametrize("then", ["", "halved", "alone", "wider"])
def test_what_was_lost_says_how_it_runs_again(then):
    (row,) = segment_rows([OPENED, started(0, 1, 0, 3), Lost(0, 1, "gone", False, 0.0, then)], live=True)
    assert (row.ended, row.message, row.then) == ("lost", "gone", then)


def test_csv_and_json_hold_the_same_rows():
    rows = segment_rows(EVENTS, live=True)
    text = segments_to_csv(rows)
    assert text.startswith(
        "trial,attempt,start,end,width,reason,ended,message,seconds,lanes,then\n"
        "0,1,0,3,1,no more are free,cut,,1.25,1,\n"
    )
    parsed = json.loads(segments_to_json(rows))
    assert parsed[2] == {
        "trial": 0,
        "attempt": 2,
        "start": 1,
        "end": 3,
        "width": 4,
        "reason": WIDE,
        "ended": "reverted",
        "message": NAN,
        "seconds": 4.0,
        "lanes": 1,
        "then": "",
    }
    back = list(csv.DictReader(io.StringIO(text, newline="")))
    assert back == [{key: "" if value is None else str(value) for key, value in row.items()} for row in parsed]


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (
            SegmentRow(7, 2, 1, 3, 4, WIDE, "reverted", NAN, 4.0),
            ["7", "2", "1", "3", "4", WIDE, f"reverted: {NAN}", "4.0 s"],
        ),
        (SegmentRow(7, 3, 1, None, 2, "", "running"), ["7", "3", "1", "2", "running"]),
        (
            SegmentRow(7, 3, 1, 3, 2, "", "lost", "not enough memory: m", then="wider"),
            ["7", "3", "1", "3", "2", "lost, runs again on twice as many workers: not enough memory: m"],
        ),
        (
            SegmentRow(7, 3, 1, 3, 1, "", "lost", "not enough memory: m", then="alone"),
            ["7", "3", "1", "3", "1", "lost, runs again with a worker for itself: not enough memory: m"],
        ),
        (SegmentRow(7, 3, 1, 3, 2, "", "lost", "[b]gone[/b]\nmore"), ["7", "3", "1", "3", "2", "lost: [b]gone[/b]"]),
    ],
)
def test_a_terminal_gets_a_line_for_each(row, cells):
    head, _, line = segments_to_table([row]).strip().splitlines()
    assert head.split() == ["trial", "attempt", "start", "end", "width", "reason", "ended", "time"]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == cells
