"""Every bad input is one message and an exit code of 1 or 2, never a traceback."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import yaml

import hpsearch
from hpsearch.errors import Interrupted
from hpsearch.journal.directory import StudyDirectory
from hpsearch.run.study_run import create_study
from hpsearch.sweep.file import load_sweep
from tests.hpsearch.support.command_line import write_sweep

INLINE = ("--backend", "inline")


def change(path: Path, **changes: object) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}, sort_keys=False))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run nothere.yaml", "nothere.yaml: must be a sweep file, but it doesn't exist"),
        ("run .", "must be a sweep file, but it is a directory"),
        ("plan nothere.yaml", "nothere.yaml: must be a sweep file, but it doesn't exist"),
        ("run sweep.yaml --set run_cap", "--set run_cap: must be KEY=VALUE"),
        ("run sweep.yaml --set run_cap=many", "--set run_cap=many: run_cap: must be an integer, got 'many'"),
        ("run sweep.yaml --set run_capp=3", "did you mean run_cap?"),
        ("run sweep.yaml --set parameters.x=[", "--set parameters.x=["),
        ("plan sweep.yaml --set metric.name=3", "metric.name: must be a string, got 3"),
        ("run sweep.yaml --dir afile", "afile: expected a study's directory or none, but something else is there"),
        ("run sweep.yaml --dir full", "full: expected a study's directory or none, but something else is there"),
        ("run sweep.yaml --dir afile/x", "afile/x: expected a study's directory or none, but something else is there"),
        ("run sweep.yaml --dir /proc/x/y", "/proc/x/y: expected a path where a study's directory can be created"),
        ("run sweep.yaml --dir foreign", "expected a journal of hpsearch, got a database of another program"),
        ("run sweep.yaml --dir garbage", "expected a journal of hpsearch, but SQLite says"),
    ],
)
def test_run_and_plan_refuse(here, hpsearch_command, words, expected):
    (here / "afile").touch()
    (here / "full").mkdir()
    (here / "full" / "other").touch()
    make_foreign(here)
    command = words.split()
    answer = hpsearch_command(*command, *(INLINE if command[0] == "run" else ()))
    assert answer.code == 1
    assert answer.err.startswith("hpsearch: ")
    assert answer.err.count("hpsearch: ") == 1
    assert expected in answer.err
    assert not (here / "runs").exists()


def make_foreign(here: Path) -> None:
    (here / "foreign").mkdir()
    with contextlib.closing(sqlite3.connect(here / "foreign" / "study.db")) as connection, connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    (here / "garbage").mkdir()
    (here / "garbage" / "study.db").write_text("this is no database, but it is long enough to be read as one" * 20)


@pytest.mark.parametrize("command", ["resume", "status", "trials", "best", "export", "stop", "tensorboard"])
@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("nothere", "nothere: expected a study's directory, which holds study.db; there is none here"),
        ("empty", "empty: expected a study's directory, which holds study.db; there is none here"),
        ("design", "/design/study."),
        ("sweep.yaml", "sweep.yaml: expected a study's directory"),
        ("foreign", "expected a journal of hpsearch, got a database of another program"),
        ("garbage", "expected a journal of hpsearch, but SQLite says"),
    ],
)
def test_what_is_no_study_is_refused(here, hpsearch_command, command, directory, expected):
    (here / "empty").mkdir()
    (here / "design/study").mkdir(parents=True)
    (here / "design/study/study.db").touch()
    make_foreign(here)
    answer = hpsearch_command(command, directory)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("hpsearch: ")
    assert expected in answer.err


def test_a_folder_of_studies_says_how_to_see_them(here, hpsearch_command):
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "my studies/one").code == 0
    answer = hpsearch_command("status", "my studies")
    assert answer.code == 1
    assert answer.err.endswith(f"Name one of those in it, which `hpsearch list '{here}/my studies'` shows.\n")
    assert "my studies/one" in hpsearch_command("list", "my studies").out


@pytest.mark.parametrize(
    "command", ["run sweep.yaml --dir", "resume", "status", "trials", "best", "export", "stop", "tensorboard"]
)
@pytest.mark.parametrize("directory", ["x" * 300, f"{'x' * 300}/study"])
def test_a_name_that_is_too_long_is_refused(here, hpsearch_command, command, directory):
    words = command.split()
    answer = hpsearch_command(*words, directory, *(INLINE if words[0] in ("run", "resume") else ()))
    assert answer.code == 1
    assert answer.err.startswith("hpsearch: ")
    assert "File name too long" in answer.err


def test_a_directory_may_have_any_name(here, hpsearch_command):
    for name in ("what? #1 50%41.db", "a\nb", "file:x?mode=memory", "'; --"):
        assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", name).code == 0
        assert hpsearch_command("status", name).code == 0
        assert hpsearch_command("resume", name, "--set", "run_cap=5", *INLINE).code == 0
        assert (here / name / "study.db").is_file()
        assert len(hpsearch.load(name).trials) == 5


def test_a_journal_of_another_format_is_refused_with_the_way_out(here, hpsearch_command):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    with contextlib.closing(sqlite3.connect("study/study.db")) as connection, connection:
        connection.execute("PRAGMA user_version=77")
    connection.close()
    answer = hpsearch_command("resume", "study")
    assert answer.code == 1
    assert "expected a journal of format 2, got format 77" in answer.err
    assert "hpsearch export" in answer.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "usage: hpsearch [-h] [--version] COMMAND ..."),
        ("runn sweep.yaml", "invalid choice: 'runn'"),
        ("run", "the following arguments are required: SWEEP.yaml"),
        ("run sweep.yaml --backend nonsense", "invalid choice: 'nonsense'"),
        ("run sweep.yaml --workers 0", "argument --workers: must be a whole number, at least 1, got '0'"),
        ("run sweep.yaml --workers two", "argument --workers: must be a whole number, at least 1, got 'two'"),
        ("trials study --format xml", "invalid choice: 'xml'"),
        ("resume", "the following arguments are required: DIR"),
        ("best study --save=", "argument --save: must be the name of a folder or a file, got ''"),
        ("report study --svg=", "argument --svg: must be the name of a folder or a file, got ''"),
        ("status study --colour", "unrecognized arguments: --colour"),
    ],
)
def test_a_command_line_that_cant_be_read_is_2(here, hpsearch_command, words, expected):
    answer = hpsearch_command(*words.split())
    assert answer.code == 2
    assert expected in answer.err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 3}, "seed: 0 in the study, 3 here"),
        ({"run_cap": 3}, "run_cap: 4 in the study, 3 here"),
        ({"parameters": {"y": {"value": 1}}}, "parameters.y"),
        ({"metric": {"name": "accuracy"}}, "metric.name"),
    ],
)
def test_a_different_sweep_is_refused_with_the_difference(here, hpsearch_command, changes, expected):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    before = (here / "study/study.db").read_bytes()
    change(here / "sweep.yaml", **changes)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    assert answer.code == 1
    assert expected in answer.err
    assert (here / "study/study.db").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=3", "this study has begun and takes run_cap, limits.max_time"),
        ("run_cap", "as KEY=VALUE"),
        ("run_cap=many", "--set run_cap=many: run_cap: must be an integer, got 'many'"),
        ("run_cap=3", "run_cap: 4 in the study, 3 here"),
        ("limits.max_time=soon", "must be seconds or a time such as 90m, 1h30m or 45s, got 'soon'"),
        ("metric.target=low", "--set metric.target=low: metric.target: must be a number, got 'low'"),
        ("limits.patience=0", "limits.patience: must be at least 1, got 0"),
        ("metric.goal=maximize", "this study has begun and takes run_cap"),
        ("limits.max_retries=-1", "max_retries: must be at least 0, got -1"),
        ("limits.max_failures=many", "max_failures: must be a number, auto or none, got 'many'"),
        ("resources.max_workers_per_trial=0", "max_workers_per_trial: must be at least 1, got 0"),
        ("resources.workers_per_trial=2.0", "workers_per_trial: must be an integer, got 2.0"),
        ("resources.elastic=1", "elastic: must be true or false, got 1"),
        ("scaling.batch=per_worker", "this study has begun and takes run_cap"),
        ("early_terminate.brackets=5", "this study has begun and takes run_cap"),
    ],
)
def test_resume_changes_only_what_may_change(here, hpsearch_command, override, expected):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    answer = hpsearch_command("resume", "study", *INLINE, "--set", override)
    assert answer.code == 1
    assert expected in answer.err


@pytest.mark.parametrize("command", ["run sweep.yaml --backend inline", "run sweep.yaml", "plan sweep.yaml"])
def test_fewer_workers_than_a_trial_takes_are_refused(here, hpsearch_command, command):
    change(here / "sweep.yaml", resources={"workers": 4, "workers_per_trial": 3})
    answer = hpsearch_command(*command.split(), "--workers", 2)
    assert answer.code == 1
    assert answer.err == (
        "hpsearch: --workers 2: must be at least workers_per_trial (3), got 2: a trial takes 3 at once\n"
        "  raise it, or lower workers_per_trial: --set resources.workers_per_trial=2\n"
    )
    assert not (here / "runs").exists()


def test_a_study_whose_trials_take_more_workers_says_how_to_resume_with_fewer(here, hpsearch_command):
    change(here / "sweep.yaml", resources={"workers_per_trial": 3})
    create_study(load_sweep(here / "sweep.yaml"), here / "study")
    answer = hpsearch_command("resume", "study", *INLINE, "--workers", 1)
    assert answer.code == 1
    advised = answer.err.splitlines()[1].partition("--set ")[2]
    assert hpsearch_command("resume", "study", *INLINE, "--workers", 1, "--set", advised).code == 0


@pytest.mark.parametrize("command", [("run", "sweep.yaml", "--dir", "study"), ("resume", "study")])
def test_a_study_that_a_live_process_runs_is_refused(here, hpsearch_command, command):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    with StudyDirectory(here / "study").running("ann@box:7"):
        answer = hpsearch_command(*command, *INLINE)
    assert answer.code == 1
    assert "ann@box:7 runs this study now" in answer.err
    assert "hpsearch stop" in answer.err


def test_nothing_is_there_to_stop(here, hpsearch_command):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    answer = hpsearch_command("stop", "study")
    assert answer.code == 1
    assert "no process runs this study now; there is nothing to stop" in answer.err


def test_a_metric_that_is_never_reported_names_line_and_nearest_name(here, hpsearch_command):
    change(here / "sweep.yaml", trainable="tests.hpsearch.support.cli_trainables:misnamed")
    for command in (("run", "sweep.yaml", "--dir", "study"), ("resume", "study")):
        answer = hpsearch_command(*command, *INLINE)
        assert answer.code == 1
        assert "sweep.yaml:3: metric.name: every report must have the sweep's metric 'loss'" in answer.err
        assert "did you mean 'los'?" in answer.err
        assert "continue with: hpsearch resume study" in answer.err
        assert hpsearch.load("study").state == "error"


@pytest.mark.parametrize("name", ["it's", "a.b"])
def test_a_metric_is_located_whatever_its_name_holds(here, hpsearch_command, name):
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study", "--set", f"metric.name={name}")
    assert answer.code == 1
    assert f"sweep.yaml:3: metric.name: every report must have the sweep's metric {name!r}" in answer.err


def test_a_script_is_mended_and_the_study_resumed(here, hpsearch_command):
    script = here / "job.sh"
    script.write_text("""echo '{"los": 1}' >> $HPSEARCH_REPORTS""")
    write_sweep(here / "sweep.yaml", None, **SCRIPT)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    assert answer.code == 1
    assert "must have the sweep's metric 'loss'" in answer.err
    script.write_text("""echo '{"loss": 1}' >> $HPSEARCH_REPORTS""")
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    assert [str(trial.state) for trial in hpsearch.load("study").trials] == ["complete", "complete"]


SCRIPT = {"program": "job.sh", "command": ["sh", "${program}"], "run_cap": 2, "max_iter": 1}


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("tests.hpsearch.support.cli_trainable:steps", "did you mean 'cli_trainables'?"),
        ("tests.hpsearch.support.cli_trainables:step", "did you mean 'steps'?"),
        ("tests.hpsearch.support.cli_trainables:GATE", "must be a function or class, but"),
    ],
)
def test_a_trainable_that_cant_be_had_names_the_line_and_the_nearest(here, hpsearch_command, trainable, expected):
    change(here / "sweep.yaml", trainable=trainable)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    assert answer.code == 1
    assert answer.err.startswith("hpsearch: sweep.yaml:1: trainable: ")
    assert expected in answer.err


OBSERVERS = """from hpsearch.observers.base import Observer
class Half(Observer):
    def observe(self, record): pass
class Refusing(Half):
    def __init__(self, observed): raise OSError("no such server")
    def close(self): pass
"""


@pytest.mark.parametrize(
    ("name", "made", "expected"),
    [
        ("Half", False, "must define close, which Half doesn't"),
        ("Halve", False, "did you mean 'Half'?"),
        ("Refusing", True, "must be made of what it observes, but raised OSError: no such server"),
    ],
)
def test_an_observer_that_cant_be_had_names_the_line_and_runs_nothing(here, hpsearch_command, name, made, expected):
    (here / "watchers.py").write_text(OBSERVERS)
    change(here / "sweep.yaml", observers=[f"watchers:{name}"])
    answer = hpsearch_command("run", "sweep.yaml", "--dir", "s", *INLINE)
    line = 1 + (here / "sweep.yaml").read_text().splitlines().index("observers:")
    assert answer.code == 1
    assert answer.err.startswith(f"hpsearch: sweep.yaml:{line}: observers.watchers:{name}: ")
    assert expected in answer.err
    assert (here / "s").exists() == made  # nothing but making it shows the last
    assert not made or hpsearch.load(here / "s").trials == []


def test_a_trainable_from_python_is_not_resumed_from_the_command_line(here, hpsearch_command):
    def train(trial):
        raise Interrupted

    train.__module__, train.__qualname__ = "__main__", "train"
    with pytest.raises(KeyboardInterrupt):
        hpsearch.search(
            train,
            parameters={"x": 1},
            metric="loss",
            max_iter=1,
            run_cap=1,
            directory="study",
            backend="inline",
            progress=False,
        )
    assert hpsearch.load("study").state == "interrupted"
    answer = hpsearch_command("resume", "study", *INLINE)
    assert answer.code == 1
    assert "continue with the same call of hpsearch.search" in answer.err


def test_no_best_trial_before_there_is_a_value(here, hpsearch_command):
    change(here / "sweep.yaml", trainable="tests.hpsearch.support.cli_trainables:fails")
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    answer = hpsearch_command("best", "study")
    assert answer.code == 1
    assert "no trial has a value of 'loss' yet (4 failed)" in answer.err


def test_an_export_that_cant_be_written_is_an_error(here, hpsearch_command):
    hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study")
    answer = hpsearch_command("export", "study", "--to", "sweep.yaml")
    assert answer.code == 1
    assert "sweep.yaml: expected a folder that can be written to" in answer.err


@pytest.mark.parametrize(("words", "noted"), [("wandb.log", True), ("trial.report(m, checkpoint=c)", False)])
def test_only_a_script_that_saves_no_checkpoint_hears_what_that_costs(here, hpsearch_command, words, noted):
    (here / "script.py").write_text(f"raise SystemExit(1)  # {words}\n")
    early = {"type": "hyperband", "max_iter": 9}
    sweep = write_sweep(here / "s.yaml", None, program="script.py", early_terminate=early, max_iter=None, run_cap=None)
    answer = hpsearch_command("run", sweep, "--backend", "inline", "--dir", "study")
    assert ("a script that saves no checkpoint starts from zero" in answer.err) is noted
