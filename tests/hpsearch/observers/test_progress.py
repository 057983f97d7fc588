from __future__ import annotations

import io
import itertools
import os
import pty
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective
from hpsearch.observers.display import SilentDisplay, Snapshot
from hpsearch.observers.progress import LiveTable, PlainLines, choose_progress, rung_rows
from hpsearch.schedulers.base import RungView
from hpsearch.task import Workers
from hpsearch.trial import TrialRow, TrialState

BEST = TrialRow(
    12,
    TrialState.COMPLETE,
    27,
    0.97222,
    {"opt.lr": 0.0123456, "[bold]name[/bold]": "sgd"},
    "random",
    None,
    None,
    1.0,
    "ran to the end",
)

START = Snapshot(
    name="digits",
    objective=Objective(Metric("accuracy", "maximize")),
    rungs=[RungView(0, 0, 1, 27, 4, 2), RungView(0, 1, 3, 9, 0, 0)],
    counts={TrialState.RUNNING: 2, TrialState.WAITING: 2},
    leaders=(),
    workers=Workers(ready=2, busy=2, wanted=4),
    iterations=2,
    total=(49, 357),
    elapsed=0.5,
    remaining=None,
)


def many_rungs(brackets: int, done: int) -> list[RungView]:
    return [
        RungView(bracket, rung, 3**rung, size, size, size if bracket < done else size - 1)
        for bracket in range(brackets)
        for rung, size in enumerate((27, 9, 3, 1))
    ]


def plain(*snapshots: Snapshot) -> list[str]:
    stream = io.StringIO()
    lines = PlainLines(stream, clock=itertools.count(0, 10).__next__)
    for snapshot in snapshots:
        lines.show(snapshot)
    return stream.getvalue().splitlines()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_begin_with_what_there_is_to_do():
    assert plain(START) == ["digits: maximize accuracy, 49 trials, 357 iterations, 2 of 2 workers busy, 4 wanted"]


def test_plain_lines_come_every_ten_seconds():
    lines = plain(*(replace(START, elapsed=float(second)) for second in range(31)))
    assert len(lines) == 4
    assert [line.split("  ")[0:1] for line in lines[1:]] == [[""]] * 3
    assert [line.strip().split("  ")[0] for line in lines[1:]] == ["10 s", "20 s", "30 s"]


def test_widths_of_running_trials_stand_beside_the_workers():
    wide = replace(START, widths={4: 1, 1: 2}, workers=Workers(6, 6, 6))
    assert (
        plain(wide, replace(wide, leaders=(BEST,)))[1].split("  ")[-3]
        == "6 of 6 workers busy (2 trials on 1 worker each, 1 on 4)"
    )
    terminal = Terminal()
    table = LiveTable(terminal)
    table.show(wide)
    table.close()
    assert "2 of 357 iterations, 6 of 6 workers busy (2 trials on 1 worker each, 1 on 4)" in terminal.getvalue()


def test_where_workers_train_several_trials_it_says_how_many_they_have():
    shared = replace(START, shares=True, counts={TrialState.RUNNING: 34, TrialState.WAITING: 2})
    assert "2 of 2 workers busy with 34 trials, 4 wanted" in plain(shared, replace(shared, leaders=(BEST,)))[1]
    terminal = Terminal()
    table = LiveTable(terminal)
    table.show(replace(shared, workers=Workers(2, 2, 2)))
    table.close()
    assert "2 of 357 iterations, 2 of 2 workers busy with 34 trials" in terminal.getvalue()


@pytest.mark.parametrize(
    ("packs", "text"),
    [((34, 2), "with 34 trials in 2 packs"), ((16, 1), "with 34 trials, 16 in 1 pack"), ((0, 0), "with 34 trials")],
)
def test_it_says_how_many_trials_are_trained_in_how_many_packs(packs, text):
    shared = replace(START, shares=True, counts={TrialState.RUNNING: 34}, packs=packs, workers=Workers(2, 2, 2))
    assert plain(shared, replace(shared, leaders=(BEST,)))[1].split("  ")[-3].endswith(text)


@pytest.mark.parametrize(
    ("widths", "text"),
    [({1: 2}, "4 of 4 workers busy with 2 trials"), ({1: 1, 3: 1}, "2 trials (1 trial on 3 workers)")],
)
def test_of_trials_that_share_workers_the_widths_say_only_which_have_several(widths, text):
    shared = replace(
        START, shares=True, counts={TrialState.RUNNING: 2}, widths=widths, workers=Workers(4, 4, 4), leaders=(BEST,)
    )
    assert plain(START, shared)[1].split("  ")[-3].endswith(text)


def test_plain_line_comes_at_once_when_the_best_improves():
    better = replace(START, leaders=(BEST,), remaining=75.0)
    same = replace(better, elapsed=0.7)
    best = replace(BEST, number=13, score=0.98)
    lines = plain(START, better, same, replace(same, leaders=(best,)))
    assert len(lines) == 3
    assert lines[1].endswith(
        "4 of 49 trials (2 waiting, 2 running)  2 of 2 workers busy, 4 wanted  2 of 357 iterations  "
        "best accuracy 0.97222 (trial 12)  ~1 min 15 s left"
    )
    assert "best accuracy 0.98 (trial 13)" in lines[2]


def test_plain_lines_tell_each_failure_once_and_count_floods():
    def failed(count: int) -> Snapshot:
        recent = [(trial, f"ValueError: {trial}\nmore") for trial in range(count)][-3:]
        return replace(START, counts={TrialState.FAILED: count}, failures=recent)

    lines = plain(START, failed(1), failed(1), failed(7))
    assert lines[1:] == [
        "trial 0 failed: ValueError: 0",
        "trial 4 failed: ValueError: 4",
        "trial 5 failed: ValueError: 5",
        "trial 6 failed: ValueError: 6",
        "3 more trials failed",
    ]


def test_plain_lines_of_a_simulated_sweep_come_as_fast_as_one_reads():
    stream, now = io.StringIO(), 0.0
    lines = PlainLines(stream, clock=lambda: now)
    for hour in range(100):
        lines.show(replace(START, elapsed=3600.0 * hour))
        now += 0.1
    assert 9 <= len(stream.getvalue().splitlines()) <= 12


def test_plain_lines_end_with_the_best_params():
    stream = io.StringIO()
    lines = PlainLines(stream)
    lines.close()
    assert stream.getvalue() == ""
    lines.show(START)
    lines.note("[red]careful[/red]")
    lines.show(replace(START, elapsed=3.0, leaders=(BEST,)))
    lines.close()
    told = stream.getvalue().splitlines()
    assert told[1] == "[red]careful[/red]"
    assert "best accuracy 0.97222 (trial 12)" in told[2]
    assert told[3] == "best params: opt.lr=0.01235  [bold]name[/bold]=sgd"


def test_live_table_shows_rungs_best_workers_and_time_left():
    terminal = Terminal()
    table = LiveTable(terminal)
    failures = [(5, "ValueError: [bold]no[/bold]")]
    snapshot = replace(START, leaders=(BEST,), remaining=75.0, failures=failures)
    table.show(snapshot)
    table.close()
    told = terminal.getvalue()
    for piece in (
        "~1 min 15 s left",
        "2/27",
        "0/9",
        "4 of 49 trials (2 waiting, 2 running)",
        "2 of 2 workers busy, 4 wanted",
        "trial 12 after 27 iterations",
        "opt.lr=0.01235  [bold]name[/bold]=sgd",
        "trial 5 failed: ValueError: [bold]no[/bold]",
    ):
        assert piece in told


@pytest.mark.parametrize(("brackets", "done"), [(2, 0), (500, 499), (500, 0)])
def test_live_table_stays_under_thirty_lines(brackets, done):
    terminal = Terminal()
    table = LiveTable(terminal)
    failures = [(trial, "x" * 500) for trial in range(9)]
    best = replace(BEST, params={f"parameter{number}": 0.5 for number in range(100)})
    rungs = many_rungs(brackets, done)
    table.show(replace(START, rungs=rungs, leaders=(best,), failures=failures))
    table.close()
    last_picture = terminal.getvalue().rpartition("\x1b[1A")[2]
    assert "xxxx" in last_picture
    assert last_picture.count("\n") < 30


def test_live_table_gives_the_cursor_back():
    terminal = Terminal()
    table = LiveTable(terminal)
    table.show(START)
    table.note("careful")
    assert terminal.getvalue().rfind("\x1b[?25l") > terminal.getvalue().rfind("\x1b[?25h")
    table.close()
    table.close()
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")
    assert "careful" in terminal.getvalue()


def test_terminal_gets_the_table_and_everything_else_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb"):
        assert isinstance(choose_progress(terminal), LiveTable)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(choose_progress(terminal), PlainLines)
    assert isinstance(choose_progress(io.StringIO()), PlainLines)


def test_silent_says_nothing(capsys):
    silent = SilentDisplay()
    silent.show(START)
    silent.note("careful")
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_few_rungs_have_a_line_each():
    rows = rung_rows(many_rungs(3, 1), most=12)
    assert [(row.bracket, row.rung, row.until) for row in rows[3:5]] == [("0", "3", "27"), ("1", "0", "1")]


def test_brackets_that_are_done_become_one_line():
    rows = rung_rows(many_rungs(10, 8), most=12)
    assert len(rows) == 9
    assert (rows[0].bracket, rows[0].until, rows[0].finished, rows[0].size) == ("0 to 7", "1 to 27", 320, 320)
    assert [row.bracket for row in rows[1:]] == ["8"] * 4 + ["9"] * 4


def test_many_open_brackets_are_summed_by_iteration():
    rows = rung_rows(many_rungs(50, 10), most=12)
    assert [(row.bracket, row.until, row.size) for row in rows] == [
        ("0 to 9", "1 to 27", 400),
        ("10 to 49", "1", 1080),
        ("10 to 49", "3", 360),
        ("10 to 49", "9", 120),
        ("10 to 49", "27", 40),
    ]


def rung_views() -> st.SearchStrategy[RungView]:
    count = st.integers(0, 50)
    until = st.one_of(st.none(), st.integers(1, 40))
    size = st.one_of(st.none(), count)
    return st.builds(RungView, st.integers(0, 30), st.integers(0, 5), until, size, count, count)


@settings(deadline=None, max_examples=30)
@given(st.lists(rung_views(), max_size=80))
def test_lines_are_few_and_together_hold_every_rung(rungs):
    rows = rung_rows(rungs, most=12)
    assert len(rows) <= 12
    assert sum(row.finished for row in rows) == sum(rung.finished for rung in rungs)
    assert sum(row.started for row in rows) == sum(rung.started for rung in rungs)
