"""Agents and their driver are killed, stopped and started at random: the table is that of an undisturbed sweep."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hpsearch.events import Lost, Opened
from hpsearch.journal.journal import Journal
from tests.forking import Forked
from tests.hpsearch.support.agents import SCRIPT
from tests.hpsearch.support.command_line import begin, call, environment, wait_for, write_sweep

AGENTS = 20
LEASE = 5


class Fleet:
    """Agents of a study, of which some are killed or stopped.

    Args:
        study: The study's directory.
        code: The folder of the script.
    """

    def __init__(self, study: Path, code: Path) -> None:
        self._words = (
            "tests.hpsearch.support.agents",
            "agent",
            str(study),
            "--code",
            str(code),
            "-q",
            "--patience",
            "100",
        )
        self.agents = [self._start() for _ in range(AGENTS)]

    def _start(self) -> Forked:
        return Forked(*self._words, env=environment(), new_session=True)

    def busy(self) -> list[int]:
        """Return the agents that run a segment: they have a worker, which has a script."""
        below = _children()
        return [index for index in range(AGENTS) if len(_tree(self.agents[index].pid, below)) > 2]

    def kill(self, index: int) -> None:
        """Kill an agent, and start another."""
        self.agents[index].kill()
        self.agents[index].communicate()
        self.agents[index] = self._start()

    def signal(self, index: int, number: int, *, with_children: bool) -> None:
        """Send a signal to an agent."""
        pid = self.agents[index].pid
        for process in _tree(pid, _children()) if with_children else [pid]:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def end(self) -> list[int]:
        """Wait for the ends of the agents; return their exit codes."""
        for index in range(AGENTS):
            self.signal(index, signal.SIGCONT, with_children=True)
        for agent in self.agents:
            agent.communicate()
        return [agent.wait() for agent in self.agents]

    def close(self) -> None:
        """Kill what is left."""
        for index, agent in enumerate(self.agents):
            self.signal(index, signal.SIGCONT, with_children=True)
            agent.kill()
            if not agent.stdout.closed:
                agent.communicate()


def _children() -> dict[int, list[int]]:
    """Return the children of each process."""
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    return children


def _tree(pid: int, children: dict[int, list[int]]) -> list[int]:
    """Return a process and all below it."""
    return [pid, *(below for child in children.get(pid, ()) for below in _tree(child, children))]


def finished(study: Path) -> int:
    """Return how many segments have ended so far."""
    return len(list(study.glob("trials/*/*/trial.json")))


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a folder, as those of agents that run segments."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.cwd() == str(folder):
                found.append(process)
    return found


def has_moved(study: Path, seen: int, driver: subprocess.Popen[str]) -> bool:
    """Return whether another segment has begun, or the driver has ended."""
    return finished(study) > seen or driver.poll() is not None


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_agents_and_driver_that_are_killed_and_stopped_give_the_undisturbed_table(tmp_path, capsys, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPSEARCH_AGENT_LEASE", str(LEASE))
    Path("train.py").write_text(SCRIPT)
    sweep = write_sweep(
        Path("sweep.yaml"),
        None,
        program="train.py",
        max_iter=None,
        run_cap=None,
        early_terminate={"type": "hyperband", "max_iter": 27},
        checkpoints={"every": 1},
    )
    assert call(capsys, "run", sweep, "--backend", "inline", "--dir", "inline", "-q").code == 0
    study, draw = tmp_path / "agents", random.Random(seed)
    driver = begin("run", sweep, "--backend", "agents", "--dir", study, "-q", cwd=tmp_path)
    fleet = Fleet(study, tmp_path)
    stopped: dict[int, float] = {}
    try:
        wait_for(lambda: finished(study) > 0, driver)
        for step in range(16):
            seen, busy = finished(study), fleet.busy()
            fleet.kill(draw.choice(busy or range(AGENTS)))
            index = draw.choice(fleet.busy() or range(AGENTS))
            fleet.signal(index, signal.SIGSTOP, with_children=draw.random() < 0.5)
            stopped.setdefault(index, time.monotonic())
            for other in [other for other, since in stopped.items() if time.monotonic() - since > LEASE + 1]:
                fleet.signal(other, signal.SIGCONT, with_children=True)
                del stopped[other]
            if step == 4:
                driver.send_signal(signal.SIGKILL)
                driver.communicate()
                driver = begin("resume", study, "--backend", "agents", "-q", cwd=tmp_path)
            if driver.poll() is not None:
                break
            wait_for(functools.partial(has_moved, study, seen, driver))
        for index in range(AGENTS):
            fleet.signal(index, signal.SIGCONT, with_children=True)
        _, err = driver.communicate()
        assert driver.returncode == 0, err
        assert set(fleet.end()) <= {0, 1}  # 1: it was started after the driver had ended, and waited for another
    finally:
        fleet.close()
        if driver.poll() is None:
            driver.kill()
            driver.communicate()
    with Journal.read(study / "study.db") as journal:
        events = [entry.event for entry in journal.entries()]
    assert sum(isinstance(event, Opened) for event in events) == 2
    assert sum(isinstance(event, Lost) for event in events) > 3, "agents that ran a segment were killed and stopped"
    tables = [call(capsys, "trials", name, "--format", "csv").out for name in ("inline", study)]
    assert tables[0] == tables[1]
    wait_for(lambda: not processes_in(tmp_path))
    assert not list((study / "agents").glob("*.json.part"))
