"""However a check ends, its processes are gone then, and so is its scratch folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.hpsearch.support import checked_trainables
from tests.hpsearch.support.command_line import PATIENCE, begin, wait_for, write_sweep


def begun(folder: Path, trainable: str, *arguments: str) -> subprocess.Popen[str]:
    shutil.copy(checked_trainables.__file__, folder / "train.py")
    (folder / "scratch").mkdir()
    write_sweep(folder / "sweep.yaml", f"train:{trainable}")
    return begin("check", "sweep.yaml", *arguments, cwd=folder, TMPDIR=str(folder / "scratch"))


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_all_is_gone(folder: Path) -> None:
    pids = [int(pid) for pid in (folder / "hanging").read_text().split()]
    wait_for(lambda: all(map(is_gone, pids)) and not [*(folder / "scratch").iterdir()])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_a_check_and_all_that_it_has_started(tmp_path, number, code):
    process = begun(tmp_path, "hangs")
    wait_for((tmp_path / "hanging").exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, "Traceback" in err) == (code, "", False)
    wait_until_all_is_gone(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("limit", ["trial_timeout", "max_time"])
def test_a_trial_that_hangs_is_ended_by_the_limits_of_the_sweep(tmp_path, limit):
    process = begun(tmp_path, "hangs", "--set", f"limits.{limit}={40 if limit == 'max_time' else 5}")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"trial 0 failed: it ran over limits.{limit}" in err
    if (tmp_path / "hanging").exists():
        wait_until_all_is_gone(tmp_path)


@pytest.mark.exhaustive
def test_a_process_that_dies_is_the_trials_failure(tmp_path):
    process = begun(tmp_path, "dies")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "trial 0 failed: its process was killed by SIGABRT" in err
    assert not [*(tmp_path / "scratch").iterdir()]
