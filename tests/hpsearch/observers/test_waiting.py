"""What a sweep waits for, and where its time went."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import replace

from hpsearch.events import Finished, Lost, Started
from hpsearch.objective import Metric, Objective
from hpsearch.observers.display import Snapshot, WaitReporter
from hpsearch.observers.observer_hub import Times
from hpsearch.observers.progress import LiveTable, PlainLines
from hpsearch.task import Workers
from hpsearch.trial import Segment
from tests.hpsearch.support.lives import OPENED

START = Snapshot(
    name="digits",
    objective=Objective(Metric("accuracy", "maximize")),
    rungs=[],
    counts={},
    leaders=(),
    workers=Workers(ready=0, busy=0, wanted=4),
    iterations=0,
    total=(49, 357),
    elapsed=0.5,
    remaining=None,
)


class Seen(io.StringIO):
    """A stream that tells when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        out = super().write(text)
        if "..." in text or "  " in text:
            self.written.set()
        return out

    def isatty(self) -> bool:
        return True


def test_seconds_are_said_until_the_wait_ends():
    said: list[float] = []
    enough = threading.Event()

    def say(seconds: float) -> None:
        said.append(seconds)
        if len(said) == 3:
            enough.set()

    waiting = WaitReporter(say, pause=0.001)
    assert enough.wait(60)
    waiting.end()
    count = len(said)
    assert said == sorted(said)
    assert not waiting._thread.is_alive()
    assert len(said) == count


def test_a_screen_that_is_gone_ends_the_saying():
    def say(seconds: float) -> None:
        raise BrokenPipeError

    WaitReporter(say, pause=0.001)._thread.join(60)


def test_plain_lines_say_once_what_holds_them_up():
    stream = Seen()
    lines = PlainLines(stream)
    lines.wait("starting Ray")
    assert stream.written.wait(60)
    lines.show(START)
    assert stream.getvalue().splitlines()[0] == "starting Ray ..."
    for seconds in (0.5, 2.5, 3.0):
        lines.show(replace(START, waiting=("waiting for suggestions", seconds)))
    lines.close()
    assert stream.getvalue().count("waiting for suggestions ...") == 1


def test_a_live_table_counts_the_seconds():
    stream = Seen()
    table = LiveTable(stream)
    table.wait("starting Ray")
    assert stream.written.wait(60)
    table.show(replace(START, waiting=("waiting for workers", 4.0)))
    table.close()
    assert re.search(r"starting Ray  \d\.\d s", stream.getvalue())
    assert "waiting for workers  4.0 s" in stream.getvalue()


def test_the_time_of_a_run_is_told_in_three_parts():
    clock = [0.0]
    times = Times(lambda: clock[0])
    first, second = (Started(Segment(trial, 0, 1, None, 1), None) for trial in range(2))
    for when, event in (
        (1.0, first),
        (2.0, Finished(0, 1, 1, None, (), False, 1.0)),
        (100.0, OPENED),  # what came before was another run's
        (105.0, second),
        (139.0, Lost(1, 1, "gone")),
        (140.0, Finished(1, 1, 1, None, (), False, 1.0)),
    ):
        clock[0] = when
        times.observe(event)
    clock[0] = 142.0
    assert times.text(100.0) == "took 42 s: 5.0 s to start, 35 s searching, 2.0 s to end"
    times.observe(OPENED)
    assert times.text(100.0) == ""
