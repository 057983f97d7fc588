"""`hpsearch change`: a study goes on in another space, and all that shows it shows trials of both."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import optuna
import pytest

import hpsearch
from hpsearch.errors import StudyInUseError
from hpsearch.events import Changed
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.provenance import process_name
from tests.hpsearch.support.command_line import Call, write_sweep
from tests.hpsearch.support.scripted import events_of, of_kind

INLINE = ("--backend", "inline", "--no-tensorboard")
ADDED = "parameters.dropout={min: 0.0, max: 0.5, default: 0}"


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    """A finished study of ten trials, with a range, a choice and a constant."""
    parameters = {"x": {"min": 0.0, "max": 1.0}, "c": {"values": ["a", "b"]}, "k": {"value": 3}}
    write_sweep(here / "sweep.yaml", parameters=parameters, run_cap=10, name="s")
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    return here / "study"


def resumed(hpsearch_command: Call) -> list[dict[str, str]]:
    assert hpsearch_command("extend", "study", "--run-cap", 24).code == 0
    assert hpsearch_command("resume", "study", *INLINE).code == 0
    return [*csv.DictReader(io.StringIO(hpsearch_command("trials", "study", "--format", "csv").out))]


def test_a_study_goes_on_in_a_changed_space_and_shows_both(study, hpsearch_command):
    sets = ["--set", ADDED, "--set", "parameters.x.max=4", "--set", "parameters.c={value: a}"]
    answer = hpsearch_command("change", "study", *sets, "--from-trial", 12)
    assert answer.code == 0
    assert answer.out.startswith("changed from trial 12 on:\n  parameters.x.max: 1.0 before, 4.0 from then on\n")
    assert "10 of 10 trials fit the new space; a method that learns knows these\n" in answer.out
    assert answer.out.endswith("continue with: hpsearch resume study\n")
    assert "parameters.dropout={min: 0.0, max: 0.5" in hpsearch_command("history", "study").out
    rows = resumed(hpsearch_command)
    assert [row["params.dropout"] == "0.0" for row in rows[:12]] == [True] * 12
    assert all(float(row["params.x"]) <= 1 for row in rows[:12])
    assert {row["params.c"] for row in rows[:12]} == {"a", "b"}
    assert {row["params.c"] for row in rows[12:]} == {"a"}
    assert max(float(row["params.x"]) for row in rows) > 1
    assert min(float(row["params.dropout"]) for row in rows[12:]) > 0

    loaded = hpsearch.load(study)
    assert loaded.names == ("x", "c", "k", "dropout")
    assert [space.find("dropout") is not None for space in loaded.spaces] == [False, True]
    shown = hpsearch_command("trials", "study").out
    assert "dropout" in shown
    assert " c " in shown  # it was searched once, so that it isn't left out as a constant
    assert " k " not in shown
    assert hpsearch_command("report", "study", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "What mattered" in page
    assert "dropout" in page
    assert hpsearch_command("export", "study", "--to", "out").code == 0
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("out/optuna.log"))
    exported = optuna.load_study(study_name="s", storage=storage).trials
    assert [trial.params["x"] for trial in exported] == [row.params["x"] for row in loaded.trials]
    assert [trial.params["c"] for trial in exported] == [row.params["c"] for row in loaded.trials]
    begun = hpsearch_command("run", "sweep.yaml", "--from", "study", "--dir", "next", "--set", "method=tpe", *INLINE)
    assert begun.code == 0
    assert "of 24 taken; " in begun.out


def test_the_changed_section_of_a_file_says_the_same(study, hpsearch_command):
    parameters = {"x": {"min": 0.5, "max": 1.0}, "c": {"values": ["a", "b"]}, "k": {"value": 3}}
    write_sweep(Path("narrow.yaml"), parameters=parameters, run_cap=10, name="s")
    refused = hpsearch_command("run", "narrow.yaml", *INLINE, "--dir", "study")
    assert refused.code == 1
    assert "hpsearch change" in refused.err
    answer = hpsearch_command("change", "study", "--sweep", "narrow.yaml")
    assert (answer.code, answer.err) == (0, "")
    assert all(float(row["params.x"]) >= 0.5 for row in resumed(hpsearch_command)[10:])
    write_sweep(Path("narrow.yaml"), parameters=parameters, run_cap=24, name="s")
    again = hpsearch_command("run", "narrow.yaml", *INLINE, "--dir", "study")
    assert again.code == 0
    assert "this sweep is finished" in again.out
    write_sweep(Path("other.yaml"), parameters=parameters, run_cap=24, name="s", max_iter=3)
    other = hpsearch_command("change", "study", "--sweep", "other.yaml")
    assert other.code == 1
    assert "it differs in\n  max_iter: 2 in the study, 3 here" in other.err


REFUSED = [
    ("", "what? Name --set parameters.NAME.KEY=VALUE, or --sweep FILE"),
    (
        "--set run_cap=20",
        "--set run_cap=20: must be parameters.NAME=..., parameters.NAME.KEY=... or constraints=..., as",
    ),
    ("--set limits.max_time=2h", "limits, targets and resources are set by hpsearch resume --set"),
    ("--set parameters.x.max=1.0", "the study has this space already"),
    (
        "--set parameters.x.max=-1",
        "--set parameters.x.max=-1: parameters.x.max: must be greater than min (0.0), got -1",
    ),
    ("--set parameters.x.top=1", "parameters.x.top: isn't a known key"),
    ('--set parameters.d={"min":0.0,"max":1.0}', "parameters.d.default: is required where a parameter is added"),
    ("--set parameters.d=1", "parameters.d: must be a mapping"),
    ("--set parameters.d.max=1", "parameters.d.max: must be a mapping"),
    (
        "--set parameters.x.max=2 --from-trial 3",
        "--from-trial 3: must be a trial that hasn't begun: 10, or a later one",
    ),
    ("--set constraints=[y<1]", "constraints[0]: must name parameters, but y isn't one"),
]


def test_what_cant_be_changed_is_said_and_leaves_no_trace(study, hpsearch_command):
    before = study.joinpath("study.db").read_bytes()
    for words, why in REFUSED:
        answer = hpsearch_command("change", "study", *words.split())
        assert answer.code == 1, words
        assert why in answer.err, (words, answer.err)
    assert study.joinpath("study.db").read_bytes() == before


def test_a_running_study_is_to_be_stopped_first(study, hpsearch_command):
    with StudyDirectory(study).running(process_name()):
        answer = hpsearch_command("change", "study", "--set", ADDED)
        assert answer.code == 1
        assert "runs this study now. " in answer.err
        with pytest.raises(StudyInUseError, match="runs this study now"):
            hpsearch.change(study, {"x": hpsearch.Uniform(0, 2)})
    assert not of_kind(study, Changed)


def test_in_python_names_have_distributions(study):
    changed = hpsearch.change(study, {"x": hpsearch.Uniform(0, 2), "d": hpsearch.IntUniform(0, 9, default=1)})
    assert changed.names == ("x", "c", "k", "d")
    assert {row.params["d"] for row in changed.trials} == {1}
    assert isinstance(events_of(study)[-1], Changed)
    whole = hpsearch.Space.from_parameters({"x": 0.5, "c": ["a"], "k": 3, "d": hpsearch.IntUniform(0, 9)})
    assert hpsearch.change(study, whole, from_trial=15).sweep.parameters == whole


def test_an_ask_and_tell_study_asks_from_the_changed_space(here, hpsearch_command):
    sweep = hpsearch.Sweep(
        name="lab", parameters={"x": hpsearch.Uniform(0, 1)}, metric=hpsearch.Metric("loss"), method="tpe"
    )
    with hpsearch.AskTell(sweep, directory="lab") as lab:
        for _ in range(12):
            trial = lab.ask()
            assert trial is not None
            lab.tell(trial, trial.params["x"])
        lab.steer("change", {"set": ["parameters.x.min=0.5", ADDED], "from_trial": None})
        trial = lab.ask()
        assert trial is not None
        assert trial.params["x"] >= 0.5
        assert "dropout" in trial.params
        lab.tell(trial, 1.0)
    answer = hpsearch_command("change", "lab", "--set", "parameters.x.min=0.75")
    assert answer.out.endswith("continue with: hpsearch ask lab\n")
    with hpsearch.AskTell(directory="lab") as lab:
        trial = lab.ask()
        assert trial is not None
        assert trial.params["x"] >= 0.75
    assert {row.params["dropout"] for row in hpsearch.load("lab").trials[:12]} == {0.0}
