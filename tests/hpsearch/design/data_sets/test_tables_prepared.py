"""Tables made ready for a search, and predicted for by what is left of it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from hpsearch.design.data_sets import DataSetError, prepare
from hpsearch.design.data_sets.preprocessing import load, transform
from hpsearch.design.data_sets.reading import read_table
from tests.hpsearch.design.data_sets.designed import alone, inputs_alone, loaded, prepared, rows_of, write_csv

CITIES = ["Oslo", "Rome", "Bern", "NA", ""]


def mixed(rows: int = 60, seed: int = 0) -> dict[str, list]:
    """Return a table with columns of every kind."""
    rng = np.random.default_rng(seed)
    return {
        "age": [("" if row % 7 == 0 else f"{value:.3f}") for row, value in enumerate(rng.normal(40, 10, rows))],
        "income": [repr(float(value)) for value in np.exp(rng.normal(0, 5, rows))],
        "city": [CITIES[number] for number in rng.integers(5, size=rows)],
        "member": [["true", "False", "nan"][number] for number in rng.integers(3, size=rows)],
        "since": [f"20{10 + row % 14}-0{1 + row % 9}-{1 + row % 28:02}T{row % 24:02}:00" for row in range(rows)],
        "kind": [["1.0", "2.0"][row % 2] for row in range(rows)],
    }


def test_the_same_rows_give_the_same_numbers_without_hpsearch(tmp_path):
    table = mixed(300)
    source = write_csv(tmp_path / "a.csv", table)
    found = prepared(source, "kind", tmp_path / "o")
    turned = {name: cells[::-1] for name, cells in reversed(table.items()) if name != "kind"}
    typed = pd.DataFrame(
        {
            "since": pd.to_datetime(table["since"]),
            "more": [[1]] * 300,
            "member": pd.array([{"true": True, "False": False}.get(cell) for cell in table["member"]], "boolean"),
            "city": pd.Categorical([cell or None for cell in table["city"]]),
            "income": [float(cell) for cell in table["income"]],
            "age": [float(cell or "nan") for cell in table["age"]],
        }
    )
    typed.to_parquet(tmp_path / "c.parquet")
    one = write_csv(tmp_path / "d.csv", {name: [cells[7]] for name, cells in table.items()})
    inputs = inputs_alone(tmp_path / "o", source, write_csv(tmp_path / "b.csv", turned), tmp_path / "c.parquet", one)
    ours = np.concatenate([loaded(tmp_path / "o", part)[0] for part in ("search", "test")])
    assert ours.dtype == np.float32
    assert ours.shape == (found.search_rows + found.test_rows, *found.inputs) == (300, *found.inputs)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, inputs[0]))
    for other in (inputs[1][::-1], inputs[2]):
        np.testing.assert_array_equal(inputs[0], other)
    np.testing.assert_array_equal(inputs[0][7], inputs[3][0], "a row depends on no other")


def test_predictions_come_in_the_order_of_the_rows_with_labels_as_they_were_written(tmp_path):
    source = write_csv(tmp_path / "a.csv", mixed())
    prepared(source, "kind", tmp_path / "o")
    answer = alone(tmp_path / "o", source.resolve())
    assert (answer.returncode, answer.stderr) == (0, "")
    rows = rows_of(answer.stdout)
    assert len(rows) == 60
    assert list(rows[0]) == ["prediction", "probability of 1.0", "probability of 2.0"]
    assert {row["prediction"] for row in rows} <= {"1.0", "2.0"}
    turned = write_csv(tmp_path / "b.csv", {name: cells[::-1] for name, cells in mixed().items()})
    assert alone(tmp_path / "o", turned, "--output", tmp_path / "p.csv").stdout == ""
    assert rows_of((tmp_path / "p.csv").read_text())[::-1] == rows


cells = st.one_of(
    st.floats(width=64).map(repr),
    st.integers(-(2**60), 2**60).map(str),
    st.sampled_from(["", "NA", " a ", "b", "true", "no", "2024-05-31", "1,5", "'", '"', "a,b", "1e400", "-0.0", "é\n"]),
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_table_gives_the_same_numbers_in_prepare_and_in_predict_or_a_clear_error(data):
    rows, width = data.draw(st.integers(20, 40)), data.draw(st.integers(1, 4))
    table: dict[str, list] = {}
    for number in range(width):
        few = data.draw(st.lists(cells, min_size=1, max_size=5))
        table[f"c{number}"] = data.draw(st.lists(st.sampled_from(few), min_size=rows, max_size=rows))
    table["y"] = [str(row % 2) for row in range(rows)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_csv(folder / "a.csv", table)
        try:
            prepare(source, "y", folder / "o")
        except DataSetError:
            return
        ours = [loaded(folder / "o", part)[0] for part in ("search", "test")]
        fitted = load(folder / "o/model")
        order = data.draw(st.permutations(range(rows)))
        names = data.draw(st.permutations(list(table)))
        read = [
            read_table(write_csv(folder / "b.csv", {key: [table[key][row] for row in numbers] for key in keys}))
            for keys, numbers in ((list(table), range(rows)), (names, order))
        ]
        plain, turned = (transform(fitted, one.columns, one.location, str) for one in read)
    assert np.isfinite(plain).all()
    np.testing.assert_array_equal(plain[list(order)], turned)
    assert sorted(map(bytes, np.concatenate(ours))) == sorted(map(bytes, plain))


def test_the_test_rows_shape_nothing_that_is_fitted(tmp_path):
    table = mixed(100)
    found = []
    for much in (1.0, 1e6):
        source = write_csv(tmp_path / "a.csv", table)
        prepare(source, "kind", tmp_path / "o")
        fitted = json.loads((tmp_path / "o/model/preprocessing.json").read_text())
        found.append(fitted["columns"])
        inputs = inputs_of(tmp_path, source)
        tested = {bytes(row) for row in loaded(tmp_path / "o", "test")[0]}
        table["age"] = [
            repr(float(cell) * much * 1e6) if bytes(row) in tested and cell else cell
            for cell, row in zip(table["age"], inputs, strict=True)
        ]
    assert found[0] == found[1]


def inputs_of(tmp_path: Path, source: Path) -> np.ndarray:
    table = read_table(source)
    return transform(load(tmp_path / "o/model"), table.columns, table.location, str)


def test_equal_rows_lie_on_one_side_of_the_split_and_classes_on_both(tmp_path):
    table = mixed(100)
    source = write_csv(tmp_path / "a.csv", {name: cells * 2 for name, cells in table.items()})
    found = prepare(source, "kind", tmp_path / "o")
    (search, targets), (test, tested) = (loaded(tmp_path / "o", part) for part in ("search", "test"))
    assert not {bytes(row) for row in search} & {bytes(row) for row in test}
    assert 30 <= len(test) <= 50
    assert np.bincount(tested).min() >= 15
    assert found.class_rows == tuple(np.bincount(targets))
    assert any("on one side" in line for line in found.lines)


def test_equal_rows_are_parted_where_there_are_few_others_and_this_is_said(tmp_path):
    source = write_csv(tmp_path / "a.csv", {"x": ["a", "b"] * 50, "y": ["u", "v", "v", "u"] * 25})
    found = prepare(source, "y", tmp_path / "o")
    assert found.test_rows == 20
    assert "20 of the 20 test rows have the same inputs as one that the search sees" in found.warnings


def test_the_split_follows_from_the_seed(tmp_path):
    source = write_csv(tmp_path / "a.csv", mixed(100))
    tests = []
    for seed in (0, 0, 1):
        prepare(source, "kind", tmp_path / "o", seed=seed)
        tests.append(loaded(tmp_path / "o", "test")[0].tobytes())
    assert tests[0] == tests[1] != tests[2]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([5] * 40, "`x`: it is the same in all rows"),
        (range(1, 41), "`x`: it numbers the rows"),
        ([2**53 + 3 * n for n in range(40)], r"`x`: it holds whole numbers beyond 2\*\*53"),
        ([f"name {n}" for n in range(40)], "`x`: it holds 40 different texts in 40 rows"),
        ([f"{1 + n % 28}/{1 + n // 28}/2024" for n in range(40)], "`x`: it seems to hold dates"),
        (["NA", "", " ", "nan"] * 10, "`x`: there is nothing in it"),
        ([f"{n + 1}e300" for n in range(40)], r"`x`: it holds no number up to 1e\+150"),
        (["1e300"] + [f"{n}.25" for n in range(39)], r"missing: 2.5 % in `x`"),
        (["1e300"] + [f"{n}.25" for n in range(39)], r"`x`: 1 numbers beyond 1e\+150 are taken as missing"),
        (["0.5", "1.5"] * 20, "`x` tells the target"),
        (["1.5"] + ["oops"] + [f"{n}.25" for n in range(38)], r"`x` holds numbers, and 1 cells .*'oops' \(.*line 3\)"),
        ([10.0**n for n in range(40)], "logarithms are taken, as tails are heavy: `x`"),
    ],
)
def test_what_is_odd_about_a_column_is_said(tmp_path, column, words):
    table = {"x": list(column), "z": [n % 7 + 0.5 for n in range(40)], "y": ["a", "b"] * 20}
    found = prepare(write_csv(tmp_path / "a.csv", table), "y", tmp_path / "o")
    assert re.search(words, "\n".join(found.lines + found.warnings))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["1,5", "2,5"] * 20, "a.csv, line 2: column 'x' must hold numbers with a decimal point"),
        (
            ["2024-01-01T00:00+01:00", "2024-01-02T00:00"] * 20,
            "line 2: column 'x' must hold times that all have a time",
        ),
        ([1] * 40, "must have a column to predict from, got none that is informative"),
    ],
)
def test_a_column_that_can_be_read_in_two_ways_is_refused(tmp_path, column, words):
    with pytest.raises(DataSetError, match=words):
        prepare(write_csv(tmp_path / "a.csv", {"x": column, "y": ["a", "b"] * 20}), "y", tmp_path / "o")


@pytest.mark.parametrize(
    ("labels", "goal", "expected"),
    [
        (["1", "0"], None, ("0", "1")),
        (["1.0", "0.0"], "f1", ("0.0", "1.0")),
        (["True", "False"], None, ("False", "True")),
        (["10", "9", "é"], None, ("10", "9", "é")),
        (["10", "9"], None, ("9", "10")),
        (["0.5", "2"], None, None),
        (["1", "2"], "rmse", None),
    ],
)
def test_labels_stay_as_they_were_written(tmp_path, labels, goal, expected):
    table = {"x": [n / 7 for n in range(60)], "y": (labels * 60)[:60]}
    found = prepare(write_csv(tmp_path / "a.csv", table), "y", tmp_path / "o", goal=goal)
    assert found.classes == expected
    targets = np.concatenate([loaded(tmp_path / "o", part)[1] for part in ("search", "test")])
    assert targets.dtype == (np.float32 if expected is None else np.int64)
    if expected is None:
        assert sorted(set(targets)) == sorted(map(float, labels))


@pytest.mark.parametrize(
    ("labels", "goal", "words"),
    [
        (["1", "1.0"], None, "each class written in one way, got '1' and '1.0'"),
        (["a"], None, "at least two classes, got 'a' alone"),
        (["a", "1"], "rmse", "line 2: 'y' must hold finite numbers for the goal rmse, got 'a'"),
        (["1", "inf"], "rmse", "line 3: 'y' must hold finite numbers"),
        (["3"], "rmse", "more than one value"),
        (["1700000000.1", "1700000000.2"], "rmse", "more than a float32 rounds off"),
        ([""], None, "at least 20 rows with a target, got 0"),
        (["1", "2"], "accurcy", "goal: must be one of accuracy, .*got 'accurcy'"),
    ],
)
def test_targets_that_make_no_sense(tmp_path, labels, goal, words):
    table = {"x": [n / 7 for n in range(60)], "y": (labels * 60)[:60]}
    with pytest.raises(DataSetError, match=words):
        prepare(write_csv(tmp_path / "a.csv", table), "y", tmp_path / "o", goal=goal)


def test_rows_without_a_target_are_left_out_and_rare_classes_said(tmp_path):
    table = {"x": [n / 7 for n in range(60)], "y": ["NA"] * 5 + ["rare"] + ["a", "b"] * 27}
    found = prepare(write_csv(tmp_path / "a.csv", table), "y", tmp_path / "o")
    assert found.search_rows + found.test_rows == 55
    assert found.classes == ("a", "b", "rare")
    assert found.class_rows is not None
    assert found.class_rows[2] == 1, "one alone is never tested on"
    assert found.warnings[0] == "5 rows are left out, whose target is missing (written 'NA')"
    assert "1 class has fewer than 10 rows" in found.warnings[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "must be a table, with names of columns in its first line, but it is empty"),
        ("x,y\n1,2\n1,2,3\n", r"a.csv, line 3: must have 2 cells, as the first line has, got 3 between ','"),
        ('x,y\n"a\nb",2\n\n1\n', r"a.csv, line 5: must have 2 cells"),
        ("x,y,x\n1,2,3\n", "must name each column once, got 'x' as columns 1 and 3"),
        ("x,y\n1,2\nx,y\n", "a.csv, line 3: must be a row, got the names of the columns again"),
        ("1,2.5\n3,4\n", "must have names of columns in its first line, got numbers alone"),
        ('x,y\n1,"2\n3,4\n', "from line 2 on: must be CSV"),
        ("x,z\n1,2\n", "target: must be one of the columns of .*a.csv, got 'y'; there are 'x', 'z'"),
        (b"x,y\n\xff,1\n", "must be text in UTF-8, got byte 0xff"),
    ],
)
def test_files_that_are_no_tables(tmp_path, content, words):
    (tmp_path / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataSetError, match=words):
        prepare(tmp_path / "a.csv", "y", tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_semicolons_and_a_byte_order_mark_change_nothing(tmp_path, delimiter):
    frame = pd.DataFrame(mixed())
    frame.to_csv(tmp_path / "a.csv", index=False, sep=delimiter, encoding="utf-8-sig", lineterminator="\r\n")
    frame.to_csv(tmp_path / "b.csv", index=False)
    first, second = (read_table(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert first.columns == second.columns
    assert list(first.columns) == list(frame)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"age": ["40"] * 59 + ["old"]}, "line 61: column 'age' must hold numbers, .* got 'old'"),
        ({"age": ["1,5"] * 60}, "line 2: column 'age' must hold numbers, with a point .* got '1,5'"),
        ({"age": ["1_0"] * 60}, "line 2: column 'age' must hold numbers, .* got '1_0'"),
        ({"member": ["maybe"] * 60}, "line 2: column 'member' must hold true or false, got 'maybe'"),
        ({"since": ["2024-01-01T00:00Z"] * 60}, "line 2: column 'since' must hold dates .*without a time zone"),
        ({"age": None, "city": None}, "must have all columns that were trained on, but lacks 'age', 'city'; there are"),
    ],
)
def test_new_rows_of_another_kind_are_refused_by_row_and_column(tmp_path, change, words):
    prepared(write_csv(tmp_path / "a.csv", mixed()), "kind", tmp_path / "o")
    table = {name: cells for name, cells in (mixed() | change).items() if cells is not None}
    answer = alone(tmp_path / "o", write_csv(tmp_path / "b.csv", table))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert re.search(words, answer.stderr)
    assert "Traceback" not in answer.stderr


def test_what_training_never_saw_is_said(tmp_path):
    prepared(write_csv(tmp_path / "a.csv", mixed()), "kind", tmp_path / "o")
    change = {"city": ["Paris"] * 60, "since": [""] * 60, "age": ["1e9"] * 60}
    answer = alone(tmp_path / "o", write_csv(tmp_path / "b.csv", mixed() | change))
    assert answer.returncode == 0
    assert "column 'city': 60 rows have a category that training never saw (Paris)" in answer.stderr
    assert "column 'since': 60 rows have nothing there, which training never saw" in answer.stderr
    assert "column 'age': 60 rows hold 1e+09 or so, far beyond what training saw" in answer.stderr


def test_a_table_wider_than_long_and_one_without_rows(tmp_path):
    rng = np.random.default_rng(0)
    table = {f"c{n}": rng.normal(size=20).tolist() for n in range(200)} | {"y": ["a", "b"] * 10}
    assert prepared(write_csv(tmp_path / "a.csv", table), "y", tmp_path / "o").inputs == (200,)
    empty = write_csv(tmp_path / "b.csv", {name: [] for name in table})
    answer = alone(tmp_path / "o", empty)
    assert (answer.returncode, answer.stdout) == (0, "prediction,probability of a,probability of b\n")


def test_whoever_prepares_can_end_it_between_columns(tmp_path):
    table = mixed()
    source = write_csv(tmp_path / "a.csv", table)
    looks = []

    def look_up() -> None:
        looks.append(1)
        if len(looks) == len(table):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        prepare(source, "kind", tmp_path / "o", look_up=look_up)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("target", ["sort", "price"])
def test_trees_predict_nothing_for_a_table_without_rows(tmp_path, target):
    columns = {"area": range(40), "sort": ["low"] * 20 + ["high"] * 20, "price": [1.5 * row for row in range(40)]}
    prepared(write_csv(tmp_path / "flats.csv", columns), target, tmp_path / "o")
    inputs, targets = loaded(tmp_path / "o", "search")
    kind = RandomForestClassifier if target == "sort" else RandomForestRegressor
    joblib.dump(kind(5, random_state=0).fit(inputs, targets), tmp_path / "o/model/trees.joblib")
    new = write_csv(tmp_path / "new.csv", dict.fromkeys(columns, ()))
    done = alone(tmp_path / "o", new, "--trees")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
