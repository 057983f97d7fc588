from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective
from hpsearch.tables.trials import (
    rows_to_csv,
    rows_to_json,
    rows_to_table,
    trials_dataframe,
)
from hpsearch.trial import Failure, Params, TrialRow, TrialState

NAMES = ["lr", "opt.name"]
VALUE = Objective(Metric("value"))
REVERTED = "width 4: loss NaN after 0.5"


def row(
    number: int,
    value: float | None,
    state: TrialState = TrialState.COMPLETE,
    params: Params | None = None,
    failure: Failure | None = None,
) -> TrialRow:
    given = {"lr": 0.1, "opt.name": "sgd"} if params is None else params
    return TrialRow(number, state, 3, value, given, "random", None, failure, 1.5, "ran to the end")


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_csv_has_exactly_the_columns_in_the_order_of_the_sweep():
    rows = [
        row(0, 0.1 + 0.2, params={"opt.name": "a,b", "lr": 1e-05}),
        row(1, None, TrialState.FAILED, params={"lr": None, "opt.name": [1, "é", None]}),
        replace(row(2, None, TrialState.STOPPED, params={"lr": 3, "opt.name": True}), width=4),
        row(3, 2.0, TrialState.WAITING, params={"lr": 0.5}),
    ]
    assert rows_to_csv(rows, NAMES) == (
        "trial,state,iterations,value,params.lr,params.opt.name,width\n"
        '0,complete,3,0.30000000000000004,1e-05,"a,b",1\n'
        '1,failed,3,,,"[1, ""é"", null]",1\n'
        "2,stopped,3,,3,True,4\n"
        "3,waiting,3,2.0,0.5,,1\n"
    )


def test_trials_that_give_other_numbers_each_time_are_marked_where_there_are_any():
    rows = [row(0, 0.5), replace(row(1, 0.25), asynchronous=True)]
    assert rows_to_csv(rows, ["lr"]) == (
        "trial,state,iterations,value,params.lr,width,asynchronous\n"
        "0,complete,3,0.5,0.1,1,False\n1,complete,3,0.25,0.1,1,True\n"
    )
    assert [entry.get("asynchronous") for entry in json.loads(rows_to_json(rows, ["lr"]))] == [None, True]
    assert list(trials_dataframe(rows, ["lr"])["asynchronous"]) == [False, True]
    lines = rows_to_table(rows, ["lr"], VALUE).splitlines()
    assert lines[1].split()[-1] == "asynchronous"
    assert [line.split()[-1] for line in lines[3:5]] == ["0.1", "yes"]
    for text in (rows_to_csv(rows[:1], NAMES), rows_to_json(rows[:1], NAMES), rows_to_table(rows[:1], NAMES, VALUE)):
        assert "asynchronous" not in text


def test_times_are_there_only_when_asked_for():
    assert rows_to_csv([row(0, 0.5)], ["lr"], times=True) == (
        "trial,state,iterations,value,params.lr,width,seconds\n0,complete,3,0.5,0.1,1,1.5\n"
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False), st.text()), max_size=5))
def test_csv_gives_back_every_float_and_string(entries):
    rows = [row(number, value, params={"lr": lr, "opt.name": name}) for number, (value, lr, name) in enumerate(entries)]
    text = rows_to_csv(rows, NAMES)
    assert text == rows_to_csv(list(rows), list(NAMES))
    back = read(text)[1:]
    assert [(float(line[3]), float(line[4]), line[5]) for line in back] == entries


def test_json_holds_the_params_as_values_and_is_strict():
    failure = Failure("raised", "ValueError: no", "Traceback")
    rows = [
        row(0, math.inf, params={"lr": [1, 2], "opt.name": None}),
        replace(row(1, None, TrialState.FAILED, failure=failure), width=2, reverted=REVERTED),
    ]

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    parsed = json.loads(rows_to_json(rows, NAMES), parse_constant=refuse)
    assert parsed == [
        {
            "trial": 0,
            "state": "complete",
            "iterations": 3,
            "value": "Infinity",
            "params": {"lr": [1, 2], "opt.name": None},
            "width": 1,
            "lanes": 1,
            "metrics": {},
        },
        {
            "trial": 1,
            "state": "failed",
            "iterations": 3,
            "value": None,
            "params": {"lr": 0.1, "opt.name": "sgd"},
            "width": 2,
            "lanes": 1,
            "metrics": {},
            "reverted": REVERTED,
            "failure": {"kind": "raised", "message": "ValueError: no"},
        },
    ]
    assert json.loads(rows_to_json([], NAMES)) == []


NOT_FINITE = {"loss": math.nan, "up": math.inf, "down": -math.inf, "late": 0.5}


def test_json_tells_nan_and_the_infinities_from_each_other_and_from_nothing():
    rows = [
        replace(row(0, None), metrics=NOT_FINITE),
        row(1, -math.inf),
        row(2, None, TrialState.WAITING),
        replace(row(3, None, TrialState.FAILED), metrics={"loss": math.nan}),
    ]
    told = json.loads(rows_to_json(rows, NAMES, objective=Objective(Metric("loss"))), parse_constant=pytest.fail)
    assert [entry["value"] for entry in told] == ["NaN", "-Infinity", None, None]
    assert told[0]["metrics"] == {"loss": "NaN", "up": "Infinity", "down": "-Infinity", "late": 0.5}


def test_metrics_are_columns_of_the_csv_and_the_frame_where_they_are_asked_for():
    rows = [replace(row(0, None), metrics=NOT_FINITE), replace(row(1, 0.5), metrics={"loss": 0.5})]
    assert rows_to_csv(rows, ["lr"], times=True, metrics=True) == (
        "trial,state,iterations,value,params.lr,width,seconds,"
        "metrics.down,metrics.late,metrics.loss,metrics.up\n"
        "0,complete,3,,0.1,1,1.5,-inf,0.5,nan,inf\n"
        "1,complete,3,0.5,0.1,1,1.5,,,0.5,\n"
    )
    assert rows_to_csv(rows, ["lr"]) == rows_to_csv([row(0, None), row(1, 0.5)], ["lr"])
    frame = trials_dataframe(rows, ["lr"], metrics=True)
    assert list(frame.columns)[-4:] == ["metrics.down", "metrics.late", "metrics.loss", "metrics.up"]
    assert frame["metrics.late"].tolist() == [0.5, None]
    head = rows_to_table(rows, ["lr"], Objective(Metric("loss")), metrics=True).strip().splitlines()[0]
    assert head.split() == ["trial", "state", "iterations", "loss", "lr", "down", "late", "up"]


def test_the_order_in_which_metrics_were_reported_changes_no_table():
    rows = [replace(row(n, 0.5), metrics={name: 1.0 for name in order}) for n, order in enumerate(("ab", "ba"))]
    texts = [rows_to_csv(rows[::step], ["lr"], metrics=True).splitlines()[0] for step in (1, -1)]
    assert texts[0] == texts[1]


def test_table_shows_a_failed_trials_message_in_one_line_and_no_markup():
    failure = Failure("raised", "ValueError: [bold]bad[/bold]\nmore", "Traceback")
    rows = [row(0, 0.97222222), row(1, None, TrialState.FAILED, failure=failure)]
    text = rows_to_table(rows, NAMES, objective=Objective(Metric("accuracy")))
    lines = text.splitlines()
    assert [word in lines[1] for word in ("trial", "accuracy", "lr", "opt.name", "failure")] == [True] * 5
    assert "0.9722" in text
    assert "ValueError: [bold]bad[/bold]" in text
    assert "more" not in text
    assert "\x1b" not in text


def test_table_has_no_failure_column_without_failures():
    assert "failure" not in rows_to_table([row(0, 0.5)], NAMES, VALUE)


def test_table_shows_widths_only_where_some_trial_had_another_than_1():
    rows = [row(0, 0.5), row(1, 0.25)]
    assert "width" not in rows_to_table(rows, NAMES, VALUE)
    head, _, first, second = rows_to_table([rows[0], replace(rows[1], width=4)], NAMES, VALUE).strip().splitlines()
    assert head.split()[-1] == "width"
    assert [line.split()[-1] for line in (first, second)] == ["1", "4"]


def test_table_says_why_a_trial_was_taken_back():
    rows = [row(0, 0.5), replace(row(1, 0.25), reverted=f"{REVERTED}\nmore")]
    head, _, first, second = rows_to_table(rows, NAMES, VALUE).strip().splitlines()
    assert head.endswith("taken back")
    assert second.endswith(REVERTED)
    assert first.split()[-1] == "sgd"


def test_dataframe_has_the_csvs_columns_and_types_that_fit():
    rows = [
        row(0, 0.5, params={"lr": 0.1, "opt.name": "sgd", "n": 3, "x": None}),
        row(1, None, TrialState.FAILED, params={"lr": 0.2, "opt.name": "adam", "n": 4, "x": 2}),
    ]
    names = ["lr", "opt.name", "n", "x"]
    frame = trials_dataframe(rows, names)
    assert list(frame.columns) == rows_to_csv(rows, names).splitlines()[0].split(",")
    assert frame["params.n"].dtype == "int64"
    assert frame["params.lr"].dtype == "float64"
    assert frame["params.x"].tolist() == [None, 2]
    assert frame["state"].tolist() == ["complete", "failed"]
    assert math.isnan(frame["value"][1])
    read_back = pd.read_csv(io.StringIO(rows_to_csv(rows, names[:3])))
    pd.testing.assert_frame_equal(read_back, trials_dataframe(rows, names[:3]))


LACKING = [
    row(0, 0.5, params={"lr": 0.1, "n": 3, "flag": True, "name": "a", "mixed": None}),
    row(1, 0.25, params={"lr": 0.2, "n": 2**60 + 1, "name": "b", "mixed": [1]}),
    row(2, 0.75, params={}),
]
LACKING_NAMES = ["lr", "n", "flag", "name", "mixed", "never"]


def test_a_param_that_a_trial_lacks_is_an_empty_cell_and_no_null():
    assert rows_to_csv(LACKING, LACKING_NAMES).splitlines()[1:] == [
        "0,complete,3,0.5,0.1,3,True,a,,,1",
        "1,complete,3,0.25,0.2,1152921504606846977,,b,[1],,1",
        "2,complete,3,0.75,,,,,,,1",
    ]
    assert [entry["params"] for entry in json.loads(rows_to_json(LACKING, LACKING_NAMES))] == [
        dict(row.params) for row in LACKING
    ]
    lines = rows_to_table(LACKING, LACKING_NAMES, VALUE).splitlines()
    assert [line.split()[3:] for line in lines if "complete" in line] == [
        ["0.5", "0.1", "3", "True", "a", "null"],
        ["0.25", "0.2", "1152921504606846977", "b", "[1]"],
        ["0.75"],
    ]


def test_a_param_that_a_trial_lacks_is_na_in_a_dataframe_whose_other_values_stay_as_they_are():
    frame = trials_dataframe(LACKING, LACKING_NAMES)
    lacking = {name: [name not in row.params for row in LACKING] for name in LACKING_NAMES}
    for name in ("lr", "n", "flag", "name", "never"):
        assert frame[f"params.{name}"].isna().tolist() == lacking[name]
    assert [str(frame[f"params.{name}"].dtype) for name in ("lr", "n", "flag")] == ["float64", "Int64", "boolean"]
    assert frame["params.n"][1] == 2**60 + 1  # and no float
    assert frame["params.lr"].mean() == pytest.approx(0.15)
    assert frame["params.mixed"].tolist()[:2] == [None, [1]]
    assert frame["params.mixed"][2] is pd.NA


def test_dataframe_of_no_trials_has_the_columns():
    frame = trials_dataframe([], ["lr"])
    assert list(frame.columns) == ["trial", "state", "iterations", "value", "params.lr", "width"]
    assert frame["width"].dtype == "int64"
    assert len(frame) == 0


def test_tables_load_no_pandas_before_a_dataframe_is_asked_for():
    code = (
        "import sys, hpsearch.tables.trials, hpsearch.export.export\n"
        "assert not {'numpy', 'scipy', 'pandas', 'optuna', 'torch', 'ray'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
