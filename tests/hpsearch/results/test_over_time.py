"""Where a forked trial comes from: in tables, exports, TensorBoard and Python."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hpsearch
from hpsearch.cli import main
from hpsearch.cli.trial import lineage_to_csv
from hpsearch.errors import HpsearchError
from hpsearch.observers.tensorboard.trial_runs import trial_run
from hpsearch.results.over_time import Stage, lineage
from hpsearch.trial import TrialRow, TrialState
from tests.hpsearch.support.optuna_journal import optuna_study


def train(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.report({"loss": trial.params["x"] / iteration}, checkpoint={"iteration": iteration})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hpsearch.Study:
    return hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        method="pbt",
        early_terminate=hpsearch.PBT(8, population=4, interval=2, quantile=0.25),
        backend="inline",
        directory=tmp_path_factory.mktemp("study") / "s",
        progress=False,
    )


def row(number: int, iterations: int, parent: int | None = None, inherited: int | None = None) -> TrialRow:
    state, start = TrialState.COMPLETE, inherited or 0
    return TrialRow(
        number, state, iterations, 0.5, {"x": number}, "pbt", None, None, 1.0, "",
        parent=parent, inherited=inherited, start=start,
    )  # fmt: skip


def test_stages_follow_each_other_and_the_last_is_the_trials_own(study):
    forks = [row for row in study.trials if row.parent is not None]
    assert forks
    for fork in forks:
        stages = study.lineage(fork.number)
        assert [stage.start for stage in stages] == [0, *(stage.end for stage in stages[:-1])]
        assert (stages[-1].trial, stages[-1].end, stages[-1].values["loss"]) == (
            fork.number,
            fork.iterations,
            fork.value,
        )
        assert stages[-2].trial == fork.parent
        assert stages[-2].end == fork.inherited == fork.start
        assert [stage.params for stage in stages] == [study.trials[stage.trial].params for stage in stages]
    assert study.lineage() == study.lineage(study.best_trial.number)
    with pytest.raises(HpsearchError, match=r"expected the number of one of \d+ trials, got 99"):
        study.lineage(99)


def test_where_nothing_was_taken_over_training_began_with_the_fork():
    rows = [row(0, 4), row(1, 6, parent=0), row(2, 8, parent=1, inherited=5)]
    assert lineage(rows, 2, {1: [(5, {"loss": math.inf})]}) == (
        Stage(1, 0, 5, {"loss": math.inf}, {"x": 1}),
        Stage(2, 5, 8, {}, {"x": 2}),
    )


def test_a_trial_that_was_not_forked_is_its_own_lineage():
    text = lineage_to_csv(lineage([row(0, 4)], 0, {0: [(4, {"loss": 0.5})]}), ["x"], ["loss"])
    assert text == "trial,start,end,value,params.x\n0,0,4,0.5,0\n"


def test_the_command_prints_it_in_three_formats(study, capsys):
    fork = next(row for row in study.trials if row.parent is not None)
    for format in ("table", "csv", "json"):
        assert main(["lineage", str(study.directory), str(fork.number), "--format", format]) == 0
        out = capsys.readouterr().out
        if format == "json":
            stages = study.lineage(fork.number)
            assert [entry["trial"] for entry in json.loads(out)] == [stage.trial for stage in stages]
    assert main(["lineage", str(study.directory)]) == 0
    assert "loss" in capsys.readouterr().out


def test_tables_and_exports_name_the_parent(study, tmp_path, capsys):
    fork = next(row for row in study.trials if row.parent is not None)
    frame = study.trials_dataframe()
    assert frame["parent"][fork.number] == fork.parent
    assert frame["inherited"][fork.number] == fork.inherited
    assert pd.isna(frame["parent"][0])
    assert main(["trials", str(study.directory)]) == 0
    assert f"{fork.parent} at {fork.inherited}" in capsys.readouterr().out
    assert main(["trials", str(study.directory), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[fork.number]["inherited"] == fork.inherited
    assert main(["export", str(study.directory), "--to", str(tmp_path)]) == 0
    assert pd.read_csv(tmp_path / "trials.csv")["parent"][fork.number] == fork.parent
    assert pd.read_parquet(tmp_path / "trials.parquet")["inherited"][fork.number] == fork.inherited
    exported = optuna_study(tmp_path / "optuna.log")
    assert exported.trials[fork.number].user_attrs["parent"] == fork.parent
    assert "parent" not in exported.trials[0].user_attrs


def test_a_forks_curve_begins_where_its_parents_stood(study):
    fork = next(row for row in study.trials if row.parent is not None)
    events = EventAccumulator(str(Path(study.directory) / "tensorboard" / trial_run(fork.number)))
    events.Reload()
    assert events.Scalars("loss")[0].step == fork.start + 1
