"""Commands that steer a study: one that no process runs, one whose trials run elsewhere, and a live one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpsearch
from hpsearch.cli import steer
from hpsearch.events import Extended, Opened, Pruned, Retried, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.provenance import process_name
from tests.hpsearch.support.command_line import PATIENCE, Call, begin, wait_for, write_sweep
from tests.hpsearch.support.scripted import events_of, of_kind

INLINE = ("--backend", "inline", "--no-tensorboard")


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    """A finished study of four trials."""
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    return here / "study"


@pytest.fixture
def stopped(here: Path, hpsearch_command: Call) -> Path:
    """A study that ended before it began."""
    write_sweep(here / "late.yaml", max_iter=None, run_cap=None, early_terminate={"type": "hyperband", "max_iter": 3})
    answer = hpsearch_command("run", "late.yaml", *INLINE, "--dir", "late", "--set", "limits.max_time=0.000001s")
    assert answer.code == 3
    return here / "late"


def test_a_finished_study_is_extended_without_running_anything_and_resume_goes_on(study, hpsearch_command):
    before = len(of_kind(study, Started))
    answer = hpsearch_command("extend", "study", "--run-cap", 6)
    assert (answer.code, answer.out) == (0, "extended to run_cap 6; continue with: hpsearch resume study\n")
    assert len(of_kind(study, Started)) == before
    assert events_of(study)[-1] == Extended(6)
    assert hpsearch.load(study).state == "extended"
    assert "extended; continue with: hpsearch resume" in hpsearch_command("status", "study").out
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert len(hpsearch.load(study).trials) == 6
    by_set = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "other", "--set", "run_cap=6")
    assert by_set.code == 0
    csv = [hpsearch_command("trials", name, "--format", "csv").out for name in ("study", "other")]
    assert csv[0] == csv[1]


REFUSED = [
    ("extend study", "by what? Name --run-cap, --brackets or --max-iter"),
    ("extend study --run-cap 2", "it differs in\n  run_cap: "),
    ("extend study --max-iter 2", "must train on beyond iteration 2, got --max-iter 2"),
    ("extend study --max-iter 9 7", "only a trial that has ended without failure can train on, got trial 7; there are"),
    ("extend study --brackets 2", "--brackets 2: this study has begun"),
    ("add study", "which configurations? Name --params lr=0.1,hidden=64 or --json FILE"),
    ("add study --params x", "--params x: must be NAME=VALUE,..., such as lr=0.1,hidden=64, got 'x'"),
    ("add study --params x=1,x=2", "must name each parameter once, got x again"),
    ("add study --params x=7.0", "params.x: must "),
    ("add study --params x=.nan", "a configuration must hold finite numbers"),
    ("add study --params x=2026-11-24", "a configuration must hold finite numbers, texts, lists and mappings"),
    ("add study --params z=0.5", "params.z: isn't a parameter"),
    ("add study --params x=0.5", "make room with: hpsearch extend study --run-cap 5"),
    ("add study --json none.json", "none.json: must be JSON"),
    ("add study --json twice.json", "an object must name each thing once, but names 'x' twice"),
    ("prune study 1", "trial 1 is over already, it is complete"),
    ("prune study 9", "only a trial that there is can be pruned, got trial 9; there are trials 0 to 3"),
    ("pause study", "no process runs this study now; there is nothing to pause: it is finished"),
    ("cancel study", "no process runs this study now; there is nothing to cancel"),
]


def test_what_cant_be_is_said_and_leaves_no_trace(study, hpsearch_command):
    Path("twice.json").write_text('{"x": 0.5, "x": 0.75}')
    before = study.joinpath("study.db").read_bytes()
    for words, why in REFUSED:
        answer = hpsearch_command(*words.split())
        assert answer.code == 1, words
        assert why in answer.err, words
        assert study.joinpath("study.db").read_bytes() == before


def test_trials_train_on_and_those_that_cant_are_named(study, hpsearch_command):
    before = hpsearch.load(study)
    best = before.best_trial.number
    others = [row.number for row in before.trials if row.number != best]
    answer = hpsearch_command("extend", "study", "--max-iter", 5, best, others[0])
    assert answer.out == f"extended to max_iter 5: trial {best} will train on; continue with: hpsearch resume study\n"
    assert answer.err.startswith(f"note: trial {others[0]} doesn't train on: its last checkpoint is gone, or it saved")
    assert hpsearch.load(study).state == "extended"
    assert f"max_iter 5, trial {best}" in hpsearch_command("history", "study").out
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    after = hpsearch.load(study).trials
    assert [row.iterations for row in after] == [5 if row.number == best else 2 for row in after]
    assert len(hpsearch.load(study).curves()[best]) == 5
    assert "trained on: ran all 5 iterations" in hpsearch_command("trial", "study", best).out


def test_a_comma_belongs_to_a_value_unless_a_name_follows():
    assert steer._point("a=[1,2], b={x: 1, y: 2},c='d,e'") == {"a": [1, 2], "b": {"x": 1, "y": 2}, "c": "d,e"}


def test_the_hint_of_a_refusal_can_be_pasted_and_the_points_are_tried(study, hpsearch_command):
    refused = hpsearch_command("add", "study", "--params", "x=0.5")
    words = refused.err.partition("make room with: hpsearch ")[2].split()
    assert hpsearch_command(*words).code == 0
    Path("point.json").write_text(json.dumps([{"x": 0.5}]))
    answer = hpsearch_command("add", "study", "--json", "point.json")
    assert answer.out == "added 1 configuration, which the next trials take; continue with: hpsearch resume study\n"
    again = hpsearch_command("add", "study", "--params", "x=0.5")
    assert "a point must be a new one, but x=0.5 is not: it waits already" in again.err
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert [(row.params["x"], row.origin) for row in hpsearch.load(study).trials[4:]] == [(0.5, "added")]


def test_the_history_tells_who_asked_for_what_and_what_came_of_it(study, hpsearch_command):
    assert hpsearch_command("extend", "study", "--run-cap", 5).code == 0
    assert hpsearch_command("add", "study", "--params", "x=0.5").code == 0
    told = json.loads(hpsearch_command("history", "study", "--format", "json").out)
    assert [(step["verb"], step["details"], step["outcome"]) for step in told[1:]] == [
        ("end", {}, "finished"),
        ("extend", {"run_cap": 5}, "done"),
        ("add", {"points": [{"x": 0.5}]}, "done"),
    ]
    assert {step["by"] for step in told} == {process_name()}
    times = [step["time"] for step in told]
    assert times == sorted(times)
    assert [vars(step) for step in hpsearch.load(study).history()] == told
    table = hpsearch_command("history", "study").out
    assert [line.split()[2] for line in table.splitlines() if process_name() in line] == ["run", "end", "extend", "add"]
    assert "run_cap 5" in table
    assert "x 0.5" in table


def test_the_history_has_tags_notes_and_commands_as_they_are_typed(here, hpsearch_command, monkeypatch):
    words = ["run", "sweep.yaml", "--dir", "study", *INLINE, "--tag", "paper", "--note", "wider"]
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-m", "hpsearch", *words])
    assert hpsearch_command(*words).code == 0
    lines = hpsearch_command("history", "study").out.splitlines()
    told = [" ".join(line.split()[2:-2]) for line in lines if process_name() in line]
    assert told[:2] == ["tag paper", "note wider"]
    assert told[2].startswith("run hpsearch run sweep.yaml --dir study ")


def test_a_study_that_ended_on_its_way_is_pruned_and_extended_and_its_time_doesnt_count(stopped, hpsearch_command):
    assert hpsearch_command("add", "late", "--params", "x=0.125", "--params", "x=0.25").code == 0
    assert hpsearch_command("extend", "late", "--brackets", 3).code == 0
    assert hpsearch.load(stopped).state == "max_time"
    assert hpsearch_command("resume", "late", *INLINE, "--set", "limits.max_time=null").code == 0
    rows = hpsearch.load(stopped).trials
    assert [row.params["x"] for row in rows[:2]] == [0.125, 0.25]
    assert {rung.bracket for rung in hpsearch.load(stopped).rungs} == {0, 1, 2}


def test_retried_trials_are_in_the_history(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", "moody")
    Path("moody").write_text("2")
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    Path("moody").unlink()
    assert hpsearch_command("retry", "study", 3, *INLINE).code == 0
    assert [event.trial for event in of_kind(here / "study", Retried)] == [3]
    (step,) = [step for step in hpsearch.load("study").history() if step.verb == "retry"]
    assert (step.details, step.outcome, step.by) == ({"trials": [3]}, "done", process_name())


def test_a_request_that_isnt_answered_in_time_is_left_and_the_command_says_where_to_look(
    study, hpsearch_command, monkeypatch
):
    monkeypatch.setattr(steer, "_PATIENCE", 0.0)
    with StudyDirectory(study).running("ada@there:7"):
        answer = hpsearch_command("prune", "study", 2)
    assert answer.code == 0
    assert answer.out.startswith("left for ada@there:7, which hasn't looked yet")
    assert "see: hpsearch history study" in answer.out
    assert "not answered" in hpsearch_command("history", "study").out


def test_trials_that_run_elsewhere_are_steered_without_a_process(here, hpsearch_command):
    write_sweep(here / "lab.yaml", None, max_iter=1, run_cap=2)
    assert hpsearch_command("ask", "lab.yaml", "--dir", "lab", "--count", 2).code == 0
    assert hpsearch_command("prune", "lab", 0).code == 0
    row = hpsearch.load("lab").trials[0]
    assert (row.state, row.reason) == ("stopped", f"pruned by {process_name().rpartition(':')[0]}")
    assert "isn't open: it was told and is stopped" in hpsearch_command("tell", "lab", 0, "loss=1").err
    assert hpsearch_command("tell", "lab", 1, "loss=1").code == 0
    assert hpsearch.load("lab").state == "finished"
    assert hpsearch_command("ask", "lab").code == 6
    answer = hpsearch_command("extend", "lab", "--run-cap", 3)
    assert answer.out == "extended to run_cap 3; continue with: hpsearch ask lab\n"
    assert hpsearch_command("add", "lab", "--params", "x=0.5").code == 0
    assert json.loads(hpsearch_command("ask", "lab").out)["params"] == {"x": 0.5}
    for verb in ("pause", "stop", "cancel"):
        refused = hpsearch_command(verb, "lab")
        assert refused.code == 1
        assert f"there is nothing to {verb}" in refused.err
    assert hpsearch_command("prune", "lab", 0).code == 1
    assert [step.verb for step in hpsearch.load("lab").history()] == ["ask", "prune", "end", "ask", "extend", "add"]


@pytest.mark.exhaustive  # on two workers of a Ray; beside one worker keys do it in test_cli_watch.py
@pytest.mark.ray
def test_a_live_sweep_rests_goes_on_loses_a_trial_and_ends_at_once(here, hpsearch_command):
    write_sweep(here / "paced.yaml", "paced", max_iter=1_000_000, run_cap=3)

    def running() -> set[int]:
        return {row.number for row in hpsearch.load("study").trials if row.state == "running"}

    with begin("run", "paced.yaml", "--dir", "study", "--workers", 2, cwd=here) as process:
        wait_for(lambda: StudyDirectory(here / "study").exists() and len(running()) == 2, process)
        assert hpsearch_command("pause", "study").code == 0
        wait_for(lambda: not running(), process)
        rested = hpsearch.load("study")
        assert rested.state == "paused"
        assert [row.state for row in rested.trials] == ["waiting", "waiting"]
        assert all(row.iterations for row in rested.trials)
        assert f"by {process_name().rpartition(':')[0]}" in hpsearch_command("status", "study").out
        assert "the sweep is paused already" in hpsearch_command("pause", "study").err
        assert hpsearch_command("prune", "study", 1).code == 0
        assert hpsearch.load("study").trials[1].state == "stopped"
        refused = hpsearch_command("resume", "study", "--workers", 3)
        assert "resumes it unchanged" in refused.err
        resumed = hpsearch_command("resume", "study")
        assert (resumed.code, "it continues in" in resumed.out) == (0, True)
        wait_for(lambda: running() == {0, 2}, process)
        assert "runs this study now" in hpsearch_command("resume", "study").err
        assert hpsearch_command("prune", "study", 0).code == 0
        wait_for(lambda: hpsearch.load("study").trials[0].state == "stopped", process)
        refused = hpsearch_command("retry", "study", 0)
        assert (refused.code, "nothing to retry" in refused.err) == (1, True)
        assert hpsearch_command("cancel", "study").code == 0
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (130, "")
        assert "continue with: hpsearch resume" in out
    assert {event.trial for event in of_kind(here / "study", Pruned)} == {0, 1}
    assert len(of_kind(here / "study", Opened)) == 1
    assert [event.verb for event in of_kind(here / "study", Steered) if event.refused] == ["pause", "retry"]
