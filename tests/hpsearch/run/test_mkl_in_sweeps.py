"""MKL_CBWR, which decides whether bits depend on where in memory tensors lie: who has it, and who keeps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hpsearch
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from tests.hpsearch.support.command_line import ROOT, environment

AUTO = "AUTO" if torch.backends.mkl.is_available() else "unset"  # type: ignore[no-untyped-call]

RAY = pytest.param(("--workers", "1"), marks=[pytest.mark.ray, pytest.mark.slow])


def run(folder: Path, names: str, *words: str, **variables: str) -> str:
    """Run sweeps in a process in whose environment it isn't, but for what is given; return what it prints."""
    env = {name: value for name, value in environment().items() if name != "MKL_CBWR"} | variables
    command = [sys.executable, "-m", "tests.hpsearch.support.mkl_sweeps", str(folder), names, "--no-tensorboard"]
    done = subprocess.run([*command, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def told(folder: Path, name: str) -> set[str]:
    return set((folder / f"{name}.told").read_text().split())


def recorded(folder: Path, name: str) -> object:
    with Journal.read(StudyDirectory(folder / name).journal) as journal:
        return journal.study().get("mkl_cbwr")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", [("--backend", "inline"), RAY])
def test_workers_have_it_but_for_studies_of_earlier_versions_and_scripts(tmp_path, backend):
    run(tmp_path, "new,earlier,script", *backend)
    assert {name: told(tmp_path, name) for name in ("new", "earlier", "script")} == {
        "new": {AUTO},
        "earlier": {"unset"},
        "script": {"unset"},
    }
    assert [recorded(tmp_path, name) for name in ("new", "earlier", "script")] == ["AUTO", None, None]
    # It is set before torch multiplies: odd sizes can be lanes.
    assert max(row.lanes for row in hpsearch.load(tmp_path / "new").trials) == 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", [("--backend", "inline"), RAY])
def test_what_the_user_has_set_stays_and_is_kept_when_the_study_goes_on(tmp_path, backend):
    run(tmp_path, "new,script", *backend, MKL_CBWR="COMPATIBLE")
    assert told(tmp_path, "new") == told(tmp_path, "script") == {"COMPATIBLE"}
    assert recorded(tmp_path, "new") == "COMPATIBLE"
    (tmp_path / "new.told").unlink()
    for environment_has in ({}, {"MKL_CBWR": "AUTO"}):
        printed = run(tmp_path, "new", "--set", f"run_cap={6 + len(environment_has)}", *backend, **environment_has)
        assert ("MKL_CBWR=COMPATIBLE stays as the study began with" in printed) == bool(environment_has)
    assert told(tmp_path, "new") == {"COMPATIBLE"}


@pytest.mark.exhaustive
def test_it_isnt_set_where_torch_has_no_mkl(tmp_path):
    run(tmp_path, "new", "--backend", "inline", "--without-mkl")
    assert told(tmp_path, "new") == {"unset"}
