"""A worker of lanes that doesn't see the study's directory, without Ray: what it sends, and what it leaves behind."""

from __future__ import annotations

import functools
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpsearch_trainers.lanes
from hpsearch.backends.ray import worker as ray_worker
from hpsearch.backends.ray.messages import Location, RoundsEnd, RunRequest
from hpsearch.backends.ray.worker import RayWorker
from hpsearch.objective import Metric, Objective
from hpsearch.trainable.checkpoints import read_random_state, read_state, unpack
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job
from hpsearch_trainers.lanes import Fuser
from tests.hpsearch.support.files import files_below

PARAMS = {"lr": 0.1, "hidden": 24, "dropout": 0.2, "fault": ""}


@pytest.fixture
def blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayWorker]:
    """A worker of four lanes in this process, which talks with nobody but its caller, and fuses what can be."""
    monkeypatch.setattr(hpsearch_trainers.lanes, "Fuser", functools.partial(Fuser, fewest=2))
    monkeypatch.setattr(ray_worker, "start_guardian", lambda *_, mark: SimpleNamespace(mark=mark))
    monkeypatch.setattr(RayWorker, "_beat", lambda _: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = RayWorker("w", None, lambda: Location("here", "127.0.0.1"))
    trainable = "tests.hpsearch.support.lane_trainables:Patient"
    job = Job(str(tmp_path / "far"), "lanes", trainable, (), Objective(Metric("loss")), None, 1, lanes=4)
    hello = made.open(pickle.dumps(job), (), (str(tmp_path / "far" / "token"), "token"))
    assert (hello.sees, hello.lanes, hello.mistake) == (False, 4, None)
    yield made
    made.release()
    assert not made._stand_in.exists()


def ends(worker: RayWorker, *requests: RunRequest) -> dict[int, Any]:
    """Give the answers to a round, by trial, with all heard that has ended."""
    return {end.result.trial: end for end in trained(worker, worker._ends, *requests).ends}


def trained(worker: RayWorker, ends_heard: int, *requests: RunRequest) -> RoundsEnd:
    """Return the answer to a round."""
    answer: RoundsEnd = pickle.loads(worker.round(pickle.dumps(requests), ends_heard))
    return answer


def segment(number: int, end: int, former: str | None = None, fault: str = "") -> tuple[Trial, Segment]:
    attempt = 1 if former is None else 2
    return Trial(number, PARAMS | {"fault": fault}, number, "random"), Segment(number, end - 1, end, former, attempt, 1)


@pytest.mark.exhaustive
def test_each_checkpoint_arrives_at_its_place_and_no_pack_stays(blind: RayWorker, tmp_path: Path) -> None:
    first = ends(blind, *(RunRequest(*segment(number, 1), None, None) for number in range(3)))
    study = tmp_path / "study"
    for number, response in first.items():
        place = f"trials/{number:05d}/1/hpsearch-checkpoint-1"
        assert response.result.checkpoint == place
        unpack(response.packed, study / place)
        assert read_state(study / place)["epoch"] == 1
        assert read_random_state(study / place) is not None
    assert not [name for name in files_below(blind.root) if "checkpoint" in name or name.endswith(".zip")]
    pack = f"trials/packs/00000-1-1x3.zip#{first[1].result.checkpoint}"
    requests = [
        RunRequest(*segment(0, 2, first[0].result.checkpoint), None, None),  # its object is at hand
        RunRequest(*segment(1, 2, pack), first[1].packed, None),  # a worker that sees the study wrote it
    ]
    for number, response in ends(blind, *requests).items():
        assert response.result.failure is None
        assert response.result.checkpoint == f"trials/{number:05d}/2/hpsearch-checkpoint-2"


def test_what_trials_print_together_arrives_once(blind: RayWorker) -> None:
    printed = []
    for end in (1, 2):
        told = ends(blind, *(RunRequest(*segment(number, end, fault="slow"), None, None) for number in range(2)))
        assert [response.result.lanes for response in told.values()] == [2, 2]
        printed.append([response.log_of_lanes for response in told.values()])
    (first, nothing), (second, nothing_more) = printed
    assert nothing is nothing_more is None
    assert first.startswith(b"epoch 0 on ")
    assert second.startswith(b"epoch ")
    assert not list(blind.root.rglob("output.log"))


def test_nothing_is_trained_between_the_end_of_a_lane_and_what_is_decided_on_it(
    blind: RayWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_worker, "_ROUNDS_SECONDS", 0.0)
    short, long, next_one = (Segment(number, 0, end, None, 1, 1) for number, end in enumerate((1, 3, 1)))
    requests = [
        RunRequest(Trial(of.trial, PARAMS, of.trial, "random"), of, None, None) for of in (short, long, next_one)
    ]
    first = trained(blind, 0, *requests[:2])
    assert ([end.result.trial for end in first.ends], first.trained) == ([0], 1)
    assert trained(blind, 0) == RoundsEnd((), 0)
    assert trained(blind, 0, requests[2]) == RoundsEnd((), 0)  # it was asked for before that was heard
    second = trained(blind, 1)
    assert ([end.result.trial for end in second.ends], second.trained) == ([2], 1)
    assert second.ends[0].result.lanes == 2
    assert ([end.result.trial for end in trained(blind, 2).ends]) == [1]


def test_a_call_trains_short_rounds_until_a_lane_ends(blind: RayWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "_ROUNDS_SECONDS", 1e9)
    ends_at = [Segment(number, 0, end, None, 1, 1) for number, end in enumerate((2, 5))]
    requests = [RunRequest(Trial(of.trial, PARAMS, of.trial, "random"), of, None, None) for of in ends_at]
    answers = [trained(blind, 0, *requests), trained(blind, 1)]
    assert [([end.result.trial for end in answer.ends], answer.trained) for answer in answers] == [([0], 2), ([1], 3)]
    assert trained(blind, 2) == RoundsEnd((), 0)
