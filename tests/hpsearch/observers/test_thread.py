from __future__ import annotations

import threading
from collections.abc import Sequence

from hpsearch.decision import Decision
from hpsearch.events import Event, Exhausted, Lost
from hpsearch.observers.base import Observer
from hpsearch.observers.thread import ObserverThread
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

REPORT = Report(0, 1, {"loss": 1.0}, 0.1)
RUNG = RungView(0, 0, 1, 9, 3, 2)


class Scribe(Observer):
    """Writes down what it is told, and on which thread; waits for `gate` before each event."""

    def __init__(self, breaks_at: str | None = None, gate: threading.Event | None = None) -> None:
        self.told: list[object] = []
        self.threads: set[str] = set()
        self.breaks_at = breaks_at
        self.gate = gate
        self.flushed = threading.Event()

    def write(self, what: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.append(what)
        if what == self.breaks_at:
            raise OSError(28, "No space left on device")

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        if self.gate is not None:
            self.gate.wait()
        self.write(event)

    def report(self, reports: Sequence[Report]) -> None:
        self.write(tuple(reports))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        self.write(list(rungs))

    def flush(self) -> None:
        self.flushed.set()
        self.write("flush")

    def close(self) -> None:
        self.write("close")


def test_everyone_hears_everything_in_order_on_another_thread_and_is_closed_once():
    scribes = [Scribe(), Scribe()]
    said: list[str] = []
    thread = ObserverThread(scribes, said.append)
    thread.observe(Exhausted(), ())
    thread.report([REPORT])
    thread.report([])
    thread.rungs([RUNG])
    thread.observe(Lost(0, 1, "gone"), ())
    thread.close()
    thread.close()
    for scribe in scribes:
        heard = [what for what in scribe.told if what != "flush"]
        assert heard == [Exhausted(), (REPORT,), [RUNG], Lost(0, 1, "gone"), "close"]
        assert scribe.threads == {"hpsearch-observers"}
    assert said == []


def test_the_sweep_doesnt_wait_for_a_slow_observer_and_it_flushes_only_when_nothing_waits():
    gate = threading.Event()
    slow = Scribe(gate=gate)
    thread = ObserverThread([slow], lambda text: None)
    for number in range(1000):
        thread.observe(Lost(number, 1, ""), ())
    assert slow.told == []  # all were passed on, and it hasn't taken one
    gate.set()
    thread.close()
    assert [event.trial for event in slow.told if isinstance(event, Lost)] == list(range(1000))
    assert slow.told.count("flush") <= 1


def test_an_observer_that_raises_is_let_go_and_the_others_go_on():
    for moment in ("flush", "close"):
        broken, sound = Scribe(breaks_at=moment), Scribe()
        said: list[str] = []
        thread = ObserverThread([broken, sound], said.append)
        thread.observe(Exhausted(), ())
        assert broken.flushed.wait(60)  # nothing else was waiting
        thread.close()
        assert sound.told[-1] == "close"
        (text,) = said
        assert "Scribe stopped: OSError: [Errno 28] No space left on device" in text
        assert "The sweep goes on" in text


def test_after_it_raised_it_hears_nothing_more():
    class Broken(Scribe):
        def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
            self.write(event)
            raise ValueError("no")

    broken = Broken()
    said: list[str] = []
    thread = ObserverThread([broken], said.append)
    thread.observe(Exhausted(), ())
    thread.observe(Exhausted(), ())
    thread.close()
    assert broken.told == [Exhausted()]
    assert len(said) == 1


def test_without_observers_there_is_no_thread():
    before = threading.active_count()
    thread = ObserverThread([], lambda text: None)
    thread.observe(Exhausted(), ())
    assert threading.active_count() == before
    thread.close()
