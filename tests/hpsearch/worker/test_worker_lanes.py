"""Segments that a worker trains beside each other: what comes of each is what comes of it alone."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
import hpsearch_trainers.lanes
from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trainable.addresses import path_of
from hpsearch.trainable.checkpoints import read_random_state, read_state, user_path
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job
from hpsearch.worker.lanes import AroundBuild, why_whole
from hpsearch.worker.worker import Worker
from hpsearch_trainers.lanes import Fuser
from hpsearch_trainers.lanes.bits import same_bits
from tests.hpsearch.support.lane_trainables import Small, function
from tests.hpsearch.support.segments import Listening

FAULTS = ("", "", "", "build", "step", "nan", "draws", "settings", "turns", "turns", "prints")


@pytest.fixture(scope="module", autouse=True)
def fused() -> Iterator[None]:
    """Fuse whatever can be, also where it takes longer than each alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hpsearch_trainers.lanes, "Fuser", functools.partial(Fuser, fewest=2))
        yield


SMALL = {"lr": 0.1, "hidden": 24, "dropout": 0.0, "fault": ""}


def worker(
    root: Path,
    lanes: int,
    every: int | None = None,
    *,
    rounded: bool = False,
    kind: str = "Small",
    around_build: AroundBuild = contextlib.nullcontext,
) -> Worker:
    (root / "trials").mkdir(parents=True, exist_ok=True)
    trainable = f"tests.hpsearch.support.lane_trainables:{kind}"
    objective = Objective(Metric("loss"))
    job = Job(str(root), "lanes", trainable, (), objective, every, 1, lanes=lanes, rounded=rounded)
    return Worker(job, root, around_build=around_build)


def told(root: Path, heard: Listening, result: Result) -> Any:
    """Return the result of a segment, without its times and the number of trials that it was trained with."""

    def plain(reports: Any) -> Any:
        return [(r.iteration, {n: repr(v) for n, v in r.metrics.items() if n != "data_wait"}) for r in reports]

    failure = result.failure and (result.failure.kind, result.failure.message)
    saves = [(iteration, checkpoint, plain(reports)) for iteration, checkpoint, reports in heard.saves]
    place = result.checkpoint and path_of(result.checkpoint)
    ended = (result.iteration, place, plain(result.reports), result.cut, failure, result.changed)
    return plain(heard.reports), saves, ended


def drawn_trials() -> st.SearchStrategy[list[dict[str, Any]]]:
    params = st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.01, 0.1, 0.5]),
            "hidden": st.sampled_from([24, 32]),
            "dropout": st.sampled_from([0.0, 0.3]),
            "fault": st.sampled_from(FAULTS),
        }
    )
    return st.lists(params, min_size=2, max_size=6)


@pytest.mark.exhaustive
@settings(max_examples=12, deadline=None)
@given(
    params=drawn_trials(),
    ends=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    begins=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    lanes=st.integers(2, 5),
    every=st.sampled_from([None, 2]),
    cut_at=st.sampled_from([None, None, 2]),
    rounded=st.booleans(),
)
def test_segments_that_come_and_go_are_as_they_are_alone(
    tmp_path_factory: pytest.TempPathFactory,
    params: list[dict[str, Any]],
    ends: list[int],
    begins: list[int],
    lanes: int,
    every: int | None,
    cut_at: int | None,
    rounded: bool,
) -> None:
    trials = [Trial(number, of, seed=11 + number, origin="random") for number, of in enumerate(params)]
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    one = worker(alone, lanes if rounded else 1, every, rounded=rounded)
    many = worker(together, lanes, every, rounded=rounded)
    assert (one.lanes, many.lanes) == (lanes if rounded else 1, lanes)
    expected: dict[Any, Any] = {}
    found: dict[Any, Any] = {}
    addresses: dict[tuple[int, int], str] = {}
    for trial in trials:
        for segment in _segments(trial, ends, expected):
            heard = Listening(cut_at)
            result = one.run(trial, segment, heard)
            expected[trial.number, segment.attempt] = told(alone, heard, result)
    waiting = {trial.number: begins[trial.number] for trial in trials}
    running: dict[int, tuple[Segment, Listening]] = {}
    generators = {trial.number: _segments(trial, ends, found, addresses) for trial in trials}
    for _ in range(60):
        for trial in trials:
            waiting[trial.number] -= 1
            if waiting[trial.number] < 0 and trial.number not in running:
                following = next(generators[trial.number], None)
                if following is not None:
                    running[trial.number] = following, Listening(cut_at)
                    many.enter(trial, following, running[trial.number][1], None)
        for ended in many.round():
            segment, heard = running.pop(ended.trial)
            assert (segment.trial, segment.attempt) == (ended.trial, ended.attempt)
            assert ended.checkpoint is None or read_state(together / ended.checkpoint) is not None
            found[segment.trial, segment.attempt] = told(together, heard, ended)
            addresses[segment.trial, segment.attempt] = str(ended.checkpoint)
    assert not running
    one.close()
    many.close()
    assert found == expected
    for key, (_, _, (_, checkpoint, *_)) in expected.items():
        if checkpoint is not None:
            assert same_bits(read_state(alone / checkpoint), read_state(together / addresses[key]))
            assert read_random_state(together / addresses[key]) is not None
    logs = {str(path.relative_to(together)) for path in together.rglob("output.log")}
    assert all(path.startswith("trials/0") for path in logs), "nothing was printed by all of them together"


def _segments(
    trial: Trial, ends: list[int], told: dict[Any, Any], addresses: dict[tuple[int, int], str] | None = None
) -> Iterator[Segment]:
    """Yield a trial's segments one by one, each from the end of the one before.

    Args:
        trial: The trial.
        ends: Iterations of each.
        told: What came of each so far.
        addresses: Where the checkpoint lies that each ended with; None: at its place.
    """
    start, checkpoint = 0, None
    for attempt, more in enumerate(ends, 1):
        yield Segment(trial.number, start, start + more, checkpoint, attempt, 1)
        _, _, (start, checkpoint, _, _, failure, _) = told[trial.number, attempt]
        if failure is not None or checkpoint is None:
            return
        if addresses is not None:
            checkpoint = addresses[trial.number, attempt]


def test_a_checkpoint_holds_a_lane_and_not_its_neighbours(tmp_path):
    many = worker(tmp_path, 4)
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.0, "fault": ""}
    for number in range(4):
        many.enter(Trial(number, params, number, "random"), Segment(number, 0, 1, None, 1, 1), Listening(), None)
    ended = many.round()
    assert [one.lanes for one in ended] == [4] * 4
    one = worker(tmp_path / "alone", 1)
    alone = one.run(Trial(0, params, 0, "random"), Segment(0, 0, 1, None, 1, 1), Listening())
    sizes = {
        user_path(root / str(result.checkpoint)).stat().st_size
        for root, result in [(tmp_path, ended[0]), (tmp_path / "alone", alone)]
    }
    assert max(sizes) < 1.05 * min(sizes)
    many.close()
    one.close()
    assert torch.get_num_threads() >= 1
    assert not list(tmp_path.glob("trials/.output-*"))


@pytest.mark.parametrize(("shared", "builds"), [(False, 6), (True, 5)])
def test_objects_are_kept_for_as_long_as_there_is_room_for_their_data(tmp_path, shared, builds, monkeypatch):
    monkeypatch.setattr("hpsearch_trainers.lanes.fuser._results", {})
    many = worker(tmp_path, 3, kind="Large")
    trials = [
        Trial(number, {**SMALL, "shared": shared, "folder": str(tmp_path)}, number, "random") for number in range(3)
    ]
    for trial in trials:
        many.enter(trial, Segment(trial.number, 0, 1, None, 1, 1), Listening(), None)
    ended = {one.trial: one for one in many.round()}
    for trial in trials:
        checkpoint = ended[trial.number].checkpoint
        many.enter(trial, Segment(trial.number, 1, 2, checkpoint, 2, 1), Listening(), None)
    assert [one.failure for one in many.round()] == [None] * 3
    assert len((tmp_path / "builds").read_text()) == builds, (
        "of three with 100 MiB each there is room for two; a try builds two, too"
    )
    many.close()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("fault", ["", "nan", "build", "step"])
def test_objects_of_trials_that_are_over_are_gone_before_pythons_collector_comes_by(tmp_path, fault):
    many = worker(tmp_path, 3)
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            params = {**SMALL, "fault": fault if number == 1 else ""}
            many.enter(Trial(number, params, number, "random"), Segment(number, 0, 2, None, 1, 1), Listening(), None)
        ended = [*many.round(), *many.round()]
        many.close()
        assert sorted(one.trial for one in ended) == [0, 1, 2]
        left = [one.params["fault"] for one in gc.get_objects() if isinstance(one, Small)]
        assert left == (["step"] if fault == "step" else [])  # whose loss is a method of its own, a user's circle
    finally:
        gc.enable()


def test_each_build_is_surrounded_by_what_bounds_it_to_its_trials_time(tmp_path):
    bounds: list[tuple[float | None, bool]] = []

    @contextlib.contextmanager
    def around(seconds: float | None) -> Iterator[None]:
        yield
        bounds.append((seconds, (tmp_path / "builds").exists()))

    many = worker(tmp_path, 3, kind="Large", around_build=around)
    params = {**SMALL, "shared": True, "folder": str(tmp_path)}
    for number, timeout in enumerate((60.0, None)):
        many.enter(Trial(number, params, number, "random"), Segment(number, 0, 2, None, 1, 1), Listening(), timeout)
    many.round()
    many.round()
    assert bounds == [(60.0, True), (None, True)]
    many.close()


def test_a_full_disk_is_the_storages_fault_and_no_trials(tmp_path, monkeypatch):
    many = worker(tmp_path, 4)
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.0, "fault": ""}
    for number in range(2):
        many.enter(Trial(number, params, number, "random"), Segment(number, 0, 9, None, 1, 1), Listening(), None)
    assert many.round() == []

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpsearch.worker.output.OutputRedirect.to", full)
    failures = [ended.failure for ended in many.round()]
    assert [failure and failure.kind for failure in failures] == ["storage"] * 2
    many.close()


@pytest.mark.exhaustive
def test_where_it_rounds_a_trial_with_settings_of_its_own_has_the_bits_that_it_has_beside_others(tmp_path):
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.3, "fault": "settings"}
    last = 10  # as many kinds of settings as are remembered, and more
    found = {}
    for name, numbers in (("first", [last]), ("last", range(last + 1))):
        many = worker(tmp_path / name, 4, rounded=True)
        for number in numbers:
            of = params | {"lr": 0.1 if number == last else 0.2 + number}
            trial = Trial(number, of, 7, "random")
            heard = Listening()
            found[name] = told(tmp_path / name, heard, many.run(trial, Segment(number, 0, 2, None, 1, 1), heard))
        many.close()
    assert found["first"] == found["last"]


def test_where_it_rounds_a_trial_that_goes_on_elsewhere_is_trained_as_it_was(tmp_path):
    """Found to be no lane in its third epoch, it could be one in its fourth again, with other digits."""
    trial = Trial(0, SMALL, 7, "random")
    whole, heard = worker(tmp_path / "whole", 4, rounded=True, kind="Reading"), Listening()
    expected = told(tmp_path / "whole", heard, whole.run(trial, Segment(0, 0, 5, None, 1, 1), heard))
    found, checkpoint = [], None
    for number, end in enumerate((3, 4, 5)):
        part, heard = worker(tmp_path / "parts", 4, rounded=True, kind="Reading"), Listening()
        result = part.run(trial, Segment(0, end - 1 if number else 0, end, checkpoint, 1 + number, 1), heard)
        checkpoint = result.checkpoint
        found += told(tmp_path / "parts", heard, result)[0]
        part.close()
    whole.close()
    assert found == expected[0]
    logs = [path.read_text() for path in (tmp_path / "parts").rglob("output.log")]
    assert ["reads values" in log for log in logs] == [True] * 3


def test_trials_that_nobody_can_share_a_computation_with_say_why(tmp_path):
    many = worker(tmp_path, 4)
    for number in range(3):
        params = {"lr": 0.1 * (1 + number), "hidden": 24, "dropout": 0.0, "fault": "settings" if number else ""}
        many.enter(Trial(number, params, number, "random"), Segment(number, 0, 1, None, 1, 1), Listening(), None)
    many.round()
    many.close()
    logs = {path.parent.parent.name: path.read_text() for path in tmp_path.rglob("output.log")}
    for name in ("00001", "00002"):
        assert "hpsearch: this trial trains alone: no trial beside it has changed environment variables" in logs[name]


@pytest.mark.parametrize(
    ("target", "threads", "gpus", "reason"),
    [
        (Small, 1, 0, None),
        (Small, 2, 0, "2 threads"),
        (Small, 1, 0.5, "on a GPU"),
        (Small, 1, 1, "fuse: rounding alone"),
        (function, 1, 0, "only a Trainer"),
        (type("Closing", (Small,), {"close": lambda self: None}), 1, 0, "Closing has a close()"),
    ],
)
def test_why_a_worker_has_no_lanes(target, threads, gpus, reason):
    said = why_whole(target, threads, gpus)
    assert (said is None) == (reason is None)
    assert (reason or "") in (said or "")
    rounded = why_whole(target, threads, gpus, rounded=True)
    assert rounded == (None if gpus else said), "with rounding, a GPU is no reason"


class Knowing(Small):
    """Reports the number of the trial that was the current one when it was built."""

    def build(self, params: Any) -> Any:
        self.known = hpsearch.current_trial().number
        return super().build(params)

    def step(self) -> dict[str, float]:
        return super().step() | {"known": self.known}


def test_a_lanes_own_trial_is_the_current_one_while_it_is_built(tmp_path):
    study = hpsearch.search(
        Knowing,
        parameters={**SMALL, "lr": [0.1, 0.2, 0.3]},
        method="grid",
        metric="loss",
        max_iter=1,
        resources={"workers": 1, "trials_per_worker": 3},
        backend="inline",
        directory=tmp_path / "study",
        observers=[],
        progress=False,
    )
    assert [row.metrics["known"] for row in study.trials] == [0, 1, 2]
