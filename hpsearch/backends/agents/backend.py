"""Run segments in agents, which people start on any machines, at any time."""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpsearch.backends.agents.agent import check_command
from hpsearch.backends.agents.desk import AgentRow, Desk
from hpsearch.backends.agents.folder import AGENTS, DriverFolder, write_rows
from hpsearch.backends.agents.http import DriverServer
from hpsearch.backends.agents.messages import FORMAT, VERSION, Announcement
from hpsearch.backends.base import Backend, no_room
from hpsearch.backends.replacing import MODULE_CHANGES_STAY
from hpsearch.errors import HpsearchError, SweepError, TrainableError
from hpsearch.objective.repeats import Repeats
from hpsearch.searchers.base import Search
from hpsearch.serving.server import Listen
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message, Notice, Task, Workers
from hpsearch.trainable.macros import DEFAULT_COMMAND
from hpsearch.trainable.storage import writing
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.own_files import OwnFiles
from hpsearch.worker.preflight import check_trainable, placed

LEASE = "HPSEARCH_AGENT_LEASE"
"""Environment variable with the seconds of a lease."""

_LEASE_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
"""Time between two looks at the agents' documents."""
_PAUSE_SHARE = 4
"""The least pause is so many times as long as a look: on a network file system that takes a while."""
_ROWS_SECONDS = 1.0
"""Least time between two writes of the list of agents."""
_ENDED = "the sweep is finished, or was stopped"
_NOTICE_SECONDS = 60.0
"""Time between two notices that there are no agents."""


class AgentsBackend(Backend):
    """Runs segments in agents.

    Args:
        sweep: The sweep that the agents run.
        listen: Where agents reach the driver by HTTP; None: by files in the study's directory.

    Raises:
        SweepError: Agents can't run this sweep.
    """

    name = "agents"

    def __init__(self, sweep: Sweep, listen: Listen | None = None) -> None:
        _check_sweep(sweep)
        self._sweep = sweep
        self._listen = listen
        self.runs_edits = listen is None  # other machines have copies, and say if these differ
        self.module_changes_stay = "" if sweep.resources.fresh_process else MODULE_CHANGES_STAY
        self._lease = _lease(os.environ.get(LEASE))
        self._desk: Desk | None = None
        self._link: DriverFolder | DriverServer
        self._next_notice = self._next_rows = 0.0
        self._rows: list[AgentRow] = []

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Announce the study, and wait for agents during `wait`."""
        if not isinstance(job.trainable, str | CommandLine):
            assert self._sweep.trainable is not None, "what isn't a script has an import path"
            job = replace(job, trainable=self._sweep.trainable)
        check_trainable(job)
        if isinstance(job.trainable, CommandLine):
            job = replace(job, trainable=placed(job.trainable))
        own_files = OwnFiles(job)
        if not own_files.contents:
            raise TrainableError(
                f"{job.trainable}: agents must have the same code as the driver, but no file of it is found here, by "
                "which to compare them: write the trainable as a module or script of your own"
            )
        driver = secrets.token_hex(16)
        study = self._study = Path(job.study)
        self._desk = Desk(driver, self._lease, self._sweep.resources.workers)
        self._link = DriverFolder(study) if self._listen is None else _server(self._listen, study)
        self._announcement = Announcement(
            format=FORMAT,
            version=VERSION,
            driver=driver,
            directory=job.study,
            sweep=_stored(self._sweep),
            resource=job.resource,
            live=job.live,
            mkl_cbwr=job.mkl_cbwr,
            search_path=_relative(job.search_path),
            files=own_files.contents,
            lease=self._lease,
        )
        with writing(f"the agents' folder in {study}"):
            (study / AGENTS).mkdir(parents=True, exist_ok=True)
            self._link.open(self._announcement)
        where = "any machine that sees this folder" if self._listen is None else "any machine, with this driver's token"
        self._how = f"on {where}: hpsearch agent {shlex.quote(self._link.address)} --code FOLDER"

    def capacity(self, lanes: int = 1) -> int:
        """Return the number of idle agents."""
        return 0 if lanes > 1 else self._opened.capacity()

    def start(self, task: Task) -> None:
        """Assign a task to an agent."""
        if self.capacity(task.lanes) < 1 or task.segment.width > 1:
            raise no_room(task)
        self._opened.start(task, self.now())

    def cut(self, trial: int, attempt: int) -> None:
        """Put the request into the agent's orders."""
        self._opened.cut(trial, attempt)

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Exchange documents with the agents until there is a message."""
        desk, deadline = self._opened, None if timeout is None else self.now() + timeout
        desk.decide()  # the caller has handled the messages of the last call
        with writing("the agents' folder"):
            self._link.publish(desk.orders())
        while True:
            began = self.now()
            messages = self._look(desk)
            now = self.now()
            if messages or (deadline is not None and now >= deadline):
                return messages
            pause = max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - began))
            time.sleep(pause if deadline is None else min(pause, deadline - now))

    def workers(self) -> Workers:
        """Count the agents."""
        return self._opened.workers()

    def close(self, kill: bool = False) -> None:
        """Let the agents end."""
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.stop(_ENDED)
            # After an error, that is the one to tell.
            with suppress(HpsearchError) if kill else nullcontext(), writing("the agents' folder"):
                self._link.publish(desk.orders())
                self._link.close(replace(self._announcement, stop=_ENDED), {row.agent for row in desk.agents()})
                write_rows(self._study, ())

    @property
    def _opened(self) -> Desk:
        assert self._desk is not None, "open comes first"
        return self._desk

    def _look(self, desk: Desk) -> list[Message]:
        """Exchange documents once, and return the messages."""
        with writing("the agents' folder"):
            states, mistakes = self._link.collect()
            now = self.now()
            for state in states:
                try:
                    desk.hear(state, now)
                except ValueError as error:
                    mistakes.append(f"agent on {state.host}: {error}")
            desk.expire(now)
            if states:
                self._link.publish(desk.orders())
            for agent in desk.gone():
                self._link.forget(agent)
            if now >= self._next_rows and (rows := desk.agents()) != self._rows:
                self._rows, self._next_rows = rows, now + _ROWS_SECONDS
                write_rows(self._study, rows)
        if desk.mistake is not None:
            raise TrainableError(desk.mistake)
        messages = desk.take() + [Notice(mistake) for mistake in mistakes]
        if not desk.workers().ready and now >= self._next_notice:
            messages.append(Notice(f"waiting for agents; start some, {self._how}"))
            self._next_notice = now + _NOTICE_SECONDS
        return messages


def _server(listen: Listen, study: Path) -> DriverServer:
    names = {"localhost", listen.host, socket.gethostname(), socket.getfqdn()}
    return DriverServer(listen, frozenset(name.lower() for name in names), study)


def _check_sweep(sweep: Sweep) -> None:
    resources = sweep.resources
    if resources.widest > 1:
        raise SweepError(
            f"resources.workers_per_trial and max_workers_per_trial must be 1 on agents, which don't train a trial "
            f"together, got {resources.widest}: run it on ray"
        )
    if resources.lanes > 1:
        raise SweepError(
            f"resources.trials_per_worker must be 1 on agents, which run one trial at a time, got "
            f"{resources.trials_per_worker}: run it on ray"
        )
    if (sweep.trainable or "").startswith("__main__:"):
        raise SweepError(
            f"trainable: {sweep.trainable} is in a notebook or in the program that runs, which agents can't import: "
            "write it into a module, such as train.py, and import it from there"
        )
    if sweep.trainable is None:
        command = CommandLine(sweep.program, sweep.command or DEFAULT_COMMAND, "")
        try:
            check_command(command)
        except TrainableError as error:
            raise SweepError(f"{error.key}: {error}") from None


def _lease(value: str | None) -> float:
    try:
        seconds = _LEASE_SECONDS if value is None else float(value)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise SweepError(f"{LEASE}: must be a number of seconds from 1 to 86400, got {value!r}")
    return seconds


def _stored(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as the study stores it, without what its driver alone uses.

    An agent needs neither the code of a searcher or scheduler, nor points, secrets of observers or commands.
    """
    plain = replace(
        sweep,
        method="random",
        search=Search(),
        early_terminate=None,
        max_iter=None,
        run_cap=None,
        repeats=Repeats(),
        points_to_try=(),
        observers=(),
        on_end=None,
        source=None,
        auto_reason=None,
        read_back=True,
    )
    return plain.to_json()


def _relative(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders below the current one, relative to it."""
    here = Path.cwd()
    return tuple(str(Path(folder).relative_to(here)) for folder in folders if Path(folder).is_relative_to(here))
