"""What every observer that a sweep can name must do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.config.observer_names import KNOWN_OBSERVERS, OPTIONAL
from hpsearch.events import Started
from hpsearch.journal.journal import Journal
from hpsearch.observers import make_observer
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.thread import ObserverThread, close_all
from hpsearch.schedulers.base import RungView
from hpsearch.study.state import SweepState
from tests.hpsearch.support.lives import Life, lives
from tests.hpsearch.support.scripted import sweep_of

CREATED = 1_700_000_000.0


def told_of(life: Life) -> list[tuple[Record, Sequence[RungView]]]:
    """Return a life's records as a resumed run receives them, each with the rungs after it."""
    sweep_state = SweepState(life.sweep)
    replay = enumerate(sweep_state.replay(life.events), 1)
    return [
        (Record(seq, CREATED + seq, event, followed.decisions), tuple(sweep_state.rungs()))
        for seq, (event, followed) in replay
    ]


def make(name: str, place: Path, life: Life) -> Observer:
    return make_observer(name, Observed(place, life.sweep, CREATED))


def check_life(name: str, place: Path, life: Life, share: float) -> None:
    """Tell an observer of a life that was killed after a share of it, and then of all of it."""
    records = told_of(life.run())
    ended = round(share * len(records))
    for heard in (records[:ended], records):
        said: list[str] = []
        thread = ObserverThread(lambda: make(name, place, life), said.append)
        for record, rungs in heard:
            thread.observe(record)
            if isinstance(record.event, Started):
                segment = record.event.segment
                thread.report(life.reports(segment.trial, segment.start, segment.start + 2))
            thread.rungs(rungs)
        close_all([thread])
        assert said == []


@pytest.mark.parametrize("name", sorted(KNOWN_OBSERVERS.keys() - OPTIONAL))
@settings(max_examples=8, deadline=None)
@given(life=lives(), share=st.floats(0, 1))
def test_it_takes_any_life_and_any_resumed_one_without_raising(name, life, share, tmp_path_factory):
    check_life(name, tmp_path_factory.mktemp("study"), life, share)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of what their own libraries deprecate
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name == "mlflow" else name for name in sorted(OPTIONAL)],
)
@settings(max_examples=2, deadline=None)
@given(life=lives(), share=st.floats(0, 1))
def test_so_does_one_over_a_library_of_others(name, life, share, tmp_path_factory):
    check_life(name, tmp_path_factory.mktemp("study"), life, share)


@pytest.mark.parametrize("name", KNOWN_OBSERVERS)
def test_it_is_closed_within_a_bound_and_before_any_record(name, tmp_path):
    life = Life(sweep_of(), 0, 1, 0.0)
    observer = make(name, tmp_path, life)
    assert 0 < observer.deadline < 3600
    assert observer.seen() == 0
    observer.close()


def test_a_name_that_nobody_knows_is_refused_with_the_nearest():
    with pytest.raises(hpsearch.SweepError, match=r"observers\[0\]: must be the name of an observer.*\n.*tensorboard"):
        sweep_of(observers=("tensorbord",))
    with pytest.raises(hpsearch.SweepError, match=r"observers\[1\]: must be .* got 3"):
        sweep_of(observers=("tensorboard", 3))


class Ledger(Observer):
    """Keeps the numbers of its records in a file, so that it knows what it has seen."""

    def __init__(self, observed: Observed) -> None:
        self.path = observed.directory / "ledger"

    def seen(self) -> int:
        return len(self.path.read_text().split()) if self.path.exists() else 0

    def observe(self, record: Record) -> None:
        with self.path.open("a") as file:
            file.write(f"{record.seq}\n")

    def close(self) -> None: ...


class Unfinished(Observer):
    def __init__(self, observed: Observed) -> None: ...


class Refusing(Ledger):
    def __init__(self, observed: Observed) -> None:
        raise OSError("no such server")


GATE = threading.Event()


class Slow(Ledger):
    """Is made once the gate is open."""

    def __init__(self, observed: Observed) -> None:
        GATE.wait()
        super().__init__(observed)


def no_observer(observed: Observed) -> int:
    return 3


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere:Ledger", "names the module .nowhere., which isn.t there"),
        (f"{__name__}:Leger", r"names 'Leger', which isn't in .*: did you mean 'Ledger'\?"),
        (f"{__name__}:CREATED", "must lead to a class of observers"),
        (f"{__name__}:no_observer", "must make a hpsearch.observers.base.Observer, got a int"),
        (f"{__name__}:Unfinished", "must define close and observe, which Unfinished doesn't"),
        (f"{__name__}:Life", "must be derived from hpsearch.observers.base.Observer, but Life isn't"),
        (f"{__name__}:make", "must be made of what it observes, but raised TypeError: make.. missing 2 required"),
    ],
)
def test_an_import_path_that_makes_no_observer_is_a_mistake_that_is_explained(name, problem, tmp_path):
    with pytest.raises(hpsearch.SweepError, match=problem):
        make_observer(name, Observed(tmp_path, sweep_of(), CREATED))


SEARCHED: dict[str, Any] = {"parameters": {"x": hpsearch.Uniform(0.0, 1.0)}, "metric": "loss", "max_iter": 1}


def train(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.report({"loss": trial.params["x"] / iteration})


def test_an_observer_whose_making_takes_too_long_refuses_the_sweep(tmp_path, monkeypatch):
    GATE.clear()
    monkeypatch.setattr("hpsearch.observers.thread.MAKING_SECONDS", 0.05)
    options: dict[str, Any] = {"directory": tmp_path / "s", "backend": "inline", "progress": False}
    with pytest.raises(hpsearch.SweepError, match="must be made of what it observes within"):
        hpsearch.search(train, **SEARCHED, run_cap=2, observers=[f"{__name__}:Slow"], **options)
    GATE.set()


def test_one_that_cant_be_made_refuses_the_sweep_and_the_others_keep_what_they_have(tmp_path):
    place = tmp_path / "s"
    arguments: dict[str, Any] = {**SEARCHED, "directory": place, "backend": "inline", "progress": False}
    hpsearch.search(train, run_cap=1, **arguments)
    written = {path: path.read_bytes() for path in (place / "tensorboard").rglob("events*")}
    with pytest.raises(hpsearch.SweepError, match="must be made of what it observes, but raised OSError: no such serv"):
        hpsearch.search(train, run_cap=2, observers=["tensorboard", f"{__name__}:Refusing"], **arguments)
    assert written
    assert {path: path.read_bytes() for path in (place / "tensorboard").rglob("events*")} == written
    assert hpsearch.load(place).state == "finished"
    for thread in threading.enumerate():
        if thread.name.startswith("hpsearch-observer"):
            thread.join(60)
            assert not thread.is_alive()


def test_a_sweep_names_an_observer_of_ones_own_and_resuming_tells_it_the_rest_once(tmp_path):
    place = tmp_path / "s"
    for run_cap in (2, 3):
        hpsearch.search(
            train,
            **SEARCHED,
            run_cap=run_cap,
            directory=place,
            backend="inline",
            progress=False,
            observers=[f"{__name__}:Ledger"],
        )
    with Journal.read(place / "study.db") as journal:
        count = len(list(journal.entries()))
    numbers = [int(word) for word in (place / "ledger").read_text().split()]
    assert numbers == list(range(1, count + 1))
    assert not (place / "tensorboard").exists()
    assert hpsearch.load(place).sweep.observers == (f"{__name__}:Ledger",)


def test_an_instance_observes_as_well_and_mistakes_show_before_anything_is_made(tmp_path):
    place = tmp_path / "s"
    arguments: dict[str, Any] = {**SEARCHED, "run_cap": 1}
    ledger = Ledger(Observed(tmp_path, sweep_of(), CREATED))
    options: dict[str, Any] = {"directory": place, "backend": "inline", "progress": False}
    with pytest.raises(hpsearch.SweepError, match="did you mean tensorboard"):
        hpsearch.search(train, observers=["tensorbaord"], **arguments, **options)
    for twice in ["csv", ledger_path := f"{__name__}:Ledger"]:
        with pytest.raises(hpsearch.SweepError, match=r"observers.1.: must differ from those before it, but "):
            hpsearch.search(train, observers=[twice, twice], **arguments, **options)
    with pytest.raises(hpsearch.SweepError, match=f'give an instance of it, or its path: "{ledger_path}"'):
        hpsearch.search(train, observers=[Ledger], **arguments, **options)  # type: ignore[list-item]
    with pytest.raises(hpsearch.SweepError, match="must define close and observe"):
        hpsearch.search(train, observers=[f"{__name__}:Unfinished"], **arguments, **options)
    assert not place.exists()
    hpsearch.search(train, observers=[ledger], **arguments, **options)
    assert ledger.seen() > 3
