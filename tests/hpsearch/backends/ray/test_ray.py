"""Sweeps on a real Ray cluster: workers that die, nodes that go, a node without sight of the study, full clusters."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.backends.ray.worker_pool import WorkerPool
from hpsearch.events import Failed, Lost, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.results.study import Study
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trial import TrialState
from tests.hpsearch.support import backend_trainables as trainables
from tests.hpsearch.support.conditions import beside, gone, limits, wait_until
from tests.hpsearch.support.merged import merged

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[4]

HYPERBAND = hpsearch.Hyperband(max_iter=9, eta=3)


def search(trainable: Callable[..., object], directory: Path, **options: Any) -> Study:
    given: dict[str, Any] = {
        "parameters": {"x": hpsearch.Uniform(0.0, 1.0), "folder": str(directory.parent)},
        "metric": {"name": "value", "goal": "maximize"},
        "early_terminate": HYPERBAND,
        "resources": {"workers": 2},
        "progress": False,
    }
    return hpsearch.search(trainable, directory=directory, **merged({"name": "test"}, given, options))


def csv(study: Study) -> str:
    return rows_to_csv(study.trials, [name for name in study.sweep.parameters.names if name != "folder"])


def events(study: Path, *kinds: type) -> list[Any]:
    with Journal.read(StudyDirectory(study).journal) as journal:
        return [entry.event for entry in journal.entries() if isinstance(entry.event, kinds)]


@pytest.fixture
def expected(tmp_path: Path) -> str:
    """The table of the same sweep in this very process."""
    return csv(search(trainables.total, tmp_path / "inline", backend="inline", resources={"workers": None}))


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_table_of_one_process(ray_cluster, tmp_path, expected, workers):
    assert csv(search(trainables.total, tmp_path / "ray", resources={"workers": workers})) == expected


def test_the_pool_serves_the_next_search_of_the_process(ray_cluster, tmp_path):
    import ray

    one_worker = {"resources": {"workers": 1}}  # of two, the first search may be over before the second is made
    search(trainables.total, tmp_path / "one", **one_worker)
    before = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    study = search(trainables.without_checkpoints, tmp_path / "two", **one_worker)
    after = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    assert study.state == "finished"
    assert after == before


def test_a_trial_that_reports_without_pause_ends_at_the_band_where_it_is_stopped(ray_cluster, tmp_path):
    options = {
        "parameters": {"x": hpsearch.Categorical([4.0, 3.0, 2.0, 1.0])},
        "method": "grid",
        "early_terminate": hpsearch.Bands(max_iter=8, min_iter=2, eta=2),
        "resources": {"workers": 1},
    }
    study = search(trainables.without_checkpoints, tmp_path / "ray", **options)
    assert [row.iterations for row in study.trials] == [8, 8, 2, 2]
    assert csv(study) == csv(search(trainables.without_checkpoints, tmp_path / "inline", backend="inline", **options))


def test_a_function_of_a_notebook_reaches_the_workers(ray_cluster, tmp_path):
    factor = 3.0

    def train(trial):
        for iteration in trial.iterations():
            trial.report({"value": factor * iteration})

    study = search(train, tmp_path / "ray", early_terminate=None, run_cap=2, max_iter=2)
    assert study.best_value == 6.0


def test_a_trial_that_kills_its_worker_goes_on_from_its_checkpoint(ray_cluster, tmp_path, expected):
    study = search(
        trainables.kills_its_worker_once, tmp_path / "ray", checkpoints={"every": 2}, limits={"max_retries": 0}
    )
    assert csv(study) == expected
    assert events(study.directory, Lost)
    assert not events(study.directory, Failed)


@pytest.mark.exhaustive  # five workers are made
def test_a_trial_that_always_kills_its_worker_fails_in_the_end(ray_cluster, tmp_path):
    study = search(
        trainables.always_kills_its_worker,
        tmp_path / "ray",
        early_terminate=None,
        run_cap=1,
        max_iter=1,
        resources={"workers": 1},
    )
    (row,) = study.trials
    assert row.state is TrialState.FAILED
    assert row.failure is not None
    assert row.failure.kind == "died"
    assert "5 times in a row" in row.failure.message


def test_a_trial_over_its_timeout_is_killed_with_its_children(ray_cluster, tmp_path):
    options = {"early_terminate": None, "run_cap": 1, "max_iter": 100_000, "resources": {"workers": 1}}
    begun = tmp_path / "0.pids"
    for seconds in limits(1.0):
        study = search(trainables.endless, tmp_path / f"ray-{seconds}", limits={"trial_timeout": seconds}, **options)
        if begun.exists():
            break
    (row,) = study.trials
    assert row.failure is not None
    assert row.failure.kind == "timeout"
    pids = [int(pid) for pid in begun.read_text().split()]
    wait_until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.exhaustive
def test_a_worker_is_replaced_after_a_trial_that_raised(ray_cluster, tmp_path):
    study = search(
        trainables.raises,
        tmp_path / "ray",
        early_terminate=None,
        run_cap=1,
        max_iter=1,
        limits={"max_retries": 1},
        resources={"workers": 1},
    )
    assert [row.state for row in study.trials] == [TrialState.FAILED]
    failure = study.trials[0].failure
    assert failure is not None
    assert "in raises" in failure.traceback
    assert len(events(study.directory, Failed)) == 2


@pytest.mark.exhaustive
def test_no_worker_is_made_in_place_of_one_that_the_last_trial_cost(ray_cluster, tmp_path, monkeypatch):
    asked, add = [], WorkerPool._add

    def noted(pool: WorkerPool, count: int) -> None:
        asked.append(count)
        add(pool, count)

    monkeypatch.setattr(WorkerPool, "_add", noted)
    search(trainables.raises, tmp_path / "ray", early_terminate=None, run_cap=1, max_iter=1, resources={"workers": 1})
    assert sum(count for count in asked if count > 0) == 1


@pytest.mark.exhaustive
def test_a_sweep_on_a_full_cluster_says_whose_workers_it_waits_for(ray_cluster, tmp_path):
    short = {"early_terminate": None, "run_cap": 2, "max_iter": 1}
    first = threading.Thread(target=lambda: search(trainables.waits, tmp_path / "first", **short), daemon=True)
    first.start()
    wait_until(lambda: StudyDirectory(tmp_path / "first").exists() and len(events(tmp_path / "first", Started)) == 2)
    program = f"""
import hpsearch, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.hpsearch.support import backend_trainables as trainables
hpsearch.search(trainables.total, parameters={{"x": hpsearch.Uniform(0.0, 1.0)}}, metric="value", run_cap=1, max_iter=1,
                resources={{"workers": 1}}, directory={str(tmp_path / "second")!r})
"""
    there = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=there
    ) as second:
        try:
            assert second.stdout is not None
            notice = next(line for line in second.stdout if "waiting for workers of other sweeps" in line)
            (tmp_path / "go").touch()
            second.stdout.read()
            code = second.wait()
        finally:
            (tmp_path / "go").touch()
            second.kill()
    first.join()
    assert code == 0
    assert "2 of test (" in notice
    assert f":{os.getpid()})" in notice


def test_a_worker_that_no_node_can_hold_is_one_clear_error(ray_cluster, tmp_path):
    with pytest.raises(hpsearch.BackendError, match=r"needs 64 CPUs.*largest node has 2 CPUs"):
        search(trainables.total, tmp_path / "ray", resources={"cpus_per_worker": 64})


@pytest.mark.exhaustive
def test_three_nodes_one_blind_one_lost_give_the_same_table(ray_cluster, tmp_path, expected, blind_node, add_node):
    lost = add_node(1)
    directory, hold, hold_all = tmp_path / "ray", tmp_path / "hold", trainables.folder_beside(tmp_path) / "hold"
    hold_all.parent.mkdir()
    for held in (hold, hold_all):
        held.touch()

    def lose_a_node() -> None:
        try:
            wait_until(lambda: any((tmp_path / f"{pid}.held").exists() for pid in lost.workers()))
            hold_all.unlink()  # the blind one could run it all before the others have come
            # What three workers that are held can't have begun is run by the blind one, which doesn't see that.
            wait_until(lambda: len(list((directory / "trials").glob("*"))) >= 10)
            lost.lose()
        finally:
            hold_all.unlink(missing_ok=True)
            hold.unlink()

    losing = beside(lose_a_node)
    study = search(trainables.held_total, directory, resources={"workers": 4})
    losing.result()
    assert csv(study) == expected
    assert events(directory, Lost)
    logs = [log.read_text() for log in directory.glob("trials/*/*/output.log")]
    assert any(blind_node in log for log in logs), "the blind node ran nothing"
    assert any(blind_node not in log for log in logs)
    assert study.best_trial.checkpoint is not None
    assert study.best_trial.checkpoint.is_file()
