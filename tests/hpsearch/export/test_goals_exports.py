"""Exports and tables of several goals, and of one whose outcomes are constrained."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from optuna.trial import TrialState as OptunaState

import hpsearch
from hpsearch.export.export import export_study
from hpsearch.tables.trials import rows_to_csv, rows_to_json, rows_to_table
from hpsearch.trial import TrialRow, TrialState
from tests.hpsearch.support.goals import CONSTRAINED, JOINT, TWO_GOALS, study_of_goals
from tests.hpsearch.support.optuna_journal import optuna_study

KINDS: Mapping[str, Mapping[str, Any]] = {"two goals": TWO_GOALS, "joint": JOINT, "constrained": CONSTRAINED}


@pytest.fixture(scope="module", params=KINDS)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> hpsearch.Study:
    return study_of_goals(tmp_path_factory.mktemp("exports") / "study", **KINDS[request.param])


@pytest.fixture(scope="module")
def folder(study: hpsearch.Study) -> Path:
    curves = {} if study.sweep.objective.several else study.curves()
    export_study(
        study.trials, study.sweep, study.directory / "export", curves, study.times(), study.identity, study.reports()
    )
    return study.directory / "export"


def columns_of(study: hpsearch.Study) -> list[str]:
    goals = study.sweep.objective.goals
    values = [f"values.{goal.name}" for goal in goals] if len(goals) > 1 else ["value"]
    feasible = ["feasible"] if study.sweep.outcome_constraints else []
    return ["trial", "state", "iterations", *values, *feasible, "params.x", "params.kind", "width"]


METRICS = ["metrics.acc", "metrics.loss", "metrics.ms"]


def value_cells(study: hpsearch.Study, row: TrialRow) -> dict[str, float | None]:
    """Return the cells of the columns of values: none if a trial failed, or if one of its values is NaN."""
    goals = study.sweep.objective.goals
    names = [f"values.{goal.name}" for goal in goals] if len(goals) > 1 else ["value"]
    reported = [row.metrics.get(goal.name, math.nan) for goal in goals]
    known = row.state != TrialState.FAILED and not any(map(math.isnan, reported))
    return {name: value if known else None for name, value in zip(names, reported, strict=True)}


def is_feasible(study: hpsearch.Study, row: TrialRow) -> bool | None:
    """Say it by what was reported, None where there is no score."""
    if None in value_cells(study, row).values():
        return None
    return row.metrics["ms"] <= 20 and row.metrics["loss"] >= -5


def test_csv_has_the_values_of_each_goal_and_what_is_feasible(study: hpsearch.Study) -> None:
    objective = study.sweep.objective
    text = rows_to_csv(study.trials, study.names, metrics=True, objective=objective)
    head, *rows = csv.reader(io.StringIO(text))
    assert head == [*columns_of(study), *METRICS]
    for row, cells in zip(study.trials, rows, strict=True):
        given = dict(zip(head, cells, strict=True))
        assert {name: float(given[name]) if given[name] else None for name in value_cells(study, row)} == value_cells(
            study, row
        )
        if objective.constraints:
            assert given["feasible"] == {True: "True", False: "False", None: ""}[is_feasible(study, row)]
    assert {"inf", "nan"} <= {cell for row in rows for cell in row}


def test_the_exported_csv_has_what_is_constrained(study: hpsearch.Study, folder: Path) -> None:
    head = (folder / "trials.csv").read_text().splitlines()[0].split(",")
    assert head == [*columns_of(study), *(METRICS if study.sweep.outcome_constraints else [])]


def test_json_has_the_values_by_name(study: hpsearch.Study) -> None:
    objective = study.sweep.objective
    entries = json.loads(rows_to_json(study.trials, study.names, objective=objective))

    def number(cell: Any) -> float | None:
        return None if cell is None else float(cell)  # "NaN" and "-Infinity" among them

    for row, entry in zip(study.trials, entries, strict=True):
        expected = {name.removeprefix("values."): value for name, value in value_cells(study, row).items()}
        if objective.several:
            given = {name: number(value) for name, value in entry["values"].items()}
            assert "value" not in entry
            if None in expected.values():
                nans = {name for name in expected if math.isnan(row.metrics.get(name, 0.0))}
                assert given.keys() == (set() if row.state == TrialState.FAILED else nans)
                assert all(value is not None and math.isnan(value) for value in given.values())
            else:
                assert given == expected
        else:
            assert number(entry["value"]) == expected["value"]
        assert entry.get("feasible", "none") == (is_feasible(study, row) if objective.constraints else "none")
    assert json.dumps(entries, allow_nan=False)


def test_dataframe_and_parquet_have_the_same_columns_as_numbers(study: hpsearch.Study, folder: Path) -> None:
    frames = [study.trials_dataframe(metrics=True), pd.read_parquet(folder / "trials.parquet")]
    for frame in frames:
        assert list(frame.columns) == [*columns_of(study), *METRICS]
        for place, row in enumerate(study.trials):
            for name, value in value_cells(study, row).items():
                cell = frame[name][place]
                assert math.isnan(cell) if value is None else cell == value
                assert frame[name].dtype == "float64"
            if study.sweep.outcome_constraints:
                feasible = is_feasible(study, row)
                cell = frame["feasible"][place]
                assert pd.isna(cell) if feasible is None else cell == feasible


def test_the_terminal_shows_what_each_trial_breaks(study: hpsearch.Study) -> None:
    objective = study.sweep.objective
    text = rows_to_table(study.trials, study.names, objective)
    head, *_ = text.strip().splitlines()
    goals = [goal.name for goal in objective.goals]
    assert head.split()[3 : 3 + len(goals)] == goals
    assert ("breaks" in head) == ("ms" in head) == bool(objective.constraints)
    lines = {int(line.split()[0]): line for line in text.splitlines() if line.split() and line.split()[0].isdecimal()}
    for row in study.trials:
        broken = bool(objective.constraints) and is_feasible(study, row) is False
        assert ("ms <= 20" in lines[row.number]) == broken


def test_optuna_reads_values_and_constraints(study: hpsearch.Study, folder: Path) -> None:
    objective = study.sweep.objective
    found = optuna_study(folder / "optuna.log")
    assert [direction.name.lower() for direction in found.directions] == [goal.goal for goal in objective.goals]
    assert found.metric_names == [goal.name for goal in objective.goals]
    for row, trial in zip(study.trials, found.trials, strict=True):
        cells = list(value_cells(study, row).values())
        assert trial.values == (None if None in cells else cells)
        expected = {}
        if None not in cells and objective.constraints:
            expected = {"ms <= 20": (row.metrics["ms"] - 20) / 20}
            if objective.several:
                expected["loss >= -5"] = (-5 - row.metrics["loss"]) / 5
        assert trial.constraints == expected
        assert trial.user_attrs["iterations"] == row.iterations or row.state == TrialState.FAILED
    assert [trial.state for trial in found.trials].count(OptunaState.FAIL) >= 1


@pytest.mark.some_cases(1)
def test_optunas_best_trials_are_our_front_of_those_that_ran_to_their_end(
    tmp_path: Path, study: hpsearch.Study
) -> None:
    """Optuna leaves out what was stopped early, and so do we here."""
    objective = study.sweep.objective
    given: dict[str, Any] = {"early_terminate": None, "max_iter": 2, "run_cap": 25}
    constraints = list(study.sweep.outcome_constraints)
    metric = list(objective.goals) if objective.several else objective.goals[0]
    whole = study_of_goals(tmp_path / "study", metric=metric, outcome_constraints=constraints, **given)
    curves = {} if objective.several else whole.curves()
    export_study(whole.trials, whole.sweep, tmp_path, curves, whole.times(), whole.identity, whole.reports())
    rows = {row.number: row for row in whole.trials if row.state == TrialState.COMPLETE and row.feasible}
    assert 5 < len(rows) <= 24
    front = [row.number for row in whole.leaders]
    assert set(front) <= rows.keys()
    assert [trial.number for trial in optuna_study(tmp_path / "optuna.log").best_trials] == front
    assert [found.number for found in whole.best_trials] == front
    # The slow way.
    points = {number: objective.point(row.score) for number, row in rows.items() if row.score is not None}
    assert front == [
        number
        for number, point in points.items()
        if not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points.values()
        )
    ]
