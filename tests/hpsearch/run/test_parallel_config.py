"""The sweep that compares strategies, `configs/parallel.yaml`, as a user runs it; workers and driver may be killed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpsearch
from hpsearch.events import Event, Lost, Started
from hpsearch.results.study import Study
from hpsearch.trial import TrialState
from hpsearch_trainers.strategies import STRATEGIES
from tests.hpsearch.support.command_line import ROOT, Answer, begin, call, wait_for
from tests.hpsearch.support.conditions import living_below
from tests.hpsearch.support.local_ray import finished, kill_tree
from tests.hpsearch.support.scripted import events_of

pytestmark = [pytest.mark.exhaustive, pytest.mark.ray, pytest.mark.slow]

CONFIG = ROOT / "configs" / "parallel.yaml"
RATES, EPOCHS = 3, 10
ASYNCHRONOUS = {name for name, kind in STRATEGIES.items() if not kind.capabilities.reproducible}
EXACT = [name for name, kind in STRATEGIES.items() if kind.capabilities.exact]
"""Those that train to the losses of one worker, to rounding."""

Reports = dict[str, dict[float, list[dict[str, float]]]]


def reports_of(study: Study, names: set[str]) -> Reports:
    """Return what trials of some strategies reported in each epoch, by strategy and rate, without times."""
    found: Reports = {}
    reports = study.reports()
    for row in study.trials:
        name = row.params["parallel.strategy"]
        if name in names:
            told = [{key: x for key, x in one.metrics.items() if key != "data_wait"} for one in reports[row.number]]
            found.setdefault(name, {})[row.params["lr"]] = told
    return found


def check_whole(study: Study) -> None:
    """See that all trials ran to their end, each on two workers, and that those of asynchronous strategies say so."""
    assert study.state == "finished"
    rows = study.trials
    assert {(row.state, row.iterations, row.width) for row in rows} == {(TrialState.COMPLETE, EPOCHS, 2)}
    assert sorted(row.params["parallel.strategy"] for row in rows) == sorted([*STRATEGIES] * RATES)
    assert len({row.params["lr"] for row in rows}) == RATES
    assert {row.params["parallel.strategy"] for row in rows if row.asynchronous} == ASYNCHRONOUS
    assert sum(row.asynchronous for row in rows) == RATES * len(ASYNCHRONOUS)


_WHOLE: list[tuple[Path, Answer]] = []


@pytest.fixture
def whole(ray_cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Study, Answer]:
    """What comes of it undisturbed, and what the command says; run once."""
    if not _WHOLE:
        study = tmp_path / "study"
        answer = call(capsys, "run", CONFIG, "--dir", study, "--no-tensorboard")
        assert answer.code == 0, answer.err
        _WHOLE.append((study, answer))
    study, answer = _WHOLE[0]
    return hpsearch.load(study), answer


def test_it_ends_with_a_table_by_strategy(whole, capsys):
    study, answer = whole
    check_whole(study)
    assert f"parallel.strategy {', '.join(sorted(ASYNCHRONOUS))}: workers don't wait for each other" in answer.out
    words = ("trials", study.directory, "--by", "parallel.strategy", "--times")
    table = call(capsys, *words).out
    assert table in answer.out  # to the character
    head, _, *lines = table.strip().splitlines()
    heads = re.split(r"\s{2,}", head.strip())
    assert heads == ["parallel.strategy", "trials", "best accuracy", "median", "asynchronous", "median time"]
    assert {line.split()[0]: "yes" in line.split() for line in lines} == {
        name: name in ASYNCHRONOUS for name in STRATEGIES
    }
    groups = json.loads(call(capsys, *words, "--format", "json").out)
    assert len(groups) == len(STRATEGIES)
    for group in groups:
        name = group["params.parallel.strategy"]
        rows = [row for row in study.trials if row.params["parallel.strategy"] == name]
        accuracies = sorted(row.metrics["accuracy"] for row in rows)
        assert (group["trials"], group["failed"]) == (RATES, 0)
        assert (group["best.accuracy"], group["median.accuracy"]) == (accuracies[-1], accuracies[1])
        assert group["seconds"] == sorted(row.seconds for row in rows)[1]
        assert group["asynchronous"] == (name in ASYNCHRONOUS)
    assert [group["best.accuracy"] for group in groups] == sorted(
        (group["best.accuracy"] for group in groups), reverse=True
    )
    listed = csv.DictReader(io.StringIO(call(capsys, "trials", study.directory, "--format", "csv").out))
    assert {row["params.parallel.strategy"] for row in listed if row["asynchronous"] == "True"} == ASYNCHRONOUS


def test_strategies_that_train_alike_give_the_same_numbers_at_each_rate(whole):
    """The sweep gives all trials the same first weights and order of rows, so that the strategy is what differs."""
    study, _ = whole
    found = reports_of(study, set(STRATEGIES))
    assert EXACT == ["allreduce", "parameter_server", "pipeline", "tensor"]
    for name in EXACT:
        for rate, epochs in found["allreduce"].items():
            for key in ("loss", "validation_loss"):
                assert [epoch[key] for epoch in found[name][rate]] == pytest.approx(
                    [epoch[key] for epoch in epochs], rel=1e-3
                ), (name, rate)
    for name in set(STRATEGIES) - set(EXACT):
        assert found[name] != found["allreduce"]


def test_killed_workers_and_a_killed_driver_leave_reproducible_rows_as_they_are(whole, tmp_path, capsys):
    undisturbed, _ = whole
    study = tmp_path / "struck"
    with begin("run", CONFIG, "--dir", study, "--no-tensorboard", "-q", cwd=tmp_path) as driver:
        lose_a_worker(driver, study, 3)  # behind all of allreduce
        lose_a_worker(driver, study, 20)  # among the last strategies
        kill_tree(psutil.Process(driver.pid))
        driver.communicate()
    assert driver.returncode == -signal.SIGKILL
    assert hpsearch.load(study).state == "killed"
    assert finished(study) < RATES * len(STRATEGIES)
    answer = call(capsys, "resume", study, "-q")
    assert answer.code == 0, answer.err
    resumed = hpsearch.load(study)
    check_whole(resumed)
    reproducible = set(STRATEGIES) - ASYNCHRONOUS
    assert reports_of(resumed, reproducible) == reports_of(undisturbed, reproducible)


def lose_a_worker(driver: Any, study: Path, after: int) -> None:
    """Kill workers, one at a time, until a trial was lost with one, once so many have ended.

    A kill between two trials loses none.
    """
    wait_for(lambda: finished(study) >= after, driver)
    lost = count(study, Lost)
    while count(study, Lost) == lost:
        kill_a_worker(driver, study)


def kill_a_worker(driver: Any, study: Path) -> None:
    """Kill one where a trial has just begun; return when that one was lost, or another has begun."""
    lost, begun = count(study, Lost), count(study, Started)
    wait_for(lambda: bool(workers_of(driver)) and count(study, Started) > begun, driver)
    os.kill(max(workers_of(driver)), signal.SIGKILL)
    wait_for(lambda: count(study, Lost) > lost or count(study, Started) > begun + 1, driver)


def count(study: Path, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events_of(study))


def workers_of(driver: Any) -> list[int]:
    return [process.pid for process in living_below(driver.pid, "ray::RayWorker")]
