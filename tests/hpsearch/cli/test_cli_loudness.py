"""How much a sweep says while it runs."""

from __future__ import annotations

import re

import pytest

from tests.hpsearch.support.command_line import begin, call, write_sweep


def test_quietly_a_run_prints_its_result_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sweep = write_sweep(tmp_path / "sweep.yaml")
    loud = call(capsys, "run", sweep, "--backend", "inline", "--dir", "loud")
    quiet = call(capsys, "run", sweep, "--backend", "inline", "--dir", "quiet", "-q")
    assert (loud.code, quiet.code, quiet.err) == (0, 0, "")
    assert loud.out.replace("loud", "quiet").endswith(quiet.out)
    assert "study: " in loud.out
    assert "study: " not in quiet.out
    assert "best:" in quiet.out
    again = call(capsys, "resume", "quiet", "--backend", "inline", "-q")
    assert again.out == quiet.out


def test_quietly_errors_are_still_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "run", "none.yaml", "-q")
    assert (answer.code, answer.out) == (1, "")
    assert "none.yaml" in answer.err


def test_verbosely_a_run_says_why_each_trial_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    early = {"type": "successive_halving", "max_iter": 2, "min_iter": 1, "eta": 2, "trials": 4}
    sweep = write_sweep(tmp_path / "sweep.yaml", max_iter=None, run_cap=None, early_terminate=early)
    loud = call(capsys, "run", sweep, "--backend", "inline", "-v", "--dir", "study")
    assert len(re.findall(r"^trial \d+ stopped: .*of 4", loud.out, re.MULTILINE)) == 2
    assert len(re.findall(r"^trial \d+ complete: ", loud.out, re.MULTILINE)) == 2
    more = call(capsys, "resume", "study", "--backend", "inline", "-v", "--set", "early_terminate.brackets=2")
    assert len(re.findall(r"^trial [0-3] ", more.out, re.MULTILINE)) == 0  # told by the former run


def test_both_at_once_are_refused(tmp_path, capsys):
    assert call(capsys, "run", "sweep.yaml", "-q", "-v").code == 2


@pytest.mark.exhaustive
def test_a_process_tells_at_its_end_where_its_time_went(tmp_path):
    sweep = write_sweep(tmp_path / "sweep.yaml")
    out, _ = begin("run", sweep, "--backend", "inline", cwd=tmp_path).communicate()
    assert re.fullmatch(r"took .* s: .* s to start, .* s searching, .* s to end", out.splitlines()[-1])
    out, _ = begin("resume", "runs/sweep-1", "--backend", "inline", cwd=tmp_path).communicate()
    assert "took" not in out  # nothing was run
