"""`hpsearch trials`: which, in which order, with which columns."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from tests.hpsearch.support.command_line import Call, call, write_sweep

TRAINABLE = """
def train(trial):
    for iteration in trial.iterations():
        if trial.params["lr"] > 0.5:
            raise ValueError(f"too fast: {trial.params['lr']}")
        loss = float("nan") if trial.params["width"] == 3 else trial.params["lr"] * trial.params["width"]
        trial.report({"loss": loss, "val/acc": 1 - trial.params["lr"], "seconds": 7.0})
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some")
    (folder / "some_train.py").write_text(TRAINABLE)
    write_sweep(
        folder / "sweep.yaml",
        "some_train:train",
        max_iter=1,
        run_cap=5,
        points_to_try=[
            {"lr": 0.1, "width": 2, "opt": "sgd", "opt.sgd.momentum": 0.5},
            {"lr": 0.01, "width": 4, "opt": "adam"},
            {"lr": 0.9, "width": 1, "opt": "sgd", "opt.sgd.momentum": 0.9},
            {"lr": 0.2, "width": 3, "opt": "sgd", "opt.sgd.momentum": 0.1},
            {"lr": 0.3, "width": 1, "opt": "adam"},
        ],
        parameters={
            "lr": {"min": 0.0, "max": 1.0},
            "width": {"values": [1, 2, 3, 4]},
            "seed": {"value": 7},
            "opt": {"choice": {"sgd": {"momentum": {"min": 0.0, "max": 1.0}}, "adam": {}}},
        },
        limits={"max_failures": None},
    )
    return folder


@pytest.fixture
def ran(study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(study)
    if not (study / "study").exists():
        answer = call(capsys, "run", "sweep.yaml", "--backend", "inline", "--dir", "study", "--no-tensorboard")
        assert answer.code == 0, answer
    return study / "study"


def numbers(command: Call, *words: Any) -> list[int]:
    answer = command("trials", "study", "--format", "json", *words)
    assert (answer.code, answer.err) == (0, "")
    return [row["trial"] for row in json.loads(answer.out)]


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("lr < 0.15", [0, 1]),
        ('state == "failed"', [2]),
        ("params.width >= 2 and lr < 0.25", [0, 1, 3]),
        ("trial.width == 1", [0, 1, 2, 3, 4]),
        ("trial in [1, 3]", [1, 3]),
        ("loss < 1", [0, 1, 4]),
        ("value < 1", [0, 1, 4]),
        ("`val/acc` > 0.75", [0, 1, 3]),
        ("metrics.loss < 1", [0, 1, 4]),
        ("opt.sgd.momentum > 0.2", [0, 2]),
        ("opt == 'adam' or opt.sgd.momentum > 0.2", [0, 1, 2, 4]),
        ("not present(opt.sgd.momentum)", [1, 4]),
        ("1 / (trial - 1) > 0", [2, 3, 4]),
        ("present(failure)", [2]),
        ("trial > 99", []),
    ],
)
def test_an_expression_chooses_trials(ran, hpsearch_command, expression, chosen):
    assert numbers(hpsearch_command, "--where", expression) == chosen
    rows = csv.DictReader(
        io.StringIO(hpsearch_command("trials", "study", "--format", "csv", "--where", expression).out)
    )
    assert [int(row["trial"]) for row in rows] == chosen


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("lr", [1, 0, 3, 4, 2]),
        ("lr:desc", [2, 4, 3, 0, 1]),
        ("loss", [1, 0, 4, 2, 3]),
        ("loss:desc", [4, 0, 1, 2, 3]),
        ("opt", [1, 4, 0, 2, 3]),
        ("opt.sgd.momentum:desc", [2, 0, 3, 1, 4]),
        ("trial:asc", [0, 1, 2, 3, 4]),
    ],
)
def test_trials_are_sorted_by_what_has_a_name(ran, hpsearch_command, sort, order):
    assert numbers(hpsearch_command, "--sort", sort) == order
    assert numbers(hpsearch_command, "--sort", sort, "--top", 2) == order[:2]


def test_the_top_ones_are_the_best_where_no_order_is_asked_for(ran, hpsearch_command):
    ranked = sorted(
        (row for row in hpsearch.load("study").trials if row.value is not None), key=lambda row: row.value or 0
    )
    assert numbers(hpsearch_command, "--top", 2) == [row.number for row in ranked[:2]]
    assert numbers(hpsearch_command, "--top", 9)[:3] == [row.number for row in ranked]
    assert numbers(hpsearch_command, "--top", 1, "--where", "params.width == 1") == [4]


def test_columns_are_those_that_are_named_in_each_format(ran, hpsearch_command):
    words = ("--columns", "lr,trial,val/acc,seed,opt.sgd.momentum", "--where", "trial in [0, 2]")
    assert hpsearch_command("trials", "study", *words, "--format", "csv").out == (
        "params.lr,trial,metrics.val/acc,params.seed,params.opt.sgd.momentum\n0.1,0,0.9,7,0.5\n0.9,2,,7,0.9\n"
    )
    told = json.loads(hpsearch_command("trials", "study", *words, "--format", "json").out)
    assert told[1] == {
        "params.lr": 0.9,
        "trial": 2,
        "metrics.val/acc": None,
        "params.seed": 7,
        "params.opt.sgd.momentum": 0.9,
    }
    lines = hpsearch_command("trials", "study", *words).out.split("\n")
    assert lines[1].split() == ["lr", "trial", "val/acc", "seed", "opt.sgd.momentum"]
    assert lines[3].split() == ["0.1", "0", "0.9", "7", "0.5"]
    assert "the same" not in "".join(lines)


def test_the_whole_table_hides_what_the_sweep_does_not_vary(ran, hpsearch_command):
    out = hpsearch_command("trials", "study").out
    assert out.split("\n")[1].split() == ["trial", "state", "iterations", "loss", "lr", "width", "opt", "failure"]
    assert out.endswith("\nthe same in all: seed=7\n")
    assert "params.seed" in hpsearch_command("trials", "study", "--format", "csv").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sort", "widht"], "--sort: must name what trials have, got 'widht'; did you mean width?"),
        (["--sort", "width"], "--sort: 'width' must say which is meant: trial.width or params.width"),
        (["--columns", "lr,width"], "--columns: 'width' must say which is meant: trial.width or params.width"),
        (["--where", "width > 1"], "--where: 'width' must say which is meant: trial.width or params.width"),
        (
            ["--where", "mometum > 1"],
            "--where: must name what trials have, got 'mometum'; did you mean opt.sgd.momentum?",
        ),
        (["--where", "state == failed"], "--where: must name what trials have, got 'failed'"),
        (["--where", "lr <"], "--where: must be an expression, got 'lr <'"),
        (["--where", "lr"], "--where: of trial 0: must be true or false"),
        (["--where", "opt < 1"], "--where: of trial 0: must make sense for the values that there are"),
        (["--where", "__import__('os')"], "--where: must call a known function, got __import__"),
        (["--segments", "--top", "1"], "--segments: lists those of all trials; leave --top out"),
    ],
)
def test_a_mistake_is_said_with_the_name_that_was_meant(ran, hpsearch_command, words, told):
    answer = hpsearch_command("trials", "study", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"hpsearch: {told}"), answer.err


def test_a_value_that_is_nan_is_none_and_can_be_asked_for_as_it_was_reported(ran, hpsearch_command):
    told = json.loads(hpsearch_command("trials", "study", "--columns", "loss,metrics.loss", "--format", "json").out)
    assert told[3] == {"value": None, "metrics.loss": "NaN"}
    assert math.isclose(told[0]["value"], 0.2)


def test_groups_have_a_line_each(ran, hpsearch_command):
    assert hpsearch_command("trials", "study", "--by", "opt", "--format", "csv").out == (
        "params.opt,trials,failed,best.loss,median.loss,asynchronous\nadam,2,0,0.04,0.16999999999999998,False\nsgd,3,1,0.2,0.2,False\n"
    )
    (adam,) = json.loads(
        hpsearch_command("trials", "study", "--by", "opt", "--format", "json", "--where", "lr < 0.05", "--times").out
    )
    assert (adam["params.opt"], adam["trials"], adam["best.loss"]) == ("adam", 1, 0.04)
    assert adam["seconds"] >= 0
    lines = hpsearch_command("trials", "study", "--by", "params.width").out.splitlines()
    assert [line.split()[:2] for line in lines[3:7]] == [["4", "1"], ["2", "1"], ["1", "2"], ["3", "1"]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--by", "opt", "--sort", "lr", "--top", 1), "--by: lists groups, the one with the best trial first; leave"),
        (("--by", "opt", "--columns", "lr"), "leave --columns out"),
        (("--by", "opt", "--metrics"), "leave --metrics out"),
        (("--by", "opt", "--segments"), "--segments: lists those of all trials; leave --by out"),
        (("--by", "optt"), "--by: must name what trials have, got 'optt'; did you mean opt?"),
    ],
)
def test_groups_stand_alone(ran, hpsearch_command, words, problem):
    answer = hpsearch_command("trials", "study", *words)
    assert answer.code == 1
    assert problem in answer.err
