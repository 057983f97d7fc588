"""Every command on a good study."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpsearch
from hpsearch.cli.parser import build_parser
from hpsearch.export.export import OPTUNA_NAME, PARQUET_NAME
from hpsearch.tables.trials import REPORTS_NAME, TRIALS_NAME
from tests.hpsearch.support.command_line import Answer, Call, call, write_sweep
from tests.hpsearch.support.optuna_journal import optuna_study
from tests.hpsearch.support.wide_study import HARM, WIDENED, write_wide_study

COMMANDS = [
    "demo",
    "init",
    "run",
    "agent",
    "design",
    "rerun",
    "plan",
    "check",
    "convert",
    "resume",
    "retry",
    "pause",
    "stop",
    "cancel",
    "extend",
    "add",
    "prune",
    "change",
    "history",
    "list",
    "tag",
    "note",
    "status",
    "watch",
    "serve",
    "trials",
    "best",
    "trial",
    "logs",
    "show",
    "lineage",
    "compare",
    "report",
    "export",
    "tensorboard",
    "benchmark",
    "doctor",
    "predict",
    "rm",
    "clean",
    "completion",
    "ask",
    "tell",
    "give-up",
]


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    assert hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--dir", "study").code == 0
    return here / "study"


def test_run_ends_with_the_best_trials_and_the_paths_to_look_at(here, hpsearch_command):
    answer = hpsearch_command("run", "sweep.yaml", "--backend", "inline")
    best = hpsearch.load("runs/sweep-1").best_trial
    assert answer.code == 0
    assert "sweep: minimize loss, 4 trials, 8 iterations" in answer.out
    table, _, last = answer.out.partition("best:        ")
    values = [float(line.split()[3]) for line in table.splitlines() if line.split()[1:2] == ["complete"]]
    assert len(values) == 4
    assert values == sorted(values)
    assert last == (
        f"trial {best.number}, loss {best.value:.6g}\n"
        "trials:      hpsearch trials runs/sweep-1\n"
        f"checkpoint:  runs/sweep-1/trials/0000{best.number}/1/hpsearch-checkpoint-2/state.pt\n"
        "TensorBoard: hpsearch tensorboard runs/sweep-1\n"
        "report:      hpsearch report runs/sweep-1\n"
    )


def test_run_takes_the_next_free_directory(here, hpsearch_command):
    for number in (1, 2):
        assert hpsearch_command("run", "sweep.yaml", "--backend", "inline").code == 0
        assert (here / f"runs/sweep-{number}/study.db").is_file()
    assert (here / "runs/sweep-1/sweep.yaml").read_text() == (here / "sweep.yaml").read_text()


def test_run_sets_keys_of_the_sweep(here, hpsearch_command):
    command = ("run", "sweep.yaml", "--backend", "inline", "--dir", "study", "--no-tensorboard", "--durable")
    assert hpsearch_command(*command, "--set", "run_cap=2", "--set", "parameters.x.max=0.25").code == 0
    trials = hpsearch.load("study").trials
    assert len(trials) == 2
    assert max(trial.params["x"] for trial in trials) <= 0.25
    assert not (here / "study/tensorboard").exists()


def test_run_on_a_finished_study_shows_it_again(study, hpsearch_command):
    before = study.joinpath("study.db").read_bytes()
    again = hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--dir", "study")
    assert again.code == 0
    assert "this sweep is finished" in again.out
    assert "best:        trial" in again.out
    assert study.joinpath("study.db").read_bytes() == before


@pytest.mark.parametrize("command", ["run sweep.yaml --set run_cap=7 --dir", "resume --set run_cap=7"])
def test_a_finished_study_is_extended(study, hpsearch_command, command):
    before = hpsearch.load(study).trials
    assert hpsearch_command(*command.split(), "study", "--backend", "inline").code == 0
    after = hpsearch.load(study)
    assert len(after.trials) == 7
    # Not every checkpoint is kept: the best trial may be another one now.
    assert [replace(row, checkpoint=None) for row in after.trials[:4]] == [
        replace(row, checkpoint=None) for row in before
    ]
    assert after.sweep.run_cap == 7


def test_more_brackets_are_added(here, hpsearch_command):
    write_sweep(here / "hb.yaml", max_iter=None, run_cap=None, early_terminate={"type": "hyperband", "max_iter": 3})
    assert hpsearch_command("run", "hb.yaml", "--backend", "inline", "--dir", "hb").code == 0
    trials = len(hpsearch.load("hb").trials)
    answer = hpsearch_command("resume", "hb", "--backend", "inline", "--set", "early_terminate.brackets=3")
    assert answer.code == 0
    assert len(hpsearch.load("hb").trials) == trials + 3  # the third bracket is the first again


def test_plan_shows_the_brackets_and_runs_nothing(here, hpsearch_command):
    write_sweep(here / "r27.yaml", max_iter=None, run_cap=None, early_terminate={"type": "hyperband", "max_iter": 27})
    answer = hpsearch_command("plan", "r27.yaml", "--workers", 2)
    assert answer.code == 0
    for line in (
        "bracket 0: 27 to iteration 1, then 9 to iteration 3, then 3 to iteration 9, then 1 to iteration 27",
        "bracket 3: 4 to iteration 27",
        "trials       49",
        "trial-rungs  69",
        "iterations   357 when each promotion resumes",
        "423 from zero",
        "on 2 workers",
    ):
        assert line in answer.out
    assert sorted(path.name for path in here.iterdir()) == ["r27.yaml", "sweep.yaml"]


def test_plan_notes_what_isnt_there_of_the_trainable(here, hpsearch_command):
    write_sweep(here / "good.yaml")
    assert hpsearch_command("plan", "good.yaml").err == ""
    write_sweep(here / "typo.yaml", trainable="tests.hpsearch.support.cli_trainables:step")
    answer = hpsearch_command("plan", "typo.yaml")
    assert answer.code == 0
    assert answer.err.startswith("note: it wouldn't run here: ")
    assert "did you mean 'steps'?" in answer.err


@pytest.mark.exhaustive
def test_plan_builds_trials_where_workers_are_to_train_several(here, hpsearch_command):
    digits: dict[str, Any] = {
        "trainable": "hpsearch_trainers.digits:MLP",
        "metric": {"name": "accuracy", "goal": "maximize"},
    }
    space = {"hidden": {"values": [8, 16]}, "lr": {"min": 0.01, "max": 0.1}}
    resources = {"trials_per_worker": "auto"}
    write_sweep(here / "lanes.yaml", **digits, method="random", run_cap=6, parameters=space, resources=resources)
    before = sorted(path.name for path in here.iterdir())
    answer = hpsearch_command("plan", "lanes.yaml")
    assert answer.code == 0
    assert "lanes        up to 16 trials per worker; the first 6 trials have 2 shapes, the largest" in answer.out
    assert "tried here for two batches" in answer.out
    assert sorted(path.name for path in here.iterdir()) == before
    assert "per worker" not in hpsearch_command("plan", "lanes.yaml", "--set", "resources.trials_per_worker=1").out


def test_status_tells_how_the_study_stands(study, hpsearch_command):
    lines = hpsearch_command("status", study).out.splitlines()
    assert lines[0] == f"sweep  {study}"
    assert lines[1].split() == ["state", "finished"]
    assert "4 complete; 4 in all" in lines[2]
    assert "8 of 8" in lines[3]
    best = hpsearch.load(study).best_trial
    assert f"trial {best.number}: loss {best.value!r} at 2" in lines[4]


def test_status_shows_each_kind_of_failure_once(here, hpsearch_command):
    write_sweep(here / "fails.yaml", "fails")
    hpsearch_command("run", "fails.yaml", "--backend", "inline", "--dir", "study")
    text = hpsearch_command("status", "study").out
    assert text.count("Traceback (most recent call last)") == 1
    assert "trials 0, 1, 2, 3" in text
    assert "| ValueError: no luck with" in text
    assert "trainables.py" in text


def test_status_counts_the_widths_and_says_who_was_taken_back(here, hpsearch_command):
    place = write_wide_study(here / "wide", ended=False)
    with place.running("me@here:1"):
        lines = hpsearch_command("status", "wide").out.splitlines()
    assert "widths      4 segments on 1 worker each, 1 on 4; running now: 1 trial on 1 worker" in lines
    assert f"taken back  trial 1: {HARM}" in lines
    lines = hpsearch_command("status", "wide").out.splitlines()
    assert "widths      4 segments on 1 worker each, 1 on 4" in lines


def test_status_says_nothing_of_widths_where_all_are_1(study, hpsearch_command):
    text = hpsearch_command("status", study).out
    assert "widths" not in text
    assert "taken back" not in text


def test_segments_are_listed_with_their_widths_and_the_reasons(here, hpsearch_command):
    write_wide_study(here / "wide", ended=True)
    head, _, *lines = hpsearch_command("trials", "wide", "--segments").out.strip().splitlines()
    assert head.split() == ["trial", "attempt", "start", "end", "width", "reason", "ended", "time"]
    assert [line.split()[:5] for line in lines] == [
        ["0", "1", "0", "1", "1"],
        ["1", "1", "0", "1", "1"],
        ["2", "1", "0", "1", "1"],
        ["1", "2", "1", "3", "4"],
        ["1", "3", "1", "3", "1"],
    ]
    assert [cell.strip() for cell in lines[3].split("  ") if cell][-3:] == [WIDENED, f"reverted: {HARM}", "3.0 s"]
    text = hpsearch_command("trials", "wide", "--segments", "--format", "csv").out
    rows = json.loads(hpsearch_command("trials", "wide", "--segments", "--format", "json").out)
    head = "trial,attempt,start,end,width,reason,ended,message,seconds,lanes,then"
    assert text.splitlines()[0] == ",".join(rows[0]) == head
    assert text.splitlines()[4] == f"1,2,1,3,4,{WIDENED},reverted,{HARM},3.0,1,"
    assert [row["ended"] for row in rows] == ["finished", "finished", "finished", "reverted", "finished"]


def test_trials_tell_who_was_taken_back(here, hpsearch_command):
    write_wide_study(here / "wide", ended=True)
    rows = json.loads(hpsearch_command("trials", "wide", "--format", "json").out)
    assert [row.get("reverted") for row in rows] == [None, HARM, None]
    assert [row["width"] for row in rows] == [1, 1, 1]
    assert HARM in hpsearch_command("trials", "wide").out


def test_widths_may_change_on_resume(study, hpsearch_command):
    sets = ("run_cap=5", "resources.max_workers_per_trial=4", "resources.elastic=false")
    answer = hpsearch_command(
        "resume", study, "--backend", "inline", "--workers", 3, *(word for text in sets for word in ("--set", text))
    )
    assert answer.code == 0
    assert len(hpsearch.load(study).trials) == 5


def test_trials_as_csv_has_the_columns_of_the_dataframe_and_no_times(study, hpsearch_command):
    text = hpsearch_command("trials", study, "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.startswith("trial,state,iterations,value,params.x,width\n")
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3"]
    frame = hpsearch.load(study).trials_dataframe()
    assert ",".join(frame.columns) == text.splitlines()[0]
    assert [float(row["value"]) for row in rows] == frame["value"].to_list()
    timed = hpsearch_command("trials", study, "--format", "csv", "--times").out
    assert timed.splitlines()[0].endswith(",params.x,width,seconds")


@pytest.mark.parametrize(
    "words", [("trials", "--format", "csv"), ("trials", "--format", "json"), ("best", "--format", "json")]
)
def test_what_a_searcher_of_ones_own_prints_is_no_part_of_the_data(here, hpsearch_command, monkeypatch, words):
    monkeypatch.syspath_prepend(str(here))
    (here / "loud.py").write_text(
        "from hpsearch.searchers import RandomSearcher\nprint('imported')\nclass Loud(RandomSearcher): pass\n"
    )
    run = hpsearch_command("run", "sweep.yaml", "--dir", "loud", "--backend", "inline", "--set", "method=loud:Loud")
    assert run.code == 0, run.err
    quiet = hpsearch_command(words[0], "loud", *words[1:]).out
    monkeypatch.delitem(sys.modules, "loud")
    assert hpsearch_command(words[0], "loud", *words[1:]) == Answer(0, quiet, "imported\n")


def test_trials_as_json_and_as_a_table(study, hpsearch_command):
    rows = json.loads(hpsearch_command("trials", study, "--format", "json").out)
    assert [row["trial"] for row in rows] == [0, 1, 2, 3]
    assert set(rows[0]) == {"trial", "state", "iterations", "value", "params", "width", "lanes", "metrics"}
    head, _, *lines = hpsearch_command("trials", study).out.strip().splitlines()
    assert head.split() == ["trial", "state", "iterations", "loss", "x"]
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]


def test_best_as_json_is_what_the_api_says(study, hpsearch_command):
    record = json.loads(hpsearch_command("best", study, "--format", "json").out)
    best = hpsearch.load(study).best_trial
    assert list(record) == ["trial", "value", "params", "checkpoint"]
    assert record["trial"] == best.number
    assert record["value"] == best.value
    assert record["params"] == best.params
    assert Path(record["checkpoint"]) == best.checkpoint
    assert Path(record["checkpoint"]).is_file()
    shown = hpsearch_command("best", study).out
    assert f"trial       {best.number}\n" in shown
    assert str(best.checkpoint) in shown


@pytest.mark.parametrize("to", [None, "elsewhere/deep"])
def test_export_writes_csv_parquet_and_an_optuna_storage(study, hpsearch_command, to):
    answer = hpsearch_command("export", study, *([] if to is None else ["--to", to]))
    folder = study / "export" if to is None else study.parent / to
    assert answer.code == 0
    assert folder.joinpath(TRIALS_NAME).read_text() == hpsearch_command("trials", study, "--format", "csv").out
    assert len(pd.read_parquet(folder / PARQUET_NAME)) == 4
    assert len(optuna_study(folder / OPTUNA_NAME).trials) == 4
    assert [Path(line).resolve() for line in answer.out.splitlines()[:4]] == [
        folder / name for name in (TRIALS_NAME, PARQUET_NAME, OPTUNA_NAME, REPORTS_NAME)
    ]


def test_doctor_looks_at_the_machine(hpsearch_command):
    answer = hpsearch_command("doctor")
    assert answer.code == (1 if "error  " in answer.out else 0)
    assert "torch" in answer.out
    assert "cores" in answer.out


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_every_command_explains_itself(hpsearch_command, words):
    answer = hpsearch_command(*words)
    assert answer.code == 0
    assert answer.out.startswith("usage: hpsearch")


def test_these_are_all_the_commands():
    listed = re.findall(r"^    ([\w-]+)", build_parser().format_help(), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("word", COMMANDS)
def test_every_command_has_a_function(word):
    (commands,) = (action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    assert callable(commands[word].get_default("command"))


def test_without_a_command_it_shows_its_help(capsys):
    answer = call(capsys)
    assert (answer.code, answer.out) == (2, "")
    assert "exit codes:" in answer.err
    assert "run a sweep" in answer.err
