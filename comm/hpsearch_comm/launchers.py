"""The launchers that say in variables of their own which rank a process is: mpirun, mpiexec and srun.

Names are those of Open MPI 5.0, "Environment variables set for MPI applications"; of PMI-1 and Hydra, which MPICH and
Intel MPI share; and of srun(1), "Output environment variables". None of them says where the ranks can meet, which takes
MASTER_ADDR and MASTER_PORT as under torchrun.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from hpsearch_comm.errors import ConfigurationError

__all__ = ["VARIABLES", "with_launcher"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    size: str
    advice: str
    """How to tell all ranks where they meet."""


_LAUNCHERS = (
    _Launcher(
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "`mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 ...`",
    ),
    _Launcher(
        "mpiexec",
        "PMI_RANK",
        "PMI_SIZE",
        "`mpiexec -genv MASTER_ADDR node1 -genv MASTER_PORT 29500 ...`",
    ),
    # Not SLURM_NTASKS: that, and SLURM_PROCID=0, are also set in a batch script and in the shell of salloc, which are
    # no tasks of theirs.
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        '`export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)` before '
        "srun",
    ),
)
"""Those within first: mpirun and mpiexec may start their ranks, or their daemons, by srun."""

VARIABLES = tuple(name for launcher in _LAUNCHERS for name in (launcher.rank, launcher.size))
"""By which these launchers say which rank a process is."""


def with_launcher(env: dict[str, str]) -> dict[str, str]:
    """Give the environment with RANK and WORLD_SIZE, where a launcher has set others in their place.

    What torchrun has set for several ranks counts: another launcher may have started one torchrun on each host.

    Raises:
        ConfigurationError: The launcher's ranks are others than RANK and WORLD_SIZE say, or can't find each other.
    """
    launcher = next((launcher for launcher in _LAUNCHERS if env.get(launcher.size, "1") != "1"), None)
    if launcher is None:
        _warn_outside_of_srun(env)
        return env
    if "TORCHELASTIC_RUN_ID" in env and env.get("WORLD_SIZE", "1") != "1":
        return env
    if launcher.rank not in env:
        raise ConfigurationError(f"expected {launcher.rank} to be set, since {launcher.size}={env[launcher.size]} is")
    said = {"RANK": env[launcher.rank], "WORLD_SIZE": env[launcher.size]}
    where = f"rank {said['RANK']} of {said['WORLD_SIZE']} under {launcher.name} ({launcher.rank}, {launcher.size})"
    alone = f"To have it train by itself, take {launcher.size} out of its environment"
    for name, value in said.items():
        if env.get(name, value) != value:
            raise ConfigurationError(
                f"expected {name} to be {value} or not set, since this process is {where}, got {name}={env[name]}: "
                f"unset RANK and WORLD_SIZE. {alone}"
            )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise ConfigurationError(
            f"expected {' and '.join(missing)} to be set, since this process is {where}: the host of rank 0, and a "
            f"port that is free there, the same on every rank, as by {launcher.advice}. {alone}"
        )
    return {**said, **env}


def _warn_outside_of_srun(env: Mapping[str, str]) -> None:
    if env.get("SLURM_NTASKS", "1") != "1" and "RANK" not in env:
        _log.warning(
            "SLURM_NTASKS is %s, but this process is no task of srun: it trains by itself, in a group of one. To have "
            "all tasks train together, start it by srun",
            env["SLURM_NTASKS"],
        )
