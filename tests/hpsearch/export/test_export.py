"""Exports, read back with the tools that they are for."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import optuna
import pandas as pd
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState

from hpsearch.errors import HpsearchError
from hpsearch.export.export import export_study
from hpsearch.objective import Metric
from hpsearch.space import (
    Categorical,
    Constant,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trial import Failure, Params, TrialRow, TrialState
from tests.hpsearch.support.optuna_journal import optuna_storage, optuna_study
from tests.hpsearch.support.scripted import sweep_of

SPACE = Space.from_parameters(
    {
        "opt": {"lr": LogUniform(1e-4, 1.0), "momentum": Uniform(0.15, 1.0, step=0.1)},
        "fine": Uniform(0.0, 1.0, step=1e-9),
        "layers": IntUniform(1, 9, step=2),
        "width": LogIntUniform(8, 512),
        "noise": Normal(0.0, 0.1),
        "decay": LogNormal(-3.0, 1.0),
        "rounded": LogNormal(-3.0, 1.0, step=1.0),
        "activation": Categorical(["relu", "tanh", None]),
        "mixed": Categorical([1, True, 1.5]),
        "widths": Categorical([[8], [8, 4]]),
        "batch": Constant(32),
    }
)
ENDS = [
    (TrialState.COMPLETE, 0.5),
    (TrialState.STOPPED, 0.875),
    (TrialState.FAILED, None),
    (TrialState.RUNNING, 0.25),
    (TrialState.WAITING, 0.125),
    (TrialState.COMPLETE, 0.75),
    (TrialState.COMPLETE, None),
    (TrialState.COMPLETE, -math.inf),
]


def study_rows(count: int = len(ENDS)) -> list[TrialRow]:
    rows = []
    for number in range(count):
        state, value = ENDS[number % len(ENDS)]
        failure = Failure("raised", "ValueError: no", "") if state == TrialState.FAILED else None
        params = SPACE.draw(0, number)
        rows.append(TrialRow(number, state, 2, value, params, "random", None, failure, 60.0, "rung 1: 1st of 3"))
    return rows


CURVES = {0: [(1, 0.25), (2, 0.5)], 1: [(1, math.nan), (2, 0.875)], 7: [(1, math.inf), (2, -math.inf)]}


NOON = datetime(2026, 3, 1, 12, 0, 0).timestamp()


def export(
    directory: Path, rows: list[TrialRow], identity: str = "digits 1", space: Space = SPACE, started: bool = True
) -> list[Path]:
    times = {row.number: (NOON + row.number, NOON + 60 + row.number) for row in rows if started}
    sweep = sweep_of(name="digits", metric=Metric("accuracy", "maximize"), parameters=space)
    *files, reports = export_study(rows, sweep, directory, CURVES, times, identity, {})
    assert reports.name == "reports.csv"
    return files


def test_optuna_reads_states_values_params_and_curves(tmp_path):
    rows = study_rows()
    rows[1] = replace(rows[1], width=4, reverted="on 8 workers: accuracy NaN after 0.5")
    files = export(tmp_path / "export", rows)
    assert [file.name for file in files] == ["trials.csv", "trials.parquet", "optuna.log"]
    study = optuna_study(files[2])
    trials = study.get_trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert [trial.state for trial in trials] == [
        OptunaState.COMPLETE,
        OptunaState.PRUNED,
        OptunaState.FAIL,
        OptunaState.RUNNING,
        OptunaState.WAITING,
        OptunaState.COMPLETE,
        OptunaState.FAIL,
        OptunaState.COMPLETE,
    ]
    assert [trial.value for trial in trials] == [0.5, 0.875, None, None, None, 0.75, None, -math.inf]
    assert study.best_trial.number == 5
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert trials[0].intermediate_values == {1: 0.25, 2: 0.5}
    assert math.isnan(trials[1].intermediate_values[1])
    assert trials[7].intermediate_values == {1: math.inf, 2: -math.inf}
    assert trials[2].user_attrs["failure"] == "ValueError: no"
    assert trials[0].user_attrs == {"origin": "random", "iterations": 2, "width": 1, "reason": "rung 1: 1st of 3"}
    assert trials[1].user_attrs["width"] == 4
    assert trials[1].user_attrs["reverted"] == "on 8 workers: accuracy NaN after 0.5"
    ran = (datetime(2026, 3, 1, 12, 0, 5), datetime(2026, 3, 1, 12, 1, 5))
    assert (trials[5].datetime_start, trials[5].datetime_complete) == ran
    assert (trials[3].datetime_start, trials[3].datetime_complete) == (datetime(2026, 3, 1, 12, 0, 3), None)
    assert (trials[4].datetime_start, trials[4].datetime_complete) == (None, None)
    for name in ("opt.lr", "opt.momentum", "layers", "width", "noise", "decay", "activation", "batch"):
        assert [trial.params[name] for trial in trials] == [row.params[name] for row in rows]
    assert trials[0].params["widths"] in ("[8]", "[8, 4]")
    assert trials[0].params["mixed"] in ("1", "true", "1.5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        assert study.metric_names == ["accuracy"]


def test_a_trial_that_was_pruned_before_it_started_has_no_times(tmp_path):
    rows = [replace(study_rows()[2], number=0, iterations=0)]
    (trial,) = optuna_study(export(tmp_path, rows, started=False)[2]).get_trials()
    assert (trial.state, trial.datetime_start, trial.datetime_complete) == (OptunaState.FAIL, None, None)


def test_optuna_has_the_distributions_of_the_space(tmp_path):
    rows = study_rows()
    trials = optuna_study(export(tmp_path, rows)[2]).get_trials()
    distributions = trials[0].distributions
    assert list(distributions) == list(SPACE.names)
    assert distributions["opt.lr"] == FloatDistribution(1e-4, 1.0, log=True)
    assert distributions["opt.momentum"] == FloatDistribution(0.2, 1.0, step=0.1)
    assert distributions["fine"] == FloatDistribution(0.0, 1.0)
    assert distributions["layers"] == IntDistribution(2, 8, step=2)
    assert distributions["width"] == IntDistribution(8, 512, log=True)
    assert distributions["noise"] == FloatDistribution(-0.4, 0.4)
    assert distributions["decay"] == FloatDistribution(math.exp(-7), math.exp(1), log=True)
    assert distributions["rounded"] == FloatDistribution(0.0, 3.0)  # multiples of its step
    assert distributions["activation"] == CategoricalDistribution(("relu", "tanh", None))
    assert distributions["mixed"] == CategoricalDistribution(("1", "true", "1.5"))
    assert distributions["batch"] == CategoricalDistribution((32,))
    assert all(trial.distributions == distributions for trial in trials)


def test_csv_and_parquet_hold_the_table(tmp_path):
    rows = [replace(row, width=row.number % 3 + 1) for row in study_rows()]
    for number, metrics in enumerate(({"accuracy": 0.5, "loss": math.nan}, {"loss": math.inf}, {"accuracy": 0.25})):
        rows[number] = replace(rows[number], metrics=metrics)
    csv_file, parquet_file, _ = export(tmp_path, rows)
    assert csv_file.read_text(encoding="utf-8") == rows_to_csv(rows, SPACE.names)
    frame = pd.read_parquet(parquet_file)
    columns = rows_to_csv([], SPACE.names).strip().split(",")
    assert list(frame.columns) == [*columns, "metrics.accuracy", "metrics.loss"]
    read = pq.read_table(parquet_file)
    assert repr(read["metrics.loss"].to_pylist()) == "[nan, inf, None, None, None, None, None, None]"
    assert read["metrics.accuracy"].to_pylist() == [0.5, None, 0.25, *[None] * 5]
    assert frame["params.opt.lr"].tolist() == [row.params["opt.lr"] for row in rows]
    assert frame["params.layers"].dtype == "int64"
    assert frame["width"].tolist() == [row.width for row in rows]
    widths = {"[8]": [8], "[8, 4]": [8, 4]}
    assert [widths[text] for text in frame["params.widths"]] == [row.params["widths"] for row in rows]


def test_a_param_that_a_trial_lacks_is_missing_in_every_export(tmp_path):
    full = study_rows(2 * len(SPACE.names))
    left_out = [SPACE.names[row.number % len(SPACE.names)] for row in full]
    rows = [
        replace(row, params={name: value for name, value in row.params.items() if name != left})
        for row, left in zip(full, left_out, strict=True)
    ]
    csv_file, parquet_file, optuna_file = export(tmp_path, rows)
    frames = [pd.read_csv(csv_file), pd.read_parquet(parquet_file)]
    for trial, row, left in zip(optuna_study(optuna_file).get_trials(), rows, left_out, strict=True):
        assert set(trial.params) == set(trial.distributions) == set(SPACE.names) - {left}
        for frame in frames:
            lacking = {name for name in SPACE.names if pd.isna(frame[f"params.{name}"][row.number])}
            assert lacking == {left} | {name for name, value in row.params.items() if value is None}
    assert frames[1]["params.layers"].dropna().tolist() == [r.params["layers"] for r in rows if "layers" in r.params]


def test_a_param_that_no_trial_has_can_be_exported(tmp_path):
    rows = [replace(row, params={"batch": 32}) for row in study_rows()]
    csv_file, parquet_file, optuna_file = export(tmp_path, rows)
    assert pd.read_csv(csv_file)["params.opt.lr"].isna().all()
    assert pd.read_parquet(parquet_file)["params.noise"].isna().all()
    assert [trial.params for trial in optuna_study(optuna_file).get_trials()] == [{"batch": 32}] * len(rows)


def test_export_again_replaces_the_files_and_leaves_no_others(tmp_path):
    export(tmp_path, study_rows())
    files = export(tmp_path, study_rows(3))
    assert len(optuna_study(files[2]).get_trials()) == 3
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["optuna.log", "reports.csv", "trials.csv", "trials.parquet"]


def test_study_without_trials_can_be_exported(tmp_path):
    files = export(tmp_path, [])
    assert optuna_study(files[2]).get_trials() == []
    assert len(pd.read_parquet(files[1])) == 0


def test_export_says_nothing_and_leaves_optunas_settings(tmp_path, capfd):
    before = optuna.logging.get_verbosity()
    export(tmp_path, study_rows())
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


def test_every_sample_lies_in_the_counterpart_of_its_distribution(tmp_path):
    rows = study_rows(200)  # Optuna checks each value as it is written
    trials = optuna_study(export(tmp_path, rows)[2]).get_trials()
    assert [trial.params["rounded"] for trial in trials] == [row.params["rounded"] for row in rows]


def test_metrics_are_user_attributes_and_strict_json(tmp_path):
    metrics = {"accuracy": 0.5, "loss": math.nan, "norm": -math.inf}
    rows = [replace(study_rows(1)[0], metrics=metrics, iterations=0)]
    (trial,) = optuna_study(export(tmp_path, rows)[2]).get_trials()
    told = {name: value for name, value in trial.user_attrs.items() if name.startswith("metrics.")}
    assert told == {"metrics.accuracy": 0.5, "metrics.loss": "NaN", "metrics.norm": "-Infinity"}
    assert trial.user_attrs["iterations"] == 0


BIG = 2**53 + 1
EDGES = Space.from_parameters(
    {
        "seed": IntUniform(0, 2**62),
        "below": IntUniform(-BIG, 0),
        "long": LogIntUniform(1, BIG),
        "exact": IntUniform(-(2**53), 2**53),
        "choice": Categorical([BIG, BIG + 1]),
        "flag": Categorical([True, False, None]),
        "count": Categorical([0, 1]),
        "both": Categorical([0, False, "0", 1.0, 1, None]),
        "nested": Categorical([[BIG], {"a": 1}, None]),
        "float": Uniform(-1.7e308, 1.7e308),
    }
)


def test_every_value_comes_back_from_optuna_as_it_was(tmp_path):
    """As a param where Optuna can hold it, as JSON in one or in a user attribute where it can't."""
    edges: Params = {"seed": BIG, "below": -BIG, "long": BIG, "exact": 2**53 - 1, "float": 1.7e308}
    first: Params = {"choice": BIG + 1, "flag": None, "count": 1, "both": False, "nested": [BIG], **edges}
    second: Params = {"choice": BIG, "flag": True, "count": 0, "both": 1, "nested": {"a": 1}, **edges}
    third: Params = {"flag": False, "exact": 0}  # the others are absent
    rows = [
        TrialRow(number, TrialState.COMPLETE, 1, 0.5, params, "random", None, None, 1.0, "")
        for number, params in enumerate((first, second, third))
    ]
    trials = optuna_study(export(tmp_path, rows, space=EDGES)[2]).get_trials()
    for trial, row in zip(trials, rows, strict=True):
        told = {name.removeprefix("params."): v for name, v in trial.user_attrs.items() if name.startswith("params.")}
        assert not set(told) & set(trial.params)
        in_json = {"both", "nested"} & set(trial.params)
        told = {name: json.loads(text) for name, text in [*told.items(), *((n, trial.params[n]) for n in in_json)]}
        plain = {name: value for name, value in trial.params.items() if name not in in_json}
        assert {name: repr(value) for name, value in (plain | told).items()} == {
            name: repr(value) for name, value in row.params.items()
        }


def test_only_a_former_export_of_the_same_study_is_replaced(tmp_path):
    path = export(tmp_path, study_rows(3))[2]
    before = path.read_bytes()
    with pytest.raises(
        HpsearchError, match=r"got the Optuna study 'digits', which is left as it is\. Export to another"
    ):
        export(tmp_path, study_rows(4), identity="digits 2")
    assert path.read_bytes() == before
    export(tmp_path, study_rows(4))
    assert len(optuna_study(path).get_trials()) == 4


def test_a_study_of_someone_elses_beside_the_former_export_is_not_lost(tmp_path):
    path = export(tmp_path, study_rows(3))[2]
    optuna.create_study(storage=optuna_storage(path), study_name="mine")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(HpsearchError, match="got the Optuna study 'mine'"):
        export(tmp_path, study_rows(4))
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"no journal at all", b'{"op_code":0}\n', None])
def test_a_file_that_is_no_storage_is_not_replaced(tmp_path, content):
    path = tmp_path / "optuna.log"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(HpsearchError, match="expected no file, or a former export of this very study"):
        export(tmp_path, study_rows(1))
    assert [file.name for file in tmp_path.iterdir()] == ["optuna.log"]
    assert content is None or path.read_bytes() == content
