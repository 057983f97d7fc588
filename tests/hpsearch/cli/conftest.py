"""A command line to call, and a folder to call it in."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from tests.hpsearch.support.command_line import Call, call, write_sweep
from tests.hpsearch.support.local_ray import Undisturbed, run_undisturbed


@pytest.fixture
def hpsearch_command(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process."""
    return functools.partial(call, capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, entered, with `sweep.yaml` in it."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep.yaml")
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests of a file have in common."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def study(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A copy of a study of `sweep.yaml`, in the folder that is entered."""
    if not (made / "study").exists():
        assert call(capsys, "run", "sweep.yaml", "--backend", "inline", "--dir", made / "study").code == 0
    shutil.copytree(made / "study", here / "study")
    return here / "study"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return how the sweep of the tests on a local Ray ends if nothing disturbs it."""
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"))
