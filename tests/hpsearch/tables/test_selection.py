"""What of a trial can be named, and what a name means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from hpsearch.errors import HpsearchError
from hpsearch.objective import Metric, Objective
from hpsearch.tables.selection import Fields, ordered, where
from hpsearch.trial import Failure, TrialRow, TrialState, Value

LOSS = Objective(Metric("loss"))
TWO = Objective((Metric("loss"), Metric("size")))


def row(number: int, params: Mapping[str, Value], **metrics: float) -> TrialRow:
    score = metrics.get("loss")
    return TrialRow(number, TrialState.COMPLETE, 1, score, params, "random", None, None, 1.0, "", metrics=metrics)


def reported(number: int, **metrics: float) -> TrialRow:
    """Return a trial without a value, because its report contains NaN."""
    return TrialRow(number, TrialState.COMPLETE, 1, None, {}, "random", None, None, 1.0, "", metrics=metrics)


def numbers(rows: list[TrialRow], text: str, objective: Objective = LOSS) -> list[int]:
    names = list(dict.fromkeys(name for one in rows for name in one.params))
    return [one.number for one in where(rows, Fields(rows, names, objective), text)]


def fields(params: list[str], objective: Objective = LOSS, **metrics: float) -> Fields:
    return Fields([row(0, dict.fromkeys(params, 1), **{"loss": 1.0, **metrics})], params, objective)


def test_a_param_called_as_the_csv_calls_what_decides_must_be_named_whole():
    rows = [row(0, {"value": 5.0}, loss=1.0), row(1, {"value": 0.5}, loss=9.0)]
    with pytest.raises(HpsearchError, match=r"'value' must say which is meant: loss or params\.value"):
        numbers(rows, "value > 3")
    assert numbers(rows, "params.value > 3") == [0]
    assert numbers(rows, "loss > 3") == [1]
    with pytest.raises(HpsearchError, match=r"'values\.loss' must say which is meant: loss or params\.values\.loss"):
        fields(["values.loss"], TWO, size=1.0).find("values.loss", "--sort")


def test_groups_that_are_called_as_columns_are_of_the_csv_must_be_named_whole():
    found = fields(["lr", "params.lr", "metrics.loss"])
    with pytest.raises(HpsearchError, match=r"'params\.lr' must say which is meant: lr or params\.params\.lr"):
        found.find("params.lr", "--where")
    assert found.find("lr", "--where").name == "params.lr"
    assert found.find("params.params.lr", "--where").head == "params.lr"
    with pytest.raises(HpsearchError, match=r"'metrics\.loss' must say which is meant"):
        found.find("metrics.loss", "--where")


def test_what_decides_is_meant_by_its_name_and_what_was_reported_last_by_metrics():
    found = fields(["lr"])
    assert found.find("loss", "--where").name == "value"
    assert found.find("value", "--where").head == "loss"
    assert found.find("metrics.loss", "--where").name == "metrics.loss"
    assert found.find("trial.width", "--where").name == "width"
    with pytest.raises(HpsearchError, match="must name what trials have, got 'los'; did you mean loss"):
        found.find("los", "--where")


@pytest.mark.parametrize("metric", ["loss", "metrics.loss", "metrics.other"])
def test_a_trial_that_reported_nan_matches_nothing_that_reads_it(metric):
    rows = [
        row(0, {}, loss=1.0, other=1.0),
        reported(1, loss=math.nan, other=math.nan),
        row(2, {}, loss=3.0, other=3.0),
    ]
    assert numbers(rows, f"{metric} != 3") == [0]
    assert numbers(rows, f"not {metric} < 3") == [2]
    assert numbers(rows, f"{metric} not in [1, 2]") == [2]
    assert numbers(rows, f"{metric} != {metric}") == []
    assert numbers(rows, f"max(0, {metric}) < 2") == [0]
    assert numbers(rows, f"present({metric})") == [0, 1, 2]
    assert numbers(rows, f"isnan({metric})") == [1]
    assert numbers(rows, f"not isnan({metric})") == [0, 2]


def test_of_several_goals_the_one_that_is_nan_is_found():
    rows = [reported(0, loss=math.nan, size=2.0), reported(1, loss=1.0, size=math.nan), reported(2, loss=1.0)]
    assert numbers(rows, "isnan(loss)", TWO) == [0]
    assert numbers(rows, "isnan(size)", TWO) == [1]


def test_a_failed_trial_has_no_value_whatever_it_reported_last():
    failure = Failure("raised", "no", "")
    failed = replace(reported(0, loss=math.nan), state=TrialState.FAILED, failure=failure)
    assert numbers([failed], "isnan(loss) or present(loss)") == []
    assert numbers([failed], "isnan(metrics.loss)") == [0]


@pytest.mark.parametrize(
    "text", ["state == 'done'", "state != 'done'", "'done' == trial.state", "state in ['failed', 'done']"]
)
def test_a_state_that_no_trial_can_have_is_refused(text):
    with pytest.raises(
        HpsearchError, match=r"state must be one that trials have, got 'done'; known here: waiting, .*failed"
    ):
        numbers([row(0, {}, loss=1.0)], text)


def test_a_state_that_is_nearly_right_is_told():
    with pytest.raises(HpsearchError, match="got 'completed'; did you mean complete"):
        numbers([row(0, {}, loss=1.0)], "state == 'completed'")


def test_a_param_called_state_may_be_anything():
    assert numbers([row(0, {"state": "done"}, loss=1.0)], "params.state == 'done'") == [0]


def test_trials_without_it_do_not_match_and_come_last():
    rows = [row(0, {"a": 1}), row(1, {"b": None, "drop-out": 0.1}), row(2, {"a": 3}, loss=math.nan), row(3, {"a": 2})]
    assert numbers(rows, "a < 3") == [0, 3]
    assert numbers(rows, "not a < 3") == [2]
    assert numbers(rows, "not present(a)") == [1]
    assert numbers(rows, "b == null") == [1]
    assert numbers(rows, "`drop-out` > 0 or a > 9") == [1]
    assert numbers(rows, "1 / (a - 1) > 0") == [2, 3]
    names = ["a", "b", "drop-out"]
    assert [one.number for one in ordered(rows, Fields(rows, names, LOSS), "a:desc")] == [2, 3, 0, 1]
