"""What every backend that divides its workers promises of their lanes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpsearch.backends.base import Backend
from hpsearch.backends.inline import InlineBackend
from hpsearch.events import Lost
from hpsearch.sweep.parts import Resources
from hpsearch.task import Result
from tests.hpsearch.support.driver import Driver, is_timeout
from tests.hpsearch.support.packing import PackingBackend

LANES = 3
LONG = 100_000
SMALL = "tests.hpsearch.support.lane_trainables:Held"
ON_RAY = [pytest.mark.ray, pytest.mark.exhaustive]
"""Each test takes a worker of its own there; `ray/test_ray_lanes.py` has some of it in sweeps."""


@dataclass
class Place:
    """A worker of three lanes, and what a test can do to it."""

    driver: Driver
    folder: Path
    packing: PackingBackend | None

    @property
    def backend(self) -> Backend:
        return self.driver.backend

    def start(self, number: int, end: int = 3, fault: str = "", **given: Any) -> None:
        """Start a lane; `fault` is one of `lane_trainables`."""
        params = {"lr": 0.1, "hidden": 8, "dropout": 0.0, "fault": fault, "folder": str(self.folder)}
        if self.packing is not None and fault:
            self.packing.fail(number)
        self.driver.start(number, params, end, lanes=LANES, at_once="company" in given, **given)

    def start_whole(self, number: int, end: int = 3) -> None:
        """Start a trial that is to have the worker for itself, whether there is room or not."""
        params = {"lr": 0.1, "hidden": 8, "dropout": 0.0, "fault": "", "folder": str(self.folder)}
        self.driver.start(number, params, end, at_once=True)

    def kill(self) -> None:
        """Let the worker die once it has come to the second iteration of some trial."""
        if self.packing is not None:
            self.packing.wait(None)
            self.packing.lose(0)
            return
        self.driver.wait_for(lambda: list(self.folder.glob("*.held")))
        os.kill(int(next(self.folder.glob("*.held")).stem), signal.SIGKILL)


def made(kind: str, tmp_path: Path) -> Iterator[Place]:
    backend: Backend
    if kind == "inline":
        backend = InlineBackend()
    elif kind == "packing":
        backend = PackingBackend(1, metric=lambda trial, iteration: 1.0 / iteration)
    else:
        from hpsearch.backends.ray.backend import RayBackend

        backend = RayBackend(Resources(workers=1, trials_per_worker=3))
    driver = Driver(backend, tmp_path / "study", SMALL, lanes=3, metric="loss")
    place = Place(driver, tmp_path, backend if isinstance(backend, PackingBackend) else None)
    driver.wait_for(lambda: backend.capacity(LANES) == 3)
    yield place
    backend.close(kill=True)


@pytest.fixture(params=["inline", "packing", pytest.param("ray", marks=ON_RAY)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    yield from made(request.param, tmp_path)


@pytest.fixture(params=["packing", pytest.param("ray", marks=ON_RAY)])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend whose workers may die without it."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    yield from made(request.param, tmp_path)


def check_whole(outcome: Any, end: int = 3) -> None:
    assert isinstance(outcome, Result)
    assert (outcome.iteration, outcome.cut, outcome.failure) == (end, False, None)
    assert [report.iteration for report in outcome.reports] == list(range(1, end + 1))


def test_lanes_are_taken_one_by_one_and_come_back_one_by_one(place: Place):
    room = [place.backend.capacity(LANES)]
    for number in range(3):
        place.start(number, end=LONG)
        room.append(place.backend.capacity(LANES))
    assert room == [3, 2, 1, 0]
    assert place.backend.capacity() == 0
    for number in range(3):
        place.backend.cut(number, 1)
        place.driver.outcome(number)
        assert place.backend.capacity(LANES) == number + 1
    place.driver.wait_for(lambda: place.backend.capacity() == 1)


def test_a_task_joins_others_that_run_and_leaves_before_them(place: Place):
    place.start(0, end=LONG)
    place.driver.metrics(0)
    place.start(1, end=2)
    check_whole(place.driver.outcome(1), 2)
    place.backend.cut(0, 1)
    assert place.driver.outcome(0).cut


def test_a_cut_ends_one_lane_at_a_report_with_a_checkpoint(place: Place):
    for number in range(3):
        place.start(number, end=LONG)
        place.driver.metrics(number)
    place.backend.cut(1, 1)
    cut = place.driver.outcome(1)
    assert (cut.cut, cut.failure) == (True, None)
    assert cut.checkpoint is not None
    before = [len(place.driver.reports(number)) for number in (0, 2)]
    place.driver.wait_for(lambda: all(len(place.driver.reports(n)) > b for n, b in zip((0, 2), before, strict=True)))


def test_a_failure_ends_one_lane(place: Place):
    for number, fault in enumerate(("", "step", "")):
        place.start(number, fault=fault)
    failed = place.driver.outcome(1)
    assert failed.failure is not None
    assert failed.failure.kind == "raised"
    for number in (0, 2):
        check_whole(place.driver.outcome(number))


@pytest.mark.exhaustive
def test_a_timeout_ends_one_lane(place: Place):
    for number in range(3):
        place.start(number, end=LONG if number == 1 else 3, timeout=2.0 if number == 1 else None)
    assert is_timeout(place.driver.outcome(1))
    for number in (0, 2):
        check_whole(place.driver.outcome(number))


def test_a_task_that_is_to_have_a_worker_for_itself_waits_for_its_lanes_and_nothing_overtakes_it(place: Place):
    place.start(0, end=LONG)
    place.start(1, end=2)
    place.start_whole(2)
    assert place.backend.capacity(LANES) == 0
    check_whole(place.driver.outcome(1), 2)
    assert place.backend.capacity(LANES) == 0, "a lane is free, but something waits"
    place.backend.cut(0, 1)
    place.driver.outcome(0)
    alone = place.driver.outcome(2)
    check_whole(alone)
    assert alone.lanes == 1
    place.driver.wait_for(lambda: place.backend.capacity(LANES) == 3)
    assert place.backend.capacity() == 1


def test_trials_of_a_company_run_beside_each_other_and_beside_no_others(place: Place):
    place.start(0, end=LONG)
    for number in (1, 2):
        place.start(number, end=LONG, company=(1, 2))
    assert place.backend.capacity(LANES) == 0, "a lane is free, but something waits"
    place.driver.wait_for(lambda: len(place.driver.reports(0)) > 2)
    assert not [*place.driver.reports(1), *place.driver.reports(2)]
    place.backend.cut(0, 1)
    place.driver.outcome(0)
    for number in (1, 2):
        place.driver.metrics(number)  # both run
    assert place.backend.capacity(LANES) == 0
    place.start(3, company=(3, 4))
    for number in (1, 2):
        place.backend.cut(number, 1)
        assert not place.driver.reports(3)
        assert place.driver.outcome(number).cut
    check_whole(place.driver.outcome(3))
    place.driver.wait_for(lambda: place.backend.capacity(LANES) == 3)


def test_what_waits_for_a_worker_and_is_cut_does_not_begin(place: Place):
    place.start(0, end=LONG)
    for number in (1, 2):
        place.start(number, company=(1, 2))
    place.backend.cut(1, 1)
    gone = place.driver.outcome(1)
    assert isinstance(gone, Lost)
    assert (gone.counts_against_trial, gone.company) == (False, ())
    place.backend.cut(0, 1)
    assert place.driver.outcome(0).cut
    check_whole(place.driver.outcome(2))
    assert not place.driver.reports(1)


def test_the_lanes_of_a_worker_that_dies_are_nobodys_fault_and_are_to_run_in_halves(mortal: Place):
    mortal.folder.joinpath("hold").touch()
    for number in range(3):
        mortal.start(number)
    mortal.kill()
    for number in range(3):
        gone = mortal.driver.outcome(number)
        assert isinstance(gone, Lost)
        assert (gone.counts_against_trial, gone.company) == (False, (2,) if number == 2 else (0, 1))
    mortal.folder.joinpath("hold").unlink()


def test_a_worker_that_dies_with_one_trial_counts_against_it(mortal: Place):
    mortal.folder.joinpath("hold").touch()
    mortal.start_whole(0)
    mortal.kill()
    gone = mortal.driver.outcome(0)
    assert isinstance(gone, Lost)
    assert (gone.counts_against_trial, gone.company) == (True, ())
    mortal.folder.joinpath("hold").unlink()
