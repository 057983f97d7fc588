"""Suites of several kinds of tasks: their halves, ranks and intervals, and the command that runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpsearch.benchmark.families import Family, family_rows, half_of, interval, ranks
from hpsearch.benchmark.runs import Results, RunCourse, RunKey
from hpsearch.benchmark.suite import load_suite, load_suites
from hpsearch.errors import SweepError
from tests.hpsearch.benchmark.test_suites import SUITE, write
from tests.hpsearch.support.command_line import call

METHODS = ["random", "asha", "median"]


def course(hit: bool) -> RunCourse:
    return RunCourse([1.0], [0.0], [hit], 1)


def runs(method: str, **hits: list[int]) -> dict[RunKey, RunCourse]:
    """Return runs of which one by task and seed hit or didn't, by 1.0 full trainings."""
    return {
        RunKey(task, method, 2, seed): course(bool(hit)) for task, row in hits.items() for seed, hit in enumerate(row)
    }


def families_file(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir()
        write(folder / name, name=name)
    path = folder / "families.yaml"
    path.write_text(yaml.safe_dump({"families": [f"{name}/suite.yaml" for name in names]}))
    return path


def test_a_difference_that_is_the_same_everywhere_has_no_width():
    better, worse = runs("asha", a=[1, 1], b=[1, 1]), runs("random", a=[0, 0], b=[0, 0])
    assert interval(better, worse, 1.0) == (1.0, 1.0)
    assert interval(worse, better, 1.0) == (-1.0, -1.0)
    assert interval(better, worse, 0.5) == (0.0, 0.0)  # nothing was found by then


def test_an_interval_is_wide_where_tasks_differ_and_pairs_seeds():
    assert interval(runs("asha", a=[1, 1], b=[0, 0]), runs("random", a=[0, 0], b=[0, 0]), 1.0) == (0.0, 1.0)
    tasks = {name: [1, 0] * 10 for name in "abcdefgh"}
    assert interval(runs("asha", **tasks), runs("random", **tasks), 1.0) == (0.0, 0.0)  # seed by seed they are equal
    opposite = {name: [0, 1] * 10 for name in "abcdefgh"}
    low, high = interval(runs("asha", **tasks), runs("random", **opposite), 1.0)
    # 160 differences of -1 or 1: their mean has a standard error of 1/sqrt(160) = 0.079
    assert low == pytest.approx(-1.96 * 0.079, abs=0.02)
    assert high == pytest.approx(1.96 * 0.079, abs=0.02)


def test_an_interval_takes_the_seeds_that_both_methods_have():
    assert interval(runs("gp", a=[1]), runs("random", a=[0, 1, 1, 1]), 1.0) == (1.0, 1.0)
    low, _ = interval(runs("gp", a=[1]), runs("random", b=[1]), 1.0)
    assert low != low


def family(folder: Path, tasks: int, hits: dict[str, int]) -> Family:
    """Return a family whose methods hit on that many of its tasks."""
    folder.mkdir()
    suite = load_suite(write(folder, tasks=[f"one.yaml#{index}" for index in range(tasks)], budgets=[1, 2]))
    results = Results(folder / "results", suite)
    for method, count in hits.items():
        row = {task: [int(index < count)] for index, task in enumerate(suite.tasks)}
        results.courses |= runs(method, **row)
    return Family(suite, results, list(hits), 2, judged=tasks >= 6)


def test_methods_are_ranked_within_each_family_that_has_enough_tasks(tmp_path):
    first = family(tmp_path / "first", 6, {"random": 0, "asha": 4, "median": 4})
    second = family(tmp_path / "second", 7, {"random": 0, "asha": 7, "median": 1, "gp": 7})
    small = family(tmp_path / "small", 5, {"random": 5, "asha": 0})
    assert ranks([first, second, small]) == {"random": 3.0, "asha": (1.5 + 1) / 2, "median": (1.5 + 2) / 2}
    rows = list(family_rows([first, second, small]))
    assert rows[0] == (
        "method",
        "suite (6)",
        "difference",
        "suite (7)",
        "difference",
        "suite (5)*",
        "difference",
        "mean rank",
    )
    assert [row[0] for row in rows[1:]] == ["asha", "median", "random", "gp"]
    assert rows[1][1:3] == ("0.67/0.67", "+0.33 to +1.00")
    assert rows[2][5:] == ("", "", "1.8")  # it has no runs on the small one
    assert rows[4][-1] == ""


def test_halves_have_every_task_once_in_turns(tmp_path):
    names = [f"one.yaml#{index}" for index in range(5)]
    suite = load_suite(write(tmp_path, tasks=names))
    assert half_of(suite, "choose").tasks == ("one.yaml#0", "one.yaml#2", "one.yaml#4")
    assert half_of(suite, "report").tasks == ("one.yaml#1", "one.yaml#3")
    assert half_of(suite, None) is suite


def test_methods_that_learn_may_have_fewer_seeds(tmp_path):
    suite = load_suite(write(tmp_path, learning_seeds=1))
    assert {method: suite.seeds_of(method) for method in ("random", "asha", "tpe", "bohb")} == {
        **{"random": 2, "asha": 2},
        **{"tpe": 1, "bohb": 1},
    }
    assert load_suite(write(tmp_path)).seeds_of("tpe") == 2


def test_one_suite_is_a_family_of_its_own(tmp_path):
    assert load_suites(write(tmp_path)) == [load_suite(tmp_path / "suite.yaml")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"families": []}, r"families.yaml:1: families: must name at least one suite's file, and each once"),
        ({"families": ["a.yaml", "a.yaml"]}, r"families: must name at least one suite's file, and each once"),
        ({"families": ["a.yaml"], "seeds": 3}, r"families.yaml:\d: seeds: isn't a known key"),
        ({"families": ["no.yaml"]}, r"no.yaml: must be a suite file, but it doesn't exist"),
        ({"families": ["a.yaml", "b.yaml"]}, r"families: must have names that differ"),
    ],
)
def test_wrong_families_name_file_and_key(tmp_path, content, expected):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**SUITE, "name": "same"}))
    path = tmp_path / "families.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(SweepError, match=expected):
        load_suites(path)


def test_the_command_runs_each_family_and_prints_one_table(tmp_path, capsys):
    path = families_file(tmp_path, "first", "second")
    words = ("benchmark", path, "--methods", "random,asha", "--jobs", 1, "--dir", tmp_path / "out")
    answer = call(capsys, *words, "--half", "report")
    assert answer.code == 0
    assert "hits by first: 2/5/10; second: 2/5/10" in answer.out
    *_, head, _, best, worst, _, remark = answer.out.splitlines()
    assert head.split("  ")[0] == "method"
    assert {best.split()[0], worst.split()[0]} == {"random", "asha"}
    assert remark == "*: fewer than 6 tasks, not in the mean rank"
    assert (tmp_path / "out" / "families.md").read_text().count("\n") == 4
    lines = (tmp_path / "out" / "first" / "runs.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 2  # one task, two methods and seeds
    assert all('"two.yaml"' in line for line in lines)
    again = call(capsys, *words, "--half", "report")
    assert "4 of 4 runs are there already" in again.err


def test_a_half_that_has_no_task_is_told(tmp_path, capsys):
    (tmp_path / "single").mkdir()
    single = write(tmp_path / "single", name="single", tasks=["one.yaml"])
    answer = call(capsys, "benchmark", single, "--half", "report")
    assert answer.code == 1
    assert "suite.yaml: must have two tasks for --half report, but it has one" in answer.err
    path = families_file(tmp_path, "first")
    path.write_text(yaml.safe_dump({"families": ["single/suite.yaml", "first/suite.yaml"]}))
    words = ("--half", "report", "--methods", "random", "--jobs", 1, "--dir", tmp_path / "out")
    answer = call(capsys, "benchmark", path, *words)
    assert answer.code == 0
    assert answer.out.startswith("single: left out, as it has one task\n")


def test_a_method_that_no_family_knows_is_an_error(tmp_path, capsys):
    answer = call(capsys, "benchmark", families_file(tmp_path, "first", "second"), "--methods", "random,ashe")
    assert answer.code == 1
    assert "there is no method ashe; did you mean asha?" in answer.err
