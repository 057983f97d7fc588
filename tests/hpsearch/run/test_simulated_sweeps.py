"""Sweeps on the simulated backend, from Python: through the real orchestrator, on disk and in memory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpsearch
from hpsearch.errors import SweepError, TrainableError
from hpsearch.simulation.table import Recorded, Table
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trial import TrialState
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.simulations import LENGTH, Bowl, Walk, bowl

OPTIONS: dict[str, Any] = {
    "parameters": {"x": hpsearch.Uniform(-1.0, 1.0)},
    "metric": "loss",
    "limits": {"max_failures": "none"},
    "observers": [],
    "progress": False,
}

SWEEPS: dict[str, dict[str, Any]] = {
    "flat": {"max_iter": LENGTH, "run_cap": 20},
    "to the end": {"run_cap": 20},
    "best": {"max_iter": LENGTH, "run_cap": 20, "metric": {"scope": "best"}},
    "hyperband": {"early_terminate": hpsearch.Hyperband(max_iter=LENGTH, eta=2), "run_cap": 30},
    "retries": {
        "early_terminate": hpsearch.SuccessiveHalving(max_iter=LENGTH, min_iter=2),
        "limits": {"max_retries": 2},
        "run_cap": 9,
    },
}

# With one worker the order in which trials end, which these two go by, is the same after a kill.
IN_ORDER: dict[str, dict[str, Any]] = {
    "asha": {"early_terminate": hpsearch.ASHA(max_iter=LENGTH), "run_cap": 15, "resources": {"workers": 1}},
    "pasha": {"early_terminate": hpsearch.PASHA(max_iter=LENGTH), "run_cap": 15, "resources": {"workers": 1}},
    "median": {
        "early_terminate": hpsearch.MedianStopping(max_iter=LENGTH, min_trials=2),
        "run_cap": 8,
        "resources": {"workers": 1},
    },
}


def simulated(trainable: Any, directory: Any = ":memory:", **options: Any) -> hpsearch.Study:
    given = merged({"resources": {"workers": 3}}, OPTIONS, options)
    return hpsearch.search(trainable, backend="simulated", directory=directory, **given)


def table(study: hpsearch.Study, times: bool = False) -> tuple[str, list[str], list[int | None]]:
    rows = study.trials
    csv = rows_to_csv(rows, study.sweep.parameters.names, times=times)
    return csv, [row.reason for row in rows], [row.parent for row in rows]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("workers", [1, 5])
def test_a_simulated_sweep_gives_the_table_of_the_training_that_it_stands_for(tmp_path, name, workers):
    options = merged(OPTIONS, SWEEPS[name])
    trained = hpsearch.search(bowl, backend="inline", directory=tmp_path / "trained", **options)
    played = simulated(Bowl, resources={"workers": workers}, **SWEEPS[name])
    assert table(played) == table(trained)
    assert repr(sorted(played.curves().items())) == repr(sorted(trained.curves().items()))
    if name in ("flat", "to the end", "retries"):
        assert TrialState.FAILED in {row.state for row in played.trials}


def test_a_study_in_memory_is_the_one_on_disk(tmp_path):
    options = SWEEPS["hyperband"]
    in_memory, on_disk = simulated(Bowl, **options), simulated(Bowl, tmp_path / "s", **options)
    assert table(in_memory, times=True) == table(on_disk, times=True) == table(hpsearch.load(tmp_path / "s"), True)
    assert in_memory.rungs == on_disk.rungs
    assert in_memory.total == on_disk.total
    assert in_memory.best_params == on_disk.best_params
    assert in_memory.best_trial.checkpoint is None
    assert [row.trial for row in in_memory.segments()] == [row.trial for row in on_disk.segments()]
    assert str(in_memory.directory) == ":memory:"
    assert repr(in_memory).startswith("<Study Bowl in :memory:: finished;")


def test_times_are_virtual(tmp_path):
    study = simulated(Walk, tmp_path / "s", resources={"workers": 2}, max_iter=100, run_cap=4)
    assert all(100 <= row.seconds <= 200 for row in study.trials)
    (began, _), (_, ended) = study.times()[0], study.times()[3]
    assert ended is not None
    assert 250 < ended - began < 350  # four trials of 150 s or so on two workers
    assert began == pytest.approx(study.created, abs=60.0)


def test_the_limits_are_of_virtual_time(tmp_path):
    study = simulated(Bowl, tmp_path / "s", resources={"workers": 1}, run_cap=50, limits={"max_time": 30.0})
    assert study.state == "max_time"
    assert 0 < len(study.trials) < 10
    resumed = simulated(Bowl, tmp_path / "s", resources={"workers": 1}, run_cap=50, limits={"max_time": 1e6})
    assert resumed.state == "finished"
    assert table(resumed) == table(simulated(Bowl, run_cap=50))
    late = simulated(Bowl, run_cap=20, limits={"trial_timeout": 4.5})
    assert {row.failure.kind for row in late.trials if row.failure} == {"timeout", "raised"}
    assert {row.seconds for row in late.trials if row.failure and row.failure.kind == "timeout"} == {4.5}


def test_time_goes_on_where_a_study_is_resumed(tmp_path):
    options = {**SWEEPS["hyperband"], "resources": {"workers": 2}}
    simulated(Walk, tmp_path / "s", **options, limits={"max_time": 50.0})
    whole = simulated(Walk, tmp_path / "s", **options)
    assert all(ended is not None and ended > began for began, ended in whole.times().values())
    took = max(ended or 0.0 for _, ended in whole.times().values()) - whole.created
    assert took >= sum(row.seconds for row in whole.trials) / 2


def test_a_table_in_a_folder_with_an_odd_name(tmp_path):
    folder = tmp_path / "curves#1"
    folder.mkdir()
    (folder / "digits.yaml").write_text("{table: c.csv, parameters: {x: x}, metrics: {loss: loss}, tasks: task}")
    (folder / "c.csv").write_text("x,loss,task\n0.1,3,a.yaml\n0.2,4,b#c\n")
    for task, loss in (("a.yaml", 3.0), ("b#c", 4.0)):
        study = simulated(f"{folder}/digits.yaml#{task}", max_iter=1, run_cap=2)
        assert (study.sweep.name, study.best_value) == ("digits", loss)


class Dear(Walk):
    start_seconds = 100.0
    checkpoint_seconds = 1000.0


def test_starts_and_checkpoints_have_their_cost():
    cheap, dear = (
        simulated(
            cls, early_terminate=hpsearch.SuccessiveHalving(max_iter=4, eta=2, trials=4), resources={"workers": 1}
        )
        for cls in (Walk, Dear)
    )
    assert table(cheap) == table(dear)
    for one, other in zip(cheap.trials, dear.trials, strict=True):
        segments = sum(row.trial == one.number for row in dear.segments())
        assert other.seconds == pytest.approx(one.seconds + 1100.0 * segments)


class Endless(Walk):
    """Never ends by itself, and has no max_iter either."""


def test_trials_without_an_end_are_ended_with_the_sweep():
    study = simulated(Endless, resources={"workers": 2}, run_cap=2, limits={"max_time": 50.0})
    assert study.state == "max_time"
    assert all(50 <= sum(row.seconds or 0.0 for row in study.segments() if row.trial == trial) < 55 for trial in (0, 1))
    late = simulated(Endless, resources={"workers": 2}, run_cap=2, limits={"trial_timeout": 9.0})
    assert [(row.failure.kind, row.seconds) for row in late.trials if row.failure] == [("timeout", 9.0)] * 2


class Odd(Walk):
    def __init__(self, **changes: Any) -> None:
        vars(self).update(changes)

    def speed(self, width: int) -> float:
        return getattr(self, "fast", 1.0)


class Needy(Walk):
    def __init__(self, length: int) -> None: ...


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start_seconds": -5.0}, r"Odd.start_seconds must be a number, at least 0, got -5.0"),
        ({"checkpoint_seconds": float("nan")}, r"Odd.checkpoint_seconds must be a number, at least 0, got nan"),
        ({"efficiency": 0.0}, r"Odd.efficiency must be more than 0, at most 1, got 0.0"),
        ({"fast": 0.0}, r"speed\(width\) must be a number, more than 0, got 0.0"),
    ],
)
def test_durations_that_would_turn_the_clock_back_are_refused(changes, expected):
    with pytest.raises((SweepError, TrainableError), match=expected):
        simulated(Odd(**changes), run_cap=2, max_iter=3)


class Scalar(hpsearch.Curves):
    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"loss": np.ones(3)}, np.int64(2))  # type: ignore[arg-type]


def test_seconds_may_be_a_scalar_of_numpy():
    assert simulated(Scalar, run_cap=1, max_iter=3).trials[0].seconds == 6.0


@pytest.mark.parametrize("simulation", [Needy, hpsearch.Steps])
def test_a_simulation_that_can_not_be_made_is_said(simulation):
    with pytest.raises(SweepError, match=r"a simulation must be a class that can be made without arguments, with all"):
        simulated(simulation, run_cap=2, max_iter=3)


def test_wide_trials_are_faster_by_the_efficiency():
    one = simulated(Bowl, max_iter=4, run_cap=1, seed=1)
    two = simulated(Bowl, max_iter=4, run_cap=1, seed=1, resources={"workers": 2, "workers_per_trial": 2})
    assert one.trials[0].seconds == 4.0
    assert two.trials[0].seconds == pytest.approx(4.0 / 1.8)
    assert two.trials[0].width == 2


POPULATION: dict[str, Any] = {"early_terminate": Population(max_iter=12, members=4, interval=2), "run_cap": 16}


def test_forks_go_on_from_the_state_of_their_parents(tmp_path):
    in_memory, on_disk = simulated(Walk, **POPULATION), simulated(Walk, tmp_path / "s", **POPULATION)
    assert table(in_memory, times=True) == table(on_disk, times=True)
    assert sum(row.parent is not None for row in in_memory.trials) >= 3
    kept = list((tmp_path / "s" / "trials").glob("*/*/*/state.pickle"))
    best = on_disk.best_trial.number
    assert {int(path.parts[-4]) for path in kept} == {best}


def test_instances_run_in_memory_alone(tmp_path):
    recorded = Recorded({"x": [-0.5, 0.5]}, {"loss": np_array([[3.0, 2.0], [4.0, 5.0]])}, np_array([[1.0, 1.0]] * 2))
    study = simulated(Table(recorded), max_iter=2, run_cap=10)
    assert {(row.params["x"] < 0, row.value) for row in study.trials} == {(True, 2.0), (False, 5.0)}
    with pytest.raises(SweepError, match=r"an instance of Table couldn't be had again .*':memory:'"):
        simulated(Table(recorded), tmp_path / "s", max_iter=2, run_cap=10)
    assert not (tmp_path / "s").exists()


def np_array(values: list[list[float]]) -> Any:
    return np.array(values)[:, None, :]


def test_what_can_not_be_simulated_is_said_before_anything_is_made(tmp_path):
    with pytest.raises(SweepError, match=r"needs a number of workers, .*--workers 4"):
        simulated(Bowl, tmp_path / "s", resources={"workers": None}, run_cap=1)
    with pytest.raises(SweepError, match=r"the simulated backend trains nothing: .* What a sweep would run"):
        simulated(bowl, tmp_path / "s", run_cap=1)
    with pytest.raises(SweepError, match=r"directory=':memory:' is for the simulated backend alone, got 'inline'"):
        hpsearch.search(bowl, backend="inline", directory=":memory:", run_cap=1, **OPTIONS)
    with pytest.raises(TrainableError, match=r"Bowl is a simulation, which trains nothing: run it with --backend sim"):
        hpsearch.search(Bowl, backend="inline", directory=tmp_path / "inline", run_cap=1, **OPTIONS)
    assert not (tmp_path / "s").exists()


class Wrong(hpsearch.Curves):
    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"los": [1.0]})


def test_a_simulation_that_breaks_the_contract_ends_the_sweep():
    with pytest.raises(TrainableError, match=r"the sweep's metric 'loss'.*did you mean 'los'"):
        simulated(Wrong, run_cap=5, limits={"max_failures": "auto"})


KILLED = """
import hpsearch
from tests.hpsearch.run.test_simulated_sweeps import IN_ORDER, OPTIONS, SWEEPS
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.simulations import Executioner, Walk
options = merged({{"resources": {{"workers": 3}}}}, OPTIONS, (SWEEPS | IN_ORDER)[{name!r}])
hpsearch.search(Walk, backend="simulated", directory={directory!r}, **{{**options, "observers": [Executioner({seq})]}})
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["hyperband", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("pasha", "asha", "median"))],
)
def test_a_simulated_sweep_that_is_killed_is_resumed_to_the_same_table(tmp_path, name):
    options = (SWEEPS | IN_ORDER)[name]
    expected = simulated(Walk, **options)
    events = len(expected.segments()) * 2
    for seq in (2, events // 3, events // 2, events - 3):
        directory = tmp_path / str(seq)
        program = [sys.executable, "-c", KILLED.format(directory=str(directory), seq=seq, name=name)]
        ended = subprocess.run(program, cwd=ROOT, env=environment(), check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        resumed = simulated(Walk, directory, **options)
        assert resumed.state == "finished"
        assert table(resumed) == table(expected)


@pytest.mark.parametrize("whole", [False, True])
def test_a_trial_whose_state_is_lost_begins_anew(tmp_path, whole):
    directory, options = tmp_path / "s", SWEEPS["hyperband"]
    simulated(Walk, directory, **options, limits={"max_time": 30.0})
    states = list(Path(directory, "trials").glob("*/*/*/state.pickle"))
    assert states
    for state in states:
        shutil.rmtree(state.parent) if whole else state.unlink()
    resumed = simulated(Walk, directory, **options)
    assert table(resumed) == table(simulated(Walk, **options))
    assert any("must hold the trial's state" in row.message for row in resumed.segments())
