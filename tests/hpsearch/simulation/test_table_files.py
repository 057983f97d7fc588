from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from hpsearch.backends import find_simulation
from hpsearch.errors import SweepError
from hpsearch.simulation.simulation import RecordedFailure
from hpsearch.simulation.table import Table
from hpsearch.simulation.table_file import read_table
from hpsearch.space import Space, Uniform
from hpsearch.trial import Segment, Trial

SPACE = Space.from_parameters({"lr": Uniform(0.0, 1.0), "kind": ["a", "b"]})

ROWS = [(0.1, "a"), (0.9, "a"), (0.5, "b")]
ACCURACY = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]])
LOSS = 1.0 - ACCURACY
SECONDS = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [5.0, 1.0, 1.0]])

DESCRIBED: dict[str, Any] = {
    "parameters": {"lr": "learning_rate", "kind": "kind"},
    "metrics": {"accuracy": "acc", "loss": "loss"},
    "seconds": "time",
}


def written(folder: Path, form: str, **changes: Any) -> Path:
    """Write the table in one of its forms, with its description."""
    described = {**DESCRIBED, "table": f"curves.{form}"}
    if form == "npz":
        arrays: dict[str, Any] = {"acc": ACCURACY, "loss": LOSS, "time": SECONDS}
        arrays |= {"learning_rate": np.array([lr for lr, _ in ROWS]), "kind": np.array([kind for _, kind in ROWS])}
        np.savez(folder / "curves.npz", **arrays)
    else:
        lines = frame(ACCURACY, LOSS, SECONDS)
        described["iteration"] = "epoch"
        # In any order.
        lines = lines.sample(frac=1.0, random_state=3)
        if form == "csv":
            lines.to_csv(folder / "curves.csv", index=False)
        else:
            lines.to_parquet(folder / "curves.parquet")
    return describe(folder, described | changes)


def frame(accuracy: np.ndarray, loss: np.ndarray, seconds: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "learning_rate": lr,
            "kind": kind,
            "epoch": epoch + 1,
            "acc": accuracy[row, epoch],
            "loss": loss[row, epoch],
            "time": seconds[row, epoch],
        }
        for row, (lr, kind) in enumerate(ROWS)
        for epoch in range(3)
    )


def describe(folder: Path, described: dict[str, Any]) -> Path:
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in described.items() if value is not None}))
    return path


def curve(table: Table, lr: float, kind: str, start: int = 0, end: int | None = None, seed: int = 0) -> list[Any]:
    table.open(SPACE, "accuracy")
    trial = Trial(0, {"lr": lr, "kind": kind}, seed, "random")
    steps = table.steps(trial, Segment(0, start, end, None, 1), None)
    return [(*(step.metrics[name] for name in ("accuracy", "loss")), step.seconds) for step in steps]


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_every_form_gives_the_same_curves(tmp_path, form):
    table = read_table(str(written(tmp_path, form)))
    for row, (lr, kind) in enumerate(ROWS):
        expected = list(zip(ACCURACY[row], LOSS[row], SECONDS[row], strict=True))
        assert curve(table, lr + 0.05, kind) == expected
        assert curve(table, lr, kind, 1, 2) == expected[1:2]
        assert curve(table, lr, kind, 3) == []


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_scales_and_cumulative_times(tmp_path, form):
    changes: dict[str, Any] = {"metrics": {"accuracy": {"name": "acc", "scale": 100}, "loss": "loss"}}
    changes["seconds"] = {"name": "time", "scale": 0.5, "cumulative": "clipped"}
    table = read_table(str(written(tmp_path, form, **changes)))
    steps = curve(table, 0.1, "a")
    assert [accuracy for accuracy, *_ in steps] == pytest.approx([10.0, 20.0, 30.0])
    assert [seconds for *_, seconds in steps] == [0.5, 0.5, 0.5]
    assert [seconds for *_, seconds in curve(table, 0.5, "b")] == [2.5, 0.0, 0.0]  # 5, 1, 1: the clock goes back
    with pytest.raises(SweepError, match=r"table.yaml: the seconds .* 1 of 9 aren't: .*cumulative: clipped"):
        read_table(str(written(tmp_path, form, seconds={"name": "time", "cumulative": True})))


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_seconds_that_were_not_recorded(tmp_path, form):
    table = read_table(str(written(tmp_path, form, seconds=7)))
    assert [seconds for *_, seconds in curve(table, 0.1, "a")] == [7.0, 7.0, 7.0]


def test_a_curve_ends_where_its_seconds_do(tmp_path):
    seconds = SECONDS.copy()
    seconds[1, 2] = seconds[2, 1] = seconds[2, 2] = np.nan
    path = written(tmp_path, "npz")
    np.savez(tmp_path / "curves.npz", **{**np.load(tmp_path / "curves.npz"), "time": seconds})
    from_arrays = read_table(str(path))
    lines = frame(ACCURACY, LOSS, seconds).dropna()
    lines.to_csv(tmp_path / "curves.csv", index=False)
    from_lines = read_table(str(describe(tmp_path, {**DESCRIBED, "table": "curves.csv", "iteration": "epoch"})))
    for table in (from_arrays, from_lines):
        assert [len(curve(table, lr, kind)) for lr, kind in ROWS] == [3, 2, 1]


def test_a_row_that_failed_fails_behind_its_last_iteration(tmp_path):
    path = written(tmp_path, "npz", failure="how")
    np.savez(tmp_path / "curves.npz", **{**np.load(tmp_path / "curves.npz"), "how": np.array(["", "CUDA: out", ""])})
    table = read_table(str(path))
    assert len(curve(table, 0.1, "a")) == 3
    assert len(curve(table, 0.9, "a", end=2)) == 2
    with pytest.raises(RecordedFailure, match="CUDA: out"):
        curve(table, 0.9, "a")


def test_tasks_and_repetitions_of_arrays(tmp_path):
    accuracy = np.arange(2 * 3 * 4 * 3, dtype=np.float64).reshape(2, 3, 4, 3)  # task, row, iteration, repetition
    arrays = dict(np.load(written(tmp_path, "npz").with_name("curves.npz")))
    np.savez(
        tmp_path / "curves.npz", **{**arrays, "acc": accuracy, "loss": accuracy + 0.5, "names": np.array(["t1", "t2"])}
    )
    axes = ["task", "row", "iteration", "repetition"]
    path = describe(tmp_path, {**DESCRIBED, "table": "curves.npz", "tasks": "names", "axes": axes, "seconds": 1})
    for task in range(2):
        table = read_table(f"{path}#t{task + 1}")
        for seed in range(6):
            expected = accuracy[task, 1, :, seed % 3].tolist()
            assert [value for value, *_ in curve(table, 0.9, "a", seed=seed)] == expected
    with pytest.raises(SweepError, match=r"table.yaml:\d+: tasks: holds 2 tasks, of which #t3 is none\n.*t1, t2"):
        read_table(f"{path}#t3")
    with pytest.raises(SweepError, match=r"of which #\.\.\. is none"):
        read_table(str(path))


def test_tasks_of_arrays_may_have_rows_of_their_own(tmp_path):
    """The parameters have the tasks' axis first; without it, all tasks have the same rows."""
    configs = np.array([[[0.1, 1.0], [0.2, 2.0], [0.3, 3.0]], [[0.4, 4.0], [0.5, 5.0], [0.6, 6.0]]])
    arrays = {"configs": configs, "first": configs[:, :, 0], "shared": configs[0], "loss": np.zeros((2, 3, 4))}
    np.savez(tmp_path / "curves.npz", names=["t1", "t2"], **arrays)
    parameters = {
        "x": {"name": "configs", "column": 0},
        "y": {"name": "configs", "column": 1},
        "z": "first",
        "all": {"name": "shared", "column": 1},
    }
    described = {"table": "curves.npz", "tasks": "names", "parameters": parameters, "metrics": {"loss": "loss"}}
    path = describe(tmp_path, described)
    assert read_table(f"{path}#t2").recorded.columns == {
        "x": [0.4, 0.5, 0.6],
        "y": [4.0, 5.0, 6.0],
        "z": [0.4, 0.5, 0.6],
        "all": [1.0, 2.0, 3.0],
    }
    assert read_table(f"{path}#t1").recorded.columns["x"] == [0.1, 0.2, 0.3]


def test_tasks_and_repetitions_of_lines(tmp_path):
    lines = pd.DataFrame(
        {"lr": lr, "kind": kind, "task": task, "run": run, "it": it, "acc": 100 * task + 10 * run + it, "loss": 0.0}
        for lr, kind in ROWS
        for task in (1, 2)
        for run in ((5, 9) if kind == "a" else (7,))  # not as many of each row, and no matter how they are called
        for it in (1, 2)
    )
    lines.to_parquet(tmp_path / "lines.parquet")
    described = {
        "table": "lines.parquet",
        "tasks": "task",
        "repetition": "run",
        "iteration": "it",
        "parameters": {"lr": "lr", "kind": "kind"},
        "metrics": {"accuracy": "acc", "loss": "loss"},
    }
    table = read_table(f"{describe(tmp_path, described)}#2")
    assert [value for value, *_ in curve(table, 0.1, "a", seed=4)] == [251.0, 252.0]
    assert [value for value, *_ in curve(table, 0.1, "a", seed=5)] == [291.0, 292.0]
    assert {curve(table, 0.5, "b", seed=seed)[0][0] for seed in range(4)} == {271.0}
    del described["repetition"]
    with pytest.raises(SweepError, match=r"some stand there twice\n.*iteration or repetition"):
        read_table(f"{describe(tmp_path, described)}#2")


def test_columns_of_one_array_by_name_or_number(tmp_path):
    configs = np.array([[0.1, 3.0], [0.9, 4.0]])
    np.savez(tmp_path / "c.npz", configs=configs, names=np.array(["lr", "depth"]), acc=np.array([0.5, 0.7]))
    described = {
        "table": "c.npz",
        "parameters": {
            "lr": {"name": "configs", "column": "lr", "names": "names"},
            "depth": {"name": "configs", "column": 1},
        },
        "metrics": {"accuracy": "acc"},
    }
    table = read_table(str(describe(tmp_path, described)))
    assert dict(table.recorded.columns) == {"lr": [0.1, 0.9], "depth": [3.0, 4.0]}
    assert table.recorded.seconds.shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"table": None}, r"table: is required"),
        ({"table": "curves.txt"}, r"table.yaml:\d+: table: must be a file that ends in .npz, .csv or .parquet"),
        ({"table": "other.npz"}, r"table.yaml:\d+: table: must be a file, but .*other.npz isn't there"),
        ({"metric": {"accuracy": "acc"}}, r"table.yaml:\d+: metric: isn't a known key\n.*did you mean metrics\?"),
        ({"metrics": {"accuracy": "akk"}}, r"metrics.accuracy: must name an array .*'akk'\n.*known here: acc"),
        ({"metrics": {"accuracy": "kind"}}, r"metrics.accuracy: must hold numbers, but kind"),
        ({"metrics": {}}, r"metrics: must be a mapping of names to columns"),
        ({"metrics": {"accuracy": {"nam": "acc"}}}, r"metrics.accuracy.nam: isn't a known key"),
        ({"parameters": {"lr": "learning_rate", "kind": "acc"}}, r"parameters.kind: .*acc is \[3, 3\]: name a column"),
        ({"parameters": {"lr": {"name": "acc", "column": 3}}}, r"parameters.lr.column: must be below 3"),
        ({"axes": ["row", "row"]}, r"axes: must name each axis once, row among them"),
        ({"axes": ["row", "epoch"]}, r"axes\[1\]: must be task or row or repetition or iteration, got 'epoch'"),
        ({"axes": ["row"]}, r"must have an axis for each of row, but acc is \[3, 3\]"),
        ({"axes": ["task", "row"]}, r"must have an axis for each of task, row"),
        ({"seconds": -1}, r"seconds: must be at least 0 seconds"),
        ({"rows": "near"}, r"rows: must be nearest or exact, got 'near'\n.*did you mean nearest\?"),
        ({"efficiency": 2}, r"efficiency: must be from 0.5 .* to 1 .*, got 2"),
        ({"tasks": "acc"}, r"tasks: holds 3 tasks"),
        ({"failure": "nope"}, r"failure: must name an array"),
    ],
)
def test_a_wrong_description_names_file_line_and_key(tmp_path, changes, expected):
    with pytest.raises(SweepError, match=expected) as caught:
        read_table(str(written(tmp_path, "npz", **changes)))
    assert "table.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"iteration": "epok"}, r"iteration: must name a column .*'epok'\n.*did you mean epoch\?"),
        ({"iteration": None}, r"some stand there twice"),
        ({"iteration": "acc"}, r"iteration: must count from 1 in whole numbers"),
        ({"metrics": {"accuracy": "kind"}}, r"metrics.accuracy: must be a column of numbers"),
        ({"parameters": {"lr": "rate"}}, r"parameters.lr: must name a column .*'rate'"),
    ],
)
def test_a_wrong_description_of_lines(tmp_path, changes, expected):
    with pytest.raises(SweepError, match=expected):
        read_table(str(written(tmp_path, "csv", **changes)))


def test_lines_with_a_gap_between_iterations(tmp_path):
    path = written(tmp_path, "csv")
    lines = frame(ACCURACY, LOSS, SECONDS)
    lines[lines.epoch != 2].to_csv(tmp_path / "curves.csv", index=False)
    with pytest.raises(SweepError, match="iteration: must count from 1 without a gap"):
        read_table(str(path))


@pytest.mark.parametrize(("form", "content"), [("npz", b"no archive"), ("csv", b""), ("parquet", b"PAR1 no")])
def test_a_file_that_is_none(tmp_path, form, content):
    path = written(tmp_path, form)
    (tmp_path / f"curves.{form}").write_bytes(content)
    with pytest.raises(SweepError, match=r"table.yaml:\d+: table: must be"):
        read_table(str(path))


def test_an_archive_that_holds_pickled_objects_is_refused(tmp_path):
    path = written(tmp_path, "npz")
    np.savez(tmp_path / "curves.npz", **{**np.load(tmp_path / "curves.npz"), "kind": np.array([{}, {}, {}])})
    with pytest.raises(SweepError, match=r"table: must be an archive of arrays: .*allow_pickle"):
        read_table(str(path))


def test_a_table_without_this_metric_is_refused_when_it_is_opened(tmp_path):
    table = read_table(str(written(tmp_path, "npz")))
    with pytest.raises(SweepError, match=r"the table has no metric acuracy; did you mean accuracy\?"):
        table.open(SPACE, "acuracy")


def test_a_table_is_found_beside_the_sweep_or_where_one_stands(tmp_path, monkeypatch):
    written(tmp_path, "npz")
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_simulation("table.yaml", ()), Table)
    monkeypatch.chdir("/")
    assert isinstance(find_simulation("table.yaml", ("/nowhere", str(tmp_path))), Table)
    with pytest.raises(SweepError, match=r"table.yaml: must be .*doesn't exist"):
        find_simulation("table.yaml", ("/nowhere",))
