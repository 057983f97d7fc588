"""Warm, cold, cut and uninterrupted runs of a trial are equal to the bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trainable import checkpoints
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import run, segment


@pytest.fixture(autouse=True)
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def worker_on(root: Path, trainable: Any, save_every: int | None = None) -> Worker:
    return Worker(Job(str(root), "sweep", trainable, (), Objective(Metric("loss")), save_every, 1), root)


# A trainable that draws from all three generators, in its steps and where it builds.


class Job_:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def epoch(self) -> dict[str, float]:
        rows = torch.from_numpy(np.random.rand(5, 6)).float()
        loss = self.model(rows * random.gauss(1.0, 0.1) + torch.rand(5, 6)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "drawn": random.random()}

    def state(self) -> dict[str, Any]:
        torch.rand(3)  # a state that isn't careful with the generators
        random.random()
        np.random.rand()
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def train(trial: RunningTrial) -> None:
    job = Job_()
    if trial.checkpoint is not None:
        job.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report(job.epoch(), checkpoint=job.state)


class Train:
    def __init__(self, trial: RunningTrial) -> None:
        self._job = Job_()

    def step(self) -> dict[str, float]:
        return self._job.epoch()

    def state_dict(self) -> dict[str, Any]:
        return self._job.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._job.load(state)


def bits(root: Path, results: list[Result]) -> tuple[Any, ...]:
    """Return all reports and the final weights, as bits."""
    assert [result.failure for result in results] == [None] * len(results)
    reports = [
        (report.iteration, {name: value.hex() for name, value in report.metrics.items()})
        for result in results
        for report in result.reports
    ]
    assert results[-1].checkpoint is not None
    state = checkpoints.read_state(root / results[-1].checkpoint)
    momenta = [entry["momentum_buffer"] for entry in state["optimizer"]["state"].values()]
    return reports, [tensor.numpy().tobytes() for tensor in [*state["model"].values(), *momenta]]


def own_loop(trial: RunningTrial) -> None:
    job = Job_()
    if trial.checkpoint is not None:
        job.load(trial.checkpoint)
    for _ in range(100):
        trial.report(job.epoch(), checkpoint=job.state)


def splits_after_reading(trial: RunningTrial) -> None:
    """Draws between the checkpoint and `iterations()`, and reports what it drew there."""
    _ = trial.checkpoint
    drawn = random.random()
    for _ in trial.iterations():
        trial.report({"loss": random.random(), "drawn": drawn}, checkpoint={"a": 1})


def test_what_is_drawn_before_iterations_is_the_same_in_each_segment(tmp_path: Path) -> None:
    first = run(worker_on(tmp_path, splits_after_reading), segment(0, 1))
    rest = run(worker_on(tmp_path, splits_after_reading), segment(1, 2, first.checkpoint, attempt=2))
    whole = run(worker_on(tmp_path, splits_after_reading), segment(0, 2, attempt=3))
    assert [report.metrics for report in [*first.reports, *rest.reports]] == [r.metrics for r in whole.reports]


def test_a_loop_of_its_own_goes_on_where_the_last_look_at_its_checkpoint_puts_it(tmp_path: Path) -> None:
    def looks_twice(trial: RunningTrial) -> None:
        continued = trial.checkpoint is not None
        random.random()  # builds
        if continued:
            assert trial.checkpoint == {"a": 1}
        for _ in range(9):
            trial.report({"loss": random.random()}, checkpoint={"a": 1})
            _ = trial.checkpoint  # after a report it is only a look

    first = run(worker_on(tmp_path, looks_twice), segment(0, 1))
    rest = run(worker_on(tmp_path, looks_twice), segment(1, 4, first.checkpoint, attempt=2))
    whole = run(worker_on(tmp_path, looks_twice), segment(0, 4, attempt=3))
    assert [rest.failure, whole.failure] == [None, None]
    assert [report.metrics for report in [*first.reports, *rest.reports]] == [r.metrics for r in whole.reports]


@pytest.mark.parametrize("way", ["iterations", "checkpoint", "parent_checkpoint", "neither"])
def test_a_loop_that_neither_looks_at_its_checkpoint_nor_calls_iterations_has_failed(tmp_path: Path, way: str) -> None:
    """It would draw the numbers of its first segment again."""

    def draws(trial: RunningTrial) -> None:
        if way != "neither" and way != "iterations":
            getattr(trial, way)
        for _ in trial.iterations() if way == "iterations" else range(9):
            trial.report({"loss": random.random()}, checkpoint={"a": 1})
            _ = trial.checkpoint  # too late

    first = run(worker_on(tmp_path, draws), segment(0, 1))
    rest = run(worker_on(tmp_path, draws), segment(1, 3, first.checkpoint, attempt=2))
    whole = run(worker_on(tmp_path, draws), segment(0, 3, attempt=3))
    assert whole.failure is None
    if way in ("iterations", "checkpoint"):
        assert [report.metrics for report in rest.reports] == [r.metrics for r in whole.reports[1:]]
        return
    assert rest.failure is not None
    assert (rest.failure.kind, rest.reports) == ("contract", ())
    assert "trial.checkpoint and without trial.iterations()" in rest.failure.message


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("trainable", [train, Train, own_loop])
def test_warm_cold_and_uninterrupted_runs_give_the_same_bits(tmp_path: Path, trainable: Any) -> None:
    whole = [run(worker_on(tmp_path, trainable), segment(0, 6))]

    def in_parts(worker_of: Callable[[], Worker], attempt: int) -> list[Result]:
        results: list[Result] = []
        for start, end in ((0, 1), (1, 3), (3, 6)):
            checkpoint = results[-1].checkpoint if results else None
            part = segment(start, end, checkpoint, attempt + len(results))
            results.append(run(worker_of(), part))
            random.random(), np.random.rand(), torch.rand(2)  # others' draws in between
        return results

    warm_worker = worker_on(tmp_path, trainable)
    warm = in_parts(lambda: warm_worker, 10)
    cold = in_parts(lambda: worker_on(tmp_path, trainable), 20)
    assert bits(tmp_path, warm) == bits(tmp_path, whole)
    assert bits(tmp_path, cold) == bits(tmp_path, whole)


TWICE = """
import sys
from pathlib import Path
from hpsearch.objective import Metric, Objective
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import run, segment
from tests.hpsearch.worker.test_worker_bits import train

root = Path(sys.argv[1])
worker = Worker(Job(str(root), "sweep", train, (), Objective(Metric("loss")), None, 1), root)
first, second = (run(worker, segment(0, 2, None, attempt)).reports for attempt in (1, 2))
assert len(first) == 2
assert [report.metrics for report in first] == [report.metrics for report in second]
"""


@pytest.mark.exhaustive
def test_the_first_segment_of_a_process_gives_the_bits_of_a_later_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TWICE, str(tmp_path)], check=True)


@pytest.mark.parametrize("trainable", [train, Train, own_loop])
def test_a_cut_and_its_rest_give_the_bits_of_the_whole(tmp_path: Path, trainable: Any) -> None:
    worker = worker_on(tmp_path, trainable, save_every=1)
    first = run(worker, segment(0, 5), cut_at=2)
    assert (first.cut, first.iteration) == (True, 2)
    rest = run(worker, segment(2, 5, first.checkpoint, attempt=2))
    whole = run(worker_on(tmp_path, trainable), segment(0, 5, attempt=3))
    assert bits(tmp_path, [rest])[1] == bits(tmp_path, [whole])[1]
