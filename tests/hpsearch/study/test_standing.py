"""The word for a study's state follows from its journal, and from whether a process runs it."""

from __future__ import annotations

import time

import pytest

from hpsearch.decision import Followed
from hpsearch.events import ASK_TELL, Added, Ended, Entry, Event, Extended, Opened, Steered
from hpsearch.study.standing import Standing
from tests.hpsearch.support.scripted import sweep_of

OPENED = Opened("ray", 2, "me@here:1", "hpsearch run")
ASKED = Opened(ASK_TELL, None, "me@here:1", "hpsearch ask")
WHEN = 1e9
CLOCK = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(WHEN))


def steered(verb: str, refused: str = "") -> Steered:
    return Steered(verb, "bo@box:3", 5, {}, refused)


def standing(events: list[Event]) -> Standing:
    made = Standing(sweep_of())
    for event in events:
        made.take(Entry(WHEN, event, Followed()))
    return made


STATES: list[tuple[list[Event], str, str]] = [
    # events, without a process, with one
    ([], "not begun", "running"),
    ([OPENED], "killed", "running"),
    ([OPENED, steered("pause")], "killed", "paused"),
    ([OPENED, steered("pause", "no")], "killed", "running"),
    ([OPENED, steered("pause"), steered("resume")], "killed", "running"),
    ([OPENED, steered("pause"), OPENED], "killed", "running"),
    ([OPENED, steered("stop")], "killed", "running"),
    ([OPENED, steered("cancel")], "cancelled", "cancelled"),  # as journals of before have it, with nothing behind it
    ([OPENED, steered("cancel", "no")], "killed", "running"),
    ([OPENED, steered("cancel"), Ended("cancelled", "by bo@box")], "cancelled", "cancelled"),
    ([OPENED, steered("cancel"), Ended("cancelled", "by bo@box"), OPENED], "killed", "running"),
    ([OPENED, steered("pause"), Ended("interrupted")], "interrupted", "interrupted"),
    ([OPENED, Ended("finished"), Extended(9)], "extended", "extended"),
    ([OPENED, Ended("finished"), Added({"x": 0.5})], "extended", "extended"),
    ([OPENED, Ended("stopped"), Extended(9)], "stopped", "stopped"),
    ([OPENED, Ended("finished"), Extended(9), OPENED], "killed", "running"),
    ([ASKED], "open", "open"),
    ([ASKED, Ended("finished")], "finished", "finished"),
    ([ASKED, Ended("finished"), ASKED], "open", "open"),
]
for ending in ("finished", "target", "patience", "stopped", "max_time", "interrupted", "error"):
    STATES.append(([OPENED, Ended(ending)], ending, ending))


@pytest.mark.parametrize(("events", "dead", "live"), STATES)
def test_a_state_has_one_word(events, dead, live):
    assert standing(events).ended(live=False).state == dead
    assert standing(events).ended(live=True).state == live


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([OPENED, steered("pause")], f"since {CLOCK}, by bo@box"),
        ([OPENED, steered("cancel")], f"at {CLOCK}, by bo@box"),
        ([OPENED, steered("cancel"), Ended("cancelled", "by bo@box")], f"at {CLOCK}, by bo@box"),
        ([OPENED, steered("cancel"), OPENED, Ended("finished")], ""),
        ([OPENED, Ended("error", "it broke")], "it broke"),
    ],
)
def test_what_is_said_of_it(events, message):
    assert standing(events).ended(live=True).message == message


def test_it_knows_what_the_sweep_was_extended_by():
    assert standing([OPENED, Extended(40)]).sweep.run_cap == 40
