"""The launchers that say in variables of their own which rank a process is: mpirun, mpiexec and srun.

Names are those of Open MPI 5.0, "Environment variables set for MPI applications"; of PMI-1 and Hydra, which MPICH and
Intel MPI share; and of srun(1), "Output environment variables".

Where the ranks can meet follows from what names this start of theirs among all others: if all of them are on one host,
that name is a place, at which nobody else is. For several hosts srun alone says which they are; the others' ranks need
MASTER_ADDR and MASTER_PORT, as under torchrun.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpsearch_comm.errors import ConfigurationError

_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_PORTS = range(20000, 32000)
"""Below those that kernels give to whoever asks for any: 32768 and more by default."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where ranks meet by what their launcher says."""

    job: str
    """Names this start of the ranks among all that run on their hosts at the same time."""
    host: str | None = None
    """Rank 0's; None where all ranks are on this one."""
    port: int = 0
    """One of that host, which may be taken."""
    origin: str = ""
    """What host and port have been made from, and what to do if they can't be used."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    size: str
    advice: str
    """How to tell all ranks where they meet."""
    meeting: Callable[[Mapping[str, str]], MeetingPoint | None]
    """What follows from a rank's variables; None where nothing does for sure."""


def _of_open_mpi(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by its namespace of PMIx and by the addresses of the daemon on this host.

    A namespace of Open MPI 4 is a hash of 16 bits, which two jobs may share; at an address there is one daemon at once.
    """
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") != env["OMPI_COMM_WORLD_SIZE"] or "PMIX_NAMESPACE" not in env:
        return None
    daemon = sorted({value for name, value in env.items() if name.startswith("PMIX_SERVER_URI")})
    return MeetingPoint(" ".join(["Open MPI's job", env["PMIX_NAMESPACE"], *daemon])) if daemon else None


def _of_mpiexec(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by Hydra's daemon on this host, above this process: no variable tells two jobs apart.

    The variables of PMI are srun's own where they name its step, and Hydra's aren't there.
    """
    if env.get("MPI_LOCALNRANKS") == env["PMI_SIZE"]:
        return _below_hydra()
    if "MPI_LOCALNRANKS" not in env and env.get("PMI_JOBID", "") == _step(env):
        return _of_srun(env)
    return None


def _below_hydra() -> MeetingPoint | None:
    process = os.getpid()
    while process > 0:
        try:
            # Name (in brackets), state, parent; and as the 22nd when it began: proc_pid_stat(5).
            text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        name, _, after_name = text.partition("(")[2].rpartition(") ")
        fields = after_name.split()
        if name == "hydra_pmi_proxy":
            # A container may have numbers of its own, and sockets of its host's.
            numbers = Path("/proc/self/ns/pid").readlink()
            return MeetingPoint(f"mpiexec's job below process {process} of {fields[19]}, {numbers}")
        process = int(fields[1])
    return None


def _of_srun(env: Mapping[str, str]) -> MeetingPoint | None:
    """Name the job by srun's step, and return the first of its nodes, where rank 0 is but for unusual distributions."""
    step, nodes = _step(env), env.get("SLURM_STEP_NODELIST", "")
    if not step or not nodes:
        return None
    start = f"{env.get('SLURM_CLUSTER_NAME', '')}, start {env.get('SLURM_RESTART_COUNT', '0')}"
    job = f"srun's step {step} of cluster {start}"
    if env.get("SLURM_STEP_NUM_NODES") == "1":
        return MeetingPoint(job)
    host = _first_node(nodes)
    # Not by counting: step 1 of a job and step 0 of the next one may run at once.
    port = _PORTS[int.from_bytes(hashlib.sha256(step.encode()).digest()[:8]) % len(_PORTS)]
    origin = (
        f"MASTER_ADDR={host}, the first of SLURM_STEP_NODELIST={nodes}, and MASTER_PORT={port}, of job and step "
        f"{step}, were made from srun's variables: where rank 0 is elsewhere or the port is taken, set both before srun"
    )
    return MeetingPoint(job, host, port, origin)


def _step(env: Mapping[str, str]) -> str:
    """Name srun's step as srun does; empty where there is none."""
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


def _first_node(nodes: str) -> str:
    """Return the first of Slurm's list of nodes: `rack0n01` of `rack[0-1]n[01-10,12],login`."""
    first = re.match(r"(?:\[[^\]]*\]|[^\[,])*", nodes)
    assert first is not None  # it matches nothing, too
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
    # Not SLURM_NTASKS: that, and SLURM_PROCID=0, are also set in a batch script and in the shell of salloc, which are
    # no tasks of theirs.
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        '`export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)` before '
        "srun",
        _of_srun,
    ),
)
"""Those within first: mpirun and mpiexec may start their ranks, or their daemons, by srun."""

VARIABLES = tuple(name for launcher in _LAUNCHERS for name in (launcher.rank, launcher.size))
"""By which these launchers say which rank a process is."""


def launched_rank(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return which of several ranks a launcher says that this process is.

    Returns:
        The rank in words, such as `rank 1 of 4 under srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)`, and the name of the
        variable that holds how many there are; None if no launcher says that there are several.
    """
    candidates = [(launcher.name, launcher.rank, launcher.size) for launcher in _LAUNCHERS]
    candidates.append(("torchrun, or another launcher that sets its variables", "RANK", "WORLD_SIZE"))
    for name, rank, size in candidates:
        if rank in env and env.get(size, "").strip() not in ("", "1"):
            return f"rank {env[rank]} of {env[size]} under {name} ({rank}, {size})", size
    return None


def with_launcher(env: dict[str, str]) -> tuple[dict[str, str], MeetingPoint | None]:
    """Return the environment with RANK and WORLD_SIZE, where a launcher has set others in their place.

    What torchrun has set for several ranks counts: another launcher may have started one torchrun on each host.

    Returns:
        The environment, and where the ranks meet if that isn't what MASTER_ADDR and MASTER_PORT in it say.

    Raises:
        ConfigurationError: The launcher's ranks are others than RANK and WORLD_SIZE say, or can't find each other.
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
