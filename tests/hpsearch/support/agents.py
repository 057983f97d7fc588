"""Agents in processes of their own, and a backend for them that needs no sweep."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpsearch.backends.agents.agent import Agent, Process
from hpsearch.backends.agents.backend import AgentsBackend
from hpsearch.backends.agents.child import serve
from hpsearch.backends.agents.folder import AgentFolder
from hpsearch.sweep.parts import Checkpoints, Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message
from hpsearch.worker.job import Job
from tests.forking import Forked
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.conditions import beside


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
def agent_beside(study: Path, code: Path = ROOT) -> Iterator[None]:
    """Run an agent in a thread; the process that runs its segments is forked from one that has imported torch."""
    name, ends = secrets.token_hex(16), threading.Event()
    link = AgentFolder(study, name)
    running = beside(lambda: Agent(link, name, code, 120.0, print, start_forked).run(ends.is_set))
    try:
        yield
    finally:
        ends.set()
        running.exception()


class _ForkedProcess:
    def __init__(self, channel: int, environment: Mapping[str, str]) -> None:
        with _forking:
            self._forked = Forked("tests.hpsearch.support.agents", env=environment, channel=channel)

    def kill(self) -> None:
        self._forked.kill()

    def wait(self) -> int:
        if self._forked.returncode is None:
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
        parameters={"x": {"min": 0.0, "max": 1.0}, "folder": "."},  # type: ignore[arg-type]
        checkpoints=Checkpoints(every=job.save_every),
        resources=Resources(workers=2),
        run_cap=1,
    )


class AnyJobBackend(AgentsBackend):
    """Opens with a job alone, as other backends do."""

    def __init__(self) -> None:
        """Wait for the job."""

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Open with the sweep of the job."""
        super().__init__(sweep_of(job))
        super().open(job, deliver)


if __name__ == "__main__":
    channel = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(channel)
