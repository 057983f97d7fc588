"""A search inside a job that was submitted to a Ray cluster together with its code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.command_line import PATIENCE, environment
from tests.hpsearch.support.ray_jobs import started_head, submit

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

SCRIPT = """
import sys
import hpsearch
from beside import shifted

def train(trial):
    for _ in trial.iterations():
        trial.report({"loss": shifted(trial.params["x"])})

if __name__ == "__main__":
    hpsearch.search(
        train, parameters={"x": hpsearch.Uniform(0, 1)}, metric="loss", max_iter=1, run_cap=3,
        resources={"workers": 1}, directory=sys.argv[1], observers=[],
    )
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("def shifted(x):\n    return x + 1\n")
    return folder


def test_one_that_has_a_working_dir_keeps_it(ray_cluster, code, tmp_path):
    """What `ray job submit --working-dir` puts into the environment of the job's process."""
    job = {"runtime_env": {"working_dir": str(code)}}
    told = {"RAY_ADDRESS": ray_cluster.address, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}
    done = subprocess.run(
        [sys.executable, code / "script.py", tmp_path / "study"],
        cwd=code,
        env=environment(**told),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert hpsearch.load(tmp_path / "study").state == "finished"


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[str]:
    """The address of the dashboard of a cluster begun by `ray start`."""
    with started_head(tmp_path) as (address, _):
        yield address


@pytest.mark.slow
def test_one_that_ray_job_submit_starts_with_its_code_runs(dashboard, code, tmp_path):
    words = ["--address", dashboard, "--working-dir", ".", "--", sys.executable, "script.py", str(tmp_path / "study")]
    done = submit(code, *words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert hpsearch.load(tmp_path / "study").state == "finished"
    assert "asks for no token" in done.stdout
