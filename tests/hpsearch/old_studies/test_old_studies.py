"""Studies that former versions wrote open, export and resume to the tables that those versions gave."""

from __future__ import annotations

import json
import math
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import hpsearch
from hpsearch.cli import main
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.old_studies import trainables

HERE = Path(__file__).parent

STUDIES = [("format-2", name) for name in ("finished", "killed", "grid-killed")]
"""Written before trials had parents."""

FINISHED = [(form, name) for form, name in STUDIES if "killed" not in name]

KILLED = [(form, name) for form, name in STUDIES if "killed" in name]


def unpacked(form: str, name: str, place: Path) -> Path:
    with tarfile.open(HERE / form / f"{name}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place / name


def assert_as_told(study: hpsearch.Study, form: str, name: str) -> None:
    """Compare with what the version that wrote the study said of it."""
    assert rows_to_csv(study.trials, study.sweep.parameters.names) == (HERE / form / f"{name}.csv").read_text()
    told = json.loads((HERE / form / f"{name}.json").read_text())
    assert study.state == {"interrupted": "killed"}.get(told["state"], told["state"])  # then one word for both
    assert [study.best_trial.number, study.best_value] == told["best"]
    assert study.iterations == told["iterations"]
    assert study.total == tuple(told["total"])
    assert [[row.number, row.reason] for row in study.trials] == told["reasons"]
    # That version left NaN out of its curves.
    curves = {str(trial): [[i, v] for i, v in curve if not math.isnan(v)] for trial, curve in study.curves().items()}
    assert curves == told["curves"]


def segments_of(study: hpsearch.Study) -> list[list[object]]:
    return [[s.trial, s.attempt, s.start, s.end, s.width, s.reason, s.ended] for s in study.segments()]


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(("form", "name"), STUDIES)
def test_an_old_study_opens_and_exports(form, name, tmp_path):
    study = hpsearch.load(unpacked(form, name, tmp_path))
    assert_as_told(study, form, name)
    assert segments_of(study) == json.loads((HERE / form / f"{name}.json").read_text())["segments"]
    assert main(["export", str(study.directory), "--to", str(tmp_path / "export")]) == 0
    exported = (tmp_path / "export" / "trials.csv").read_text()
    assert exported.splitlines()[1:] == (HERE / form / f"{name}.csv").read_text().splitlines()[1:]


@pytest.mark.parametrize(("form", "name"), KILLED)
def test_an_old_study_that_was_killed_resumes_to_the_table_of_its_own_version(form, name, tmp_path):
    place = unpacked(form, name, tmp_path)
    trainable = trainables.train if name == "killed" else trainables.plain
    stored = hpsearch.load(place).sweep
    study = hpsearch.search(trainable, stored, directory=place, backend="inline", observers=[], progress=False)
    assert_as_told(study, form, f"{name}-then-resumed")
    assert_as_told(hpsearch.load(place), form, f"{name}-then-resumed")


@pytest.mark.parametrize(("form", "name"), FINISHED)
def test_an_old_study_that_is_finished_runs_nothing_again(form, name, tmp_path):
    place = unpacked(form, name, tmp_path)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"}
    stored = hpsearch.load(place).sweep
    study = hpsearch.search(stored, directory=place, backend="inline", observers=[], progress=False)
    assert_as_told(study, form, name)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("form", "name"), KILLED)
def test_an_old_study_takes_its_own_sweep_given_anew(form, name, tmp_path):
    place = unpacked(form, name, tmp_path)
    trainable = trainables.train if name == "killed" else trainables.plain
    stored = hpsearch.load(place).sweep
    anew = replace(stored, parameters=hpsearch.Space(stored.parameters.declared))
    study = hpsearch.search(trainable, anew, directory=place, backend="inline", observers=[], progress=False)
    assert_as_told(study, form, f"{name}-then-resumed")
