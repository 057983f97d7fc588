"""The history of a study, whatever its clock did."""

from __future__ import annotations

from hpsearch.decision import Followed
from hpsearch.events import Ended, Entry, Event, Opened
from hpsearch.journal.history import steps
from hpsearch.journal.journal import Request


def test_what_is_journaled_keeps_its_order_when_the_clock_was_set_back():
    opened = Opened("inline", 1, "me@here:1", "hpsearch run")
    happened: list[tuple[float, Event]] = [(1000.0, opened), (400.0, Ended("finished")), (1500.0, opened)]
    entries = [Entry(time, event, Followed()) for time, event in happened]
    tagged = [Request(time, "tag", "me@here:2", {}, number=1) for time in (500.0, 1200.0)]
    told = [(step.verb, step.time) for step in steps(entries, tagged)]
    assert told == [("tag", 500.0), ("run", 1000.0), ("end", 400.0), ("tag", 1200.0), ("run", 1500.0)]
