from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from hpsearch.events import Exhausted, Lost
from hpsearch.observers.base import Observer, Record
from hpsearch.observers.thread import ObserverThread, close_all
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

REPORT = Report(0, 1, {"loss": 1.0}, 0.1)
RUNG = RungView(0, 0, 1, 9, 3, 2)
FIRST = Record(1, 100.0, Exhausted())
SECOND = Record(2, 101.0, Lost(0, 1, "gone"))


class Scribe(Observer):
    """Writes down what it is told, and on which thread; waits for `gate` before each record."""

    def __init__(self, breaks_at: str | None = None, gate: threading.Event | None = None, seen: int = 0) -> None:
        self.told: list[object] = []
        self.threads: set[threading.Thread] = set()
        self.breaks_at = breaks_at
        self.gate = gate
        self.last = seen
        self.flushed = threading.Event()
        self.reached = threading.Event()

    def write(self, what: object) -> None:
        self.threads.add(threading.current_thread())
        self.told.append(what)
        if what == self.breaks_at:
            raise OSError(28, "No space left on device")

    def seen(self) -> int:
        if self.breaks_at == "seen":
            raise OSError(28, "No space left on device")
        return self.last

    def observe(self, record: Record) -> None:
        self.reached.set()
        if self.gate is not None:
            self.gate.wait()
        self.write(record)

    def report(self, reports: Sequence[Report]) -> None:
        self.write(tuple(reports))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        self.write(list(rungs))

    def flush(self) -> None:
        self.flushed.set()
        self.write("flush")

    def close(self) -> None:
        self.write("close")


def thread_of(observer: Observer, say: Callable[[str], None]) -> ObserverThread:
    return ObserverThread(lambda: observer, say)


def heard(scribe: Scribe) -> list[object]:
    return [what for what in scribe.told if what != "flush"]


def test_everyone_hears_everything_in_order_on_a_thread_of_its_own_and_is_closed_once():
    scribes, said = [Scribe(), Scribe()], list[str]()
    threads = [thread_of(scribe, said.append) for scribe in scribes]
    for thread in threads:
        thread.observe(FIRST)
        thread.report([REPORT])
        thread.report([])
        thread.rungs([RUNG])
        thread.observe(SECOND)
    close_all(threads)
    close_all(threads)
    for scribe in scribes:
        assert heard(scribe) == [FIRST, (REPORT,), [RUNG], SECOND, "close"]
        assert len(scribe.threads) == 1
    assert scribes[0].threads.isdisjoint(scribes[1].threads)
    assert said == []


def test_what_an_observer_has_seen_in_former_runs_it_isnt_told_again():
    scribe = Scribe(seen=1)
    thread = thread_of(scribe, pytest.fail)
    thread.observe(FIRST)
    thread.observe(SECOND)
    close_all([thread])
    assert heard(scribe) == [SECOND, "close"]


def test_the_sweep_doesnt_wait_for_a_slow_observer_and_it_flushes_only_when_nothing_waits():
    gate = threading.Event()
    slow = Scribe(gate=gate)
    thread = thread_of(slow, pytest.fail)
    records = [Record(number, 0.0, Lost(number, 1, "")) for number in range(1, 1001)]
    for record in records:
        thread.observe(record)
    assert slow.told == []  # all were passed on, and it hasn't taken one
    gate.set()
    close_all([thread])
    assert [what for what in slow.told if isinstance(what, Record)] == records
    assert slow.told.count("flush") <= 1


def test_one_that_hangs_holds_up_neither_the_others_nor_the_end_beyond_its_deadline():
    gate = threading.Event()
    stuck, sound = Scribe(gate=gate), Scribe()
    stuck.deadline = 0.05
    said: list[str] = []
    threads = [thread_of(stuck, said.append), thread_of(sound, said.append)]
    for thread in threads:
        thread.observe(FIRST)
        thread.observe(SECOND)
    close_all(threads)  # the test would hang here
    assert heard(sound) == [FIRST, SECOND, "close"]
    (text,) = said
    assert "Scribe stopped: it hadn't taken everything 0.05 s after the end of the sweep" in text
    gate.set()
    for left in stuck.threads:
        left.join(60)
    assert "close" not in stuck.told  # it was let go, and hears no more


def test_a_call_that_takes_longer_than_the_deadline_lets_the_observer_go_while_the_sweep_runs():
    gate, said = threading.Event(), list[str]()
    stuck = Scribe(gate=gate)
    stuck.deadline = 0.0
    thread = thread_of(stuck, said.append)
    thread.observe(FIRST)
    assert stuck.reached.wait(60)
    while not said:  # it is noticed when more is to be passed on
        thread.observe(SECOND)
    gate.set()
    close_all([thread])
    assert "one call took longer than its deadline of 0 s" in said[0]
    assert len(said) == 1
    assert SECOND not in stuck.told


@pytest.mark.parametrize("moment", ["seen", "flush", "close"])
def test_an_observer_that_raises_is_let_go_and_the_others_go_on(moment):
    broken, sound = Scribe(breaks_at=moment), Scribe()
    said: list[str] = []
    threads = [thread_of(observer, said.append) for observer in (broken, sound)]
    for thread in threads:
        thread.observe(FIRST)
    assert sound.flushed.wait(60)  # nothing else was waiting
    assert moment == "seen" or broken.flushed.wait(60)
    close_all(threads)
    assert sound.told[-1] == "close"
    (text,) = said
    assert "Scribe stopped: OSError: [Errno 28] No space left on device" in text
    assert "The sweep continues" in text


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_after_it_raised_it_hears_nothing_more(error):
    class Broken(Scribe):
        def observe(self, record: Record) -> None:
            self.write(record)
            raise error

    broken = Broken()
    said: list[str] = []
    thread = thread_of(broken, said.append)
    thread.observe(FIRST)
    thread.observe(SECOND)
    close_all([thread])
    assert broken.told == [FIRST]
    assert len(said) == 1


def test_an_observer_is_made_on_the_thread_that_tells_it_everything():
    class Made(Scribe):
        def __init__(self) -> None:
            super().__init__()
            self.threads.add(threading.current_thread())

    made = list[Scribe]()

    def make() -> Scribe:
        made.append(Made())
        return made[0]

    thread = ObserverThread(make, pytest.fail)
    thread.observe(FIRST)
    close_all([thread])
    assert heard(made[0]) == [FIRST, "close"]
    assert len(made[0].threads) == 1
    assert threading.current_thread() not in made[0].threads


@pytest.mark.parametrize("error", [ValueError("no such server"), SystemExit(3)])
def test_what_making_one_raises_is_the_callers(error):
    def make() -> Scribe:
        raise error

    with pytest.raises(type(error), match=str(error)):
        ObserverThread(make, pytest.fail)


def test_one_whose_making_hangs_is_refused_and_then_never_told_anything(monkeypatch):
    gate, hanging, threads = threading.Event(), Scribe(), list[threading.Thread]()

    def make() -> Scribe:
        threads.append(threading.current_thread())
        gate.wait()
        return hanging

    monkeypatch.setattr("hpsearch.observers.thread.MAKING_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        ObserverThread(make, pytest.fail)
    gate.set()
    threads[0].join(60)
    assert hanging.told == []


def test_one_that_hears_of_nothing_gets_ready_and_is_closed():
    class Ready(Scribe):
        def seen(self) -> int:
            self.write("seen")
            return 0

    ready = Ready()
    close_all([thread_of(ready, pytest.fail)])
    assert heard(ready) == ["seen", "close"]


def test_one_that_is_abandoned_before_the_sweep_runs_is_made_and_nothing_more():
    class Clearing(Scribe):
        def seen(self) -> int:
            self.write("seen")
            return 0

    clearing = Clearing()
    thread = thread_of(clearing, pytest.fail)
    thread.abandon()
    close_all([thread])
    assert clearing.told == []
