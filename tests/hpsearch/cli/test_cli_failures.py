"""Sweeps whose trials fail, as the command line ends them and runs them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpsearch.cli import main
from hpsearch.journal.directory import StudyDirectory
from tests.hpsearch.support.command_line import write_sweep

INLINE = ("--backend", "inline", "--no-tensorboard")
MOODY = Path("moody")


def trials(capsys: pytest.CaptureFixture[str], study: str) -> str:
    capsys.readouterr()
    assert main(["trials", study, "--format", "csv"]) == 0
    return capsys.readouterr().out


def test_a_sweep_in_which_all_fails_ends_with_exit_code_1_and_what_failed_and_goes_on_when_mended(here, capsys):
    write_sweep(here / "sweep.yaml", "moody", run_cap=30)
    assert main(["run", "sweep.yaml", *INLINE, "--dir", "calm"]) == 0
    MOODY.write_text("0")
    assert main(["run", "sweep.yaml", *INLINE, "--dir", "study"]) == 1
    error = capsys.readouterr().err
    assert "sweep.yaml:1: trainable: 5 of the 5 trials that were tried have failed" in error
    assert "the last one, trial 4: ValueError: not today\nTraceback" in error
    assert "continue with: hpsearch resume study" in error
    assert main(["status", "study"]) == 0
    assert "not today" in capsys.readouterr().out
    MOODY.unlink()
    assert main(["resume", "study", *INLINE]) == 0
    assert trials(capsys, "study") == trials(capsys, "calm")


def test_retry_lets_failed_trials_of_a_finished_study_run_again(here, capsys):
    write_sweep(here / "sweep.yaml", "moody")
    assert main(["run", "sweep.yaml", *INLINE, "--dir", "calm"]) == 0
    MOODY.write_text("1")
    assert main(["run", "sweep.yaml", *INLINE, "--dir", "study"]) == 0
    assert trials(capsys, "study").count("failed") == 3
    MOODY.write_text("3")
    assert main(["retry", "study", "2", "1", *INLINE]) == 0
    assert trials(capsys, "study").count("failed") == 1
    MOODY.unlink()
    assert main(["retry", "study", *INLINE]) == 0
    assert trials(capsys, "study") == trials(capsys, "calm")
    assert main(["retry", "study", *INLINE]) == 1
    assert "there is nothing to retry" in capsys.readouterr().err


def test_retry_of_a_study_that_runs_is_refused(here, capsys):
    write_sweep(here / "sweep.yaml", "moody")
    MOODY.write_text("1")
    assert main(["run", "sweep.yaml", *INLINE, "--dir", "study"]) == 0
    with StudyDirectory(Path("study")).running("ada@there:7"):
        assert main(["retry", "study", *INLINE]) == 1
    assert "ada@there:7" in capsys.readouterr().err


@pytest.mark.parametrize("trial", ["-1", "x", "1.5"])
def test_a_trial_to_retry_is_a_number(trial, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["retry", "study", trial])
    assert ended.value.code == 2
