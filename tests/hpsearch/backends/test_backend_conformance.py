"""One suite that every backend passes: the seam between the orchestrator and where trials run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpsearch.backends.base import Backend
from hpsearch.backends.inline import InlineBackend
from hpsearch.errors import BackendError
from hpsearch.events import Saved
from hpsearch.journal.directory import StudyDirectory
from hpsearch.objective import Metric, Objective
from hpsearch.serving.server import Listen
from hpsearch.sweep.parts import Resources
from hpsearch.task import Message, Progress, Result, Task
from hpsearch.trial import Costs, Parent, Segment, Trial
from hpsearch.worker.job import Job
from tests.hpsearch.support import backend_trainables as trainables
from tests.hpsearch.support.agents import AnyJobBackend, agent_beside
from tests.hpsearch.support.functions import simulated_backend
from tests.hpsearch.support.packing import PackingBackend

ROOT = Path(__file__).parents[3]
X = 0.5


@dataclass
class Place:
    """A backend, and a study's directory for it."""

    backend: Backend
    study: Path
    messages: list[Message]
    on_message: Callable[[], object] = lambda: None

    def deliver(self, message: Message) -> None:
        self.messages.append(message)
        self.on_message()

    def open(
        self,
        trainable: Callable[..., object] = trainables.total,
        save_every: int | None = None,
        widest: int = 1,
        target: float | None = None,
        resource: str | None = None,
    ) -> None:
        self.backend.open(
            Job(
                study=str(self.study),
                name="conformance",
                trainable=f"tests.hpsearch.support.backend_trainables:{trainable.__name__}",
                search_path=(str(ROOT),),
                objective=Objective(Metric("value", "maximize", target=target)),
                save_every=save_every,
                threads=1,
                widest=widest,
                resource=resource,
            ),
            self.deliver,
        )

    def start(
        self, number: int, start: int, end: int, checkpoint: str | None = None, attempt: int = 1, width: int = 1
    ) -> None:
        trial = Trial(number, {"x": X, "folder": str(self.study)}, seed=number, origin="random")
        self.backend.start(Task(trial, Segment(number, start, end, checkpoint, attempt, width), timeout=None))

    def wait_for(self, met: Callable[[list[Message]], bool]) -> list[Message]:
        """Wait until the messages of this test meet a condition; the test's own time limit bounds it."""
        while not met(self.messages):
            self.messages += self.backend.wait(0.1)
        return self.messages

    def results(self, count: int) -> dict[int, Result]:
        self.wait_for(lambda messages: sum(isinstance(m, Result) for m in messages) >= count)
        return {m.trial: m for m in self.messages if isinstance(m, Result)}

    def wait_for_capacity(self, width: int = 1) -> None:
        self.wait_for(lambda _: self.backend.capacity() >= width)


def make_place(kind: str, request: pytest.FixtureRequest, study: StudyDirectory) -> Place:
    study.create({"sweep": {}}, None)
    backend: Backend
    if kind == "inline":
        backend = InlineBackend()
    elif kind == "simulated":
        backend = simulated_backend(2, lambda _, iteration: X * iteration, lambda _, segment: 1.0, name="value")
    elif kind in ("agents", "agents by HTTP"):
        start = request.getfixturevalue("start_agents")
        backend = AnyJobBackend(listen=None if kind == "agents" else Listen(), start=start)
    elif kind == "packing":
        backend = PackingBackend(2, metric=lambda _, iteration: X * iteration)
    else:
        backend = request.getfixturevalue("warm_ray")()
    return Place(backend, study.path, [])


@pytest.fixture(scope="module")
def warm_ray(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Backend]:
    """What makes a Ray backend; two workers wait for the first one, and each leaves its own to the next."""
    from hpsearch.backends.ray.backend import RayBackend

    first = StudyDirectory(tmp_path_factory.mktemp("warm") / "study")
    first.create({"sweep": {}}, None)
    place = Place(RayBackend(Resources(workers=2)), first.path, [])
    try:
        place.open()
        place.wait_for(lambda _: place.backend.workers().ready == 2)
    finally:
        place.backend.close()
    return lambda: RayBackend(Resources(workers=2))


@pytest.fixture
def start_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], object]]:
    """A function that starts two agents of a driver; they are gone when the test ends."""
    monkeypatch.setenv("HPSEARCH_AGENT_TOKEN", "t" * 20)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with ExitStack() as ending:
        yield lambda address: [ending.enter_context(agent_beside(address)) for _ in range(2)]


RAY = pytest.param("ray", marks=pytest.mark.ray)
AGENTS = [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("agents", "agents by HTTP")]


@pytest.fixture(params=["inline", "simulated", "packing", RAY, *AGENTS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend."""
    made = make_place(request.param, request, StudyDirectory(tmp_path / "study"))
    yield made
    made.backend.close()


@pytest.fixture(params=["inline", RAY, *AGENTS])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend that runs trainables."""
    made = make_place(request.param, request, StudyDirectory(tmp_path / "study"))
    yield made
    made.backend.close()


@pytest.fixture(params=["inline", "simulated", RAY, *AGENTS])
def shipped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend that a sweep may run on."""
    made = make_place(request.param, request, StudyDirectory(tmp_path / "study"))
    yield made
    made.backend.close()


@pytest.fixture(params=["simulated", "packing", RAY])
def wide(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend that has several workers for a trial."""
    made = make_place(request.param, request, StudyDirectory(tmp_path / "study"))
    yield made
    made.backend.close()


def test_a_task_gives_one_result_with_every_report(place: Place):
    place.open()
    place.wait_for_capacity()
    place.start(0, 0, 3)
    result = place.results(1)[0]
    assert (result.iteration, result.cut, result.failure) == (3, False, None)
    assert [(report.iteration, dict(report.metrics)) for report in result.reports] == [
        (1, {"value": X}),
        (2, {"value": 2 * X}),
        (3, {"value": 3 * X}),
    ]


def test_a_segment_starts_from_the_checkpoint_of_the_one_before(place: Place):
    place.open()
    place.wait_for_capacity()
    place.start(0, 0, 2)
    first = place.results(1)[0]
    assert first.checkpoint is not None
    place.messages.clear()
    place.start(0, 2, 4, checkpoint=first.checkpoint, attempt=2)
    second = place.results(1)[0]
    assert [(report.iteration, dict(report.metrics)) for report in second.reports] == [
        (3, {"value": 3 * X}),
        (4, {"value": 4 * X}),
    ]


def test_a_segment_ends_at_the_first_report_at_or_above_its_costs(real: Place):
    real.open(resource="value")
    real.wait_for_capacity()
    trial = Trial(0, {"x": X, "folder": str(real.study)}, seed=0, origin="random")
    real.backend.start(Task(trial, Segment(0, 0, None, None, 1, costs=Costs(0.0, 2.2 * X)), timeout=None))
    first = real.results(1)[0]
    assert (first.iteration, first.cut, first.failure) == (3, False, None)
    assert first.checkpoint is not None
    real.messages.clear()
    segment = Segment(0, 3, None, first.checkpoint, 2, costs=Costs(3 * X, 5 * X))
    real.backend.start(Task(trial, segment, timeout=None))
    second = real.results(1)[0]
    assert [(report.iteration, dict(report.metrics)) for report in second.reports] == [
        (4, {"value": 4 * X}),
        (5, {"value": 5 * X}),
    ]


def test_a_cost_below_that_of_the_segment_before_is_refused(real: Place):
    real.open(trainables.without_checkpoints, resource="value")
    real.wait_for_capacity()
    trial = Trial(0, {"x": X, "folder": str(real.study)}, seed=0, origin="random")
    real.backend.start(Task(trial, Segment(0, 0, None, None, 1, costs=Costs(9.0, 10.0)), timeout=None))
    failure = real.results(1)[0].failure
    assert failure is not None
    assert (failure.kind, failure.key) == ("contract", "early_terminate.resource")
    assert failure.message.startswith("value, by which rungs end, must be a number that never falls, got 0.5 after 9: ")


def test_a_fork_goes_on_from_another_trials_checkpoint_at_any_iteration(place: Place):
    place.open()
    place.wait_for_capacity()
    place.start(0, 0, 2)
    first = place.results(1)[0]
    for number, start in ((1, 2), (2, 0), (3, 1)):
        place.wait_for_capacity()
        parent = Parent(0, 2, first.checkpoint)
        trial = Trial(number, {"x": X, "folder": str(place.study)}, number, "random", parent, start)
        place.backend.start(Task(trial, Segment(number, start, start + 1, first.checkpoint, 1), timeout=None))
        result = place.results(number + 1)[number]
        assert result.failure is None
        (report,) = result.reports
        assert report.iteration == start + 1
        if place.backend.name in ("inline", "ray", "agents"):
            # What goes on at an iteration finds its parent's state as its checkpoint, a child that starts at 0 nothing.
            assert report.metrics["value"] == (3 * X if start else X)


def test_as_many_tasks_are_taken_as_there_is_capacity_and_each_ends_once(place: Place):
    place.open()
    started = 0
    while started < 7:
        place.wait_for_capacity()
        for _ in range(min(place.backend.capacity(), 7 - started)):
            place.start(started, 0, 1)
            started += 1
    results = place.results(7)
    assert sorted(results) == list(range(7))
    assert sum(isinstance(message, Result) for message in place.messages) == 7


def test_capacity_falls_by_one_with_each_start_and_comes_back(place: Place):
    place.open()
    place.wait_for(lambda _: place.backend.capacity() == place.backend.workers().wanted)
    before = place.backend.capacity()
    place.start(0, 0, 1)
    assert place.backend.capacity() == before - 1
    place.results(1)
    assert place.backend.capacity() == before


def test_a_share_of_a_worker_is_all_of_it_or_refused_where_trials_run_one_at_a_time(shipped: Place):
    shipped.open()
    shipped.wait_for_capacity()
    whole = shipped.backend.capacity()
    trial = Trial(0, {"x": X, "folder": str(shipped.study)}, seed=0, origin="random")
    task = Task(trial, Segment(0, 0, 1, None, 1), None, 2)
    assert shipped.backend.capacity(2) == (whole if shipped.backend.divides else 0)
    if shipped.backend.divides:
        shipped.backend.start(task)
        assert list(shipped.results(1)) == [0]
        shipped.wait_for_capacity()
        shipped.messages.clear()
    else:
        with pytest.raises(BackendError, match="trial 0 asks for one of 2 lanes of a worker"):
            shipped.backend.start(task)
    shipped.start(1, 0, 1)
    assert list(shipped.results(1)) == [1]


def test_a_cut_of_an_attempt_that_has_ended_does_nothing(place: Place):
    place.open()
    place.wait_for_capacity()
    place.start(0, 0, 1)
    place.results(1)
    place.backend.cut(0, 1)
    place.messages.clear()
    place.start(1, 0, 2)
    assert place.results(1)[1].iteration == 2


def test_the_clock_never_goes_back(place: Place):
    place.open()
    times = [place.backend.now()]
    for number in range(3):
        place.wait_for_capacity()
        place.start(number, 0, 1)
        place.results(number + 1)
        times.append(place.backend.now())
    assert times == sorted(times)


def test_a_wide_task_takes_as_many_workers_as_its_width_and_gives_one_result(wide: Place):
    wide.open(trainables.total, widest=2)
    wide.wait_for_capacity(2)
    wide.start(0, 0, 3, width=2)
    assert wide.backend.capacity() == 0
    assert wide.backend.workers().busy == 2
    result = wide.results(1)[0]
    assert [dict(report.metrics) for report in result.reports] == [{"value": X}, {"value": 2 * X}, {"value": 3 * X}]
    assert wide.backend.capacity() == 2
    assert sum(isinstance(message, Result) for message in wide.messages) == 1


def test_a_trial_goes_on_from_its_checkpoint_at_any_width(wide: Place):
    wide.open(trainables.total, widest=2)
    checkpoint, values = None, []
    for attempt, width in enumerate([1, 2, 1, 2]):
        wide.wait_for_capacity(width)
        wide.start(0, attempt, attempt + 1, checkpoint, attempt + 1, width)
        result = wide.results(1)[0]
        checkpoint = result.checkpoint
        values += [report.metrics["value"] for report in result.reports]
        wide.messages.clear()
    assert values == [X, 2 * X, 3 * X, 4 * X]


def test_wide_and_narrow_tasks_share_the_workers(wide: Place):
    wide.open(trainables.total, widest=2)
    for number, width in enumerate([1, 2, 1, 1, 2]):
        wide.wait_for_capacity(width)
        wide.start(number, 0, 1, width=width)
    assert sorted(wide.results(5)) == list(range(5))


def test_a_segment_ends_at_the_report_that_reaches_the_target(shipped: Place):
    shipped.open(target=3 * X)
    shipped.wait_for_capacity()
    shipped.start(0, 0, 9)
    result = shipped.results(1)[0]
    assert (result.failure, result.cut, result.iteration) == (None, True, 3)
    assert result.checkpoint is not None
    shipped.wait_for_capacity()
    shipped.start(1, 0, 3)
    result = shipped.results(2)[1]
    assert (result.failure, result.cut, result.iteration) == (None, False, 3)  # which is its end anyway


def test_a_cut_ends_an_attempt_at_a_report_with_a_checkpoint(real: Place):
    real.open(trainables.counts)
    real.wait_for_capacity()
    if real.backend.name == "inline":
        # It speaks from within `wait`: cut there, at the second report.
        real.on_message = lambda: len(real.messages) == 2 and real.backend.cut(0, 1)
        real.start(0, 0, 1000)
    else:
        real.start(0, 0, 1000)
        real.wait_for(lambda messages: any(isinstance(m, Progress) for m in messages))
        real.backend.cut(0, 1)
    result = real.results(1)[0]
    assert result.cut
    assert 0 < result.iteration < 1000
    assert result.checkpoint is not None
    assert (real.study / result.checkpoint / "state.pt").is_file()


def test_checkpoints_inside_a_segment_are_told_with_the_reports_that_they_cover(real: Place):
    real.open(trainables.total, save_every=2)
    real.wait_for_capacity()
    real.start(0, 0, 5)
    result = real.results(1)[0]
    saves = [message for message in real.messages if isinstance(message, Saved)]
    assert [saved.iteration for saved in saves] == [2, 4]
    counted = [report.iteration for saved in saves for report in saved.reports]
    assert counted + [report.iteration for report in result.reports] == [1, 2, 3, 4, 5]


def test_a_class_is_kept_warm_between_two_segments_of_a_trial(real: Place):
    real.open(trainables.Counter)
    real.wait_for_capacity()
    real.start(0, 0, 2)
    first = real.results(1)[0]
    real.messages.clear()
    real.start(0, 2, 4, checkpoint=first.checkpoint, attempt=2)
    second = real.results(1)[0]
    assert second.reports[0].metrics["built"] == first.reports[0].metrics["built"]
    assert [report.metrics["value"] for report in second.reports] == [3 * X, 4 * X]


def test_notes_come_before_the_end_and_all_of_them_with_the_result(real: Place):
    real.open(trainables.notes)
    real.wait_for_capacity()
    hold = real.study / "hold"
    hold.touch()

    def let_go() -> None:
        if any(isinstance(message, Progress) and message.notes for message in real.messages):
            hold.unlink(missing_ok=True)

    real.on_message = let_go  # of a backend that runs it within `wait`
    real.start(0, 0, 2)
    real.wait_for(lambda messages: any(isinstance(m, Progress) and m.notes for m in messages))
    let_go()
    assert real.results(1)[0].notes == {"commit": "4f1c", "state": "done"}
    noted = [message.notes for message in real.messages if isinstance(message, Progress) and message.notes]
    assert noted[0] == {"commit": "4f1c", "state": "held"}


def test_output_goes_to_a_file_of_the_attempt(real: Place):
    real.open()
    real.wait_for_capacity()
    real.start(3, 0, 2)
    real.results(1)
    assert (real.study / "trials" / "00003" / "1" / "output.log").read_text().count("node mnt:") == 2


# From here on workers end, and leave the next test to start its own.


def test_a_trial_that_raises_is_data(real: Place):
    real.open(trainables.raises)
    real.wait_for_capacity()
    real.start(0, 0, 2)
    failure = real.results(1)[0].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("raised", "ValueError: this trial can't be run")
    assert "in raises" in failure.traceback


def test_closing_twice_does_no_harm(place: Place):
    place.open()
    place.backend.close()
    place.backend.close()


def test_a_trainable_that_cannot_be_found_is_one_clear_error(real: Place):
    from hpsearch.errors import TrainableError

    def nowhere() -> None: ...

    def open_and_wait() -> None:
        real.open(nowhere)
        real.wait_for_capacity()

    with pytest.raises(TrainableError, match="nowhere"):
        open_and_wait()
