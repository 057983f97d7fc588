"""Parameters that some trials don't have: in reruns, in Optuna's storages, and in tables that are read again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import hpsearch
from hpsearch.cli import main
from hpsearch.export.export import write_optuna_storage
from hpsearch.run.rerunning import plan_rerun
from hpsearch.space import Repeat, Space, Uniform, When
from hpsearch.warm_start.read import read_warm_start
from tests.hpsearch.support.optuna_journal import optuna_study
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of
from tests.hpsearch.support.structured import STRUCTURES, UNBOUNDED


def ended(tmp_path, space: Space, method: str = "random") -> hpsearch.Study:
    sweep = sweep_of(method=method, parameters=space, early_terminate=None, max_iter=1, run_cap=12)
    return run_scripted(tmp_path / "s", sweep, ScriptedBackend(lambda task: [done(task, loss=lambda n, _: float(n))]))


def test_a_rerun_leaves_the_cells_of_absent_params_empty(tmp_path):
    former = ended(tmp_path, STRUCTURES)
    place = plan_rerun(former, 4, 1).opened(tmp_path / "again")
    again = run_scripted(place.path, None, ScriptedBackend(lambda task: [done(task)])).rerun
    assert again is not None
    frame = again.dataframe()
    absent = {name for one in again.configurations for name in again.varying if name not in one.params}
    assert absent
    for name in absent:
        assert list(frame[f"params.{name}"].isna()) == [name not in one.params for one in again.configurations]
    assert "best by mean" in again.text()


def test_a_study_without_trials_over_blocks_without_an_end_is_exported(tmp_path):
    sweep = sweep_of(parameters=UNBOUNDED, method="random", early_terminate=None, max_iter=1, run_cap=3)
    write_optuna_storage(tmp_path / "optuna.log", [], sweep, {}, {}, "one")
    study = optuna_study(tmp_path / "optuna.log")
    assert study.trials == []


@pytest.mark.parametrize("space", [STRUCTURES, UNBOUNDED])
def test_in_optuna_each_trial_has_its_own_parameters(tmp_path, space):
    study = ended(tmp_path, space)
    assert main(["export", str(tmp_path / "s"), "--to", str(tmp_path / "export")]) == 0
    loaded = optuna_study(tmp_path / "export" / "optuna.log")
    for trial, row in zip(loaded.trials, study.trials, strict=True):
        assert trial.params.keys() == trial.distributions.keys() == row.params.keys() - {"width"}
        assert json.loads(trial.user_attrs["params.width"]) == row.params["width"]


NULLS = Space.from_parameters(
    {
        "kind": ["a", "b"],
        "x": Uniform(0.0, 1.0),
        "norm": When("kind == 'a'", [None, "batch"]),
        "blocks": Repeat({"drop": [None, 0.5]}, 0, 2),
    }
)


@pytest.mark.parametrize("space", [STRUCTURES, UNBOUNDED, NULLS])
def test_trials_are_the_same_ones_again_from_wherever_they_are_read(tmp_path, space):
    """An empty cell is null where the parameter applies, and else there is none."""
    study = ended(tmp_path, space)
    assert main(["export", str(tmp_path / "s"), "--to", str(tmp_path / "e")]) == 0
    sweep = replace(study.sweep, method="tpe")
    for source in (tmp_path / "s", *(tmp_path / "e" / name for name in ("trials.csv", "trials.parquet", "optuna.log"))):
        past = read_warm_start([source], sweep).past
        assert [json.dumps(one.params) for one in past] == [json.dumps(row.params) for row in study.trials]
