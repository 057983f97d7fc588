"""Trials grouped by what they have in common."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.objective import Metric, Objective, OutcomeConstraint
from hpsearch.page.page import page_of
from hpsearch.page.trials import strategies
from hpsearch.results.study import Study
from hpsearch.space.expressions import ABSENT
from hpsearch.tables.groups import Group, by_strategy, group_columns, groups_of, groups_to_csv, groups_to_json
from hpsearch.tables.selection import Fields
from hpsearch.trial import Failure, JointScore, Score, TrialRow, TrialState, Value
from tests.hpsearch.support.pages import Reader, simulated

LOSS = Objective(Metric("loss"))


def row(number: int, group: Value, score: Score | None, **more: object) -> TrialRow:
    params = {} if group is ABSENT else {"how": group}
    made = TrialRow(number, TrialState.COMPLETE, 1, score, params, "random", None, None, float(number), "")
    return replace(made, **more)  # type: ignore[arg-type]


def grouped(rows: Sequence[TrialRow], objective: Objective = LOSS) -> list[Group]:
    return groups_of(rows, Fields(rows, ["how"], objective).find("how", "--by"), objective)


def failed(number: int, group: Value) -> TrialRow:
    return row(number, group, None, state=TrialState.FAILED, failure=Failure("raised", "no", ""))


def test_each_value_has_a_line_and_the_one_with_the_best_trial_comes_first():
    rows = [row(1, "a", 3.0), row(2, "b", 1.0), row(3, "a", 5.0), failed(4, "a"), row(5, "c", None), row(6, "b", 9.0)]
    assert grouped(rows) == [
        Group("b", 2, 0, False, [1.0], [5.0], 4.0),
        Group("a", 3, 1, False, [3.0], [4.0], 2.0),
        Group("c", 1, 0, False, [None], [None], 5.0),
    ]


def test_trials_without_it_are_a_group_and_so_is_null():
    rows = [
        row(1, ABSENT, 1.0),
        row(2, None, 2.0),
        row(3, "", 3.0),
        row(4, True, 4.0),
        row(5, 1, 5.0),
        row(6, 1.0, 6.0),
    ]
    assert [(group.value, group.trials) for group in grouped(rows)] == [
        (ABSENT, 1),
        (None, 1),
        ("", 1),
        (True, 1),
        (1, 1),
        (1.0, 1),
    ]
    assert [type(group.value) for group in grouped(rows)[3:]] == [bool, int, float]


def test_several_goals_have_a_best_and_a_median_each():
    two = Objective((Metric("loss"), Metric("accuracy", "maximize")))
    rows = [
        row(1, "a", JointScore((1.0, 0.5))),
        row(2, "a", JointScore((3.0, 0.9))),
        row(3, "b", JointScore((2.0, 0.95))),
    ]
    found = {str(group.value): (group.best, group.median) for group in grouped(rows, two)}
    assert found == {"a": ([1.0, 0.9], [2.0, 0.7]), "b": ([2.0, 0.95], [2.0, 0.95])}


def test_trials_that_break_constraints_are_counted_and_no_more():
    bounded = Objective(Metric("loss"), (OutcomeConstraint.parse("ms <= 2"),))
    rows = [row(1, "a", JointScore((1.0,), (0.5,))), row(2, "a", JointScore((4.0,), (-0.5,)))]
    assert grouped(rows, bounded) == [Group("a", 2, 0, False, [4.0], [4.0], 1.5)]


def test_without_a_metric_trials_are_counted():
    (group,) = grouped([row(1, "a", None), row(2, "a", None)], Objective(None))
    assert (group.trials, group.best, group.median) == (2, [], [])


def test_the_table_shows_what_there_is():
    field = Fields([row(1, "a", 1.0)], ["how"], LOSS).find("how", "--by")
    rows = [row(1, "a", 3.0), row(2, "b", 1.0, asynchronous=True), row(3, "a", 5.0), row(4, ABSENT, 7.0)]
    columns = group_columns(grouped(rows), field, LOSS)
    assert [column.head for column in columns] == ["how", "trials", "best loss", "median", "asynchronous"]
    cells = list(zip(*(column.cells for column in columns), strict=True))
    assert cells == [("b", "1", "1", "1", "yes"), ("a", "2", "3", "4", ""), ("", "1", "7", "7", "")]
    plain = group_columns(grouped([*rows[:1], failed(9, "a")]), field, LOSS, times=True)
    assert [column.head for column in plain] == ["how", "trials", "failed", "best loss", "median", "median time"]


def test_csv_and_json_hold_the_same():
    rows = [row(1, "a", 0.1 + 0.2), failed(2, "b"), row(3, ABSENT, 2.0)]
    field = Fields(rows, ["how"], LOSS).find("how", "--by")
    assert groups_to_csv(grouped(rows), field, LOSS, times=True) == (
        "params.how,trials,failed,best.loss,median.loss,asynchronous,seconds\n"
        "a,1,0,0.30000000000000004,0.30000000000000004,False,1.0\n"
        ",1,0,2.0,2.0,False,3.0\n"
        "b,1,1,,,False,\n"
    )
    told = json.loads(groups_to_json(grouped(rows), field, LOSS))
    assert told[0] == {
        "params.how": "a",
        "trials": 1,
        "failed": 0,
        "best.loss": 0.1 + 0.2,
        "median.loss": 0.1 + 0.2,
        "asynchronous": False,
    }
    assert groups_to_csv([], field, LOSS) == "params.how\n"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.floats(-5, 5)), max_size=12))
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_any_trials_are_each_in_one_group(goal, given):
    objective = Objective(Metric("loss", goal))
    rows = [row(number, group, score) for number, (group, score) in enumerate(given)]
    field = Fields(rows, ["how"], objective).find("how", "--by")
    lines = {
        line["params.how"]: line
        for line in csv.DictReader(io.StringIO(groups_to_csv(grouped(rows, objective), field, objective)))
    }
    assert lines.keys() == {group for group, _ in given}
    for name, line in lines.items():
        scores = [score for group, score in given if group == name and score is not None]
        assert int(line["trials"]) == sum(group == name for group, _ in given)
        best = (min if goal == "minimize" else max)(scores, default=None)
        assert line["best.loss"] == ("" if best is None else repr(best))
        assert line["median.loss"] == ("" if best is None else repr(median(scores)))


def test_a_trial_that_a_condition_keeps_a_strategy_from_has_the_sections():
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [params["x"]]}),
        parameters={"x": [1.0, 2.0], "parallel": {"strategy": hpsearch.When("x == 1", ["hogwild"])}},
        method="grid",
        max_iter=1,
        resources=hpsearch.Resources(2, workers_per_trial=2),
    )
    assert [column.cells for column in by_strategy(study)[:2]] == [["hogwild", "allreduce"], ["1", "1"]]
    assert [row.asynchronous for row in study.trials] == [True, False]


def test_a_page_compares_strategies_where_the_sweep_searched_over_them():
    def study(values: list[str]) -> Study:
        return simulated(
            lambda params, seed: hpsearch.Curve(
                {"loss": [{"allreduce": 0.5}.get(params["parallel"]["strategy"], 0.25)]}
            ),
            parameters={"parallel": {"strategy": values}},
            method="grid",
            max_iter=1,
            resources=hpsearch.Resources(2, workers_per_trial=2),
        )

    searched = study(["allreduce", "hogwild"])
    section = strategies(searched)
    assert section is not None
    assert section.table is not None
    assert section.table.head == ["parallel.strategy", "trials", "best loss", "median", "asynchronous", "median time"]
    assert [row[:5] for row in section.table.rows] == [
        ("hogwild", "1", "0.25", "0.25", "yes"),
        ("allreduce", "1", "0.5", "0.5", ""),
    ]
    assert section.paragraphs[-1].startswith("A trial of an asynchronous one")
    assert "Strategies" in Reader(page_of([searched]).html()).headings
    assert by_strategy(study(["hogwild"])) == []
    assert strategies(study(["hogwild"])) is None
