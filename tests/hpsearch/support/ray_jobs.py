"""A Ray cluster that takes jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.comm.meeting import free_port
from tests.hpsearch.support.command_line import PATIENCE, environment, wait_for


@contextlib.contextmanager
def started_head(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `ray start`; yield the address of its dashboard, and its process.

    Args:
        folder: Where its output goes.
    """
    port, log = free_port(), folder / "head.txt"
    # Ports of its own, for another cluster may be up: without its port the agent lives, and takes no jobs.
    ports = [f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "ray-client-server-port")]
    words = ["start", "--head", "--port=0", f"--dashboard-port={port}", *ports, "--num-cpus=1", "--block"]
    with log.open("w") as output:
        head = subprocess.Popen(
            [Path(sys.executable).parent / "ray", *words],
            env=environment(RAY_AUTH_MODE="disabled"),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "Ray runtime started" in log.read_text(), head)
        wait_for(lambda: _answers(port), head)
        yield f"http://127.0.0.1:{port}", head
    finally:
        head.terminate()  # alone: it asks the processes it started, and waits 30 s for those that a signal ended first
        try:
            head.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)


def submit(code: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `ray job submit` in a folder."""
    while True:
        done = subprocess.run(
            [Path(sys.executable).parent / "ray", "job", "submit", *words],
            cwd=code,
            env=environment(RAY_AUTH_MODE="disabled"),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
        )
        # The cluster may still be starting.
        if "No available agent to submit job, please try again later" not in done.stderr:
            return done


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
