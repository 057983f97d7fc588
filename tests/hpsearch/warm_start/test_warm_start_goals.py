"""Warm starts of several goals and of constraints on outcomes: from studies of ours, tables, and Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.export.export import export_study
from hpsearch.objective import is_valid
from hpsearch.searchers import Past
from hpsearch.space import Space
from hpsearch.study.warm_start import WarmStart, stored_warm_start
from hpsearch.sweep.parts import Metric
from hpsearch.trial import Goal, JointScore, TrialRow
from hpsearch.warm_start.read import Given, read_warm_start
from tests.hpsearch.support.goals import CONSTRAINED, JOINT, SPACE, TWO_GOALS, study_of_goals
from tests.hpsearch.support.scripted import sweep_of

optuna.logging.set_verbosity(optuna.logging.WARNING)

KINDS: Mapping[str, Mapping[str, Any]] = {"two goals": TWO_GOALS, "joint": JOINT, "constrained": CONSTRAINED}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, kind: str) -> hpsearch.Study:
    directory = tmp_path_factory.mktemp("past") / "study"
    study = study_of_goals(directory, **KINDS[kind])
    curves = {} if study.sweep.objective.several else study.curves()
    export_study(
        study.trials, study.sweep, directory / "export", curves, study.times(), study.identity, study.reports()
    )
    return study


SOURCES = ["study", "study.db", "DataFrame", "export/trials.csv", "export/trials.parquet", "export/optuna.log"]


def source(name: str, study: hpsearch.Study) -> Given:
    if name == "study":
        return study
    return study.trials_dataframe(metrics=True) if name == "DataFrame" else study.directory / name


def begun(given: Given, max_iter: int = 9, **goals: Any) -> WarmStart:
    if isinstance(goals.get("metric"), list):
        goals["metric"] = tuple(goals["metric"])
    sweep = sweep_of(
        method="tpe",
        parameters=Space.from_parameters(SPACE),
        early_terminate=None,
        max_iter=max_iter,
        run_cap=9,
        **goals,
    )
    return read_warm_start([given], sweep)


def by_params(past: WarmStart, rows: list[TrialRow]) -> dict[int, Past]:
    """Return the trials that were read, by their numbers in the other study."""
    numbers = {repr(row.params): row.number for row in rows}
    return {numbers[repr(dict(one.params))]: one for one in past.past}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("max_iter", [9, 27])
def test_every_trial_with_a_score_is_taken_with_it(name: str, max_iter: int, study: hpsearch.Study, kind: str) -> None:
    rows = {row.number: row for row in study.trials if row.score is not None}
    assert {row.state for row in rows.values()} == {"complete", "stopped"}
    found = by_params(begun(source(name, study), max_iter, **KINDS[kind]), study.trials)
    # Some sources tell of NaN, too.
    assert set(rows) <= set(found) <= set(rows) | {3}
    for number, row in rows.items():
        assert found[number].values[row.iterations] == row.score
        assert found[number].until == row.iterations
    if any(isinstance(row.score, JointScore) and math.inf in row.score.excesses for row in rows.values()):
        assert found[4].values[1] == rows[4].score


@pytest.mark.parametrize("name", SOURCES)
def test_constraints_are_those_of_the_sweep_that_begins(name: str, study: hpsearch.Study, kind: str) -> None:
    """The other study's bounds were others, which says nothing of what was measured."""
    if kind == "two goals":
        return
    goals = {**KINDS[kind], "outcome_constraints": ["ms <= 5"]}
    for number, one in by_params(begun(source(name, study), **goals), study.trials).items():
        row = study.trials[number]
        (excess,) = one.values[row.iterations].excesses  # type: ignore[union-attr]
        assert excess == (row.metrics["ms"] - 5.0) / 5.0


@pytest.mark.exhaustive
def test_a_study_keeps_what_it_began_with(study: hpsearch.Study, kind: str, tmp_path: Path) -> None:
    found = begun(study, **KINDS[kind])
    assert any(not is_valid(score) for one in found.past for score in one.values.values()) == (kind != "constrained")
    kept = stored_warm_start(found.to_record())
    assert repr(kept) == repr(found)  # NaN isn't itself
    given = {**KINDS[kind], "early_terminate": None, "max_iter": 2, "run_cap": 4, "method": "tpe"}
    first = study_of_goals(tmp_path / "a", warm_start=study, search={"startup": 1}, **given)
    again = study_of_goals(tmp_path / "a", warm_start=study, search={"startup": 1}, **given)
    assert repr(again.trials) == repr(first.trials)
    assert first.trials[0].origin == "tpe"  # what it began with saves the first draw


def test_other_goals_are_refused(study: hpsearch.Study, kind: str) -> None:
    loss, acc = Metric("loss"), Metric("acc", "maximize")
    others: list[dict[str, Any]] = [
        {"metric": (loss, Metric("acc"))},
        {"metric": (loss, Metric("ms"))},
        {"metric": acc},
        {"metric": (loss, acc), "outcome_constraints": ["size <= 1"]},
        {"metric": Metric("ms"), "outcome_constraints": ["loss <= 20"]},
    ]
    for other in others:
        with pytest.raises(SweepError, match=r"expected (a study|values)"):
            begun(study, **other)
    for name in ("trials.csv", "trials.parquet"):
        with pytest.raises(SweepError, match="expected a column 'size', the sweep's metric, got none"):
            begun(study.directory / "export" / name, **{**others[3], "metric": KINDS[kind]["metric"]})
    for other in others[:3] + others[4:]:
        with pytest.raises(SweepError, match=r"expected (a study of|a study whose goal|values of)"):
            begun(study.directory / "export" / "optuna.log", **other)


def optuna_study(directions: list[Goal], **attributes: Any) -> optuna.Study:
    """A study of another program's, of one trial."""
    study = optuna.create_study(directions=directions)
    space = {
        "x": optuna.distributions.FloatDistribution(0.0, 1.0),
        "kind": optuna.distributions.CategoricalDistribution(["a", "b"]),
    }
    values = [0.5 + place for place in range(len(directions))]
    params = {"x": 0.5, "kind": "a"}
    study.add_trial(optuna.create_trial(values=values, params=params, distributions=space, user_attrs=attributes))
    return study


def test_of_others_optuna_studies_what_is_constrained_is_a_user_attribute() -> None:
    found = begun(optuna_study(["minimize", "maximize"], **{"metrics.ms": 30}), **JOINT)
    assert [one.values for one in found.past] == [{9: JointScore((0.5, 1.5), (0.5, -1.1))}]
    found = begun(optuna_study(["minimize"], **{"metrics.ms": "Infinity"}), **CONSTRAINED)
    assert [one.values for one in found.past] == [{9: JointScore((0.5,), (math.inf,))}]


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, "1 has no ms: it is wanted as user attribute metrics.NAME"),
        (
            {"metrics.ms": "fast"},
            "1 has a user attribute metrics.ms that can't be read: it must be a number, got 'fast'",
        ),
        ({"metrics.ms": [1]}, r"can't be read: it must be a number, got \[1\]"),
        ({"metrics.ms": True}, "can't be read: it must be a number, got True"),
    ],
    ids=str,
)
def test_what_cant_be_judged_is_left_out_and_why_is_told(attributes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SweepError, match=problem):
        begun(optuna_study(["minimize"], **attributes), **CONSTRAINED)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_of_a_foreign_study_the_number_and_order_of_objectives_must_fit() -> None:
    with pytest.raises(SweepError, match="expected a study of 2 objectives, got 1"):
        begun(optuna_study(["minimize"]), **TWO_GOALS)
    with pytest.raises(SweepError, match="expected a study of one objective, got 2"):
        begun(optuna_study(["minimize", "maximize"]), metric=Metric("loss"))
    with pytest.raises(SweepError, match="goal is to minimize loss, as the sweep's, got maximize"):
        begun(optuna_study(["maximize", "minimize"]), **TWO_GOALS)
    named = optuna_study(["minimize", "maximize"])
    named.set_metric_names(["loss", "f1"])
    with pytest.raises(SweepError, match="expected values of 'acc', the sweep's metric, got values of 'f1'"):
        begun(named, **TWO_GOALS)


def test_in_any_table_the_goals_stand_in_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,kind,ms,acc,loss,epoch\n0.5,a,40,0.25,1,1\n0.25,b,10,inf,2,1\n0.75,b,,1,3,1\n")
    found = begun(tmp_path / "t.csv", **JOINT)
    assert [one.values for one in found.past] == [
        {9: JointScore((1.0, 0.25), (1.0, -1.2))},
        {9: JointScore((2.0, math.inf), (-0.5, -1.4))},
    ]
    assert "1 has no value" in found.told[0]
    (tmp_path / "u.csv").write_text("x,kind,acc,loss\n0.5,a,0.25,1\n")
    with pytest.raises(SweepError, match="expected a column 'ms', the sweep's metric, got none"):
        begun(tmp_path / "u.csv", **JOINT)
