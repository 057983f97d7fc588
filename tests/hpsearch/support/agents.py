"""Agents in processes of their own, and a backend for them that needs no sweep."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hpsearch.backends.agents.agent import Agent, DriverLink
from hpsearch.backends.agents.backend import AgentsBackend
from hpsearch.backends.agents.child import Process, serve
from hpsearch.backends.agents.folder import AgentFolder
from hpsearch.backends.agents.http import AgentClient, Client
from hpsearch.cli.parser import build_parser
from hpsearch.serving.access import client_token
from hpsearch.serving.server import Listen
from hpsearch.sweep.parts import Checkpoints, Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message
from hpsearch.worker.job import Job
from tests.forking import Forked
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.conditions import beside

SCRIPT = """
import json, os, time
params, start, end = (json.loads(os.environ[f"HPSEARCH_{name}"]) for name in ("PARAMS", "START", "END"))
saved = os.environ["HPSEARCH_CHECKPOINT"]
total = float(open(saved).read()) if saved else 0.0
for iteration in range(start + 1, end + 1):
    time.sleep(0.1)
    total += params["x"] / iteration
    with open(os.path.join(os.environ["HPSEARCH_DIRECTORY"], f"model-{iteration}"), "w") as file:
        file.write(repr(total))
    with open(os.environ["HPSEARCH_REPORTS"], "a") as file:
        print(json.dumps({"loss": total, "checkpoint": f"model-{iteration}"}), file=file)
"""
"""A script with checkpoints, which imports neither hpsearch nor torch."""


@contextmanager
def agent(driver: str | Path, code: Path = ROOT, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start an agent, and kill it at the end of the block unless it has ended."""
    command = [sys.executable, "-m", "hpsearch", "agent", str(driver), "--code", str(code), "--patience", "120"]
    with subprocess.Popen(command, env=environment(**variables), cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def agent_beside(driver: str | Path, code: Path = ROOT) -> Iterator[Callable[[], None]]:
    """Run an agent in a thread; the process that runs its segments is forked from one that has imported torch.

    Yields:
        A function that tells the agent to leave. It leaves at the end of the block at the latest.
    """
    name, leaves = secrets.token_hex(16), threading.Event()
    link: DriverLink
    if str(driver).startswith("http"):
        link = AgentClient(Client(str(driver), client_token("agent"), name))
    else:
        link = AgentFolder(Path(driver), name)
    running = beside(lambda: Agent(link, name, code, 120.0, print, start_forked).run(leaves.is_set))
    try:
        yield leaves.set
    finally:
        leaves.set()
        running.exception()


class _ForkedProcess:
    def __init__(self, channel: int, environment: Mapping[str, str]) -> None:
        with _forking:
            self._forked = Forked("tests.hpsearch.support.agents", env=environment, channel=channel)

    def kill(self) -> None:
        self._forked.kill()

    def wait(self) -> int:
        if not self._forked.stdout.closed:
            self._forked.communicate()
        assert self._forked.returncode is not None
        return self._forked.returncode


_forking = threading.Lock()


def start_forked(descriptor: int, folder: Path, environment: Mapping[str, str]) -> Process:
    """Start the process of an agent that runs segments."""
    return _ForkedProcess(descriptor, environment)


def sweep_of(job: Job) -> Sweep:
    """Return a sweep of which a job could be."""
    assert isinstance(job.trainable, str)
    return Sweep(
        name=job.name,
        trainable=job.trainable,
        metric=job.objective.goals[0],
        method="random",
        parameters={"x": {"min": 0.0, "max": 1.0}, "folder": "."},
        checkpoints=Checkpoints(every=job.save_every),
        resources=Resources(workers=2),
        run_cap=1,
    )


class AnyJobBackend(AgentsBackend):
    """Opens with a job alone, as other backends do."""

    def __init__(
        self, live: bool = False, listen: Listen | None = None, start: Callable[[str], object] = lambda address: None
    ) -> None:
        """Wait for the job.

        Args:
            live: Whether the scheduler may stop a segment at any report.
            listen: As of `AgentsBackend`.
            start: Starts agents, given the driver's address, once it is open.
        """
        self._live = live
        self._listens = listen
        self._start = start

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Open with the sweep of the job."""
        self.job = replace(job, live=self._live)
        super().__init__(sweep_of(job), self._listens)
        super().open(self.job, deliver)
        self._start(self._link.address)


def _main(words: Sequence[str]) -> int:
    """Run the command of these words, or without any the process of an agent that runs segments."""
    if words:
        args = build_parser(words[0]).parse_args(words)
        return int(args.command(args))
    channel = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(channel)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
