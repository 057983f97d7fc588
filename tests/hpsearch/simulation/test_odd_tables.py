"""Tables as other programs write them: what would be misread is read right, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpsearch.errors import SweepError
from hpsearch.simulation.simulation import RecordedFailure
from hpsearch.simulation.table import Recorded, Table
from hpsearch.simulation.table_file import read_table
from hpsearch.space import Space, Uniform
from hpsearch.trial import Segment, Trial
from tests.hpsearch.simulation.test_table_files import describe, written


def columns_of(folder: Path, form: str, columns: dict[str, Any], **described: Any) -> Table:
    """Read a table of one parameter x and one metric acc."""
    if form == "npz":
        np.savez(folder / "curves.npz", **columns)
    elif form == "csv":
        pd.DataFrame(columns).to_csv(folder / "curves.csv", index=False)
    else:
        pd.DataFrame(columns).to_parquet(folder / "curves.parquet")
    basic = {"table": f"curves.{form}", "parameters": {"x": "x"}, "metrics": {"acc": "acc"}}
    return read_table(str(describe(folder, basic | described)))


def all_of(table: Table, x: Any, seed: int = 0, space: Any = None) -> list[float]:
    """Return the metrics of a trial, and the message of its failure if it failed."""
    table.open(Space.from_parameters({"x": space or Uniform(0.0, 1.0)}), "acc")
    found: list[Any] = []
    try:
        for step in table.steps(Trial(0, {"x": x}, seed, "random"), Segment(0, 0, None, None, 1), None):
            found.append(step.metrics["acc"])
    except RecordedFailure as error:
        found.append(str(error))
    return found


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_failure_is_of_one_training_in_whichever_of_its_lines_it_stands(tmp_path, form):
    columns = {
        "x": [0.1, 0.1, 0.1, 0.1, 0.9],
        "rep": ["one", "one", "two", "two", "one"],
        "epoch": [1, 2, 2, 1, 1],
        "acc": [0.1, 0.2, 0.4, 0.3, 0.5],
        "how": [None, None, "CUDA: out", None, None],
    }
    table = columns_of(tmp_path, form, columns, iteration="epoch", repetition="rep", failure="how")
    assert all_of(table, 0.1, seed=0) == [0.1, 0.2]
    assert all_of(table, 0.1, seed=1) == [0.3, 0.4, "CUDA: out"]
    assert all_of(table, 0.9) == [0.5]


def test_a_failure_of_an_array_is_of_a_row_or_of_a_repetition(tmp_path):
    arrays = {"x": np.array([0.1, 0.9]), "acc": np.arange(4.0).reshape(2, 2, 1)}
    of_repetitions = columns_of(tmp_path, "npz", arrays | {"how": np.array([["", "lost"], ["", ""]])}, failure="how")
    assert [all_of(of_repetitions, 0.1, seed) for seed in (0, 1)] == [[0.0], [1.0, "lost"]]
    of_rows = columns_of(tmp_path, "npz", arrays | {"how": np.array([b"", b"lost"])}, failure="how")
    assert [all_of(of_rows, x, 1) for x in (0.1, 0.9)] == [[1.0], [3.0, "lost"]]


@pytest.mark.parametrize("how", [[0, 1], [False, True], [0.0, 1.0]])
@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_a_failure_must_be_a_text(tmp_path, form, how):
    with pytest.raises(SweepError, match=r"failure: must be .*texts?.*, empty where nothing failed"):
        columns_of(tmp_path, form, {"x": [0.1, 0.2], "acc": [1.0, 2.0], "how": how}, failure="how")


def test_a_repetition_that_was_not_run_is_chosen_by_no_seed(tmp_path):
    arrays = {"x": np.array([0.5]), "acc": np.arange(3.0)[None, :, None], "time": np.array([[[np.nan], [1.0], [1.0]]])}
    table = columns_of(tmp_path, "npz", arrays, seconds="time")
    assert [all_of(table, 0.5, seed) for seed in range(4)] == [[1.0], [2.0], [1.0], [2.0]]


def test_lines_that_end_in_a_comma_shift_no_column(tmp_path):
    path = written(tmp_path, "csv", parameters={"x": "x"}, metrics={"acc": "acc"}, iteration=None, seconds=None)
    (tmp_path / "curves.csv").write_text("x,acc\n0.1,0.5,\n0.9,0.7,\n")
    assert all_of(read_table(str(path)), 0.9) == [0.7]
    (tmp_path / "curves.csv").write_text("x,acc\n0.1,0.5,3\n0.9,0.7,4\n")
    with pytest.raises(SweepError, match=r"table: must be a readable \.csv file: .*[Ll]ength"):
        read_table(str(path))


def test_a_column_of_mixed_values_is_read_as_one(tmp_path):
    lines = 60_000  # more than pandas takes at a time
    path = written(tmp_path, "csv", parameters={"x": "x"}, metrics={"acc": "acc"}, iteration="epoch", seconds=None)
    rows = [f"7,0.5,{line + 1}" for line in range(lines)] + ["auto,0.7,1"]
    (tmp_path / "curves.csv").write_text("\n".join(["x,acc,epoch", *rows]))
    table = read_table(str(path))
    assert table.recorded.columns == {"x": ["7", "auto"]}
    assert len(all_of(table, "7", space=["7", "auto"])) == lines


def test_values_that_are_lists_or_missing(tmp_path):
    lists = columns_of(tmp_path, "parquet", {"x": [[1, 2], [3], [1, 2]], "epoch": [1, 1, 2], "acc": [1.0, 2.0, 3.0]},
                       iteration="epoch")  # fmt: skip
    assert all_of(lists, [1, 2], space=[[1, 2], [3]]) == [1.0, 3.0]
    missing = columns_of(tmp_path, "parquet", {"x": pd.array([4, None], dtype="Int64"), "acc": [1.0, 2.0]})
    assert [all_of(missing, x, space=[4, None]) for x in (4, None)] == [[1.0], [2.0]]
    in_bytes = columns_of(tmp_path, "npz", {"x": np.array([b"a", b"b"]), "acc": np.array([1.0, 2.0])})
    assert all_of(in_bytes, "b", space=["a", "b"]) == [2.0]


@pytest.mark.parametrize(
    ("form", "columns", "described", "expected"),
    [
        ("npz", {"acc": np.ones((1, 3))}, {}, r"metrics.acc: must have the axis row of 2 as the others, got 1"),
        ("npz", {"other": np.ones((2, 3))}, {"metrics": {"acc": "acc", "other": "other"}}, r"axis iteration of 2 .* 3"),
        ("npz", {"acc": np.ones((2, 2)) * 1j}, {}, r"metrics.acc: must hold numbers, but acc is of complex"),
        ("npz", {}, {"repetition": "acc"}, r"repetition: is for the lines of a .csv or .parquet file"),
        ("npz", {}, {"parameters": {"x": {"name": "x", "column": 1}}}, r"x.column: is for an array of several columns"),
        ("npz", {"x": np.array(["a", "b"])}, {"parameters": {"x": {"name": "x", "scale": 2}}}, r"x: must hold numbers"),
        ("npz", {"t": np.array(["a", "a"])}, {"tasks": "t"}, r"tasks: must be a list of names, each once"),
        ("csv", {"acc": [1.0, 2.0]}, {"axes": ["row"]}, r"axes: are for the arrays of an .npz archive"),
        ("csv", {"acc": [1, 2]}, {"parameters": {"x": {"name": "x", "column": 1}}}, r"x.column: is for the arrays"),
        ("csv", {"acc": [1, 2], "rep": [1, None]}, {"repetition": "rep"}, r"repetition: must have a value in each"),
        ("csv", {"acc": [1, 2], "it": [1, 1e15]}, {"iteration": "it"}, r"iteration: must count from 1 without a gap"),
        ("csv", {"acc": [1, 2], "x": ["a", "b"]}, {"parameters": {"x": {"name": "x", "scale": 2}}}, r"of numbers"),
        ("parquet", {"acc": [1, 2], "x": [b"a", b"b"]}, {}, r"x: must be a bool, a number, a string, .* got b'a'"),
        ("parquet", {"acc": [1, 2], "x": pd.to_datetime(["2020-01-01", "2021-01-01"])}, {}, r"x must be a bo"),
        ("csv", {"acc": [1.0, 2.0]}, {"metrics": {"acc": {"name": "acc", "cumulative": True}}}, r"isn't a known key"),
    ],
)  # fmt: skip
def test_what_would_be_passed_over_is_refused(tmp_path, form, columns, described, expected):
    with pytest.raises(SweepError, match=expected):
        columns_of(tmp_path, form, {"x": [0.1, 0.2], "acc": np.ones((2, 2)), **columns}, **described)


@pytest.mark.parametrize("kind", ["cut off", "changed", "a single array"])
def test_an_archive_that_is_damaged(tmp_path, kind):
    path, archive = written(tmp_path, "npz"), tmp_path / "curves.npz"
    np.savez_compressed(archive, x=np.arange(1000), acc=np.arange(1000.0))
    whole = archive.read_bytes()
    if kind == "a single array":
        with archive.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        archive.write_bytes(whole[:-100] if kind == "cut off" else whole[:200] + b"z" * 20 + whole[220:])
    with pytest.raises(SweepError, match=r"table.yaml:\d+: table: must be an archive of arrays"):
        read_table(str(path))


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "must be a table file, but it is a dir"), ("", "hold a table")]
)
def test_a_description_that_is_none(tmp_path, content, expected):
    path = tmp_path / "table.yaml"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(SweepError, match=expected):
        read_table(str(path))


def test_arrays_from_python():
    ones = np.ones((2, 1, 1))
    columns: Any = {"x": np.array([1, 2])}
    table = Table(Recorded(columns, {"acc": ones * [[[1.0]], [[2.0]]]}, ones))
    assert [all_of(table, x, space=[1, 2]) for x in (1, 2)] == [[1.0], [2.0]]
    with pytest.raises(SweepError, match=r"the axes row, repetition and iteration, got \[2, 3\]"):
        Recorded({"x": [1, 2]}, {"acc": np.ones((2, 3))}, np.ones((2, 3)))
    with pytest.raises(SweepError, match=r"failures must have 1 repetitions in each row"):
        Recorded({"x": [1, 2]}, {"acc": ones}, ones, [["", ""], ["", ""]])
    with pytest.raises(SweepError, match=r"the table's column for x must be a bool, .* got <object"):
        Recorded({"x": [1, object()]}, {"acc": ones}, ones)
