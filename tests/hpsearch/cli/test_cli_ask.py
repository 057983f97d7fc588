"""Ask and tell from a shell: lines of JSON, exit codes, and one message for what doesn't fit."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from tests.hpsearch.support.command_line import PROGRAM, Answer, environment, write_sweep


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `lab.yaml` in it: six trials of one iteration, and nothing that runs them."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "lab.yaml", None, max_iter=1, run_cap=6)
    return tmp_path


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer
    return [json.loads(line) for line in answer.out.splitlines()]


def test_a_sweep_is_asked_and_told_to_its_end(lab, hpsearch_command):
    for number in range(6):
        (asked,) = lines(hpsearch_command("ask", "lab.yaml", "--dir", "study"))
        assert asked.keys() == {"trial", "attempt", "params", "seed", "start", "end"}
        assert (asked["trial"], asked["attempt"], asked["start"], asked["end"]) == (number, 1, 0, 1)
        answer = hpsearch_command("tell", "study", number, f"loss={number / 10}", "size=3")
        assert (answer.code, answer.out) == (0, f"trial {number} is complete\n")
    answer = hpsearch_command("ask", "study")
    assert (answer.code, answer.out) == (6, "")
    assert "nothing more to ask for" in answer.err
    assert "state       finished" in hpsearch_command("status", "study").out
    assert json.loads(hpsearch_command("best", "study", "--format", "json").out)["trial"] == 0
    assert hpsearch_command("export", "study").code == 0
    assert (lab / "study" / "sweep.yaml").read_text() == (lab / "lab.yaml").read_text()


def test_several_are_asked_for_at_once_and_shown_again(lab, hpsearch_command):
    asked = lines(hpsearch_command("ask", "lab.yaml", "--dir", "study", "--count", 4))
    assert [line["trial"] for line in asked] == [0, 1, 2, 3]
    assert lines(hpsearch_command("ask", "study", "--open")) == asked
    assert [line["trial"] for line in lines(hpsearch_command("ask", "study", "--count", 4))] == [4, 5]
    answer = hpsearch_command("ask", "study", "--count", 4)
    assert (answer.code, answer.out) == (5, "")
    assert "first tell of some of the open trials (0, 1, 2, 3, 4, 5)" in answer.err
    assert "open: trials 0, 1, 2, 3, 4, 5 to be told; ask with: hpsearch ask" in hpsearch_command("status", "study").out


def test_a_trial_that_goes_on_is_told_by_its_attempt(lab, hpsearch_command):
    early = {"type": "successive_halving", "max_iter": 9, "min_iter": 3, "trials": 3}
    write_sweep(lab / "rungs.yaml", None, max_iter=None, run_cap=None, early_terminate=early)
    lines(hpsearch_command("ask", "rungs.yaml", "--dir", "study", "--count", 3))
    curve = json.dumps([{"loss": 3}, {"loss": 2}, {"loss": 1}])
    (lab / "curve.json").write_text(curve)
    assert hpsearch_command("tell", "study", 0, "--json", "curve.json").code == 0
    for iteration in (1, 2, 3):
        assert hpsearch_command("tell", "study", 1, "loss=5", "--iteration", iteration).code == 0
    answer = hpsearch_command("tell", "study", 2, "loss=6")
    assert (answer.code, answer.out) == (1, "")
    assert "iterations 2 to 3 are missing: tell all of them, the last one alone with iteration=3" in answer.err
    assert hpsearch_command("tell", "study", 2, "loss=6", "--iteration", 3).out == "trial 2 is stopped\n"
    (asked,) = lines(hpsearch_command("ask", "study"))
    assert (asked["trial"], asked["attempt"], asked["start"], asked["end"]) == (0, 2, 3, 9)
    assert "given out 2 times" in hpsearch_command("tell", "study", 0, "loss=6", "--iteration", 9).err
    assert hpsearch_command("tell", "study", 0, "loss=0.5", "--iteration", 4, "--attempt", 2).code == 0
    answer = hpsearch_command("tell", "study", 0, "loss=0.4", "--iteration", 5, "--attempt", 2, "--ended")
    assert answer.out == "trial 0 is complete\n"
    assert hpsearch_command("ask", "study").code == 6
    assert hpsearch.load("study").curves()[0] == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5), (5, 0.4)]


def test_reports_come_from_standard_input(lab, hpsearch_command, monkeypatch):
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "study", "--count", 2))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"loss": NaN, "size": 2}'))
    assert hpsearch_command("tell", "study", 0, "--json", "-").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("loss: 3"))
    answer = hpsearch_command("tell", "study", 1, "--json", "-")
    assert (answer.code, answer.out) == (1, "")
    assert "standard input: must be JSON" in answer.err


def test_failed_given_up_and_retried(lab, hpsearch_command):
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "study", "--count", 2))
    assert hpsearch_command("tell", "study", 0, "--failed", "no power").out == "trial 0 is failed\n"
    assert "no power" in hpsearch_command("status", "study").out
    assert hpsearch_command("give-up", "study", 1).code == 0
    assert hpsearch_command("retry", "study", 0).code == 0
    again = lines(hpsearch_command("ask", "study", "--count", 2))
    assert [(line["trial"], line["attempt"]) for line in again] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["loss"], "must be given as NAME=VALUE, got 'loss'"),
        (["loss=low"], "'loss' must be a number, but 'low' isn't one"),
        (["loss=1_0"], "'loss' must be a number, but '1_0' isn't one"),
        (["loss=-1e400"], "'loss' must be a number, but -1e400 is beyond what a float holds"),
        (["loss=1", "loss=2"], "must be given once, got 'loss' again"),
        (["lss=1"], "must have the sweep's metric 'loss'"),
        (["loss=1", "--json", "x.json"], "as NAME=VALUE or as --json, got both"),
        (["--json", "x.json"], "x.json: must be JSON"),
        (
            ["--json", "twice.json"],
            "twice.json: must be JSON: an object must name each thing once, but names 'loss' twice",
        ),
        (["--json", "large.json"], "large.json: must be JSON: 1e400 is beyond what a float holds"),
        (["loss=1", "--failed", "why"], "must be given alone"),
        (["--failed", "why", "--iteration", "1"], "must be given alone"),
        ([], "at least one report is needed"),
        (["loss=1", "--iteration", "2"], "got a report of iteration 2"),
        (["loss=1", "--attempt", "2"], "attempts 1 to 1, got attempt 2"),
    ],
)
def test_what_cant_be_told_is_one_message(lab, hpsearch_command, words, problem):
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "study"))
    Path("twice.json").write_text('[{"loss": 1, "loss": 2}]')
    Path("large.json").write_text('{"loss": 1e400}')
    answer = hpsearch_command("tell", "study", 0, *words)
    assert (answer.code, answer.out) == (1, "")
    assert problem in answer.err
    with hpsearch.AskTell(directory="study") as study:
        assert len(study.open_trials()) == 1


def test_what_cant_be_asked_for_is_one_message(lab, hpsearch_command):
    assert "name the study's directory with --dir" in hpsearch_command("ask", "lab.yaml").err
    assert "expected a study's directory" in hpsearch_command("tell", "study", 0, "loss=1").err
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "study"))
    assert "must not be used with it" in hpsearch_command("ask", "study", "--dir", "other").err
    assert "seed" in hpsearch_command("ask", "lab.yaml", "--dir", "study", "--set", "seed=3").err
    assert "hpsearch ask" in hpsearch_command("resume", "study").err
    assert "nothing to stop" in hpsearch_command("stop", "study").err
    assert "trainable: is required" in hpsearch_command("run", "lab.yaml").err


def test_the_study_is_extended_by_set(lab, hpsearch_command):
    asked = lines(hpsearch_command("ask", "lab.yaml", "--dir", "study", "--set", "run_cap=1", "--count", 3))
    assert len(asked) == 1
    assert hpsearch_command("ask", "study").code == 5
    assert len(lines(hpsearch_command("ask", "study", "--set", "run_cap=3", "--count", 3))) == 2


@pytest.mark.exhaustive  # the shell loop of docs/ask-tell.md runs in test_docs.py
def test_parallel_shell_loops_share_a_study(lab):
    """Each asks, computes and tells, until there is nothing more; one that has to wait asks again."""
    loop = """
    while true; do
      code=0
      trial=$("$HPSEARCH" ask lab.yaml --dir study --set run_cap=4 2>errors.$1) || code=$?
      case $code in
        0) "$HPSEARCH" tell study "$(echo "$trial" | sed 's/.*"trial": \\([0-9]*\\).*/\\1/')" loss=0.5 || exit 1 ;;
        5) ;;
        6) exit 0 ;;
        *) cat errors.$1; exit $code ;;
      esac
    done
    """
    command = ["sh", "-c", loop, "loop"]
    loops = [
        subprocess.Popen([*command, name], env=environment(HPSEARCH=PROGRAM), stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    outs = [process.communicate()[0] for process in loops]
    assert [process.returncode for process in loops] == [0, 0], outs
    assert sorted("".join(outs).splitlines()) == [f"trial {number} is complete" for number in range(4)]


def test_a_retry_doesnt_send_to_ask_where_the_sweep_has_what_it_came_for(lab, hpsearch_command):
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "study", "--count", 2, "--set", "metric.target=0.5"))
    hpsearch_command("tell", "study", 0, "--failed", "no power")
    hpsearch_command("tell", "study", 1, "loss=0.25")
    assert hpsearch_command("ask", "study").code == 6
    told = hpsearch_command("retry", "study").out
    assert told.startswith("they will be asked for again, once the sweep continues: trial 1 reached loss 0.25")
    (again,) = lines(hpsearch_command("ask", "study", "--set", "metric.target=null"))
    assert again["trial"] == 0


def test_what_is_asked_for_can_be_planned(lab, hpsearch_command):
    answer = hpsearch_command("plan", "lab.yaml", "--workers", 1)
    assert answer.code == 0
    assert "trials       6\n" in answer.out


def test_the_commands_that_it_names_are_read_by_a_shell(lab, hpsearch_command):
    lines(hpsearch_command("ask", "lab.yaml", "--dir", "my study"))
    named = f"hpsearch ask '{lab / 'my study'}'"
    assert named in hpsearch_command("status", "my study").out
    assert named in hpsearch_command("resume", "my study", "--set", "run_cap=7").err
