"""The command line where several metrics decide, or outcomes are constrained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import hpsearch
from hpsearch.trial import TrialState
from tests.hpsearch.support.command_line import Call, write_sweep

GOALS = [{"name": "loss", "reference": 2.0}, {"name": "acc", "goal": "maximize", "reference": -1.0}]
SWEEP: dict[str, Any] = {"trainable": "traded", "metric": GOALS, "max_iter": 2, "run_cap": 8}
ONE: dict[str, Any] = {**SWEEP, "metric": {"name": "loss"}}


@pytest.fixture
def study(made: Path, here: Path, hpsearch_command: Call) -> hpsearch.Study:
    """A copy of one of two goals, run."""
    write_sweep(here / "sweep.yaml", **SWEEP)
    if not (made / "s").exists():
        assert hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--dir", made / "s").code == 0
    shutil.copytree(made / "s", here / "s")
    return hpsearch.load("s")


def ran(here: Path, command: Call, **changes: Any) -> Any:
    write_sweep(here / "sweep.yaml", **changes)
    return command("run", "sweep.yaml", "--backend", "inline", "--dir", "s")


def front_of(study: hpsearch.Study) -> list[int]:
    """Find the front the slow way."""
    points = {row.number: (row.values[0], -row.values[1]) for row in study.trials if row.values}
    return [
        number
        for number, (x, y) in points.items()
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    ]


def numbers_in(table: str) -> list[int]:
    return [int(line.split()[0]) for line in table.splitlines() if line.split() and line.split()[0].isdecimal()]


def test_the_front_is_listed_in_each_form(study, hpsearch_command):
    front = front_of(study)
    assert 2 <= len(front) < 8
    assert numbers_in(hpsearch_command("trials", "s", "--front").out) == front
    lines = hpsearch_command("trials", "s", "--front", "--format", "csv").out.splitlines()
    assert lines[0] == "trial,state,iterations,values.loss,values.acc,params.x,width"
    assert [int(line.split(",")[0]) for line in lines[1:]] == front
    entries = json.loads(hpsearch_command("trials", "s", "--front", "--format", "json").out)
    assert [entry["trial"] for entry in entries] == front
    assert numbers_in(hpsearch_command("trials", "s").out) == list(range(8))
    refused = hpsearch_command("trials", "s", "--segments", "--front")
    assert refused.code == 1
    assert refused.err.endswith("leave --front out\n")


@pytest.mark.parametrize("front", [True, False])
def test_weights_put_the_best_first(study, hpsearch_command, front):
    worth = {row.number: 0.5 * row.values[1] - 2.0 * row.values[0] for row in study.trials}
    ranked = sorted(worth, key=lambda number: (-worth[number], number))
    expected = [number for number in ranked if not front or number in front_of(study)]
    given = ("--weights", "loss=2, acc = 0.5", *(["--front"] if front else []))
    table = hpsearch_command("trials", "s", *given).out
    assert numbers_in(table) == expected
    assert f"{worth[ranked[0]]:.4g}" in table
    best = json.loads(hpsearch_command("best", "s", *given[:2], "--format", "json").out)
    assert best["trial"] == ranked[0]
    assert best["values"] == dict(zip(("loss", "acc"), study.trials[ranked[0]].values, strict=True))
    only = json.loads(hpsearch_command("best", "s", "--weights", "acc=1", "--format", "json").out)
    assert only["trial"] == max(worth, key=lambda number: study.trials[number].values[1])


@pytest.mark.parametrize(
    ("weights", "code", "problem"),
    [
        ("los=1", 1, "weights: expected metrics that decide, got 'los'; did you mean"),
        ("ms=1", 1, "weights: expected metrics that decide, got 'ms'"),
        ("loss=-1", 1, "weights: expected a finite number of at least 0 for loss, got -1.0"),
        ("loss=nan", 1, "weights: expected a finite number of at least 0 for loss, got nan"),
        ("loss=inf", 1, "weights: expected a finite number of at least 0 for loss, got inf"),
        ("loss=0,acc=0", 1, "weights: expected a weight of more than 0, got none"),
        ("loss=much", 2, "must be METRIC=WEIGHT, such as accuracy=1,latency_ms=0.01, got 'loss=much'"),
        ("loss", 2, "must be METRIC=WEIGHT"),
        ("=1", 2, "must be METRIC=WEIGHT"),
        ("loss=1,", 2, "must be METRIC=WEIGHT"),
        ("", 2, "must be METRIC=WEIGHT"),
        ("loss=1, loss=2", 2, "must name each metric once, got loss again"),
    ],
)
def test_wrong_weights_are_refused(study, hpsearch_command, weights, code, problem):
    for command in ("trials", "best"):
        answer = hpsearch_command(command, "s", f"--weights={weights}")
        assert answer.code == code
        assert problem in answer.err
        assert not answer.out


def test_a_trial_of_two_infinities_is_worth_least(here, hpsearch_command):
    """Infinitely good in one, infinitely bad in another: no number says how much that is."""
    assert ran(here, hpsearch_command, **{**SWEEP, "trainable": "traded_to_infinity"}).code == 0
    assert numbers_in(hpsearch_command("trials", "s", "--weights", "loss=1,acc=1").out)[-2:] == [0, 3]
    best = json.loads(hpsearch_command("best", "s", "--weights", "loss=1,acc=1", "--format", "json").out)
    rows = hpsearch.load("s").trials
    assert best["trial"] == max(
        (row.number for row in rows if row.number not in (0, 3)), key=lambda n: rows[n].values[1] - rows[n].values[0]
    )


def test_the_best_are_all_of_the_front(study, hpsearch_command):
    front = front_of(study)
    entries = json.loads(hpsearch_command("best", "s", "--format", "json").out)
    assert [entry["trial"] for entry in entries] == front
    for entry in entries:
        row = study.trials[entry["trial"]]
        assert entry["values"] == {"loss": row.values[0], "acc": row.values[1]}
        assert entry["params"] == {"x": row.params["x"]}
    text = hpsearch_command("best", "s").out
    assert [int(line.split()[1]) for line in text.splitlines() if line.startswith("trial ")] == front
    assert "None is better than another in all. For one by weights: --weights loss=1,acc=1" in text


def test_status_and_the_end_of_a_run_show_the_front(here, hpsearch_command):
    ended = ran(here, hpsearch_command, **SWEEP)
    study = hpsearch.load("s")
    told = f"{len(front_of(study))} trials, loss "
    assert f"front:       {told}" in ended.out
    assert "hpsearch trials s --front" in ended.out
    assert "checkpoint:" not in ended.out
    assert "best:" not in ended.out
    status = hpsearch_command("status", "s").out
    assert f"front       {told}" in status
    assert f"hpsearch trials {here}/s --front" in status


def test_what_needs_one_number_is_refused_and_says_what_to_do(study, hpsearch_command):
    lineage = hpsearch_command("lineage", "s")
    assert lineage.code == 1
    assert "expected the number of a trial, as loss and acc decide together" in lineage.err
    one = hpsearch_command("lineage", "s", 3, "--format", "json")
    (stage,) = json.loads(one.out)
    assert stage["values"] == dict(zip(("loss", "acc"), study.trials[3].values, strict=True))
    rerun = hpsearch_command("rerun", "s", "--backend", "inline")
    assert rerun.code == 1
    assert "a rerun compares the means of one metric, but loss and acc decide here" in rerun.err
    assert "points_to_try" in rerun.err
    assert not Path("runs").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "others", [["out/optuna.log"], pytest.param(["out/trials.csv", "out/trials.parquet"], marks=pytest.mark.exhaustive)]
)
def test_an_export_begins_another_sweep(study, hpsearch_command, others):
    answer = hpsearch_command("export", "s", "--to", "out")
    assert answer.code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "optuna.log",
        "reports.csv",
        "trials.csv",
        "trials.parquet",
    ]
    for place, source in enumerate(["s", *others]):
        asked = ("--set", "method=tpe", "--set", "search.lag=1", "--from", source)
        begun = hpsearch_command("run", "sweep.yaml", *asked, "--backend", "inline", "--dir", f"t{place}")
        assert begun.code == 0
        assert "8 of 8 taken" in begun.out
    tables = [hpsearch_command("trials", f"t{place}", "--format", "csv").out for place in range(1 + len(others))]
    assert "tpe" in {row.origin for row in hpsearch.load("t0").trials}
    # A study tells of each iteration, where the others know the last alone; trials are compared at the last one.
    assert tables[1:] == tables[:1] * len(others)


def last_scalar(tag: str) -> float:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(Path("s/tensorboard/study")))
    events.Reload()
    return float(events.Scalars(tag)[-1].value)


def test_tensorboard_has_each_goal_and_the_front(study):
    rows = study.trials
    assert last_scalar("best loss/by trial") == pytest.approx(min(row.values[0] for row in rows))
    assert last_scalar("best acc/by trial") == pytest.approx(max(row.values[1] for row in rows))
    assert last_scalar("trials on the front/by trial") == len(front_of(study))
    assert last_scalar("hypervolume/by trial") == pytest.approx(study.hypervolumes()[-1][2], rel=1e-5)
    assert len(list(Path("s/tensorboard").glob("00*"))) == 8


def test_a_target_is_changed_by_the_key_of_its_goal(here, hpsearch_command):
    goals = [GOALS[0], {**GOALS[1], "target": -5.0}]
    ended = ran(here, hpsearch_command, **{**SWEEP, "metric": goals})
    assert ended.code == 0
    assert "target:" in ended.out
    key = "metric.1.target"
    for text in (ended.out, hpsearch_command("status", "s").out):
        assert f"or null for none: hpsearch resume s --set {key}=VALUE\n" in text.replace(str(here) + "/", "")
    resumed = hpsearch_command("resume", "s", "--backend", "inline", "--set", f"{key}=null")
    assert resumed.code == 0
    assert len(hpsearch.load("s").trials) == 8


def test_resume_takes_a_reference_and_no_other_key(here, hpsearch_command):
    ran(here, hpsearch_command, **{**SWEEP, "metric": [{**GOALS[0], "target": 5.0}, GOALS[1]]})
    for wrong in ("metric.reference=5", "metric.2.reference=5", "metric.1.goal=minimize", "metric.target=1"):
        answer = hpsearch_command("resume", "s", "--set", wrong, "--backend", "inline")
        assert answer.code == 1
        assert f"--set {wrong}: this study has begun and takes" in answer.err
        assert "metric.0.target, metric.0.reference, metric.1.target, metric.1.reference" in answer.err
    answer = hpsearch_command("resume", "s", "--set", "metric.1.reference=far", "--backend", "inline")
    assert answer.code == 1
    assert "metric[1].reference: must be a number, got 'far'" in answer.err
    given = ("--set", "metric.0.target=null", "--set", "metric.1.reference=-5")
    assert hpsearch_command("resume", "s", *given, "--backend", "inline").code == 0
    study = hpsearch.load("s")
    assert study.state == "finished"
    assert last_scalar("hypervolume/by trial") == pytest.approx(study.hypervolumes({"acc": -5.0})[-1][2], rel=1e-5)
    assert last_scalar("hypervolume/by trial") > study.hypervolumes()[-1][2] * 1.1


# One goal, and constraints on outcomes.


def test_the_best_keeps_the_constraints(here, hpsearch_command):
    """x alone were least where ms is largest."""
    ended = ran(here, hpsearch_command, **ONE, outcome_constraints=["ms <= 20"])
    assert ended.code == 0
    rows = hpsearch.load("s").trials
    kept = [row for row in rows if row.metrics["ms"] <= 20]
    assert 0 < len(kept) < 8
    best = min(kept, key=lambda row: row.metrics["loss"])
    assert best.metrics["loss"] > min(row.metrics["loss"] for row in rows)
    assert f"best:        trial {best.number}, loss" in ended.out
    assert json.loads(hpsearch_command("best", "s", "--format", "json").out)["trial"] == best.number
    assert f"best        trial {best.number}: loss" in hpsearch_command("status", "s").out
    assert numbers_in(hpsearch_command("trials", "s", "--front").out) == [best.number]
    by_loss = hpsearch_command("trials", "s", "--weights", "loss=1").out
    assert numbers_in(by_loss) == [row.number for row in sorted(kept, key=lambda row: row.metrics["loss"])]
    lineage = json.loads(hpsearch_command("lineage", "s", "--format", "json").out)
    assert lineage[-1]["trial"] == best.number


@pytest.mark.parametrize("goals", ["one goal", "two goals"])
def test_where_all_break_a_constraint_there_is_no_best_and_why_is_told(here, hpsearch_command, goals):
    sweep = ONE if goals == "one goal" else SWEEP
    ended = ran(here, hpsearch_command, **sweep, outcome_constraints=["ms <= -1"])
    assert ended.code == 0
    rows = hpsearch.load("s").trials
    least = min(rows, key=lambda row: row.metrics["ms"]).number
    status = hpsearch_command("status", "s").out
    if goals == "one goal":
        assert f"best:        trial {least}, loss" in ended.out
        assert "which breaks ms <= -1, as all do" in ended.out
        assert f"best        trial {least}: loss" in status
        assert "which breaks ms <= -1, as all do" in status
    else:
        assert f"front:       none: trial {least} breaks ms <= -1 least" in ended.out
        assert f"front       none: trial {least} breaks ms <= -1 least" in status
    for command in (["best", "s"], ["best", "s", "--weights", "loss=1"], ["lineage", "s"]):
        answer = hpsearch_command(*command)
        assert answer.code == 1
        if command[0] == "best" or goals == "one goal":
            assert f"no trial keeps all outcome_constraints; trial {least} breaks them least (ms <= -1)" in answer.err
    assert numbers_in(hpsearch_command("trials", "s", "--front").out) == []
    table = hpsearch_command("trials", "s").out
    assert table.count("ms <= -1") == 8


def test_a_rerun_says_that_its_means_break_constraints(here, hpsearch_command):
    ran(here, hpsearch_command, **ONE, outcome_constraints=["ms <= -1"])
    answer = hpsearch_command("rerun", "s", "--top", 2, "--seeds", 2, "--backend", "inline", "--dir", "r")
    assert answer.code == 0
    assert "the means break ms <= -1, as all do" in answer.out
    ran_well = ran_in(here, hpsearch_command, "u", **ONE, outcome_constraints=["ms <= 20"])
    assert ran_well.code == 0
    answer = hpsearch_command("rerun", "u", "--top", 2, "--seeds", 2, "--backend", "inline", "--dir", "v")
    assert "break" not in answer.out


def ran_in(here: Path, command: Call, directory: str, **changes: Any) -> Any:
    write_sweep(here / "sweep.yaml", **changes)
    return command("run", "sweep.yaml", "--backend", "inline", "--dir", directory)


# What isn't reported.


@pytest.mark.parametrize(
    ("changes", "key", "name"),
    [
        ({"metric": [{"name": "loss"}, {"name": "f1"}]}, "metric.1.name", "f1"),
        ({"metric": [{"name": "los"}, {"name": "acc"}]}, "metric.0.name", "los"),
        (
            {"metric": {"name": "loss"}, "outcome_constraints": ["ms <= 3", "size <= 20"]},
            "outcome_constraints.1",
            "size",
        ),
        ({"metric": GOALS, "outcome_constraints": ["size <= 20"]}, "outcome_constraints.0", "size"),
    ],
    ids=str,
)
def test_what_is_never_reported_ends_the_sweep_with_the_key_and_the_line(here, hpsearch_command, changes, key, name):
    answer = ran(here, hpsearch_command, **{**SWEEP, **changes})
    assert answer.code == 1
    line = line_of(here / "sweep.yaml", key)
    assert f"sweep.yaml:{line}: {key}: " in answer.err
    assert f"every report must have the sweep's metric '{name}', but this one has 'loss', 'acc', 'ms'" in answer.err
    assert not any(row.state is TrialState.COMPLETE for row in hpsearch.load("s").trials)


def line_of(path: Path, key: str) -> int:
    """Find the line of a key in YAML, by its marks."""
    node: Any = yaml.compose(path.read_text())
    line = 0
    for word in key.split("."):
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(word)]
            line = node.start_mark.line
        else:
            ((name, node),) = [(one, other) for one, other in node.value if one.value == word]
            line = name.start_mark.line
    return line + 1


@pytest.mark.parametrize(
    "changes",
    [{"metric": [{"name": "loss"}, {"name": "f1"}]}, {"metric": {"name": "loss"}, "outcome_constraints": ["f1 <= 1"]}],
    ids=["goal", "constraint"],
)
def test_a_table_that_lacks_one_is_refused_before_anything_runs(here, hpsearch_command, changes):
    over_rows(here)
    over_table(here, **changes)
    answer = hpsearch_command("run", "sweep.yaml", "--backend", "simulated", "--workers", 2)
    assert answer.code == 1
    assert "the table has no metric f1" in answer.err
    over_table(here)
    answer = hpsearch_command("run", "sweep.yaml", "--backend", "simulated", "--workers", 2, "--dir", "s")
    assert answer.code == 0
    assert front_of(hpsearch.load("s")) == [row.number for row in hpsearch.load("s").leaders]


def over_rows(here: Path) -> None:
    table = {"table": "c.csv", "iteration": "epoch", "parameters": {"x": "x"}, "seconds": 60}
    lines = [{"x": x / 10, "epoch": epoch, "loss": x, "acc": x} for x in range(11) for epoch in (1, 2)]
    pd.DataFrame(lines).to_csv(here / "c.csv", index=False)
    (here / "table.yaml").write_text(yaml.safe_dump({**table, "metrics": {"loss": "loss", "acc": "acc"}}))


def over_table(here: Path, **changes: Any) -> None:
    text = write_sweep(here / "sweep.yaml", **{**SWEEP, "trainable": None, **changes}).read_text()
    (here / "sweep.yaml").write_text(f"trainable: table.yaml\n{text}")


def test_who_tells_must_tell_of_each_metric(here, hpsearch_command):
    sweep = {"metric": [{"name": "loss"}, {"name": "acc"}], "outcome_constraints": ["ms <= 20"], "max_iter": 1}
    write_sweep(here / "sweep.yaml", None, **sweep)
    assert hpsearch_command("ask", "sweep.yaml", "--dir", "s").code == 0
    for told, missed in ((["loss=1", "acc=1"], "ms"), (["loss=1", "ms=1"], "acc"), (["acc=1", "ms=1"], "loss")):
        answer = hpsearch_command("tell", "s", 0, *told)
        assert answer.code == 1
        assert f"every report must have the sweep's metric {missed!r}" in answer.err
    assert [str(row.state) for row in hpsearch.load("s").trials] == ["running"]
    assert hpsearch_command("tell", "s", 0, "loss=1", "acc=1", "ms=1").code == 0
    assert hpsearch.load("s").trials[0].values == (1.0, 1.0)


@pytest.mark.parametrize(
    "changes", [{"metric": [{"name": "loss"}, {"name": "acc"}]}, {"outcome_constraints": ["acc <= 1"]}], ids=str
)
def test_a_benchmark_compares_single_numbers(here, hpsearch_command, changes):
    over_rows(here)
    sweep = {"metric": {"name": "loss"}, "parameters": {"x": {"min": 0.0, "max": 1.0}}}
    suite = {"tasks": ["table.yaml"], "max_iter": 2, "budgets": [1, 2], "hit": 0.1, "seeds": 1, "workers": [1]}
    (here / "suite.yaml").write_text(yaml.safe_dump({**suite, "sweep": {**sweep, **changes}}))
    answer = hpsearch_command("benchmark", "suite.yaml", "--methods", "random", "--jobs", 1)
    assert answer.code == 1
    assert "method random: one metric must decide, without outcome_constraints" in answer.err
