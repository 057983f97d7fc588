"""What a build puts where there is one for all of a process changes no other trial without a word."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpsearch_trainers.lanes
from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from hpsearch_trainers.lanes import Fuser
from tests.hpsearch.support import sharing_trainables
from tests.hpsearch.support.segments import Listening
from tests.hpsearch.support.sharing_trainables import HARMFUL, HARMLESS

NAMED = "tests.hpsearch.support.sharing_trainables"
SCALES = (1.5, 0.5, 2.5)


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fuse whatever can be, also where it takes longer than each alone."""
    monkeypatch.setattr(hpsearch_trainers.lanes, "Fuser", functools.partial(Fuser, fewest=2))
    sharing_trainables.begin_anew()
    yield
    sharing_trainables.begin_anew()


def worker(root: Path, lanes: int) -> Worker:
    (root / "trials").mkdir(parents=True)
    return Worker(
        Job(str(root), "sharing", f"{NAMED}:Sharing", (), Objective(Metric("loss")), None, 1, lanes=lanes), root
    )


def trial(number: int, puts: str) -> Trial:
    return Trial(number, {"puts": puts, "scale": SCALES[number]}, seed=number, origin="random")


def segment(number: int, start: int, end: int, before: Result | None = None) -> Segment:
    checkpoint = None if before is None else before.checkpoint
    return Segment(number, start, end, checkpoint, 1 if before is None else 2, 1)


def told(result: Result) -> list[Any]:
    return [
        (one.iteration, {name: value for name, value in one.metrics.items() if name != "data_wait"})
        for one in result.reports
    ]


def alone(root: Path, puts: str, ends: tuple[int, ...] = (3,)) -> dict[int, list[Any]]:
    """Train three trials one at a time, each in its segments; return what each reports."""
    found: dict[int, list[Any]] = {}
    for number in range(3):
        sharing_trainables.begin_anew()
        one = worker(root / f"alone-{number}", 1)
        result, start = None, 0
        for end in ends:
            result = one.run(trial(number, puts), segment(number, start, end, result), Listening())
            found[number] = [*found.get(number, []), *told(result)]
            start = end
        one.close()
    sharing_trainables.begin_anew()
    return found


def ended(many: Worker) -> dict[int, Result]:
    """Train what there is to its end."""
    found: dict[int, Result] = {}
    while many._lanes is not None and (many._lanes._lanes or many._lanes._new):
        found |= {one.trial: one for one in many.round()}
    return found


@pytest.mark.parametrize("puts", HARMLESS)
def test_what_no_training_reads_or_is_the_same_again_or_is_a_memo_keeps_trials_together(tmp_path, puts):
    expected = alone(tmp_path, puts)
    many = worker(tmp_path / "together", 3)
    for number in range(2):
        many.enter(trial(number, puts), segment(number, 0, 3), Listening(), None)
    many.round()
    many.enter(trial(2, puts), segment(2, 0, 3), Listening(), None)
    results = ended(many)
    assert {number: told(result) for number, result in results.items()} == expected
    assert {result.lanes for result in results.values()} == {3}
    many.close()


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("puts", HARMFUL)
def test_trials_that_would_train_with_what_anothers_build_has_put_fail_before_they_do(tmp_path, puts):
    expected = alone(tmp_path, puts)
    many = worker(tmp_path / "together", 3)
    many.enter(trial(0, puts), segment(0, 0, 3), Listening(), None)
    many.enter(trial(1, "nothing"), segment(1, 0, 3), Listening(), None)
    many.round()
    many.enter(trial(2, puts), segment(2, 0, 3), Listening(), None)
    results = ended(many)
    many.close()
    failures = {number: result.failure for number, result in results.items()}
    assert told(results[0]) == expected[0][:1], "what it reported before is its own"
    assert None not in failures.values()
    problem = (
        f"what trials train with must be their own where a worker trains several, but building trial 2 changed "
        f"{NAMED}.{HARMFUL[puts]}, which trials 0 and 1 may train with from here on: keep it in the trainer or in "
        "the model, as an attribute of it say, or train one trial at a time, with --set resources.trials_per_worker=1"
    )
    assert [(one and one.kind, one and one.message) for one in (failures[0], failures[1])] == [
        ("contract", problem)
    ] * 2
    own = "ValueError: it has put something, and fails" if puts == "and fails" else problem
    assert failures[2] is not None
    assert failures[2].message == own
    assert results[2].reports == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("puts", ["forward", "class"])
def test_a_trial_that_goes_on_after_another_was_built_is_built_again(tmp_path, puts):
    expected = alone(tmp_path, puts, (1, 3))
    many = worker(tmp_path / "together", 3)
    found: dict[int, list[Any]] = {}
    before: dict[int, Result] = {}
    for start, end in ((0, 1), (1, 3)):
        for number in range(3):
            following = segment(number, start, end, before.get(number))
            many.enter(trial(number, puts), following, Listening(), None)
            before |= ended(many)
            found[number] = [*found.get(number, []), *told(before[number])]
    many.close()
    assert found == expected


def test_a_trial_that_has_the_worker_for_itself_in_between_changes_no_lane_nor_they_it(tmp_path):
    expected = alone(tmp_path, "loss", (1, 3))
    many = worker(tmp_path / "together", 3)
    many.enter(trial(0, "loss"), segment(0, 0, 1), Listening(), None)
    lane = ended(many)[0]
    by_itself = many.run(trial(1, "loss"), segment(1, 0, 1), Listening())
    many.enter(trial(0, "loss"), segment(0, 1, 3, lane), Listening(), None)
    lanes_end = ended(many)[0]
    its_end = many.run(trial(1, "loss"), segment(1, 1, 3, by_itself), Listening())
    many.close()
    assert [*told(lane), *told(lanes_end)] == expected[0]
    assert [*told(by_itself), *told(its_end)] == expected[1]
