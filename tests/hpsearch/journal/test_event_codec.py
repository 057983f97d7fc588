from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.events import (
    Added,
    Asked,
    Changed,
    Continued,
    Dropped,
    Ended,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Noted,
    Opened,
    Pruned,
    Retried,
    Reverted,
    Saved,
    Started,
    Steered,
)
from hpsearch.journal.event_codec import _EVENTS, _PARTS, _ROWS, decode, encode
from hpsearch.trial import Costs, Failure, Parent, Report, Segment, Trial

# Text as Python has it, halves of surrogate pairs included: a file's name that isn't UTF-8 gives them.
texts = st.text(st.characters(exclude_categories=[]), max_size=20)
counts = st.integers(0, 2**40)
floats = st.floats()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
optional_counts = st.none() | counts
objects = st.dictionaries(texts, values, max_size=3)


@st.composite
def _reports(draw, trial: int) -> tuple[Report, ...]:
    metrics = st.dictionaries(texts, floats, max_size=3)
    return tuple(draw(st.lists(st.builds(Report, st.just(trial), counts, metrics, floats, counts), max_size=4)))


@st.composite
def events(draw) -> Event:
    trial = draw(counts)
    reports = _reports(trial)
    kinds = st.sampled_from(["raised", "timeout", "died", "contract", "checkpoint", "storage", "peer"])
    failures = st.builds(Failure, kinds, texts, texts)
    widths = st.integers(1, 2**20)
    costs = st.none() | st.builds(Costs, floats, floats)
    segments = st.builds(Segment, st.just(trial), counts, optional_counts, st.none() | texts, counts, widths, costs)
    trials = st.builds(Trial, st.just(trial), st.dictionaries(texts, values, max_size=3), counts, texts)
    number = st.just(trial)
    event: Event = draw(
        st.one_of(
            st.builds(Opened, texts, optional_counts, texts, texts, optional_counts),
            st.builds(Started, segments, st.none() | trials, texts),
            st.builds(Saved, number, counts, counts, texts, reports),
            st.builds(Noted, number, counts, st.dictionaries(texts, texts, max_size=3)),
            st.builds(Finished, number, counts, counts, st.none() | texts, reports, st.booleans(), floats),
            st.builds(Failed, number, counts, failures, st.booleans(), reports, floats),
            st.builds(Lost, number, counts, texts, st.booleans(), floats, texts, st.lists(counts).map(tuple)),
            st.builds(Reverted, number, counts, counts, texts, floats, st.none() | texts),
            st.builds(Dropped, number, texts),
            st.builds(Retried, number),
            st.builds(Continued, number, counts, counts, texts),
            st.builds(Pruned, number, texts),
            st.builds(Added, objects),
            st.builds(Steered, texts, texts, optional_counts, objects, texts),
            st.builds(Exhausted),
            st.builds(Extended, optional_counts, optional_counts),
            st.builds(Changed, st.just([{"path": ["x"], "distribution": "uniform", "min": 0.0}]), counts),
            st.builds(Ended, texts, texts),
        )
    )
    return event


@settings(deadline=None, max_examples=60)
@given(events())
def test_every_event_comes_back_exactly_from_the_columns_of_a_table(event):
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE t (kind TEXT, trial INTEGER, body TEXT)")
        connection.execute("INSERT INTO t VALUES (?, ?, ?)", encode(event))
        (row,) = connection.execute("SELECT * FROM t").fetchall()
    finally:
        connection.close()
    # By its text: NaN isn't equal to itself, and 1 == 1.0 == True.
    assert repr(decode(*row)) == repr(event)


def test_metrics_that_are_no_numbers_or_infinite_come_back():
    report = Report(3, 1, {"nan": math.nan, "up": math.inf, "down": -math.inf, "zero": -0.0}, 0.1)
    event = decode(*encode(Saved(3, 1, 1, "c", (report,))))
    assert isinstance(event, Saved)
    metrics = event.reports[0].metrics
    assert math.isnan(metrics["nan"])
    assert (metrics["up"], metrics["down"]) == (math.inf, -math.inf)
    assert math.copysign(1, metrics["zero"]) == -1


def test_lanes_are_in_a_report_where_there_were_some():
    shared = Report(3, 1, {"loss": 1.0}, 0.1, 5)
    body = encode(Saved(3, 1, 1, "c", (shared, Report(3, 2, {}, 0.1))))[2]
    assert json.loads(body)["reports"] == [[1, 0.1, {"loss": 1.0}, 5], [2, 0.1, {}]]


def test_a_row_says_of_which_trial_it_is_without_being_decoded():
    segment = Segment(7, 0, 3, None, 1)
    assert encode(Started(segment, None))[:2] == ("started", 7)
    assert encode(Lost(8, 1, "gone"))[:2] == ("lost", 8)
    assert encode(Exhausted()) == ("exhausted", None, "{}")


TRIAL = {"params": {"x": 1}, "seed": 9, "origin": "random"}
ROWS = [[1, 0.5, {"loss": 2.0}]]
REPORTS = (Report(7, 1, {"loss": 2.0}, 0.5),)


@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [
        (
            "opened",
            {"backend": "ray", "workers": 2, "process": "p", "command": "c", "workers_per_trial": 2},
            Opened("ray", 2, "p", "c", 2),
        ),
        (
            "started",
            {
                **{"attempt": 2, "start": 1, "end": 3, "checkpoint": "c", "width": 1},
                **{"reason": "", "new": None, "bracket": 2, "rung": 1},
            },
            Started(Segment(7, 1, 3, "c", 2, 1), None, "", 2, 1),
        ),
        (
            "started",
            {
                **{"attempt": 1, "start": 0, "end": None, "checkpoint": None, "width": 4},
                **{"reason": "free", "new": TRIAL, "bracket": 0, "rung": 0},
            },
            Started(Segment(7, 0, None, None, 1, 4), Trial(7, {"x": 1}, 9, "random"), "free"),
        ),
        ("saved", {"attempt": 1, "iteration": 1, "checkpoint": "c", "reports": ROWS}, Saved(7, 1, 1, "c", REPORTS)),
        (
            "finished",
            {"attempt": 1, "iteration": 1, "checkpoint": None, "reports": ROWS, "cut": False, "seconds": 0.5},
            Finished(7, 1, 1, None, REPORTS, False, 0.5),
        ),
        (
            "failed",
            {"attempt": 1, "failure": ["raised", "m", "t"], "retry": True, "reports": [], "seconds": 0.5},
            Failed(7, 1, Failure("raised", "m", "t"), True, (), 0.5),
        ),
        (
            "failed",
            {"attempt": 1, "failure": ["contract", "m", "t", "command"], "retry": False, "reports": [], "seconds": 0.5},
            Failed(7, 1, Failure("contract", "m", "t", "command"), False, (), 0.5),
        ),
        ("lost", {"attempt": 1, "reason": "r", "counts_against_trial": False}, Lost(7, 1, "r", False)),
        (
            "reverted",
            {"attempt": 1, "iteration": 3, "reason": "r", "seconds": 0.5, "checkpoint": None},
            Reverted(7, 1, 3, "r", 0.5),
        ),
        ("dropped", {"reason": "r"}, Dropped(7, "r")),
        ("exhausted", {}, Exhausted()),
        ("extended", {"run_cap": None, "settings": {"brackets": 8}}, Extended(None, {"brackets": 8})),
        ("ended", {"state": "finished", "message": ""}, Ended("finished")),
    ],
)
def test_what_journals_hold_means_the_same_for_ever(kind, body, event):
    """Written out by hand: a change of names, of order or of a default must not change what is stored."""
    assert decode(kind, 7, json.dumps(body)) == event
    written = json.loads(encode(event)[2])
    if written.get("new") is not None:
        assert (written["new"].pop("parent"), written["new"].pop("start")) == (None, 0)
    assert {name: written[name] for name in body} == body
    assert all(value in (None, 1, "", 0.0, []) for name, value in written.items() if name not in body)


def test_a_field_is_never_made_up_and_never_passed_over():
    """A default of the class is today's; what a journal of another time meant by leaving a field out is not."""
    with pytest.raises(KeyError, match="counts_against_trial"):
        decode("lost", 0, json.dumps({"attempt": 1, "reason": "r"}))
    with pytest.raises(KeyError, match="later"):
        decode("dropped", 0, json.dumps({"reason": "r", "later": 1}))
    with pytest.raises(ValueError, match="expected"):
        decode(
            "saved", 0, json.dumps({"attempt": 1, "iteration": 1, "checkpoint": "c", "reports": [[1, 0.5, {}, 3, 4]]})
        )


def test_a_journal_from_before_losses_told_their_time_is_read():
    body = {"attempt": 2, "reason": "gone", "counts_against_trial": False}
    assert decode("lost", 7, json.dumps(body)) == Lost(7, 2, "gone", False, 0.0)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("unheard_of", {}), ("saved", {}), ("saved", None), ("failed", []), ("started", "x"), ("ended", 3)],
)
def test_what_is_no_event_is_refused_with_the_errors_that_the_journal_expects(kind, body):
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode(kind, 0, json.dumps(body))


REPORT = Report(7, 2, {"loss": 0.5}, 1.5, 3)
WRITTEN = [
    (
        Opened(backend="ray", workers=4, process="u@h:1", command="hpsearch run", workers_per_trial=2, code="abc"),
        ("opened", None),
        '{"backend":"ray","workers":4,"process":"u@h:1","command":"hpsearch run","workers_per_trial":2,"code":"abc"}',
    ),
    (Asked(number=5, parent=3, bracket=1), ("asked", None), '{"number":5,"parent":3,"bracket":1}'),
    (
        Started(
            segment=Segment(trial=7, start=1, end=3, checkpoint="c", attempt=2, width=4, costs=Costs(1.5, 9.0)),
            new=Trial(
                number=7,
                params={"x": 1},
                seed=9,
                origin="pbt",
                parent=Parent(number=2, iteration=1, checkpoint="p", params={"x": 2}),
                start=1,
            ),
            reason="free",
            bracket=2,
            rung=1,
        ),
        ("started", 7),
        '{"new":{"params":{"x":1},"seed":9,"origin":"pbt","parent":{"number":2,"iteration":1,"checkpoint":"p",'
        '"params":{"x":2}},"start":1},"reason":"free","bracket":2,"rung":1,"start":1,"end":3,"checkpoint":"c",'
        '"attempt":2,"width":4,"costs":[1.5,9.0]}',
    ),
    (
        Saved(trial=7, attempt=2, iteration=2, checkpoint="c", reports=(REPORT,)),
        ("saved", 7),
        '{"attempt":2,"iteration":2,"checkpoint":"c","reports":[[2,1.5,{"loss":0.5},3]]}',
    ),
    (
        Finished(
            trial=7,
            attempt=2,
            iteration=2,
            checkpoint="c",
            reports=(REPORT,),
            cut=True,
            seconds=0.5,
            stopped="late",
            lanes=3,
        ),
        ("finished", 7),
        '{"attempt":2,"iteration":2,"checkpoint":"c","reports":[[2,1.5,{"loss":0.5},3]],"cut":true,"seconds":0.5,'
        '"stopped":"late","lanes":3}',
    ),
    (
        Failed(
            trial=7,
            attempt=2,
            failure=Failure(kind="raised", message="no", traceback="t"),
            retry=True,
            reports=(REPORT,),
            seconds=0.5,
        ),
        ("failed", 7),
        '{"attempt":2,"failure":["raised","no","t"],"retry":true,"reports":[[2,1.5,{"loss":0.5},3]],"seconds":0.5}',
    ),
    (
        Lost(trial=7, attempt=2, reason="r", counts_against_trial=False, seconds=0.5, then="halved", company=(7, 8)),
        ("lost", 7),
        '{"attempt":2,"reason":"r","counts_against_trial":false,"seconds":0.5,"then":"halved","company":[7,8]}',
    ),
    (
        Reverted(trial=7, attempt=2, iteration=1, reason="r", seconds=0.5, checkpoint="c"),
        ("reverted", 7),
        '{"attempt":2,"iteration":1,"reason":"r","seconds":0.5,"checkpoint":"c"}',
    ),
    (Noted(trial=7, attempt=2, notes={"n": "t"}), ("noted", 7), '{"attempt":2,"notes":{"n":"t"}}'),
    (Dropped(trial=7, reason="r"), ("dropped", 7), '{"reason":"r"}'),
    (Retried(trial=7), ("retried", 7), "{}"),
    (
        Continued(trial=7, until=9, iteration=3, checkpoint="c"),
        ("continued", 7),
        '{"until":9,"iteration":3,"checkpoint":"c"}',
    ),
    (Pruned(trial=7, reason="r"), ("pruned", 7), '{"reason":"r"}'),
    (Added(params={"x": 1}), ("added", None), '{"params":{"x":1}}'),
    (Exhausted(), ("exhausted", None), "{}"),
    (Extended(run_cap=3, settings={"brackets": 8}), ("extended", None), '{"run_cap":3,"settings":{"brackets":8}}'),
    (
        Changed([{"path": ["x"], "distribution": "constant", "value": 1}], 7),
        ("changed", None),
        '{"parameters":[{"path":["x"],"distribution":"constant","value":1}],"from_trial":7}',
    ),
    (
        Steered(verb="add", by="u@h:1", request=4, details={"a": 1}, refused="no"),
        ("steered", None),
        '{"verb":"add","by":"u@h:1","request":4,"details":{"a":1},"refused":"no"}',
    ),
    (Ended(state="error", message="m"), ("ended", None), '{"state":"error","message":"m"}'),
]


@pytest.mark.parametrize(("event", "columns", "body"), WRITTEN, ids=[columns[0] for _, columns, _ in WRITTEN])
def test_an_event_is_written_to_these_bytes_whatever_its_class_and_fields_are_called(event, columns, body):
    kind, trial = columns
    assert encode(event) == (kind, trial, body)
    assert decode(kind, trial, body) == event


def test_each_kind_of_event_is_written_to_bytes_that_are_known():
    assert {type(event) for event, _, _ in WRITTEN} == set(get_args(Event))


@pytest.mark.parametrize(
    "layout", [*_EVENTS.values(), *_PARTS.values(), *_ROWS.values()], ids=lambda one: one.kind.__name__
)
def test_each_field_has_a_name_in_the_journal(layout):
    named = {path.split(".")[0] for path in (layout.trial, *layout.fields.values()) if path}
    assert named == {field.name for field in fields(layout.kind)}
    inner = {path.split(".")[1] for path in (layout.trial, *layout.fields.values()) if "." in path}
    assert not inner or inner == {field.name for field in fields(Segment)}
