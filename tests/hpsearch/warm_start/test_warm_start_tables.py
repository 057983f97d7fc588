"""What tables tell of trials: our own give exactly the params back, of others nothing is guessed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.searchers import Past
from hpsearch.space import Categorical, IntUniform, LogNormal, LogUniform, Normal, Space, Uniform
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_text
from hpsearch.tables.trials import rows_to_csv, trials_dataframe
from hpsearch.trial import TrialRow, TrialState
from hpsearch.warm_start.read import read_warm_start
from hpsearch.warm_start.table import from_csv, from_dataframe
from tests.hpsearch.support.warm import SPACE, warm_sweep

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    st.sampled_from(["1", "1.0", "True", "true", "null", "None", "[1]", "nan", " 1", "a,b", '"', "\r\n", "[64, 64]"]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.", max_size=2), inner, max_size=2)
)
DISTRIBUTIONS = st.one_of(
    st.lists(VALUES, min_size=1, max_size=5).map(Categorical),
    VALUES.filter(lambda value: not isinstance(value, list | dict)),
    st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda ends: Uniform(ends[0], ends[0] + ends[1])),
    st.tuples(st.floats(1e-9, 1e3), st.floats(1.5, 1e6)).map(lambda ends: LogUniform(ends[0], ends[0] * ends[1])),
    st.tuples(st.integers(-(2**60), 2**60), st.integers(1, 2**60)).map(lambda e: IntUniform(e[0], e[0] + e[1])),
    st.just(Uniform(0, 1, step=0.1)),
    st.just(Normal()),
    st.just(LogNormal(step=0.25)),
)
NAMES = ["lr", "loss", "value", "trial", "iteration", "iterations", "state", "width", "metrics.loss", "nested.lr"]


def table_of(sweep: Sweep, values: list[float | None], **changes: Any) -> list[TrialRow]:
    rows = []
    for number, value in enumerate(values):
        params = sweep.parameters.draw(7, number)
        given: dict[str, Any] = {"state": TrialState.COMPLETE, "iterations": 2, "score": value, "params": params}
        given |= {"origin": "random", "checkpoint": None, "failure": None, "seconds": 0.0, "reason": ""}
        rows.append(TrialRow(number, **{**given, **changes}))
    return rows


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(NAMES), DISTRIBUTIONS, min_size=1, max_size=4), st.booleans())
def test_our_own_table_gives_the_same_params_back_or_says_which_cell_stands_for_several_values(tmp_path, given, nested):
    assume(not (nested and "value" in given))  # W&B's notation, which Python refuses
    space = Space.from_parameters({"group": given} if nested else given)
    sweep = warm_sweep(parameters=space, method="random")
    rows = table_of(sweep, [0.5, -math.inf, 1e300, 0.25])
    path = tmp_path / "trials.csv"
    path.write_text(rows_to_csv(rows, space.names), encoding="utf-8", newline="")
    for source in (from_csv(path, sweep), from_dataframe(trials_dataframe(rows, space.names), sweep)):
        assert len(source.trials) == len(rows)
        for found, row in zip(source.trials, rows, strict=True):
            if found.left_out is not None:
                assert "must be told apart in a table" in found.left_out.example
                continue
            assert json.dumps(space.check(found.params)) == json.dumps(row.params)
            assert found.values == {2: row.value}
            assert (found.reached, found.is_complete) == (2, True)


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read(folder: Path, text: str, **changes: Any) -> tuple[list[Past], str]:
    """Read a table for a sweep; return what is taken, and what is said of it."""
    found = read_warm_start([csv_file(folder, text)], warm_sweep(**changes))
    (told,) = found.told
    return list(found.past), told.partition(": ")[2]


def test_any_table_with_the_params_and_the_metric_will_do(tmp_path):
    past, told = read(tmp_path, "lr,loss,note,width\n0.01,0.5,good,20\n1e-3,0.75,,64.0\n\n")
    assert past == [Past({"lr": 0.01, "width": 20}, {2: 0.5}, 2), Past({"lr": 0.001, "width": 64}, {2: 0.75}, 2)]
    assert json.dumps([dict(one.params) for one in past]) == '[{"lr": 0.01, "width": 20}, {"lr": 0.001, "width": 64}]'
    assert told == "2 of 2 taken; columns that weren't read: note"


def test_what_doesnt_fit_is_left_out_and_the_reasons_are_counted(tmp_path):
    rows = ["0.01,0.5,20", ",0.5,20", ",0.5,20", "5,0.5,20", "7,0.5,20", "0.1,0.5,20.5", "0.1,,20", "0.1,good,20"]
    past, told = read(tmp_path, "lr,loss,width\n" + "\n".join(rows))
    assert len(past) == 1
    assert told == (
        "1 of 8 taken; 2 have no lr; 2 have another lr: it must be between 0.0001 and 1.0, got 5.0; 1 has another "
        "width: it must be an integer, got 20.5; 1 has no value; 1 has a cell in loss that can't be read: it must be a "
        "number, got 'good'"
    )


def test_constants_must_be_there_and_equal(tmp_path):
    space = Space.from_parameters({**SPACE, "depth": 3, "act": "relu"})
    text = "lr,width,depth,act,loss\n0.1,5,3,relu,1\n0.1,5,4,relu,1\n0.1,5,3,tanh,1\n0.1,5,,relu,1\n"
    past, told = read(tmp_path, text, parameters=space)
    assert [one.params for one in past] == [{"lr": 0.1, "width": 5, "depth": 3, "act": "relu"}]
    assert "1 has another depth: it must be the constant 3, got 4" in told
    assert "1 has another act: it must be the constant 'relu', got 'tanh'" in told
    assert "1 has no depth" in told


def test_a_missing_parameter_is_its_default_and_another_one_is_dropped(tmp_path):
    added = {"dropout": Uniform(0, 0.5, default=0), "act": Categorical(["relu", "tanh"], default="relu")}
    space = Space.from_parameters({**SPACE, **added, "layers": hpsearch.Constant(2, default=2)})
    text = "params.lr,params.width,params.dropout,params.depth,loss\n0.1,5,,3,1\n0.1,5,0.25,3,2\n0.1,5,0.7,3,1\n"
    past, told = read(tmp_path, text, parameters=space)
    begun = {"lr": 0.1, "width": 5, "dropout": 0.0, "act": "relu", "layers": 2}
    assert [one.params for one in past] == [begun, {**begun, "dropout": 0.25}]
    assert isinstance(past[0].params["dropout"], float)
    assert told == (
        "2 of 3 taken; 1 of these with the default of dropout; 2 of these with the default of act; 2 of these with the "
        "default of layers; 2 of these without depth, which isn't a parameter here; 1 has another dropout: it must be "
        "between 0.0 and 0.5, got 0.7"
    )


def test_a_default_applies_where_its_parameter_does(tmp_path):
    momentum = hpsearch.When("act == 'relu'", Uniform(0, 1, default=0.5))
    branches = hpsearch.Choice({"sgd": {"nesterov": Categorical([False, True], default=False)}, "adam": {}})
    space = Space.from_parameters({"act": ["relu", "tanh"], "momentum": momentum, "by": branches})
    text = "params.act,params.by,params.old,loss\nrelu,sgd,1,1\ntanh,adam,1,2\nrelu,rmsprop,1,3\n"
    past, told = read(tmp_path, text, parameters=space)
    assert [one.params for one in past] == [
        {"act": "relu", "momentum": 0.5, "by": "sgd", "by.sgd.nesterov": False},
        {"act": "tanh", "by": "adam"},
    ]
    assert "1 has another by: it must be one of the values ('sgd', 'adam'), got 'rmsprop'" in told


def test_an_empty_cell_is_null_beside_a_parameter_that_is_dropped(tmp_path):
    sometimes = hpsearch.When("x > 0", Categorical([None, "a"]))
    space = Space.from_parameters({"x": Uniform(0, 1), "sometimes": sometimes})
    past, _ = read(tmp_path, "params.x,params.sometimes,params.old,loss\n0.5,,3,1\n", parameters=space)
    assert [one.params for one in past] == [{"x": 0.5, "sometimes": None}]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Uniform(0.1, 0.5, default=0), "default: must be between 0.1 and 0.5, got 0"),
        (lambda: Categorical(["a", "b"], default="c"), "default: must be one of the values"),
        (lambda: hpsearch.Constant(3, default=4), "default: must be the constant 3, got 4"),
        (lambda: hpsearch.Normal(0, 1, step=1, default=0.5), "default: must be a multiple of 1"),
    ],
)
def test_a_default_is_a_value_that_the_parameter_may_have(make, problem):
    with pytest.raises(SweepError, match=problem):
        make()


def test_choices_are_told_apart_by_their_kind(tmp_path):
    choices = [True, 1, "true", [64, 64], {"b": 1, "a": None}, None]
    space = Space.from_parameters({"c": Categorical(choices), "x": Uniform(0, 9)})
    cells = ["True", "1", "true", '"[64,64]"', '"{""a"": null, ""b"": 1}"', "", "1.0", "no", "False", "0"]
    rows = "".join(f"{cell},{i},1\n" for i, cell in enumerate(cells))
    past, told = read(tmp_path, f"c,x,loss\n{rows}", parameters=space)
    found = {one.params["x"]: json.dumps(one.params["c"]) for one in past}
    assert found == {float(i): json.dumps(c) for i, c in enumerate([*choices, 1])}
    assert "3 have another c" in told


def test_a_cell_that_could_be_two_choices_is_not_guessed(tmp_path):
    space = Space.from_parameters({"c": Categorical([1, "1", None, "", "x"])})
    past, told = read(tmp_path, "c,loss\n1,1\n,1\nx,1\n", parameters=space)
    assert [one.params for one in past] == [{"c": "x"}]
    assert (
        "2 have a cell in c that can't be read: it must be told apart in a table, but '1' stands for 1 and \"1\""
        in told
    )
    frame = pd.DataFrame({"c": pd.Series([1, "1", None, "", "x"], dtype=object), "loss": range(5)})
    found = read_warm_start([frame], warm_sweep(parameters=space))
    assert [json.dumps(one.params["c"]) for one in found.past] == ["1", '"1"', "null", '""', '"x"']


def test_a_choice_without_a_probability_is_left_out(tmp_path):
    space = Space.from_parameters({"c": Categorical(["a", "b", "c"], [0.5, 0.0, 0.5])})
    past, told = read(tmp_path, "c,loss\na,1\nb,1\n", parameters=space)
    assert len(past) == 1
    assert "1 has a c whose probability is 0 here" in told


def test_rows_with_iterations_are_points_of_curves(tmp_path):
    lines = ["trial,lr,width,iteration,loss"]
    lines += [f"{trial},0.1,{width},{i},{trial + 1 / i}" for i in (1, 2, 3) for trial, width in enumerate((5, 5, 6))]
    past, told = read(tmp_path, "\n".join(lines), max_iter=3)
    assert told.startswith("3 of 3 taken")
    assert [dict(one.values) for one in past] == [{i: trial + 1 / i for i in (1, 2, 3)} for trial in range(3)]
    assert {one.until for one in past} == {3}
    past, _ = read(tmp_path, "\n".join(lines), max_iter=2)  # no longer than a trial gets here
    assert [(list(one.values), one.until) for one in past] == [([1, 2], 2)] * 3
    bare = "lr,width,iteration,loss\n0.1,5,1,0.5\n0.1,6,1,0.5\n0.1,5,2,0.25\n0.1,6,2,nan\n"
    past, _ = read(tmp_path, bare, max_iter=9)
    assert [(str(dict(one.values)), one.until) for one in past] == [("{1: 0.5, 2: 0.25}", 2), ("{1: 0.5, 2: nan}", 2)]


def test_values_from_after_the_last_iteration_here_are_no_values_here(tmp_path):
    past, told = read(tmp_path, "lr,width,iteration,loss\n0.1,5,2,0.5\n0.1,6,100,0.4\n")
    assert len(past) == 1
    assert "1 has values only from after iteration 2, the last one here" in told


def test_where_trials_have_no_length_a_trial_that_was_ended_early_stays_one(tmp_path):
    lines = "params.lr,params.width,value,state,iterations\n0.1,5,1,complete,9\n0.1,6,1,stopped,3\n0.1,6,1,failed,3\n"
    past, told = read(tmp_path, lines, max_iter=None)
    assert [(dict(one.values), one.until) for one in past] == [({9: 1.0}, None), ({3: 1.0}, 3)]
    assert "1 failed" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lr,width,accuracy\n0.1,5,1\n", "expected a column 'loss', .* got none; known here: accuracy"),
        ("lr,width,losses\n0.1,5,1\n", "did you mean losses"),
        ("params.lr,params.width,value,metrics.acc\n0.1,5,1,1\n", "expected a column 'loss', .*; known here: acc"),
        ("lr,lr,width,loss\n0.1,0.1,5,1\n", "each column once, but lr occurs twice"),
        ("lr,width,loss\n0.1,5\n", "expected 3 cells in each row, as in the head; row 2 has 2"),
        ("", "an empty file"),
        ("lr,width,loss\n", "got none: 0 of 0 taken"),
        ("lr,width,loss\n5,5,1\n", "got none: 0 of 1 taken; 1 has another lr.* Give the sweep the parameters"),
    ],
)
def test_a_table_that_wont_do_says_why(tmp_path, text, told):
    with pytest.raises(SweepError, match=told):
        read(tmp_path, text)


def test_a_parameter_that_is_called_like_the_metric_needs_our_columns(tmp_path):
    space = Space.from_parameters({"loss": Uniform(0, 1)})
    with pytest.raises(SweepError, match=r"have one name; call the parameter's params\.loss"):
        read(tmp_path, "loss\n0.5\n", parameters=space)
    past, _ = read(tmp_path, "params.loss,loss\n0.5,7\n", parameters=space)
    assert past == [Past({"loss": 0.5}, {2: 7.0}, 2)]


def test_a_dataframe_holds_values_and_not_text():
    space = Space.from_parameters({"c": Categorical(["1", 1, [1]]), "n": IntUniform(1, 9)})
    frame = pd.DataFrame({"c": ["1", 1, "[1]", [1]], "n": [1.0, 2.0, 3.0, math.nan], "loss": [1, 2, 3, 4]})
    found = read_warm_start([frame], warm_sweep(parameters=space))
    assert [one.params for one in found.past] == [{"c": "1", "n": 1}, {"c": 1, "n": 2}, {"c": [1], "n": 3}]
    assert "3 of 4 taken; 1 has no n" in found.told[0]


def test_bytes_that_arent_a_table_are_told_as_such(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"lr,loss\n\xff\xfe,1\n")
    with pytest.raises(SweepError, match="expected a table in CSV, in UTF-8"):
        read_warm_start([path], warm_sweep())
    path.write_text(csv_text(["lr", "width", "loss"], [[0.1, 5, 1.0]]), encoding="utf-8-sig")
    assert len(read_warm_start([path], warm_sweep()).past) == 1
