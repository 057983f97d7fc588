"""Launchers that set the rank of a process in their own environment variables: mpirun, mpiexec and srun.

Sources of the variables: Open MPI 5.0, "Environment variables set for MPI applications"; PMI-1 and Hydra, which MPICH
and Intel MPI share; and srun(1), "Output environment variables".

The ranks find each other by a name that is unique to this start of them. If all ranks are on one host, the name of a
Unix socket is derived from it. If they are on several hosts, only srun sets which hosts these are. Under the other
launchers the ranks need MASTER_ADDR and MASTER_PORT then, as under torchrun.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpsearch_comm.errors import ConfigurationError

_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_PORTS = range(20000, 32000)
"""Ports to choose from. They are below the kernel's ephemeral ports, which start at 32768 by default."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the ranks meet, derived from the launcher's variables."""

    job: str
    """Name of this start of the ranks, unique among all that run on their hosts at the same time."""
    host: str | None = None
    """The host of rank 0; None if all ranks are on this host."""
    port: int = 0
    """A port on that host. It may be in use."""
    origin: str = ""
    """What host and port were derived from, and what to do if they can't be used."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    size: str
    advice: str
    """How to set MASTER_ADDR and MASTER_PORT on all ranks."""
    meeting: Callable[[Mapping[str, str]], MeetingPoint | None]
    """Derives the meeting point from a rank's variables; returns None if they don't determine one."""


def _of_open_mpi(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by its PMIx namespace and by the addresses of the daemon on this host.

    A namespace of Open MPI 4 is a 16-bit hash, which two jobs may share. The daemon's address is unique.
    """
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") != env["OMPI_COMM_WORLD_SIZE"] or "PMIX_NAMESPACE" not in env:
        return None
    daemon = sorted({value for name, value in env.items() if name.startswith("PMIX_SERVER_URI")})
    return MeetingPoint(" ".join(["Open MPI's job", env["PMIX_NAMESPACE"], *daemon])) if daemon else None


def _of_mpiexec(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by its Hydra daemon, an ancestor of this process: no variable distinguishes two jobs.

    If the PMI variables name srun's step and Hydra's own are missing, srun has set them.
    """
    if env.get("MPI_LOCALNRANKS") == env["PMI_SIZE"]:
        return _below_hydra()
    if "MPI_LOCALNRANKS" not in env and env.get("PMI_JOBID", "") == _step(env):
        return _of_srun(env)
    return None


def _below_hydra() -> MeetingPoint | None:
    for parent in psutil.Process().parents():
        if parent.name() == "hydra_pmi_proxy":
            # A container may have its own PID namespace, but share its host's sockets.
            return MeetingPoint(f"mpiexec's job below process {parent.pid}, {Path('/proc/self/ns/pid').readlink()}")
    return None


def _of_srun(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by srun's step. The host is the step's first node, where rank 0 runs by default."""
    step, nodes = _step(env), env.get("SLURM_STEP_NODELIST", "")
    if not step or not nodes:
        return None
    start = f"{env.get('SLURM_CLUSTER_NAME', '')}, start {env.get('SLURM_RESTART_COUNT', '0')}"
    job = f"srun's step {step} of cluster {start}"
    if env.get("SLURM_STEP_NUM_NODES") == "1":
        return MeetingPoint(job)
    host = _first_node(nodes)
    # A hash, not the sum of the numbers: step 1 of a job and step 0 of the next job may run at the same time.
    port = _PORTS[int.from_bytes(hashlib.sha256(step.encode()).digest()[:8]) % len(_PORTS)]
    origin = (
        f"MASTER_ADDR={host}, the first of SLURM_STEP_NODELIST={nodes}, and MASTER_PORT={port}, of job and step "
        f"{step}, were made from srun's variables: where rank 0 is elsewhere or the port is taken, set both before srun"
    )
    return MeetingPoint(job, host, port, origin)


def _step(env: Mapping[str, str]) -> str:
    """Return the name of srun's step, as srun writes it; empty if there is no step."""
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's node list: `rack0n01` for `rack[0-1]n[01-10,12],login`."""
    first = re.match(r"(?:\[[^\]]*\]|[^\[,])*", nodes)
    assert first is not None  # it also matches the empty string
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


_LAUNCHERS = (
    _Launcher(
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "`mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 ...`",
        _of_open_mpi,
    ),
    _Launcher(
        "mpiexec",
        "PMI_RANK",
        "PMI_SIZE",
        "`mpiexec -genv MASTER_ADDR node1 -genv MASTER_PORT 29500 ...`",
        _of_mpiexec,
    ),
    # Not SLURM_NTASKS: a batch script and the shell of salloc are not tasks of a step, but also have SLURM_NTASKS and
    # SLURM_PROCID=0.
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        '`export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)` before '
        "srun",
        _of_srun,
    ),
)
"""The innermost first: mpirun and mpiexec may start their ranks or daemons with srun."""

VARIABLES = tuple(name for launcher in _LAUNCHERS for name in (launcher.rank, launcher.size))
"""The variables in which these launchers set a process's rank and their number of ranks."""


def launched_rank(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return this process's rank as a launcher has set it, if there are several ranks.

    Returns:
        A description, such as `rank 1 of 4 under srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)`, and the name of the
        variable with the number of ranks. None if no launcher has set more than one rank.
    """
    candidates = [(launcher.name, launcher.rank, launcher.size) for launcher in _LAUNCHERS]
    candidates.append(("torchrun, or another launcher that sets its variables", "RANK", "WORLD_SIZE"))
    for name, rank, size in candidates:
        if rank in env and env.get(size, "").strip() not in ("", "1"):
            return f"rank {env[rank]} of {env[size]} under {name} ({rank}, {size})", size
    return None


def with_launcher(env: dict[str, str]) -> tuple[dict[str, str], MeetingPoint | None]:
    """Return the environment with RANK and WORLD_SIZE added, if a launcher has set variables of its own instead.

    If torchrun has set several ranks, its variables are used: another launcher may have started a torchrun per host.

    Returns:
        The environment, and the meeting point of the ranks; None if MASTER_ADDR and MASTER_PORT set it.

    Raises:
        ConfigurationError: The launcher's variables contradict RANK and WORLD_SIZE, or the ranks can't find each other.
    """
    launcher = next((launcher for launcher in _LAUNCHERS if env.get(launcher.size, "1") != "1"), None)
    if launcher is None:
        _warn_outside_of_srun(env)
        return env, None
    if "TORCHELASTIC_RUN_ID" in env and env.get("WORLD_SIZE", "1") != "1":
        return env, None
    if launcher.rank not in env:
        raise ConfigurationError(f"expected {launcher.rank} to be set, since {launcher.size}={env[launcher.size]} is")
    expected = {"RANK": env[launcher.rank], "WORLD_SIZE": env[launcher.size]}
    where = (
        f"rank {expected['RANK']} of {expected['WORLD_SIZE']} under {launcher.name} ({launcher.rank}, {launcher.size})"
    )
    alone = f"To have it train by itself, take {launcher.size} out of its environment"
    for name, value in expected.items():
        if env.get(name, value) != value:
            raise ConfigurationError(
                f"expected {name} to be {value} or not set, since this process is {where}, got {name}={env[name]}: "
                f"unset RANK and WORLD_SIZE. {alone}"
            )
    missing = [name for name in _PLACE if name not in env]
    meeting = launcher.meeting(env) if len(missing) == len(_PLACE) else None
    if missing and meeting is None:
        present = [f"{name}={env[name]}, which doesn't go alone" for name in _PLACE if name in env]
        why = "".join(present) or "which doesn't say where all of them can meet"
        raise ConfigurationError(
            f"expected {' and '.join(missing)} to be set, since this process is {where}, {why}: the host of rank 0, "
            f"and a port that is free there, the same on every rank, as by {launcher.advice}. {alone}"
        )
    return {**expected, **env}, meeting


def _warn_outside_of_srun(env: Mapping[str, str]) -> None:
    if env.get("SLURM_NTASKS", "1") != "1" and "RANK" not in env:
        _log.warning(
            "SLURM_NTASKS is %s, but this process is no task of srun: it trains by itself, in a group of one. To have "
            "all tasks train together, start it by srun",
            env["SLURM_NTASKS"],
        )
