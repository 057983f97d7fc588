"""Workers of the Ray pool come and go; and the pool takes the decisions that a simulated one takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import hpsearch
from hpsearch.backends import slots
from hpsearch.backends.ray import nodes, session, worker_pool
from hpsearch.backends.ray.backend import RayBackend
from hpsearch.backends.ray.inbox import Inbox
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.decision import Decision
from hpsearch.events import Event, Finished, Lost, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.observers.base import Record
from hpsearch.run.simulate import simulate
from hpsearch.simulation import Step
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message, Result, Task
from hpsearch.trial import Segment, Trial
from tests.hpsearch.support import backend_trainables as trainables
from tests.hpsearch.support.driver import Driver
from tests.hpsearch.support.functions import Functions

pytestmark = pytest.mark.ray


@pytest.mark.exhaustive
def test_idle_workers_are_given_back_and_had_again(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", 0.5)
    driver = Driver(RayBackend(Resources(workers=2)), tmp_path / "study", "total")
    driver.wait_for(lambda: driver.backend.workers().ready == 0 and driver.backend.capacity() == 2)
    driver.start(0, {"x": 1.0})
    assert driver.backend.capacity() == 1
    driver.wait_for(lambda: driver.results() == [0])
    driver.backend.close()


def names() -> set[str]:
    import ray

    return {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}


@pytest.mark.exhaustive
def test_workers_that_are_still_being_made_are_left_to_the_next_search(ray_cluster, tmp_path):
    session.connect(None, 1).empty()
    Driver(RayBackend(Resources(workers=2)), tmp_path / "one", "total").backend.close()
    made = names()
    backend = RayBackend(Resources(workers=2))
    driver = Driver(backend, tmp_path / "two", "total")
    driver.wait_for(lambda: driver.backend.workers().ready == 2)
    assert len(made) == 2
    assert names() == made
    assert not nodes.workers_of_others(slot.name for slot in backend._opened.slots.all), "another search started them"
    for number in range(2):
        driver.start(number, {"x": 1.0})
        assert driver.outcome(number).failure is None


@pytest.mark.exhaustive
def test_idle_workers_of_another_shape_make_room(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_POOL_SECONDS", 1e5)
    small = Driver(RayBackend(Resources(workers=1)), tmp_path / "small", "total")
    small.wait_for(lambda: small.backend.workers().ready == 1)
    small.backend.close()
    large = Driver(RayBackend(Resources(workers=1, cpus_per_worker=2)), tmp_path / "large", "total")
    large.wait_for(lambda: large.backend.workers().ready == 1)


@pytest.mark.exhaustive
def test_what_was_asked_for_before_ctrl_c_is_closed(ray_cluster, tmp_path, monkeypatch):
    session.connect(None, 1).empty()
    when_done, calls = Inbox.when_done, []

    def interrupted(inbox: Inbox, *given: Any) -> None:
        calls.append(given)
        if len(calls) == 3:  # the second worker is asked for
            raise KeyboardInterrupt
        when_done(inbox, *given)

    backend = RayBackend(Resources(workers=2))
    with monkeypatch.context() as patched:
        patched.setattr(Inbox, "when_done", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Driver(backend, tmp_path / "one", "total")
    backend.close(kill=True)
    assert not session.connect(None, 1).is_used
    driver = Driver(RayBackend(Resources(workers=2)), tmp_path / "two", "total")
    driver.wait_for(lambda: driver.backend.workers().ready == 2)


def test_warm_workers_run_a_module_as_it_was_edited(ray_cluster, tmp_path, monkeypatch):
    """Else those that are new by then would run another one than those that are not: two codes in one table."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found: list[float] = []
    for number in (1, 20, 20):  # of other lengths: of two that are written in one second Python can't tell its .pyc
        if number not in found:
            text = (
                f"def train(trial):\n    for _ in trial.iterations():\n        trial.report({{'value': {number}.0}})\n"
            )
            (tmp_path / "edited_trainable.py").write_text(text)
        study = hpsearch.search(
            "edited_trainable:train",
            parameters={"x": hpsearch.Uniform(0.0, 1.0)},
            metric="value",
            run_cap=4,
            max_iter=1,
            resources={"workers": 1},
            directory=tmp_path / f"study-{len(found)}",
            progress=False,
        )
        (value,) = {row.value for row in study.trials}
        assert value is not None
        found.append(value)
    assert found == [1, 20, 20]


@pytest.mark.exhaustive
def test_workers_are_added_when_the_cluster_grows(ray_cluster, tmp_path, add_node):
    import ray

    before = sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
    driver = Driver(RayBackend(Resources(workers=None)), tmp_path / "study", "total")
    assert driver.backend.workers().wanted == before
    add_node(1)
    driver.wait_for(lambda: driver.backend.workers().ready == before + 1)
    driver.backend.close(kill=True)


@pytest.mark.exhaustive
def test_a_task_sent_ahead_is_taken_back_from_behind_a_long_one(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "SEND_AHEAD_SECONDS", 5.0)  # a loaded machine is slow, too
    driver = Driver(RayBackend(Resources(workers=2)), tmp_path / "study", "waits")
    driver.wait_for(lambda: driver.backend.workers().ready == 2)
    long = 40
    for number in range(long):  # until the pool knows how short they are, and sends others ahead
        driver.wait_for(lambda: driver.backend.capacity() > 0)
        driver.start(number, {})
    driver.wait_for(lambda: len(driver.results()) == long)
    driver.start(long, {"folder": str(tmp_path)})
    for quick in range(long + 1, long + 4):
        assert driver.backend.capacity() > 0
        driver.start(quick, {})
    driver.wait_for(lambda: {long + 1, long + 2, long + 3} <= set(driver.results()))
    assert long not in driver.results()
    (tmp_path / "go").touch()
    driver.wait_for(lambda: long in driver.results())
    assert sorted(driver.results()) == list(range(long + 4))
    driver.backend.close()


def test_tasks_that_were_taken_back_run_on_the_same_worker_unless_they_were_cut(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "SEND_AHEAD_SECONDS", 5.0)
    driver = Driver(RayBackend(Resources(workers=1)), tmp_path / "study", "waits")
    long = 40
    for number in range(long):
        driver.start(number, {})
    driver.wait_for(lambda: len(driver.results()) == long)
    for number, params in enumerate([{"folder": str(tmp_path)}, {}, {}, {}], long):
        assert driver.backend.capacity() > 0
        driver.start(number, params)
    first_behind = long + 1  # the last to be taken back
    driver.backend.cut(first_behind, 1)
    assert driver.outcome(first_behind) == Lost(first_behind, 1, "it was cut before it began", False)
    (tmp_path / "go").touch()
    driver.wait_for(lambda: len(driver.results()) == long + 3)
    assert sorted(driver.results()) == [*range(first_behind), long + 2, long + 3]
    driver.backend.close()


class Listener:
    """Keeps what was started and decided, in order."""

    def __init__(self) -> None:
        self.story: list[Event | Decision] = []

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, Started):
            self.story.append(replace(event, segment=replace(event.segment, checkpoint=None)))
        self.story += record.decisions

    def report(self, reports: Any) -> None: ...

    def say(self, text: str) -> None: ...

    def look(self, *_: Any) -> None: ...


class InOnePiece(Functions):
    """All of a segment's time is its last iteration's: shares that are added up may miss its end by the last digit."""

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        *before, last = super().steps(trial, segment, state)
        yield from (Step(step.metrics, 0.0) for step in before)
        yield Step(last.metrics, round(last.seconds * (len(before) + 1), 6))


class AsRecorded(SimulatedBackend):
    """A simulated backend whose workers are free, and done, in the rounds in which a recorded run's were."""

    def __init__(self, rounds: Sequence[tuple[float, Event]]) -> None:
        self.ends: dict[tuple[int, int | None], float] = {}
        self.starts = Counter[float]()
        clock, last = 0.0, None
        for when, event in rounds:
            if isinstance(event, Finished):
                clock += when != last  # what was taken in one round was journaled at one time
                last = when
                self.ends[event.trial, event.iteration] = clock
            elif isinstance(event, Started):
                self.starts[clock] += 1
        super().__init__(
            1000,
            InOnePiece(
                metric=lambda trial, iteration: sum(trial.params["x"] for _ in range(iteration)),
                seconds=lambda trial, segment: self.ends[trial.number, segment.end] - self.now(),
            ),
            live=False,
        )

    def wait(self, timeout: float | None) -> Sequence[Message]:
        order = list(self.ends)  # those of one round came one after the other, too
        results = [message for message in super().wait(timeout) if isinstance(message, Result)]
        return sorted(results, key=lambda message: order.index((message.trial, message.iteration)))

    def capacity(self, lanes: int = 1) -> int:
        return self.starts[self.now()] if self.starts.total() else 1  # at last, to hear that nothing is left

    def start(self, task: Task) -> None:
        self.starts[self.now()] -= 1
        super().start(task)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_the_simulated_backend_takes_the_same_decisions_in_the_same_order(ray_cluster, tmp_path, workers):
    study = hpsearch.search(
        trainables.total,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric={"name": "value", "goal": "maximize"},
        early_terminate=hpsearch.Hyperband(max_iter=9, eta=3),
        resources={"workers": workers},
        directory=tmp_path / "ray",
        progress=False,
    )
    with Journal.read(StudyDirectory(study.directory).journal) as journal:
        sweep = Sweep.from_json(journal.study()["sweep"])
        history = [(entry.time, entry.event) for entry in journal.entries()]
    lived = Listener()
    replayed = SweepState(sweep).replay(event for _, event in history)
    for seq, (event, followed) in enumerate(replayed, 1):
        lived.observe(Record(seq, 0.0, event, followed.decisions))
    simulated = Listener()
    simulate(sweep, AsRecorded(history), simulated)
    assert simulated.story == lived.story
    assert sum(isinstance(entry, Decision) for entry in lived.story) == 22
