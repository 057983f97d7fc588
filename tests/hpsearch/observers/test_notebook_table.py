"""A running sweep in a notebook: one output that changes in place, some times a second at most."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.objective import Objective
from hpsearch.observers.display import Running, Snapshot, UnfailingDisplay
from hpsearch.observers.progress import NotebookTable, publisher, snapshot_html
from hpsearch.sweep.parts import Metric
from hpsearch.task import Workers
from hpsearch.trial import TrialRow, TrialState

BEST = TrialRow(3, TrialState.COMPLETE, 9, 0.125, {"x": 0.5, "name": "<b>"}, "random", None, None, 1.0, "")

SNAPSHOT = Snapshot(
    name="digits & co",
    objective=Objective(Metric("loss")),
    rungs=(),
    counts={TrialState.RUNNING: 2, TrialState.COMPLETE: 4},
    leaders=(BEST,),
    workers=Workers(2, 2, 2),
    iterations=40,
    total=(10, 90),
    elapsed=12.0,
    remaining=18.0,
    failures=((1, "ValueError: <none>"),),
    running=(
        Running(7, {"x": 0.25}, 3, 9, {"loss": 0.75}, 1),
        Running(8, {"x": 0.125}, 0, None, {}, 2),
    ),
)


class Screen:
    """Keeps what was shown, and goes by a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shown: list[tuple[str, bool]] = []
        self.lines = io.StringIO()
        self.table = NotebookTable(
            lambda shown, again: self.shown.append((shown["text/html"], again)), self.lines, lambda: self.now
        )


def words(html: str) -> str:
    return " ".join("".join(ElementTree.fromstring(html).itertext()).split())


def test_it_shows_how_the_sweep_stands_and_the_trials_that_run():
    html = snapshot_html(SNAPSHOT)
    root = ElementTree.fromstring(html)
    assert "digits & co minimize loss 12 s, ~18 s left" in words(html)
    assert "6 of 10 trials (2 running, 4 complete)" in words(html)
    assert "best loss 0.125, trial 3 after 9 iterations" in words(html)
    assert "x=0.5 name=<b>" in words(html)
    assert "trial 1 failed: ValueError: <none>" in words(html)
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert rows == [
        ["trial", "iteration", "loss", "workers", "parameters"],
        ["7", "3 of 9", "0.75", "1", "x=0.25"],
        ["8", "0", "", "2", "x=0.125"],
    ]
    (bar,) = root.iter("progress")
    assert (bar.get("value"), bar.get("max")) == ("40", "90")


def test_the_best_value_is_of_the_iteration_that_reported_it():
    html = snapshot_html(replace(SNAPSHOT, leaders=(replace(BEST, value_iteration=4),)))
    assert "best loss 0.125, trial 3 after 4 iterations" in words(html)


def test_one_output_changes_and_no_more_often_than_twice_a_second():
    screen = Screen()
    for step in range(41):
        screen.now = step / 20
        screen.table.show(replace(SNAPSHOT, elapsed=screen.now))
    assert [again for _, again in screen.shown] == [False, True, True, True, True]
    screen.table.close()
    assert len(screen.shown) == 6


def test_in_the_end_nothing_runs_and_what_came_last_is_shown_however_soon_it_came():
    screen = Screen()
    screen.table.show(SNAPSHOT)
    screen.table.show(replace(SNAPSHOT, iterations=90, counts={TrialState.COMPLETE: 10}, running=()))
    screen.table.close()
    last = words(screen.shown[-1][0])
    assert "10 of 10 trials (10 complete)" in last
    assert "left" not in last
    assert "<table" not in screen.shown[-1][0]
    assert len(screen.shown) == 2


def test_what_stays_as_it_is_isnt_sent_again():
    screen = Screen()
    for now in (0.0, 10.0, 20.0):
        screen.now = now
        screen.table.show(SNAPSHOT)
    assert len(screen.shown) == 1


def test_lines_that_stay_are_printed():
    screen = Screen()
    screen.table.note("runs/x: this sweep is finished")
    screen.table.close()
    assert screen.lines.getvalue() == "runs/x: this sweep is finished\n"
    assert screen.shown == []


def test_a_notebook_that_shows_nothing_more_is_left_alone():
    def gone(shown: dict[str, str], again: bool) -> None:
        raise OSError("the front end is gone")

    display = UnfailingDisplay(NotebookTable(gone, io.StringIO()))
    assert display.most_running > 0
    display.show(SNAPSHOT)
    display.wait("waiting")
    display.close()


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text() | st.floats() | st.none(), max_size=3))
def test_whatever_names_and_values_are_they_are_text(name, message, params):
    given = (name, message, *params, *(value for value in params.values() if isinstance(value, str)))
    if not all(ord(sign) >= 32 and not 0xD800 <= ord(sign) < 0xE000 and ord(sign) < 0xFFFE for sign in "".join(given)):
        return  # XML itself has no such signs
    shown = replace(
        SNAPSHOT,
        name=name,
        failures=((0, message),),
        leaders=(replace(BEST, params=params),),
        running=(Running(0, params, 1, 2, {}, 1),),
    )
    root = ElementTree.fromstring(snapshot_html(shown, waits=name))
    assert {element.tag for element in root.iter()} <= {
        "div", "b", "i", "progress", "table", "caption", "tr", "th", "td"
    }  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
def test_without_a_metric_and_with_several_it_shows_what_there_is(several):
    metric = (Metric("loss"), Metric("acc", "maximize")) if several else None
    shown = replace(SNAPSHOT, objective=Objective(metric), leaders=())
    text = words(snapshot_html(shown))
    assert ("front no loss and acc yet" in text) == several
    assert ("minimize loss, maximize acc" if several else "no metric") in text


def test_outside_a_notebook_there_is_nothing_to_publish_to():
    assert publisher(io.StringIO()) is None
