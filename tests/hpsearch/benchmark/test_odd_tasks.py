"""Tasks with numbers that aren't any, curves of unlike length, and results that other processes left behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpsearch.benchmark.runs import Results, RunCourse, RunKey, carry_out, task_of
from hpsearch.benchmark.suite import Suite, load_suite
from hpsearch.cli import main
from hpsearch.errors import SweepError
from tests.hpsearch.benchmark.test_suites import write


def suite_of(folder: Path, loss: Any, described: dict[str, Any] | None = None, **changes: Any) -> Suite:
    """Write a suite whose first task has these losses, [row, iteration]; what takes no seconds wasn't run."""
    path = write(folder, **changes)
    array = np.array(loss, dtype=np.float64)
    np.savez(folder / "one.npz", x=np.linspace(0.0, 1.0, len(array)), loss=array, time=np.ones(array.shape))
    told = yaml.safe_load((folder / "one.yaml").read_text()) | (described or {})
    (folder / "one.yaml").write_text(yaml.safe_dump(told))
    return load_suite(path)


def test_a_gap_in_a_curve_is_not_its_end(tmp_path):
    """The final value is the last one, however many before it are no number."""
    task = task_of(suite_of(tmp_path, [[9.0, math.nan, 1.0], [9.0, 8.0, 5.0], [9.0, 8.0, 7.0]]), "one.yaml")
    assert (task.best, task.middle) == (1.0, 5.0)


def test_trainings_that_diverge_are_as_bad_as_the_worst(tmp_path):
    losses = [[3.0, 1.0], [3.0, 2.0], [3.0, math.nan], [3.0, math.inf], [3.0, math.nan]]
    suite = suite_of(tmp_path, losses)
    task = task_of(suite, "one.yaml")
    assert (task.best, task.middle, task.regret(3.0)) == (1.0, 2.0, 2.0)
    assert math.isfinite(task.threshold)
    courses = [carry_out(suite, RunKey("one.yaml", "random", 2, seed)) for seed in range(5)]
    assert {regret for course in courses for regret in course.regret} <= {0.0, 1.0, 2.0}


def test_a_report_that_is_no_number_is_not_the_best(tmp_path):
    suite = suite_of(tmp_path, [[math.nan, 2.0], [math.nan, 1.0], [math.nan, 4.0]])
    for seed in range(3):
        assert all(math.isfinite(regret) for regret in carry_out(suite, RunKey("one.yaml", "random", 1, seed)).regret)


def test_what_comes_behind_a_full_training_does_not_count(tmp_path):
    suite = suite_of(tmp_path, [[3.0, 2.0, 0.1], [3.0, 1.0, 0.5], [4.0, 4.0, 0.0]], max_iter=2)
    task = task_of(suite, "one.yaml")
    assert (task.mean_seconds, task.best, task.middle) == (2.0, 1.0, 2.0)
    longer = suite_of(tmp_path, [[3.0, 2.0, 0.1], [3.0, 1.0, 0.5], [4.0, 4.0, 0.0]], max_iter=2,
                      methods={"longer": {"max_iter": 3}})  # fmt: skip
    assert min(carry_out(longer, RunKey("one.yaml", "longer", 1, 0)).regret) < 0


def test_the_last_report_before_a_failure_counts(tmp_path):
    suite = suite_of(tmp_path, [[3.0, 2.0], [3.0, 1.0], [4.0, 4.0]], {"failure": "how"})
    arrays = dict(np.load(tmp_path / "one.npz"))
    np.savez(tmp_path / "one.npz", **arrays, how=np.array(["lost", "lost", "lost"]))
    found = [carry_out(suite, RunKey("one.yaml", "hyperband", 1, seed)).regret[-1] for seed in range(3)]
    assert found == [0.0] * 3


@pytest.mark.parametrize(
    ("loss", "described", "expected"),
    [
        ([[1.0], [1.0], [2.0]], {}, r"one.yaml: a task must tell methods apart, but half .* best value .* 1"),
        ([[1.0], [2.0]], {"seconds": 0}, r"one.yaml: a task must tell methods apart, .* trainings that take no time"),
        ([[math.nan], [math.inf]], {}, r"one.yaml: a task must tell methods apart, .* no training that ends in a num"),
    ],
)
def test_a_task_that_tells_nothing_apart_is_refused(tmp_path, loss, described, expected):
    with pytest.raises(SweepError, match=expected):
        task_of(suite_of(tmp_path, loss, described), "one.yaml")


def test_a_suite_that_is_none(tmp_path):
    with pytest.raises(SweepError, match=r"must be a suite file, but it is a directory"):
        load_suite(tmp_path)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", ["table.md", "regret-2.svg"])
def test_what_can_not_be_written_is_said(tmp_path, capsys, name):
    (tmp_path / "r" / name).mkdir(parents=True)
    suite = write(tmp_path)
    options = ["--methods", "random", "--seeds", "1", "--jobs", "1", "--dir"]
    assert main(["benchmark", str(suite), *options, str(tmp_path / "r")]) == 1
    assert "expected a folder for the table and plots that can be written" in capsys.readouterr().err


def kept(folder: Path) -> set[RunKey]:
    return set(Results(folder / "r", load_suite(folder / "suite.yaml")).courses)


def test_results_of_another_table_share_or_task_do_not_count(tmp_path):
    suite = load_suite(write(tmp_path))
    one, two = RunKey("one.yaml", "random", 2, 0), RunKey("two.yaml", "random", 2, 0)
    results = Results(tmp_path / "r", suite)
    for key in (one, two):
        results.add(key, RunCourse([1.0], [0.5], [False], 3))
    assert kept(tmp_path) == {one, two}
    write(tmp_path, hit=0.2)
    assert not kept(tmp_path)
    write(tmp_path, tasks=["two.yaml"])
    assert kept(tmp_path) == {two}
    write(tmp_path)
    np.savez(tmp_path / "one.npz", **{**np.load(tmp_path / "one.npz"), "more": np.ones(3)})
    assert kept(tmp_path) == {two}
    described = yaml.safe_load((tmp_path / "two.yaml").read_text())
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**described, "start_seconds": 3}))
    assert not kept(tmp_path)


@pytest.mark.parametrize("line", ["7", "[1]", "null", '{"task": "one.yaml"}', '"text"', "{", "\udcff", "{}"])
def test_a_line_that_is_no_result_is_passed_over(tmp_path, line):
    suite = load_suite(write(tmp_path))
    results, key = Results(tmp_path / "r", suite), RunKey("one.yaml", "random", 2, 0)
    results.add(key, RunCourse([1.0], [0.5], [False], 3))
    path = tmp_path / "r" / "runs.jsonl"
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogateescape"))
    results = Results(tmp_path / "r", suite)
    assert set(results.courses) == {key}
    other = RunKey("one.yaml", "asha", 2, 0)
    results.add(other, RunCourse([1.0], [0.5], [False], 3))
    assert kept(tmp_path) == {key, other}
