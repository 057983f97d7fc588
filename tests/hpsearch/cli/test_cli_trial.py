"""`hpsearch trial` and `hpsearch logs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.cli_trainables import GATE, OPEN, REACHED
from tests.hpsearch.support.command_line import PATIENCE, begin, call, wait_for, write_sweep

TALKS = """
from tests.hpsearch.support.cli_trainables import gated


def talk(trial):
    print("hello from", trial.number)
    if trial.number == 3:
        raise ValueError("no luck")
    gated(trial)
    print("bye")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose trials print, of which one has failed twice, and one was stopped."""
    folder = tmp_path_factory.mktemp("talks")
    (folder / "talking.py").write_text(TALKS)
    (folder / OPEN).touch()
    return folder


@pytest.fixture
def study(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(GATE, str(folder))
    if not (folder / "study").exists():
        write_sweep(
            folder / "talks.yaml",
            "talking:talk",
            max_iter=None,
            run_cap=None,
            early_terminate={"type": "successive_halving", "max_iter": 9},
            limits={"max_retries": 1},
        )
        assert call(capsys, "run", "talks.yaml", "--backend", "inline", "--dir", "study").code == 0
    return folder / "study"


def test_a_stopped_trial_says_by_whom_it_was_cut(study, hpsearch_command):
    loaded = hpsearch.load(study)
    row = next(row for row in loaded.trials if row.state == "stopped")
    told = json.loads(
        hpsearch_command("trial", "study", row.number, "--format", "json").out, parse_constant=pytest.fail
    )
    rung = {other.number: loaded.curves()[other.number][0][1] for other in loaded.trials if other.state != "failed"}
    on = [other.number for other in loaded.trials if other.iterations > 1]
    last = max(on, key=rung.__getitem__)
    assert told["cut"] == {
        "bracket": 0,
        "rung": 0,
        "trials": len(rung),
        "promoted": len(on),
        "last": last,
        "value": rung[last],
    }
    assert told["decisions"] == [{"action": "stop", "reason": row.reason}]
    assert told["curves"] == {"loss": [[1, row.value]]}
    out = hpsearch_command("trial", "study", row.number).out
    assert f"state       stopped: {row.reason}\n" in out
    assert (
        f"of {len(rung)} trials in rung 0 of bracket 0, {len(on)} went on; the last of these, trial {last}, had loss"
        in out
    )


def test_the_best_trial_is_shown_with_its_curve_and_the_end_of_its_log(study, hpsearch_command):
    loaded = hpsearch.load(study)
    assert hpsearch_command("trial", "study").out.startswith(f"trial       {loaded.best_trial.number} of {study}\n")
    row = next(row for row in loaded.trials if row.state == "complete")
    out = hpsearch_command("trial", "study", row.number).out
    assert out.startswith(f"trial       {row.number} of {study}\nstate       complete: ")
    assert f"loss        {row.value!r} after iteration 9\n" in out
    assert f"  x                    {row.params['x']!r}\n" in out
    assert "⣀" in out or "⠉" in out
    assert "iteration 9\n" in out
    assert f"checkpoint  {loaded.checkpoint_path(row) or 'none'}" in out
    assert "            | bye\n" in out
    assert f"more        hpsearch logs study {row.number}\n" in out
    told = json.loads(hpsearch_command("trial", "study", row.number, "--format", "json", "--tail", 1).out)
    assert told["log_end"] == ["bye"]
    assert [segment["attempt"] for segment in told["segments"]] == [1, 2, 3]
    assert [made["action"] for made in told["decisions"]] == ["promote", "promote", "complete"]


def test_a_failed_trial_has_its_traceback(study, hpsearch_command):
    out = hpsearch_command("trial", "study", 3).out
    assert "state       failed\n" in out
    assert "failure     raised: ValueError: no luck\n" in out
    assert 'in talk\n            |     raise ValueError("no luck")\n' in out
    assert json.loads(hpsearch_command("trial", "study", 3, "--format", "json").out)["failure"]["kind"] == "raised"


def test_a_path_with_spaces_is_quoted_where_it_is_to_be_pasted(study, hpsearch_command, folder):
    (folder / "a b").symlink_to(study)
    try:
        assert "hpsearch logs 'a b' 1" in hpsearch_command("trial", "a b", 1).out
    finally:
        (folder / "a b").unlink()


@pytest.mark.parametrize("command", ["trial", "logs"])
def test_a_trial_that_is_not_there_is_said(study, hpsearch_command, command):
    answer = hpsearch_command(command, "study", 99)
    assert (answer.code, answer.out) == (1, "")
    assert "expected the number of one of 9 trials, got 99" in answer.err


def test_the_logs_of_a_trial_are_those_of_its_attempts_in_order(study, hpsearch_command):
    failed = hpsearch_command("logs", "study", 3).out
    assert failed.startswith("hello from 3\nTraceback (most recent call last):\n")
    assert failed.count("==> attempt 2 <==\nhello from 3\n") == 1
    whole = next(row.number for row in hpsearch.load(study).trials if row.state == "complete")
    once = f"hello from {whole}\nbye\n"
    assert hpsearch_command("logs", "study", whole).out == f"{once}==> attempt 2 <==\n{once}==> attempt 3 <==\n{once}"
    assert hpsearch_command("logs", "study", whole, "--tail", 1).out.count("bye") == 3
    assert "hello" not in hpsearch_command("logs", "study", whole, "--tail", 1).out


def test_the_logs_of_all_trials_name_the_trial_on_each_line(study, hpsearch_command):
    (study / "trials/.output-x").write_text("lost words\nbar 1%\rbar 2%\n")
    try:
        lines = hpsearch_command("logs", "study").out.splitlines()
    finally:
        (study / "trials/.output-x").unlink()
    assert lines[:2] == ["trial 0 | hello from 0", "trial 0 | bye"]
    assert lines[-2:] == ["unfiled | lost words", "unfiled | bar 2%"]
    assert {line.partition(" | ")[0] for line in lines[:-2]} == {f"trial {number}" for number in range(9)}


@pytest.mark.exhaustive
def test_logs_are_followed_until_the_sweep_ends(folder, tmp_path):
    (tmp_path / "talking.py").write_text(TALKS)
    write_sweep(tmp_path / "talks.yaml", "talking:talk", limits={"max_failures": 9})
    run = begin(
        "run",
        "talks.yaml",
        "--backend",
        "inline",
        "--dir",
        "study",
        "--no-tensorboard",
        cwd=tmp_path,
        **{GATE: str(tmp_path)},
    )
    wait_for((tmp_path / REACHED).exists, run)
    everything = begin("logs", "study", "-f", cwd=tmp_path, PYTHONUNBUFFERED="1")
    one = begin("logs", "study", "2", "-f", cwd=tmp_path, PYTHONUNBUFFERED="1")
    assert everything.stdout is not None
    lines: list[str] = []
    while "trial 2 | hello from 2\n" not in lines:
        line = everything.stdout.readline()
        assert line, (lines, everything.stderr)
        lines.append(line)
    assert everything.poll() is None
    (tmp_path / OPEN).touch()
    assert run.wait(timeout=PATIENCE) == 0
    rest, errors = everything.communicate(timeout=PATIENCE)
    assert errors == ""
    assert "trial 2 | bye\n" in rest
    assert "trial 3 | hello from 3\n" in rest  # an attempt that began since
    assert one.communicate(timeout=PATIENCE) == ("hello from 2\nbye\n", "")
    run.communicate()
