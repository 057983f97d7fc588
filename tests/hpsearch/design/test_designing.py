"""`hpsearch design` from a file to files that predict."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import hpsearch
from hpsearch.design.designed_network import DesignedNetwork
from hpsearch.design.folder import DesignFolder, DesignRequest
from hpsearch.journal.history import seconds_spent
from hpsearch.journal.journal import Journal
from hpsearch.sweep.file import load_sweep
from tests.hpsearch.support.command_line import PROGRAM, Answer, call, environment

ROWS = 120


def write_table(path: Path, numbers: bool = False) -> None:
    chance = np.random.default_rng(0)
    x = chance.standard_normal((ROWS, 3))
    y = 10 * x[:, 0] + 100 if numbers else np.where(x[:, 0] > 0, "yes, sure", "no")
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["a", "b", "c", "answer"])
        lines.writerows([*row, target] for row, target in zip(x.tolist(), y, strict=True))


def designed(capsys: pytest.CaptureFixture[str], *words: object) -> Answer:
    return call(capsys, "design", *words, "--backend", "inline")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "table.csv")
    return tmp_path


def shorten(sweep: Path, **more: Any) -> None:
    """Change a sweep as a user would, so that two trials end it."""
    text = sweep.read_text()
    given = yaml.safe_load(text)
    given |= {"run_cap": 2, "early_terminate": {"type": "asha", "max_iter": 3, "min_iter": 1}, **more}
    given["parameters"]["epochs"] = {"value": 3}
    sweep.write_text(yaml.safe_dump(given, sort_keys=False))


def sweep_only(capsys: pytest.CaptureFixture[str], *more: object) -> Path:
    answer = designed(
        capsys, "table.csv", "--target", "answer", "--time", "10m", "--output", "out", "--sweep-only", *more
    )
    assert (answer.code, answer.err) == (0, "")
    return Path("out")


@pytest.mark.exhaustive
def test_a_table_becomes_files_whose_test_score_anyone_can_compute_again(here, capsys):
    out = sweep_only(capsys, "--limit", "parameters=2000")
    shorten(out / "sweep.yaml")
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 0, answer.err
    report = json.loads((out / "report.json").read_text())
    done = subprocess.run(
        [sys.executable, "out/model/predict.py", "out/data/test.csv"],
        env={**environment(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    with (here / "table.csv").open() as file:
        known = {tuple(row[name] for name in "abc"): row["answer"] for row in csv.DictReader(file)}
    with (out / "data/test.csv").open() as file:
        truth = [known[tuple(row[name] for name in "abc")] for row in csv.DictReader(file)]
    assert len(truth) == report["test_rows"] == 24
    assert report["search_rows"] == 96
    hits = [row["prediction"] == true for row, true in zip(rows, truth, strict=True)]
    assert report["test"]["value"] == pytest.approx(np.mean(hits))
    assert report["cost"]["parameters"] <= 2000
    assert "test rows:    accuracy" in answer.out

    # The last fit is the best trial's network, for as many epochs, and none of its parameters is another.
    best = hpsearch.load(out / "study").best_trial
    assert report["params"] == best.params
    state = torch.load(out / "model/weights.pt", weights_only=True)
    assert (
        sum(weight.numel() for name, weight in state.items() if "running" not in name and "num_b" not in name)
        == (report["cost"]["parameters"])
    )
    assert best.params["weights"] == report["cost"]["parameters"]
    row = next(row for row in hpsearch.load(out / "study").trials if row.number == best.number)
    assert report["epochs"] == row.value_iteration
    torch.manual_seed(0)
    again = DesignedNetwork(SimpleNamespace(params={**best.params, "validated": 0}, seed=0))
    for _ in range(row.value_iteration):
        again.step()
    assert all(torch.equal(value, state[name]) for name, value in again.delivered().state_dict().items())

    finished = designed(capsys, "--resume", "out")  # trains nothing a second time
    assert (finished.code, json.loads((out / "report.json").read_text())) == (0, report)
    assert "this design is finished" in finished.out


@pytest.mark.exhaustive
def test_a_finished_design_goes_on_with_more_time(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    assert designed(capsys, "--resume", "out").code == 0
    report = json.loads((out / "report.json").read_text())
    longer = designed(capsys, "--resume", "out", "--time", "5m")  # its sweep is at its end: the same network again
    assert longer.code == 0, longer.err
    assert json.loads((out / "report.json").read_text())["test"] == report["test"]


@pytest.mark.exhaustive
def test_the_search_never_opens_the_test_rows(here, capsys):
    """They are gone while it runs; what it needs of them is only scored afterwards."""
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    for name in ("test.npz", "test.csv"):
        (out / "data" / name).rename(here / name)
    answer = call(capsys, "run", "out/sweep.yaml", "--dir", "study", "--backend", "inline")
    assert answer.code == 0, answer.err
    assert hpsearch.load("study").best_value > 0.3


@pytest.mark.exhaustive
def test_numbers_are_scored_in_their_unit_with_less_being_better(here, capsys):
    write_table(here / "table.csv", numbers=True)
    out = sweep_only(capsys, "--goal", "mae")
    shorten(out / "sweep.yaml")
    assert designed(capsys, "--resume", "out").code == 0
    report = json.loads((out / "report.json").read_text())
    low, high = report["test"]["interval"]
    assert low <= report["test"]["value"] <= high
    assert 4 < report["baseline"]["value"] < 12  # the mean absolute deviation of 10 x is 8
    study = hpsearch.load(out / "study")
    assert study.best_value == min(row.value for row in study.trials if row.value is not None)
    with np.load(out / "data/test.npz") as arrays:
        assert abs(arrays["targets"].mean() - 100) < 10


@pytest.mark.exhaustive
def test_what_is_changed_in_the_sweep_is_honoured_and_a_changed_data_set_changes_no_split(here, capsys):
    out = sweep_only(capsys)
    before = (out / "data/search.npz").read_bytes(), (out / "data/test.csv").read_bytes()
    write_table(here / "table.csv", numbers=True)
    given = yaml.safe_load((out / "sweep.yaml").read_text())["parameters"]
    shorten(out / "sweep.yaml", parameters={**given, "depth": {"value": 1}, "width": {"value": 5}}, points_to_try=[])
    assert designed(capsys, "--resume", "out").code == 0
    params = json.loads((out / "report.json").read_text())["params"]
    assert (params["depth"], params["width"]) == (1, 5)
    assert ((out / "data/search.npz").read_bytes(), (out / "data/test.csv").read_bytes()) == before


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"metric": {"name": "f1", "goal": "maximize"}}, "metric: must be accuracy, to maximize"),
    ({"metric": {"name": "accuracy", "goal": "minimize"}}, "metric: must be accuracy, to maximize"),
    ({"trainable": "somewhere:else"}, "trainable: must be hpsearch.design.designed_network"),
    ({"data": "other/search.npz"}, "parameters.data: must be"),
    ({"epochs": 4}, "parameters.epochs: must be 3"),
    ({"split_seed": 1}, "parameters.split_seed: must be 0"),
    ({"validated": 0}, "parameters.validated: must be"),
    ({"outcome_constraints": ["latency_ms <= 3"]}, "parameters.latency: must be True"),
]


@pytest.mark.exhaustive
def test_changes_that_make_it_another_design_are_refused(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    shutil.copytree(out / "data", "other")
    before = (out / "sweep.yaml").read_text()
    for change, told in REFUSED:
        given = yaml.safe_load(before)
        for name, value in change.items():
            if name in given:
                given[name] = value
            else:
                given["parameters"][name] = {"value": value}
        (out / "sweep.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
        answer = designed(capsys, "--resume", "out")
        assert (answer.code, told in answer.err) == (1, True), answer.err
        key = told.partition(":")[0].rpartition(".")[2]
        line = int(answer.err.split("sweep.yaml:")[1].partition(":")[0])
        written = (out / "sweep.yaml").read_text().splitlines()[line - 1]
        assert written.strip().startswith("parameters:" if key == "latency" else f"{key}:"), answer.err
    assert not (out / "study").exists()


@pytest.mark.exhaustive
def test_where_the_sweep_leaves_no_time_its_own_limit_is_named(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml", limits={"max_time": 1e-6})
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 1
    line = (out / "sweep.yaml").read_text().splitlines().index("  max_time: 1.0e-06") + 1
    assert f"raise limits.max_time, which ends the search after 0.0 s ({here}/out/sweep.yaml:{line})" in answer.err


@pytest.mark.exhaustive
def test_where_no_network_keeps_a_bound_the_nearest_is_told(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml", outcome_constraints=["loss <= -1"])
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 1
    told = r"must keep loss <= -1, but none that was validated does; the nearest, trial \d, has loss \d.*Design anew"
    assert re.search(told, answer.err), answer.err


@pytest.mark.exhaustive
def test_where_there_is_no_time_for_an_epoch_of_the_last_fit_there_is_no_network(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml", outcome_constraints=["fit_seconds <= 1e-9"])
    answer = designed(capsys, "--resume", "out")
    assert (answer.code, "must keep fit_seconds <= 1e-09, but none that was validated does" in answer.err) == (1, True)


@pytest.mark.exhaustive
def test_a_design_that_was_moved_before_it_was_finished_is_refused(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    shutil.copytree(out, "copy")  # whose trials would read the rows of the other
    answer = designed(capsys, "--resume", "copy")
    assert (answer.code, f"must lie where it was made until it is finished, in {here}/out" in answer.err) == (1, True)
    out.rename("moved")
    answer = designed(capsys, "--resume", "moved")
    assert (answer.code, f"must lie where it was made until it is finished, in {here}/out" in answer.err) == (1, True)
    Path("moved").rename("out")
    Path("alias").symlink_to("out")
    answer = designed(capsys, "--resume", "alias")
    assert answer.code == 0, answer.err
    Path("out").rename("moved")
    answer = designed(capsys, "--resume", "moved")
    assert (answer.code, "test rows:" in answer.out) == (0, True)
    answer = call(capsys, "predict", "moved", "table.csv")
    assert (answer.code, len(answer.out.splitlines())) == (0, ROWS + 1)
    # In a process of its own nothing remembers the rows.
    done = subprocess.run([str(PROGRAM), "trials", "moved/study"], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_design_whose_time_is_spent_on_looking_at_the_data_ends_there(here, capsys):
    record = {"asked": asdict(asked_for(here / "table.csv")), "spent": 1e6}
    DesignFolder(here / "out").begin(record)
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 1
    assert "--time must leave time to look at the data, but 11 d 13 h of 10 min 0 s are spent" in answer.err
    assert not (here / "out/data").exists()  # it didn't begin to


def asked_for(source: Path) -> DesignRequest:
    return DesignRequest(source=str(source), target="answer", goal=None, limits={}, seconds=600.0, workers=1)


@pytest.mark.exhaustive
def test_a_design_that_was_killed_has_spent_what_its_journal_tells(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    record = json.loads((out / "design.json").read_text())
    assert designed(capsys, "--resume", "out").code == 0
    (out / "report.json").unlink()
    with Journal.read(out / "study/study.db") as journal:
        searched = seconds_spent(list(journal.entries()))
    (out / "design.json").write_text(json.dumps({**record, "looked": 1e6}))  # as it was when the search began
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 0, answer.err
    assert json.loads((out / "report.json").read_text())["seconds"] > 1e6 + searched > 1e6


@pytest.mark.exhaustive
def test_files_that_predict_otherwise_than_what_was_trained_are_noticed(here, capsys):
    out = sweep_only(capsys)
    shorten(out / "sweep.yaml")
    fitted = json.loads((out / "model/preprocessing.json").read_text())
    fitted["classes"].reverse()
    (out / "model/preprocessing.json").write_text(json.dumps(fitted))
    answer = designed(capsys, "--resume", "out")
    assert answer.code == 1
    assert "must have the columns" in answer.err or "must say of the test rows what the trained" in answer.err
    assert not (out / "report.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table.csv", "--target", "answer", "--limit", "parameters=3"], "must leave a network, but the smallest"),
        (
            ["table.csv", "--target", "answer", "--limit", "parameters=3", "--limit", "flops=2"],
            "parameters=3 and flops=2: must leave a network, but the smallest that is searched has 8 parameters and 12 "
            "flops; allow as many",
        ),
        (["table.csv", "--target", "answer", "--limit", "latency_ms=1e-6"], "the smallest that is searched takes 0.0"),
        (["table.csv", "--target", "answer", "--limit", "size=3"], "NAME one of parameters, flops, latency_ms"),
        (["table.csv", "--target", "answer", "--limit", "flops=0"], "must be a number above 0"),
        (["table.csv", "--target", "answer", "--goal", "speed"], "goal: must be one of accuracy"),
        (["table.csv", "--target", "answer", "--goal", "rmse"], "must hold finite numbers for the goal rmse"),
        (["table.csv", "--target", "answer", "--time", "1s"], "--time must be at least 5s"),
        (["table.csv", "--target", "answer", "--time", "soon"], "--time soon: must be seconds or a time such as"),
        (["table.csv", "--target", "answer", "--time", "6s"], "--time must leave"),
        (["nothing.csv", "--target", "answer"], "must be a file or a folder of images, but isn't there"),
        (["table.csv", "--target", "other"], "target: must be one of the columns"),
        (["--resume", "nowhere"], "must be a folder that `hpsearch design` has made"),
        ([], "must be given a data set, or --resume DIR"),
    ],
)
def test_mistakes_are_told(here, capsys, words, told):
    answer = designed(capsys, *words)
    assert (answer.code, told in answer.err) == (1, True), answer.err
    assert not list(here.glob("runs/*"))


def test_a_folder_that_holds_something_is_left_alone(here, capsys):
    (here / "out").mkdir()
    (here / "out/mine.txt").write_text("mine")
    answer = designed(capsys, "table.csv", "--target", "answer", "--output", "out")
    assert (answer.code, "isn't there yet, or is empty" in answer.err) == (1, True)
    assert [path.name for path in (here / "out").iterdir()] == ["mine.txt"]


@pytest.mark.exhaustive
def test_a_misspelt_target_is_put_right_with_the_same_folder(here, capsys):
    words = ["table.csv", "--output", "out", "--time", "10m", "--sweep-only", "--target"]
    refused = designed(capsys, *words, "Anwser")
    assert refused.code != 0
    assert "did you mean 'answer'?" in refused.err
    assert not Path("out").exists()
    answer = designed(capsys, *words, "answer")
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("side", [pytest.param(12, marks=pytest.mark.exhaustive), 24])
def test_the_sweep_for_images_of_any_size_can_be_read(here, capsys, side):
    chance = np.random.default_rng(0)
    np.savez("images.npz", images=chance.integers(0, 256, (60, side, side), np.uint8), labels=np.arange(60) % 2)
    answer = designed(capsys, "images.npz", "--output", "out", "--time", "10m", "--sweep-only")
    assert (answer.code, answer.err) == (0, "")
    load_sweep(Path("out/sweep.yaml"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--limit", "parameter=10"], "latency_ms; did you mean parameters?"),
        (["--goal", "acuracy"], "did you mean 'accuracy'?"),
    ],
)
def test_misspelt_words_are_told_with_the_nearest(here, capsys, words, told):
    answer = designed(capsys, "table.csv", "--target", "answer", "--output", "out", *words)
    assert answer.code != 0
    assert told in answer.err


@pytest.mark.exhaustive
def test_what_was_asked_for_is_not_changed_by_going_on(here, capsys):
    sweep_only(capsys)
    answer = designed(capsys, "--resume", "out", "--goal", "f1", "--seed", "3")
    assert (answer.code, "--goal, --seed must not be used with --resume" in answer.err) == (1, True)
