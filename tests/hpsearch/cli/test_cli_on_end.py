"""The command that a sweep names for its end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import hpsearch
from hpsearch.run.on_end import LOG, run_on_end
from tests.hpsearch.support.command_line import begin, wait_for, write_sweep

INLINE = ("--backend", "inline")
SHOWN = 'echo "$HPSEARCH_STUDY|$HPSEARCH_STATE|$HPSEARCH_TRIALS|$HPSEARCH_BEST_TRIAL|$HPSEARCH_BEST_VALUE"'


def last_line(study: Path) -> str:
    return (study / LOG).read_text().splitlines()[-1]


def test_it_knows_the_study_its_state_and_the_best_trial(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", on_end=SHOWN)
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "my study").code == 0
    best = hpsearch.load("my study").best_trial
    assert last_line(here / "my study") == f"{here / 'my study'}|finished|4|{best.number}|{best.value!r}"


def test_a_trial_that_breaks_constraints_is_not_the_best(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", on_end=SHOWN, outcome_constraints=["loss <= -1"])
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    assert last_line(here / "study").split("|")[1:] == ["finished", "4", "", ""]


def test_a_list_is_run_without_a_shell_and_may_look_at_the_study(here, hpsearch_command):
    program = "import hpsearch, sys, os; print(sys.argv[1], hpsearch.load(os.environ['HPSEARCH_STUDY']).state)"
    write_sweep(here / "sweep.yaml", on_end=[sys.executable, "-c", program, "$HOME; no shell"])
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    assert last_line(here / "study") == "$HOME; no shell finished"


def test_it_runs_after_each_run_however_that_ends_and_may_be_changed(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", "broken", on_end=SHOWN)
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 1
    assert last_line(here / "study").split("|")[1] == "error"
    write_sweep(here / "good.yaml")
    limited = ("--set", "limits.max_time=0.001", "--set", "on_end=echo $HPSEARCH_STATE")
    assert hpsearch_command("run", "good.yaml", *INLINE, "--dir", "limited", *limited).code == 3
    assert last_line(here / "limited") == "max_time"
    further = ("--set", "limits.max_time=null", "--set", "on_end=[echo, further]")
    assert hpsearch_command("resume", "limited", *INLINE, *further).code == 0
    assert last_line(here / "limited") == "further"
    log = (here / "limited" / LOG).read_text()
    assert hpsearch_command("resume", "limited", *INLINE).code == 0  # nothing was run
    assert (here / "limited" / LOG).read_text() == log


def test_it_is_not_run_where_what_is_asked_for_is_refused(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", on_end=SHOWN)
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    log = (here / "study" / LOG).read_text()
    answer = hpsearch_command("retry", "study", *INLINE)
    assert (answer.code, "there is nothing to retry" in answer.err) == (1, True)
    assert (here / "study" / LOG).read_text() == log


@pytest.mark.parametrize(
    ("command", "problem"),
    [("exit 7", "must end with exit code 0, got 7"), (["/no/such/program"], "No such file or directory")],
)
def test_its_failure_is_said_and_changes_nothing(here, hpsearch_command, command, problem):
    write_sweep(here / "sweep.yaml", on_end=command)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study", "-q")
    assert answer.code == 0
    assert problem in answer.err
    assert "best:" in answer.out
    assert hpsearch.load("study").state == "finished"


def test_one_that_hangs_is_killed(here, hpsearch_command, capsys):
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    run_on_end("echo $$ > pid; sleep 600", here / "study", "", seconds=1.0)
    assert "must end within 1 s, and was killed" in capsys.readouterr().err
    wait_for(lambda: not Path(f"/proc/{(here / 'pid').read_text().strip()}").exists())


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_a_signal_ends_one_that_hangs_and_the_result_stays(here, number):
    write_sweep(here / "sweep.yaml", on_end="echo $$ > pid.new; mv pid.new pid; sleep 600")
    with begin("run", "sweep.yaml", *INLINE, "--dir", "study", cwd=here) as process:
        wait_for((here / "pid").exists, process)
        os.kill(process.pid, number)
        out, err = process.communicate()
    assert process.returncode == 0
    assert "best:" in out
    assert "the command was killed, as this process was asked to end" in err
    wait_for(lambda: not Path(f"/proc/{(here / 'pid').read_text().strip()}").exists())


@pytest.mark.parametrize(
    ("given", "problem"), [([], "must hold at least one word"), (3, "must be a list"), ([True], "must be a word")]
)
def test_mistakes_name_file_and_line(here, hpsearch_command, given, problem):
    write_sweep(here / "sweep.yaml", on_end=given)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE)
    assert answer.code == 1
    assert "sweep.yaml:" in answer.err
    assert problem in answer.err
    assert "on_end" in answer.err


def test_a_study_of_a_version_without_it_has_none(here, hpsearch_command):
    stored = hpsearch.load_sweep("sweep.yaml").to_json()
    del stored["on_end"]
    assert hpsearch.Sweep.from_json(stored).on_end is None
