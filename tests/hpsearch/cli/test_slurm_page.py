"""The scripts of docs/slurm.md, submitted to a Slurm of two nodes, which are both this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from tests.comm.launch import slurm
from tests.hpsearch.support.command_line import environment, write_sweep

PAGE = Path(__file__).parents[3] / "docs" / "slurm.md"
SCRIPTS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    if slurm.MISSING:
        pytest.skip(f"apt-get install slurm-wlm munge: {', '.join(slurm.MISSING)} isn't there")
    with slurm.cluster() as env:
        yield environment(**env | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"})


def submit(script: str, folder: Path, env: dict[str, str]) -> str:
    """Submit a script, with as many processors as the nodes have; return the job."""
    text = re.sub(r"--cpus-per-task=\d+", "--cpus-per-task=2", script).replace("source .venv/bin/activate\n", "")
    (folder / "script.sh").write_text(text)
    done = subprocess.run(["sbatch", "--parsable", "script.sh"], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout.strip()


def wait_for_end(job: str, env: dict[str, str]) -> None:
    """Wait until Slurm doesn't list a job any more; the test's own time limit bounds it."""
    command = ["squeue", "--noheader", "--jobs", job]
    while subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.strip():
        time.sleep(0.5)


def test_ray_on_two_nodes_searches(cluster: dict[str, str], tmp_path: Path):
    write_sweep(tmp_path / "sweep.yaml", run_cap=8)
    job = submit(SCRIPTS[0], tmp_path, cluster)
    try:
        wait_for_end(job, cluster)
        study = hpsearch.load(tmp_path / "runs/search")
        assert (study.state, len(study.trials)) == ("finished", 8)
        assert len({(row.trial, row.attempt) for row in study.segments()}) == 8
    finally:
        subprocess.run(["scancel", job], env=cluster, check=False)
        wait_for_end(job, cluster)
