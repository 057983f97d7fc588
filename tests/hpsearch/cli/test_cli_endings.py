"""How a sweep ends, and with which exit code: 0, 3, 4 and 130 (1 and 2 are mistakes)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.journal.provenance import process_name
from tests.hpsearch.support.cli_trainables import GATE, HEARD, OPEN, REACHED
from tests.hpsearch.support.climbing import Failing
from tests.hpsearch.support.command_line import PATIENCE, Answer, Call, begin, environment, wait_for, write_sweep

INLINE = ("--backend", "inline")


@pytest.fixture
def whole(here: Path, hpsearch_command: Call) -> str:
    """The table of the sweep, run without a break."""
    return table_of("sweep.yaml", "whole", hpsearch_command)


def table_of(sweep: str, study: str, hpsearch_command: Call) -> str:
    assert hpsearch_command("run", sweep, *INLINE, "--dir", study).code == 0
    return csv_of(study, hpsearch_command)


def csv_of(study: str, hpsearch_command: Call) -> str:
    answer: Answer = hpsearch_command("trials", study, "--format", "csv")
    assert answer.code == 0
    return answer.out


@pytest.fixture
def running(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a sweep and stands still inside trial 2."""
    write_sweep(here / "gated.yaml", "gated")
    monkeypatch.setenv(GATE, str(here))
    with begin("run", "gated.yaml", *INLINE, "--dir", "study", cwd=here) as process:
        wait_for((here / REACHED).exists, process)
        yield process
        process.kill()


@pytest.mark.exhaustive
def test_3_a_second_process_stops_the_sweep_and_resume_goes_on(here, hpsearch_command, whole, running):
    pid = running.pid
    status = hpsearch_command("status", "study")
    assert f":{pid}\n" in status.out.splitlines(keepends=True)[1]
    assert "2 complete" in status.out
    assert "1 running" in status.out
    assert ",running," in csv_of("study", hpsearch_command)
    refused = hpsearch_command("resume", "study", *INLINE)
    assert refused.code == 1
    assert "runs this study now" in refused.err

    assert hpsearch_command("stop", "study").code == 0
    (here / OPEN).touch()
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (3, "")
    assert "stopped; continue with: hpsearch resume study" in out
    assert "stopped; continue with: hpsearch resume" in hpsearch_command("status", "study").out
    assert len(hpsearch.load("study").trials) == 3

    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert csv_of("study", hpsearch_command) == whole


@pytest.mark.exhaustive
def test_130_a_cancelled_sweep_says_so_wherever_it_is_looked_at(here, hpsearch_command, whole, running):
    with begin("cancel", "study", cwd=here) as asking:
        wait_for(lambda: any(step.verb == "cancel" for step in hpsearch.load("study").history()), asking)
        (here / OPEN).touch()
        out, err = running.communicate(timeout=PATIENCE)
        told, _ = asking.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (130, "")
    assert "cancelled; continue with: hpsearch resume study" in out
    assert told == "it ends at once; what ran since the last checkpoints runs again on resume\n"
    who = process_name().rpartition(":")[0]
    study = hpsearch.load("study")
    assert (study.state, study.message.partition(", ")[2]) == ("cancelled", f"by {who}")
    cancel, end = study.history()[-2:]
    assert (cancel.verb, cancel.outcome, end.verb, end.outcome) == ("cancel", "done", "end", f"cancelled: by {who}")
    assert end.time >= cancel.time

    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert csv_of("study", hpsearch_command) == whole


def test_130_ctrl_c_once_ends_at_the_next_report_and_resume_goes_on(here, hpsearch_command, whole, running):
    running.send_signal(signal.SIGINT)
    (here / OPEN).touch()
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (130, "")
    assert "ending at the next reports; press Ctrl-C again to end at once" in out
    assert "interrupted; continue with: hpsearch resume study" in out
    study = hpsearch.load("study")
    assert study.state == "interrupted"
    assert (study.trials[2].iterations, str(study.trials[2].state)) == (1, "waiting")

    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert csv_of("study", hpsearch_command) == whole


@pytest.mark.exhaustive
def test_130_ctrl_c_twice_ends_at_once_and_resume_goes_on(here, hpsearch_command, whole, running):
    # The gate stays closed, so that trial 2 can't get to its next report.
    running.send_signal(signal.SIGINT)
    wait_for((here / HEARD).exists, running)  # two that come before either is taken are one
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (130, "")
    assert "interrupted; continue with: hpsearch resume study" in out
    assert hpsearch.load("study").trials[2].iterations == 0

    (here / OPEN).touch()
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert csv_of("study", hpsearch_command) == whole


def test_3_the_time_is_up_and_resume_with_more_goes_on(here, hpsearch_command, whole):
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study", "--set", "limits.max_time=1e-9")
    assert answer.code == 3
    assert "continue with: hpsearch resume study --set limits.max_time=TIME" in answer.out
    again = hpsearch_command("resume", "study", *INLINE)  # what was spent counts on
    assert again.code == 3

    assert hpsearch_command("resume", "study", *INLINE, "--set", "limits.max_time=1h").code == 0
    assert csv_of("study", hpsearch_command) == whole


def test_0_a_trial_reached_the_target_and_resume_goes_on_with_another(here, hpsearch_command, whole):
    losses = [value for curve in hpsearch.load("whole").curves().values() for _, value in curve]
    best, goal = min(losses), sorted(losses)[1]
    given = ("run", "sweep.yaml", *INLINE, "--dir", "study", "--set", f"metric.target={goal!r}")
    for arguments in (given, given):
        answer = hpsearch_command(*arguments)
        assert (answer.code, answer.err) == (0, "")
        *_, reason, advice = answer.out.splitlines()
        assert reason.startswith("target:      trial ")
        assert f"(metric.target: {goal!r})" in reason
        assert (
            advice.strip()
            == "continue with another one, or null for none: hpsearch resume study --set metric.target=VALUE"
        )
    shown = hpsearch_command("status", "study").out.splitlines()
    assert shown[1] == f"state       target: {reason.removeprefix('target:').strip()}"
    assert "best:  " in answer.out
    assert hpsearch.load("study").best_value <= goal

    again = hpsearch_command("resume", "study", *INLINE, "--set", f"metric.target={best - 1!r}")
    assert again.code == 0
    assert csv_of("study", hpsearch_command) == whole
    assert "metric.target" not in again.out


def test_0_no_better_trial_came_and_resume_goes_on_with_more_patience(here, hpsearch_command, whole):
    change = ("--set", "limits.patience=1")
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study", *change)
    assert answer.code == 0
    assert "patience:    1 trial ended without a better loss than" in answer.out
    shown = hpsearch_command("status", "study").out
    assert re.search(r"or null for none: hpsearch resume \S*/study --set limits.patience=TRIALS$", shown, re.MULTILINE)
    assert len(hpsearch.load("study").trials) < 4
    begun = len(hpsearch.load("study").segments())
    assert hpsearch_command("resume", "study", *INLINE, *change).code == 0
    assert len(hpsearch.load("study").segments()) == begun

    assert hpsearch_command("resume", "study", *INLINE, "--set", "limits.patience=null").code == 0
    assert csv_of("study", hpsearch_command) == whole


def test_4_patience_ended_and_no_trial_has_a_value(here, hpsearch_command):
    write_sweep(here / "sweep.yaml", "nan", limits={"patience": 2})
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    assert answer.code == 4
    assert (
        "patience, but no trial has a value (2 complete); 2 reported NaN; see them with: hpsearch trials study\n"
        in answer.out
    )


@pytest.mark.parametrize(
    ("trainable", "told"),
    [
        ("fails", "(4 failed); see why with: hpsearch status study\n"),
        ("nan", "(4 complete); 4 reported NaN; see them with: hpsearch trials study\n"),  # `status` shows nothing of it
    ],
)
def test_4_no_trial_has_a_value(here, hpsearch_command, trainable, told):
    write_sweep(here / "sweep.yaml", trainable)
    for _ in ("run", "shown again"):
        answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
        assert answer.code == 4
        assert f"finished, but no trial has a value {told}" in answer.out


@pytest.mark.exhaustive
def test_a_table_doesnt_depend_on_how_often_the_sweep_was_interrupted(here, hpsearch_command):
    early = {"type": "hyperband", "max_iter": 9}
    whole: dict[str, Any] = {"max_iter": None, "run_cap": None, "early_terminate": early}
    write_sweep(here / "sweep.yaml", **whole)
    table = table_of("sweep.yaml", "whole", hpsearch_command)
    write_sweep(here / "interrupted.yaml", "interrupted", **whole)
    answer = hpsearch_command("run", "interrupted.yaml", *INLINE, "--dir", "study")
    runs = 1
    while answer.code == 130:
        assert len(hpsearch.load("study").trials) > 0
        answer = hpsearch_command("resume", "study", *INLINE)
        runs += 1
    assert answer.code == 0
    assert runs > 9  # 69 iterations, and a signal at each seventh
    assert csv_of("study", hpsearch_command) == table


@pytest.mark.exhaustive
def test_130_ctrl_c_while_a_worker_waits_for_a_suggestion_leaves_no_process_and_the_same_one_comes_next(
    here, hpsearch_command
):
    write_sweep(here / "learning.yaml", method=Failing.kind, search={"ahead": False}, run_cap=6)
    whole = table_of("learning.yaml", "whole", hpsearch_command)
    thinking = here / "thinking"
    told = {"TEST_SEARCHER_FAILS": str(thinking)}
    with begin("run", "learning.yaml", *INLINE, "--dir", "study", cwd=here, **told) as process:
        wait_for(lambda: thinking.exists() and thinking.read_text() != "", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert "interrupted; continue with: hpsearch resume study" in out
    with pytest.raises(ProcessLookupError):
        os.kill(int(thinking.read_text()), 0)
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert csv_of("study", hpsearch_command) == whole


def test_a_ctrl_c_after_all_is_done_ends_the_process_without_a_traceback(here):
    # Python calls what `threading` has registered before what `atexit` has.
    struck = f"threading._register_atexit(signal.raise_signal, {int(signal.SIGINT)})"
    code = f"import signal, sys, threading; from hpsearch.cli import main; {struck}; sys.exit(main())"
    ended = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, env=environment())
    assert ended.returncode == -signal.SIGINT
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("passed", "says"), [(', "${args}"', False), ("", True)])
def test_a_script_that_never_gets_its_params_is_told_of_at_the_end(
    passed: str, says: bool, here: Path, hpsearch_command: Call
) -> None:
    command = f'["${{interpreter}}", "${{program}}"{passed}]'
    parameters = "{x: {values: [1, 2, 3, 4, 5]}}"
    (here / "s.yaml").write_text(
        f"program: t.py\nmethod: grid\nmax_iter: 1\n"
        f"metric: {{name: loss}}\ncommand: {command}\nparameters: {parameters}\n"
    )
    (here / "t.py").write_text(
        "import os, sys\nx = sys.argv[-1][-1] if len(sys.argv) > 1 else 7\n"
        'with open(os.environ["HPSEARCH_REPORTS"], "a") as lines:\n    lines.write(f\'{{"loss": {x}}}\\n\')\n'
    )
    answer = hpsearch_command("run", "s.yaml", "--backend", "inline", "--dir", "s")
    assert answer.code == 0, answer.err
    assert ("note:        the params made no difference to loss" in answer.out) is says
