"""Suites, runs on them and what is made of their results."""

from __future__ import annotations

import json
import math
import random
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpsearch.benchmark.report import aligned, differences, markdown, over_tasks, suite_rows
from hpsearch.benchmark.rows import run_row
from hpsearch.benchmark.runs import (
    Results,
    RunCourse,
    RunKey,
    carry_out,
    hits_at,
    keys_of,
    regret_at,
    run_missing,
    task_of,
)
from hpsearch.benchmark.suite import Suite, load_suite, load_suites
from hpsearch.errors import StorageError, SweepError
from hpsearch.journal.provenance import code_version
from tests.hpsearch.support.command_line import ROOT

ROWS, EPOCHS = 40, 9

SUITE: dict[str, Any] = {
    "tasks": ["one.yaml", "two.yaml"],
    "max_iter": EPOCHS,
    "budgets": [2, 5, 10],
    "hit": 0.1,
    "seeds": 2,
    "workers": [2],
    "sweep": {"metric": {"name": "loss", "goal": "minimize"}, "parameters": {"x": {"min": 0.0, "max": 1.0}}},
    "methods": {"asha_from_3": {"early_terminate": {"type": "asha", "min_iter": 3}}},
}


def write(folder: Path, **changes: Any) -> Path:
    """Write a suite of two tables, and return its path."""
    generator = np.random.default_rng(1)
    for name in ("one", "two"):
        xs = np.linspace(0.0, 1.0, ROWS)
        final = (xs - generator.random()) ** 2
        loss = final[:, None] + 1.0 / np.arange(1, EPOCHS + 1)
        np.savez(folder / f"{name}.npz", x=xs, loss=loss, time=1.0 + generator.random((ROWS, EPOCHS)))
        described = {"table": f"{name}.npz", "parameters": {"x": "x"}, "metrics": {"loss": "loss"}, "seconds": "time"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(described))
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in {**SUITE, **changes}.items() if value is not None}))
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return load_suite(write(tmp_path))


def test_a_suite_knows_the_methods_of_hpsearch_and_its_own(suite):
    searchers = ["random", "qmc", "tpe", "bohb", "gp", "cmaes", "nsga2", "evolution", "spectral"]
    schedulers = ["hyperband", "successive_halving", "asha", "pasha", "median"]
    assert list(suite.known) == [*searchers, *schedulers, "auto", "asha_from_3"]
    suite.check([name for name in suite.known if name != "cmaes"])  # which needs two numbers to move
    bohb = suite.sweep_of("bohb", "two.yaml", 0, 1, 1.0).early_terminate
    assert (bohb.kind, bohb.max_iter) == ("asha", EPOCHS)
    sweep = suite.sweep_of("asha_from_3", "two.yaml", 7, 3, 100.0)
    assert sweep.early_terminate is not None
    assert (sweep.early_terminate.max_iter, sweep.seed, sweep.resources.workers) == (EPOCHS, 7, 3)
    assert (sweep.limits.max_time, sweep.iterations) == (100.0, EPOCHS)
    assert suite.sweep_of("random", "one.yaml", 0, 1, 1.0).max_iter == EPOCHS


def test_auto_has_the_runs_of_the_method_that_it_chooses(tmp_path):
    suite = load_suite(write(tmp_path, methods={"short": {"method": "auto", "run_cap": 20}}))
    assert {name: suite.run_as(name) for name in ("auto", "bohb", "short")} == {
        **{"auto": "bohb", "bohb": "bohb"},
        "short": "short",  # it chooses gp, but gp has no run_cap here
    }


def test_the_target_of_a_suites_sweep_ends_no_run_before_its_last_budget(tmp_path):
    suite = load_suite(write(tmp_path, sweep={**SUITE["sweep"], "metric": {"name": "loss", "target": 1e9}}))
    assert suite.sweep_of("random", "one.yaml", 0, 1, 1.0).objective.goals[0].target is None


def test_what_is_good_on_a_task(suite):
    task = task_of(suite, "one.yaml")
    recorded = task.table.recorded
    final = recorded.metrics["loss"][:, 0, -1]
    assert task.mean_seconds == pytest.approx(recorded.seconds.sum(axis=2).mean())
    assert task.best == final.min()
    assert task.regret(final.min()) == 0.0
    assert task.regret(float(np.median(final))) == pytest.approx(1.0)
    assert (final <= task.threshold).sum() == 4  # the best tenth of forty


def test_more_is_better_where_the_goal_says_so(tmp_path):
    suite = load_suite(write(tmp_path, sweep={**SUITE["sweep"], "metric": {"name": "loss", "goal": "maximize"}}))
    task = task_of(suite, "one.yaml")
    values = task.table.recorded.metrics["loss"][:, 0]
    assert task.best == -values.max()  # at the first epoch, as losses fall
    assert (-values[:, -1] <= task.threshold).sum() == 4


@pytest.mark.parametrize("method", ["random", "hyperband", "asha", "median"])
def test_a_run_notes_each_better_report_and_when_it_came(suite, method):
    course = carry_out(suite, RunKey("one.yaml", method, 2, 0))
    assert course == carry_out(suite, RunKey("one.yaml", method, 2, 0))
    assert list(course.at) == sorted(course.at)
    assert list(course.regret) == sorted(course.regret, reverse=True)
    assert 0 < course.at[0] < course.at[-1] <= 10.0
    assert course.trials >= 5
    assert course.hit == sorted(course.hit)
    assert carry_out(suite, RunKey("one.yaml", method, 2, 1)) != course


def test_a_full_training_is_one_equivalent_whatever_the_number_of_workers(suite):
    """With W workers random search ends W trials after W equivalents or so."""
    for workers in (1, 5):
        course = carry_out(suite, RunKey("one.yaml", "random", workers, 0))
        assert course.trials == pytest.approx(10, abs=workers + 1)


def test_repetitions_are_searched_one_by_one_and_judged_by_their_mean(tmp_path):
    suite = load_suite(write(tmp_path))
    xs = np.linspace(0.0, 1.0, ROWS)
    lucky = np.stack([xs, -xs], axis=1)[:, :, None]  # [row, repetition, iteration]: by the mean all are the same
    np.savez(tmp_path / "one.npz", x=xs, loss=lucky + 0.001 * xs[:, None, None], time=np.ones((ROWS, 2, 1)))
    courses = [carry_out(suite, RunKey("one.yaml", "random", 2, seed)) for seed in range(6)]
    task = task_of(suite, "one.yaml")
    assert task.judged.shape == (ROWS, 1)
    known = {round(task.regret(value), 9) for value in task.judged[:, 0]}
    assert {round(regret, 9) for course in courses for regret in course.regret} <= known
    # What looks better isn't always.
    assert any(list(course.regret) != sorted(course.regret, reverse=True) for course in courses)


@pytest.mark.exhaustive
def test_results_are_kept_and_gone_on_with(suite, tmp_path):
    keys = keys_of(suite.tasks, ["random", "asha"], [2], 2)
    assert len(keys) == len(set(keys)) == len(keys_of(suite.tasks, ["random", "asha"], [1, 2], 1)) == 2 * 2 * 2
    told: list[tuple[int, int]] = []
    results = Results(tmp_path / "r", suite)
    run_missing(suite, results, keys[:5], 2, lambda done, total: told.append((done, total)))
    assert told == [(done, 5) for done in range(6)]
    again = Results(tmp_path / "r", suite)
    assert again.courses == results.courses
    run_missing(suite, again, keys, 2, lambda done, total: told.append((done, total)))
    assert told[6:] == [(done, 8) for done in range(5, 9)]
    assert again.courses == {key: replace(carry_out(suite, key), commit=code_version()) for key in keys}


def test_a_line_that_a_kill_cut_off_is_run_again(suite, tmp_path):
    keys = keys_of(suite.tasks, ["random"], [2], 2)
    results = Results(tmp_path / "r", suite)
    run_missing(suite, results, keys, 1, lambda done, total: None)
    path = tmp_path / "r" / "runs.jsonl"
    names = ["task", "method", "workers", "seed", "digest", "at", "regret", "hit", "trials", "commit"]
    assert [[*json.loads(line)] for line in path.read_text().splitlines()] == [names] * len(keys)
    path.write_text(path.read_text()[:-30])
    cut = Results(tmp_path / "r", suite)
    assert len(cut.courses) == len(keys) - 1
    run_missing(suite, cut, keys, 1, lambda done, total: None)
    assert Results(tmp_path / "r", suite).courses == results.courses


def test_results_of_a_method_that_was_changed_do_not_count(tmp_path):
    suite = load_suite(write(tmp_path))
    key, other = RunKey("one.yaml", "asha_from_3", 2, 0), RunKey("one.yaml", "random", 2, 0)
    results = Results(tmp_path / "r", suite)
    for each in (key, other):
        results.add(each, carry_out(suite, each))
    write(tmp_path, methods={"asha_from_3": {"early_terminate": {"type": "asha", "min_iter": 2}}})
    assert Results(tmp_path / "r", load_suite(tmp_path / "suite.yaml")).courses.keys() == {other}


def test_a_place_that_can_not_be_written(suite, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="expected a folder for results"):
        Results(tmp_path / "file", suite)


def course(at: list[float], regret: list[float], hit: list[bool]) -> RunCourse:
    return RunCourse(at, regret, hit, 1)


def test_hits_and_regret_at_a_budget():
    run = course([1.0, 2.0, 4.0], [0.9, 0.5, 0.1], [False, False, True])
    assert [regret_at(run, budget) for budget in (0.5, 1.0, 3.9, 4.0, 9.0)] == [1.0, 0.9, 0.5, 0.1, 0.1]
    assert [hits_at(run, budget) for budget in (0.5, 3.9, 4.0, 9.0)] == [0.0, 0.0, 1.0, 1.0]


def test_means_are_over_tasks_and_their_errors_too():
    chance = random.Random(3)
    values = {(task, seed): chance.random() for task in "abc" for seed in range(4)}
    by_task = [np.mean([values[task, seed] for seed in range(4)]) for task in "abc"]
    mean = over_tasks(values)
    assert mean.value == pytest.approx(np.mean(by_task))
    assert mean.error == pytest.approx(np.std(by_task, ddof=1) / math.sqrt(3))
    gain = over_tasks(differences({key: value + 0.25 for key, value in values.items()}, values))
    assert gain.value == pytest.approx(0.25)
    assert gain.error == pytest.approx(0.0, abs=1e-12)
    assert str(over_tasks({key: value for key, value in values.items() if key[0] == "a"})) == f"{by_task[0]:.3f}"


def test_the_table_names_what_was_run_alone(suite):
    keys = keys_of(suite.tasks, ["random", "asha"], [2], 2)
    rows = list(
        suite_rows([run_row(suite, key, carry_out(suite, key)) for key in keys], ["random", "asha", "median"], [2, 4])
    )
    lines = aligned(rows).splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [["random", "2", "4"], ["asha", "2", "4"]]
    assert lines[0].split("  ")[0] == "method"
    assert "over random" in lines[0]
    assert len({line.count("|") for line in markdown(rows).splitlines()}) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tasks": None}, r"suite.yaml:1: tasks: is required"),
        ({"tasks": []}, r"tasks: must name at least one task"),
        ({"tasks": ["one.yaml", "one.yaml"]}, r"tasks: must name at least one task, and each once"),
        ({"max_iter": 0}, r"suite.yaml:\d+: max_iter: must be at least 1, got 0"),
        ({"budgets": [5, 2]}, r"suite.yaml:\d+: budgets: must be numbers of full trainings, more than 0 and rising"),
        ({"hit": 1}, r"hit: must be a share of the rows"),
        ({"sweep": {**SUITE["sweep"], "run_cap": 3}}, r"sweep.run_cap: follows from methods"),
        ({"sead": 3}, r"sead: isn't a known key\n.*did you mean seeds\?"),
        ({"workers": []}, r"workers: must name at least one number of workers, and each once"),
        ({"workers": [2, 2]}, r"workers: must name at least one number of workers, and each once"),
        ({"methods": {"mine": {"resources": {"workers": 2}}}}, r"methods.mine.resources: follows from tasks and"),
        ({"methods": {"mine": {"seed": 2}}}, r"methods.mine.seed: follows from tasks and budgets"),
        ({"workers": [0]}, r"workers\[0\]: must be at least 1"),
        ({"methods": {"mine": 3}}, r"methods.mine: must be a mapping, got 3"),
    ],
)
def test_a_wrong_suite_names_file_line_and_key(tmp_path, changes, expected):
    with pytest.raises(SweepError, match=expected):
        load_suite(write(tmp_path, **changes))


def test_a_method_of_another_form_is_told(tmp_path):
    suite = load_suite(write(tmp_path, methods={"mine": {"early_terminate": "asha"}}))
    with pytest.raises(SweepError, match=r"method mine: early_terminate: must be a mapping"):
        suite.check(["mine"])


def test_a_method_that_is_none_is_told_before_anything_runs(tmp_path):
    suite = load_suite(write(tmp_path, methods={"mine": {"early_terminate": {"type": "asha", "min_itr": 2}}}))
    with pytest.raises(SweepError, match=r"method mine: early_terminate.min_itr: isn't a known key\n.*min_iter"):
        suite.check(["mine"])
    with pytest.raises(SweepError, match=r"there is no method ashe; did you mean asha\?"):
        suite.check(["ashe"])


def test_a_table_that_is_missing_is_told_before_anything_runs(suite, tmp_path):
    (tmp_path / "two.npz").unlink()
    with pytest.raises(SweepError, match=r"two.yaml:\d+: table: must be a file"):
        run_missing(suite, Results(tmp_path / "r", suite), keys_of(suite.tasks, ["random"], [2], 1), 1, lambda *_: None)


def test_tables_may_lie_elsewhere(tmp_path):
    path = write(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "two.npz").rename(data / "two.npz")
    assert task_of(load_suite(path, data), "two.yaml").best > 0


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "benchmarks").glob("*.yaml")), ids=lambda path: path.name)
def test_the_suites_of_the_configs_load(path):
    for suite in load_suites(path):
        suite.check(suite.able)
        assert set(suite.known) - set(suite.able) <= {"cmaes"}
        for task in suite.tasks:
            assert Path(suite.trainable(task).partition("#")[0]).is_file()
        json.dumps(suite.sweep)


def test_the_table_of_cells_is_the_one_that_is_made():
    tables = ROOT / "configs" / "tables"
    made = runpy.run_path(str(tables / "make_cells.py"))
    suite = load_suite(tables.parent / "benchmarks" / "cells.yaml")
    assert len(suite.tasks) == made["TASKS"]
    cells = made["all_cells"]()
    for seed, name in enumerate(suite.tasks):
        table = task_of(suite, name).table
        columns = [table.recorded.columns[f"cell.{edge}"] for edge in made["EDGES"]]
        assert list(zip(*columns, strict=True)) == [tuple(made["OPERATIONS"][op] for op in cell) for cell in cells]
        accuracy = table.recorded.metrics["accuracy"][:, 0]
        np.testing.assert_allclose(accuracy, made["curves"](cells, seed) / 100, rtol=0, atol=0.00051)
        assert set(table.recorded.seconds[0, 0]) == {1.0}  # of the cell without operations
