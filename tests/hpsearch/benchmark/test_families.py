"""Suites of several kinds of tasks: their halves, ranks and intervals, and the command that runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpsearch.benchmark.families import Family, family_rows, ranks
from hpsearch.benchmark.report import differences, interval
from hpsearch.benchmark.rows import RunRow, half_of, hits_of, read_rows, regret_of, write_rows
from hpsearch.benchmark.suite import load_suite, load_suites
from hpsearch.errors import SweepError
from tests.hpsearch.benchmark.test_suites import SUITE, write
from tests.hpsearch.support.command_line import ROOT, call

METHODS = ["random", "asha", "median"]


def row(method: str, task: str, seed: int, *hits: int, tasks: int = 6, family: str = "suite") -> RunRow:
    """Return a run's row, with its hits by 1, 2, ... full trainings."""
    by = {float(budget): float(hit) for budget, hit in enumerate(hits, 1)}
    return RunRow(
        family, tasks, "choose", task, method, 2, seed, 7, "1a2b3c4d", by, {at: 1 - hit for at, hit in by.items()}
    )


def values(**hits: list[int]) -> dict[tuple[str, int], float]:
    """Return numbers by task and seed."""
    return {(task, seed): float(hit) for task, numbers in hits.items() for seed, hit in enumerate(numbers)}


def families_file(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir()
        write(folder / name, name=name)
    path = folder / "families.yaml"
    path.write_text(yaml.safe_dump({"families": [f"{name}/suite.yaml" for name in names]}))
    return path


def test_a_difference_that_is_the_same_everywhere_has_no_width():
    better, worse = values(a=[1, 1], b=[1, 1]), values(a=[0, 0], b=[0, 0])
    assert interval(differences(better, worse)) == (1.0, 1.0)
    assert interval(differences(worse, better)) == (-1.0, -1.0)


def test_an_interval_is_wide_where_tasks_differ_and_pairs_seeds():
    assert interval(differences(values(a=[1, 1], b=[0, 0]), values(a=[0, 0], b=[0, 0]))) == (0.0, 1.0)
    tasks = values(**{name: [1, 0] * 10 for name in "abcdefgh"})
    assert interval(differences(tasks, tasks)) == (0.0, 0.0)  # seed by seed they are equal
    low, high = interval(differences(tasks, values(**{name: [0, 1] * 10 for name in "abcdefgh"})))
    # 160 differences of -1 or 1: their mean has a standard error of 1/sqrt(160) = 0.079
    assert low == pytest.approx(-1.96 * 0.079, abs=0.02)
    assert high == pytest.approx(1.96 * 0.079, abs=0.02)


def test_an_interval_takes_the_seeds_that_both_methods_have():
    assert interval(differences(values(a=[1]), values(a=[0, 1, 1, 1]))) == (1.0, 1.0)
    low, _ = interval(differences(values(a=[1]), values(b=[1])))
    assert low != low


def family(tasks: int, hits: dict[str, int]) -> Family:
    """Return a family whose methods hit on that many of its tasks, by the second of two budgets."""
    rows = [
        row(method, f"task {index}", 0, 0, int(index < count), tasks=tasks, family=f"family {tasks}")
        for method, count in hits.items()
        for index in range(tasks)
    ]
    return Family(rows, list(hits), 2)


def test_methods_are_ranked_within_each_family_that_has_enough_tasks():
    first = family(6, {"random": 0, "asha": 4, "median": 4})
    second = family(7, {"random": 0, "asha": 7, "median": 1, "gp": 7})
    small = family(5, {"random": 5, "asha": 0})
    assert ranks([first, second, small]) == {"random": 3.0, "asha": (1.5 + 1) / 2, "median": (1.5 + 2) / 2}
    rows = list(family_rows([first, second, small]))
    names = [f"family {name}" for name in ("6 (6)", "7 (7)", "5 (5)*")]
    assert rows[0] == ("method", *(cell for name in names for cell in (name, "difference")), "mean rank")
    assert [row[0] for row in rows[1:]] == ["asha", "median", "random", "gp"]
    assert rows[1][1:3] == ("0.00/0.67", "+0.17 to +0.50")  # of the means of the two budgets
    assert rows[2][5:] == ("", "", "1.8")  # it has no runs on the small one
    assert rows[4][-1] == ""
    assert ranks([small]) == {}


def test_halves_have_every_task_once_in_turns(tmp_path):
    suite = load_suite(write(tmp_path, tasks=[f"one.yaml#{index}" for index in range(5)]))
    assert [half_of(suite, task) for task in suite.tasks] == ["choose", "report", "choose", "report", "choose"]


def test_rows_are_read_as_they_were_written(tmp_path):
    first = [row("asha", 'a "task", number 1', seed, 0, 1, 1) for seed in range(2)]
    other = [row("gp", "b", 0, 1, family="small", tasks=1)]
    write_rows(tmp_path / "1.csv", [*first, *other], "hpsearch benchmark families.yaml")
    assert (tmp_path / "1.csv").read_text().startswith("# hpsearch benchmark families.yaml\nfamily,tasks,half,task,")
    assert read_rows([tmp_path / "1.csv"]) == [*first, *other]
    write_rows(tmp_path / "2.csv", [row("asha", "b", 0, 1, 1, 1)], "another")
    assert len(read_rows([tmp_path / "1.csv", tmp_path / "2.csv"])) == 4
    assert hits_of(first) == {(first[0].task, seed): pytest.approx(2 / 3) for seed in range(2)}
    assert (hits_of(other, 1.0), regret_of(other, 1.0)) == ({("b", 0): 1.0}, {("b", 0): 0.0})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: "", r"1.csv: must be the rows of a benchmark, as rows.csv, got no row"),
        (
            lambda text: text + text.splitlines()[-1] + "\n",
            r"1.csv: must have each run once, got suite a asha 2 0 again",
        ),
        (lambda text: text.replace("commit", "comit"), r"1.csv: must be the rows .* got a row .*KeyError\('commit'\)"),
        (lambda text: text.replace("choose", "chose"), r"half must be choose or report"),
        (lambda text: text.replace(",asha,2,", ",asha,two,"), r"must be the rows .*invalid literal"),
        (lambda text: text.replace("regret_1", "regret"), r"there must be hits and regret by the same budgets"),
        (lambda text: text[:-4] + "nan\n", r"hits must be 0 or 1, and regret a number"),
        (lambda text: text.replace("\n", ",7\n").replace(",7", "", 2), r"it must have a cell for each column"),
    ],
)
def test_wrong_rows_name_file_and_row(tmp_path, change, expected):
    write_rows(tmp_path / "1.csv", [row("asha", "a", 0, 1)], "hpsearch benchmark families.yaml")
    (tmp_path / "1.csv").write_text(change((tmp_path / "1.csv").read_text()))
    with pytest.raises(SweepError, match=expected):
        read_rows([tmp_path / "1.csv"])


def test_rows_of_another_suite_of_the_same_name_are_refused(tmp_path):
    write_rows(tmp_path / "1.csv", [row("asha", "a", 0, 1)], "one")
    write_rows(tmp_path / "2.csv", [row("asha", "a", 1, 1, 0)], "another")
    with pytest.raises(SweepError, match=r"2.csv: must have rows of the same .* for suite, got .* budgets 1/2, and"):
        read_rows([tmp_path / "1.csv", tmp_path / "2.csv"])


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
    rows = tmp_path / "out" / "rows.csv"
    assert {(row.family, row.half, row.tasks) for row in read_rows([rows])} == {
        ("first", "report", 2),
        ("second", "report", 2),
    }
    shown = call(capsys, "benchmark", rows)
    assert (shown.code, shown.out.splitlines()[-5:]) == (0, answer.out.splitlines()[-5:])
    *_, line, _ = call(capsys, "benchmark", rows, "--methods", "asha", "--seeds", 1).out.splitlines()
    assert (
        line == "difference: in hits from the first method, mean of the budgets, a 95 % interval over tasks and seeds"
    )
    for more, problem in (
        (("--half", "choose"), "must have rows of these methods"),
        (("--jobs", 2), "--jobs must be with"),
    ):
        wrong = call(capsys, "benchmark", rows, *more)
        assert (wrong.code, problem in wrong.err) == (1, True)
    assert call(capsys, *words, "--half", "report", "--seeds", 1).code == 0
    assert [row.seed for row in read_rows([rows])] == [0] * 4  # the results of other seeds are left aside
    assert "must be one suite, or rows" in call(capsys, "benchmark", rows, path).err


def test_the_published_table_is_made_from_the_published_rows(tmp_path, capsys):
    rows = ROOT / "tests" / "benchmarks" / "results" / "families.csv"
    assert call(capsys, "benchmark", rows, "--dir", tmp_path).code == 0
    assert (tmp_path / "families.md").read_text() in (ROOT / "docs" / "benchmarks.md").read_text()


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
