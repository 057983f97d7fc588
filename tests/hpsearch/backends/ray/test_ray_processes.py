"""What trials leave in the processes of Ray's workers: objects to close, and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.backends.ray import worker_pool
from hpsearch.backends.ray.backend import RayBackend
from hpsearch.events import Lost
from hpsearch.sweep.parts import Resources
from hpsearch.task import Notice, Result
from hpsearch.trial import TrialState
from tests.hpsearch.backends.ray.test_ray import csv, events, search
from tests.hpsearch.support import backend_trainables as trainables
from tests.hpsearch.support.command_line import write_sweep
from tests.hpsearch.support.driver import Driver

pytestmark = pytest.mark.ray


@contextmanager
def opened(tmp_path: Path, **options: Any) -> Iterator[Driver]:
    driver = Driver(RayBackend(Resources(workers=1, **options)), tmp_path / "study", "Closing")
    yield driver
    driver.backend.close()


def notices(driver: Driver) -> list[str]:
    return [message.text for message in driver.messages if isinstance(message, Notice)]


def closed(tmp_path: Path) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in tmp_path.glob("*.closed"))


@pytest.mark.exhaustive
def test_a_close_that_hangs_costs_the_next_trial_nothing_but_another_worker(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 1.0)
    with opened(tmp_path) as driver:
        params = {"x": 1.0, "folder": str(tmp_path), "hangs": 0}
        driver.start(0, params)
        first = driver.outcome(0)
        driver.start(1, params)
        lost = driver.outcome(1)
        assert not lost.counts_against_trial
        assert [text for text in notices(driver) if "trial 0: its close()" in text]
        monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 60.0)  # this one's close() may take what it needs
        driver.start(2, params, timeout=60.0)
        second = driver.outcome(2)
        assert isinstance(second, Result)
        assert second.failure is None
        pids = {outcome.reports[-1].metrics["pid"] for outcome in (first, second)}
        assert len(pids) == 2
    assert closed(tmp_path) == [0, 2]


@pytest.mark.exhaustive
def test_a_trials_clock_stands_still_while_the_one_before_it_is_closed(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 1.0)
    with opened(tmp_path) as driver:
        params = {"x": 1.0, "folder": str(tmp_path), "hangs": 0}
        driver.start(0, params)
        driver.outcome(0)
        driver.start(1, params, timeout=0.2)
        assert not driver.outcome(1).counts_against_trial


@pytest.mark.exhaustive
def test_a_sweep_ends_though_its_last_objects_close_hangs(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 1.0)
    with opened(tmp_path) as driver:
        driver.start(0, {"x": 1.0, "folder": str(tmp_path), "hangs": 0})
        driver.outcome(0)
    assert [text for text in notices(driver) if "trial 0: its close()" in text]
    study = search(
        trainables.total, tmp_path / "next", early_terminate=None, run_cap=1, max_iter=1, resources={"workers": 1}
    )
    assert study.state == "finished"


@pytest.mark.exhaustive
def test_a_fresh_process_runs_each_segment_and_closes_its_object(ray_cluster, tmp_path):
    with opened(tmp_path, fresh_process=True) as driver:
        params = {"x": 1.0, "folder": str(tmp_path)}
        driver.start(0, params)
        first = driver.outcome(0)
        driver.start(0, params, end=2, after=first)
        driver.start(1, params)
        outcomes = [first, driver.outcome(0, 2), driver.outcome(1)]
        assert [outcome.failure for outcome in outcomes] == [None] * 3
        reports = [outcome.reports[-1].metrics for outcome in outcomes]
        assert [report["built"] for report in reports] == [1, 1, 1]
        assert len({report["pid"] for report in reports}) == 3
    assert closed(tmp_path) == [0, 0, 1]


@pytest.mark.exhaustive
def test_a_fresh_process_gives_the_same_table(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 2, "max_iter": 2}
    usual = search(trainables.total, tmp_path / "usual", **options)
    fresh = search(trainables.total, tmp_path / "fresh", resources={"fresh_process": True}, **options)
    assert [row.failure for row in fresh.trials] == [None] * 2
    assert csv(fresh) == csv(usual)


def test_inline_refuses_a_fresh_process(tmp_path):
    with pytest.raises(hpsearch.SweepError, match=r"resources\.fresh_process is true, but the inline backend"):
        search(
            trainables.total, tmp_path / "inline", backend="inline", resources={"workers": None, "fresh_process": True}
        )


@pytest.mark.exhaustive
def test_the_table_doesnt_depend_on_which_worker_ran_a_trial_that_changed_its_process(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 6, "max_iter": 1}
    one = search(trainables.sets_a_dtype, tmp_path / "one", resources={"workers": 1}, **options)
    assert {int(row.value) for row in one.trials if row.value is not None} == {32}
    assert csv(search(trainables.sets_a_dtype, tmp_path / "two", resources={"workers": 2}, **options)) == csv(one)


@pytest.mark.exhaustive
def test_no_trial_finds_what_another_one_changed_in_its_modules(ray_cluster, tmp_path, capsys):
    """The second reports its own parameter, though its module keeps that of the first one that it sees."""
    options = {"early_terminate": None, "run_cap": 2, "max_iter": 1, "resources": {"workers": 1}, "progress": True}
    study = search(trainables.caches_its_config, tmp_path / "ray", **options)
    assert [row.value for row in study.trials] == [row.params["x"] for row in study.trials]
    name = f"{trainables.__name__}.DEFAULTS['x'] changed while trial 0 ran: trials after it would find it so"
    assert " ".join(capsys.readouterr().out.split()).count(name) == 1


@pytest.mark.exhaustive
def test_a_keyboard_interrupt_of_the_trainables_own_fails_its_trial(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 1, "max_iter": 1, "resources": {"workers": 1}}
    study = search(trainables.interrupts_itself, tmp_path / "ray", **options)
    (row,) = study.trials
    assert row.state is TrialState.FAILED
    assert row.failure is not None
    assert row.failure.message == "KeyboardInterrupt"
    assert not events(study.directory, Lost)


FLAKY = """
import json, os
reports = os.environ["HPSEARCH_REPORTS"]
with open("workers.txt", "a") as workers:
    workers.write(f"{os.getppid()}\\n")
with open(reports, "a") as file:
    file.write(json.dumps({"loss": 1.0}) + "\\n")
raise SystemExit(3)
"""


def test_a_script_that_fails_doesnt_cost_its_worker(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FLAKY)
    sweep = hpsearch.load_sweep(
        write_sweep(tmp_path / "sweep.yaml", None, program="train.py", resources={"workers": 1})
    )
    study = hpsearch.search(sweep, directory=tmp_path / "study", progress=False)
    assert {str(trial.state) for trial in study.trials} == {"failed"}
    workers = (tmp_path / "workers.txt").read_text().split()
    assert len(workers) == 4
    assert len(set(workers)) < 4  # one, unless another cause took it down meanwhile


@pytest.mark.exhaustive
def test_a_workers_collector_leaves_out_what_it_has_imported(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 1, "max_iter": 1, "resources": {"workers": 1}}
    search(trainables.tells_what_the_collector_leaves_out, tmp_path / "warm", **options)
    (row,) = search(trainables.tells_what_the_collector_leaves_out, tmp_path / "study", **options).trials
    assert row.value is not None
    assert row.value > 100_000  # torch's alone are more


def test_a_worker_that_is_to_have_no_gpu_sees_none(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 1, "max_iter": 1, "resources": {"workers": 1}}
    (row,) = search(trainables.tells_whether_gpus_are_hidden, tmp_path / "study", **options).trials
    assert row.value == 1.0
