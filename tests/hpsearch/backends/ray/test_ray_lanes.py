"""Trials beside each other on Ray's workers: one that dies with its worker, a worker that dies, a blind node, time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.backends.ray.backend import RayBackend
from hpsearch.events import Failed, Finished, Lost, Started
from hpsearch.results.study import Study
from hpsearch.run import verdicts
from hpsearch.sweep.parts import Resources
from hpsearch.task import Result
from hpsearch.worker.attempt import attempt_directory
from tests.hpsearch.support import killing_schedule, lane_trainables
from tests.hpsearch.support.conditions import beside, wait_until
from tests.hpsearch.support.driver import Driver, is_timeout
from tests.hpsearch.support.lane_sweeps import FAULTS, results, search, table
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.scripted import events_of
from tests.rarely import rarely

pytestmark = pytest.mark.ray

SMALL = "tests.hpsearch.support.lane_trainables:Small"

SHORT: dict[str, Any] = {"early_terminate": hpsearch.Hyperband(max_iter=9, eta=3)}


def on_ray(directory: Path, faults: tuple[str, ...] = FAULTS, **options: Any) -> Study:
    own = {**SHORT, "backend": "ray", "resources": {"workers": 2, "trials_per_worker": 5}}
    return search(directory, faults, **merged(own, options))


def lost(study: Study) -> list[Lost]:
    return [event for event in events_of(study.directory) if isinstance(event, Lost)]


KEEP_WORKERS = ("", "nan", "draws", "prints")
"""Faults after which a worker goes on: others cost one each, which takes seconds to start."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("workers", "faults"), [*rarely((1, FAULTS), (2, FAULTS)), (2, KEEP_WORKERS)])
def test_any_number_of_workers_gives_the_table_and_the_reports_of_one_process(ray_cluster, tmp_path, workers, faults):
    whole = search(tmp_path / "whole", faults, **SHORT)
    study = on_ray(tmp_path / "ray", faults, resources={"workers": workers})
    assert table(study) == table(whole)
    assert results(study) == results(whole)
    assert not lost(study)


@pytest.mark.exhaustive
def test_what_rounds_does_so_alike_whoever_shares_its_worker_and_when_it_dies(ray_cluster, tmp_path):
    faults = ("", "nan", "draws", "", "", "", "kill")
    points = [{"lr": 0.1, "hidden": 24, "dropout": 0.08 * place, "fault": fault} for place, fault in enumerate(faults)]
    options: dict[str, Any] = {
        "early_terminate": None,
        "max_iter": 3,
        "points_to_try": points,
        "resources": {"fuse": "rounding", "trials_per_worker": 5},
    }
    kinds = ("", "nan", "draws", "kill")
    study = on_ray(tmp_path / "ray", kinds, **options, run_cap=7)
    inline = search(tmp_path / "inline", kinds, **options, run_cap=6)
    assert {event.trial for event in lost(study)} > {6}, "others were on its worker"
    assert table(study).splitlines()[:7] == table(inline).splitlines()
    told = results(study)
    assert {of: told[of] for of in results(inline)} == results(inline)


@pytest.mark.exhaustive
def test_a_trial_that_kills_its_worker_takes_nothing_from_its_neighbours(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "MOST_LOSSES", 2)
    faults = ("", "nan", "", "kill", "")
    points = [{"lr": 0.1, "hidden": 24, "dropout": 0.1 * place, "fault": fault} for place, fault in enumerate(faults)]
    options: dict[str, Any] = {"early_terminate": None, "run_cap": 5, "max_iter": 3, "points_to_try": points}
    killed = on_ray(tmp_path / "ray", faults[1:4], **options)
    alone = search(tmp_path / "alone", faults[1:4], **{**options, "run_cap": 3})
    assert table(killed).splitlines()[1:4] == table(alone).splitlines()[1:]
    assert [row.failure and row.failure.kind for row in killed.trials] == [None, None, None, "died", None]
    counted = {event.trial for event in lost(killed) if event.counts_against_trial}
    assert counted == {3}, "a neighbour has lost an attempt that counts"


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_gives_the_same_table(ray_cluster, tmp_path):
    options: dict[str, Any] = {
        "trainable": lane_trainables.Held,
        "parameters": {
            "lr": hpsearch.LogUniform(0.001, 1.0),
            "hidden": 24,
            "dropout": 0.1,
            "fault": "",
            "folder": str(tmp_path),
        },
    }
    whole = search(tmp_path / "whole", **SHORT, **options)
    for path in tmp_path.glob("*.held"):
        path.unlink()
    (tmp_path / "hold").touch()

    def kill_one() -> None:
        try:
            wait_until(lambda: bool(list(tmp_path.glob("*.held"))))
            os.kill(int(next(tmp_path.glob("*.held")).stem), signal.SIGKILL)
        finally:
            (tmp_path / "hold").unlink()

    killing = beside(kill_one)
    study = on_ray(tmp_path / "ray", **options)
    killing.result()
    assert table(study) == table(whole)
    assert results(study) == results(whole)
    assert lost(study)
    assert not [event for event in events_of(study.directory) if isinstance(event, Failed)]


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_while_lanes_are_fused_gives_the_same_table(ray_cluster, tmp_path):
    faults = ("", "", "kills once", "", "", "", "", "")
    points = [{"lr": 0.1, "hidden": 24, "dropout": 0.1 * place, "fault": fault} for place, fault in enumerate(faults)]
    options: dict[str, Any] = {
        "trainable": killing_schedule.Fused,
        "parameters": {
            "parameters": {
                "lr": hpsearch.LogUniform(0.001, 1.0),
                "hidden": 24,
                "dropout": hpsearch.Uniform(0.0, 0.8),
                "fault": hpsearch.Categorical(("", "kills once")),
                "folder": str(tmp_path),
            },
            "points_to_try": points,
        },
        "early_terminate": None,
        "max_iter": 6,
        "checkpoints": {"every": 2},
        "run_cap": len(faults),
    }
    killed = on_ray(tmp_path / "ray", **options, resources={"trials_per_worker": 4})
    fused = int((tmp_path / "killed").read_text())
    assert 1 < fused <= 4, "others were lanes of the same computation when it was killed"
    assert len({event.trial for event in lost(killed)}) >= fused
    assert not [event for event in lost(killed) if event.counts_against_trial]
    assert not [event for event in events_of(killed.directory) if isinstance(event, Failed)]
    assert max(row.lanes for row in killed.trials) > 1

    whole = search(tmp_path / "whole", **options)  # nobody is killed again
    assert table(killed) == table(whole)
    assert results(killed) == results(whole)


@pytest.mark.exhaustive
def test_a_node_without_sight_of_the_study_gives_the_same_table(ray_cluster, tmp_path, blind_node):
    whole = search(tmp_path / "whole", **SHORT)
    study = on_ray(tmp_path / "ray", resources={"workers": 3})
    assert table(study) == table(whole)
    assert results(study) == results(whole)
    assert study.best_trial.checkpoint is not None
    assert study.best_trial.checkpoint.is_file()


@pytest.mark.exhaustive
def test_a_round_that_hangs_costs_the_one_that_hangs_alone(ray_cluster, tmp_path):
    backend = RayBackend(Resources(workers=1, trials_per_worker=3))
    driver = Driver(backend, tmp_path / "study", SMALL, lanes=3, metric="loss")
    driver.wait_for(lambda: backend.capacity(3) == 3)
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.0}
    for number, fault in enumerate(("", "hangs")):  # the first one still runs when the other one hangs
        driver.start(number, {**params, "fault": fault}, end=100_000, timeout=3.0, lanes=3)
    assert backend.capacity(3) == 1
    outcomes = [driver.outcome(number) for number in range(2)]
    assert [(type(outcome), outcome.counts_against_trial) for outcome in outcomes] == [(Lost, False)] * 2
    assert [outcome.company for outcome in outcomes] == [(0,), (1,)]
    for number, fault in enumerate(("", "hangs")):
        driver.start(number, {**params, "fault": fault}, end=3, timeout=3.0, attempt=2)
    assert isinstance(driver.outcome(0, 2), Result)
    assert is_timeout(driver.outcome(1, 2))
    backend.close()


@pytest.mark.exhaustive
def test_a_build_that_hangs_ends_its_worker_after_its_own_time_and_not_that_of_all(ray_cluster, tmp_path):
    backend = RayBackend(Resources(workers=1, trials_per_worker=3))
    driver = Driver(backend, tmp_path / "study", SMALL, lanes=3, metric="loss")
    driver.wait_for(lambda: backend.capacity(3) == 3)
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.0}
    driver.start(0, {**params, "fault": ""}, end=100_000, timeout=10_000.0, lanes=3)
    driver.metrics(0)
    driver.start(1, {**params, "fault": "endless build"}, end=3, timeout=2.0, lanes=3)
    outcomes = [driver.outcome(number) for number in range(2)]
    assert [(type(outcome), outcome.counts_against_trial) for outcome in outcomes] == [(Lost, False)] * 2
    assert [outcome.company for outcome in outcomes] == [(0,), (1,)]
    for number, (fault, timeout) in enumerate((("", 10_000.0), ("endless build", 2.0))):
        driver.start(number, {**params, "fault": fault}, end=3, timeout=timeout, attempt=2)
    assert isinstance(driver.outcome(0, 2), Result)
    assert is_timeout(driver.outcome(1, 2))
    driver.start(2, {**params, "fault": "endless build"}, end=3, timeout=2.0, lanes=3)
    assert is_timeout(driver.outcome(2)), "as the only lane of its worker it is known to be to blame"
    backend.close(kill=True)


@pytest.mark.exhaustive
def test_a_cut_ends_one_lane_at_a_report_with_a_checkpoint_and_no_other(ray_cluster, tmp_path):
    backend = RayBackend(Resources(workers=1, trials_per_worker=3))
    driver = Driver(backend, tmp_path / "study", SMALL, lanes=3, metric="loss")
    params = {"lr": 0.1, "hidden": 24, "dropout": 0.0, "fault": ""}
    for number in range(3):
        driver.start(number, params, end=100_000, lanes=3)
        driver.metrics(number)
    backend.cut(1, 1)
    cut = driver.outcome(1)
    assert (cut.cut, cut.failure) == (True, None)
    assert (tmp_path / "study" / cut.checkpoint / "state.pt").is_file()
    before = {number: len(driver.reports(number)) for number in (0, 2)}
    driver.wait_for(lambda: all(len(driver.reports(number)) > before[number] for number in (0, 2)))
    driver.start(1, params, end=cut.iteration + 2, after=cut, lanes=3)
    assert driver.outcome(1, 2).iteration == cut.iteration + 2
    assert not [message for message in driver.messages if isinstance(message, Lost)]
    backend.close(kill=True)


@pytest.mark.exhaustive
def test_the_trials_that_are_left_get_the_workers_that_lanes_shared(ray_cluster, tmp_path):
    """From five trials on a worker to one on both, and what it prints there lies in its own logs."""
    options: dict[str, Any] = {
        "trainable": lane_trainables.Patient,
        "parameters": {"lr": hpsearch.LogUniform(0.001, 0.1), "hidden": 24, "dropout": 0.0, "fault": "slow"},
        "early_terminate": hpsearch.SuccessiveHalving(81, trials=9),  # so long that a busy machine finds the time
    }
    study = on_ray(tmp_path / "ray", **options, resources={"max_workers_per_trial": 2})
    options["parameters"]["fault"] = ""
    alone = search(tmp_path / "alone", **options)
    assert [(row.state, row.iterations) for row in study.trials] == [(r.state, r.iterations) for r in alone.trials]
    for row, one in zip(study.trials, alone.trials, strict=True):
        assert row.value == pytest.approx(one.value, rel=1e-4)  # gradients are summed in another order
    events = events_of(study.directory)
    wide = [event for event in events if isinstance(event, Started) and event.segment.width == 2]
    assert wide
    lanes = {(event.trial, event.attempt): event.lanes for event in events if isinstance(event, Finished)}
    assert {lanes[event.segment.trial, event.segment.attempt] for event in wide} == {1}
    assert not lost(study)
    folder = study.directory / attempt_directory(wide[0].segment)
    own, other = (path.read_text() for path in (folder / "output.log", folder / "rank-1" / "output.log"))
    first = f"epoch {wide[0].segment.start} on "
    assert own.startswith(first)
    assert other.startswith(first)
    assert not list(study.directory.glob("trials/.output-*"))
