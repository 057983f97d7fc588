"""An agent: a small process that talks with the driver, and whose child runs segments.

This process never imports the trainable or torch. It enforces time-outs, and kills the child.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from hpsearch.backends.agents.child import (
    Begun,
    Child,
    Process,
    Ready,
    SegmentEnded,
    ToParent,
    start_process,
)
from hpsearch.backends.agents.http import Client
from hpsearch.backends.agents.messages import FORMAT, VERSION, AgentState, Announcement, Key, Orders, decode
from hpsearch.backends.agents.outbox import Outbox
from hpsearch.backends.gangs import CLOSE_SECONDS, Loss, LossKind
from hpsearch.backends.replacing import close_hung, why_replaced
from hpsearch.config.strict_json import parse_json
from hpsearch.errors import BackendError, HpsearchError, TrainableError
from hpsearch.events import Noted, Saved
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Result
from hpsearch.trainable.macros import DEFAULT_COMMAND
from hpsearch.trial import Segment
from hpsearch.worker.guardian import Guardian, start_guardian
from hpsearch.worker.job import CommandLine, Job, job_of, trainable_of
from hpsearch.worker.own_files import OwnFiles
from hpsearch.worker.preflight import check_trainable

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two exchanges with the driver: right after something has happened, and when nothing does."""

_BEATS = 6
"""Heartbeats in the time of a lease."""

_REPORT_SECONDS = 0.25
"""Longest time for which a report waits for others."""

_LOST_LEASES = 4
"""Leases without an answer after which the driver counts as lost. It may only be busy: it waits for callbacks."""

_LEASE = 30.0
"""Seconds after which a driver that hasn't announced its lease counts as lost."""

_STEP = 1.0
"""A step of the loop counts at most so many seconds of the driver's silence: this process may have been stopped."""

_MOST_DEATHS = 3
"""Workers in a row that may end before they are ready."""

_BEFORE_PROGRAM = frozenset({"${env}", "${interpreter}", "/usr/bin/env", "python", "python3", "-u"})


class DriverLink(Protocol):
    """An agent's connection to its driver."""

    root: Path
    """Where attempts are written."""
    scratch: Path | None
    """A folder to delete when this process has ended, in any way."""
    client: Client | None
    """Requests to the driver; None if it sees the root."""
    where: str
    """The driver's address for messages."""

    def announcement(self) -> bytes | None:
        """Return what a driver announces, if it is new. Raises OSError if the driver can't be reached."""

    def exchange(self, state: AgentState) -> Orders | None:
        """Send a document; return orders if there are new ones.

        Raises OSError if the driver can't be reached, ValueError if it says something else.
        """

    def settle(self, segment: Segment) -> None:
        """Send an attempt's output where the driver doesn't see it, and delete its files."""

    def close(self) -> None:
        """Leave."""


def check_command(command: CommandLine) -> None:
    """Check that a command runs a script of the agent's folder, with a Python of the agent's.

    Raises:
        TrainableError: It may run something else.
    """
    words = command.command
    index = words.index("${program}") if "${program}" in words else -1
    if command.program is None or index < 0 or not _BEFORE_PROGRAM.issuperset(words[:index]):
        raise TrainableError(
            f"agents run a script as {' '.join(DEFAULT_COMMAND)}, with other arguments behind ${{program}} alone, got "
            f"{' '.join(words)}",
            "command",
        )
    if not _is_inside(command.program):
        raise TrainableError(
            f"`program` must be a path below the agents' folder of code, got {command.program!r}", "program"
        )


def _is_inside(path: str) -> bool:
    """Return whether a relative path stays below the folder that it is relative to."""
    return not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts


class Agent:
    """Runs tasks of one study until its driver, or a signal, ends it.

    Args:
        link: The connection to the driver.
        agent: Identifies this process.
        code: The folder with the trainable's code. Nothing else is run.
        patience: Seconds to wait for a driver that doesn't answer.
        say: Prints a line.
        start: Starts the process that runs segments, given the descriptor of its pipe, its folder and environment.
    """

    def __init__(
        self,
        link: DriverLink,
        agent: str,
        code: Path,
        patience: float,
        say: Callable[[str], object],
        start: Callable[[int, Path, Mapping[str, str]], Process] | None = None,
    ) -> None:
        self._link = link
        self._code = code.absolute()
        self._patience = patience
        self._say = say
        self._start = start or start_process
        self._outbox = Outbox(agent, os.uname().nodename)
        self._terms: Announcement | None = None
        self._job: Job | None = None
        self._ended = ""
        self._refusal = ""
        self._mistake = ""
        self._is_leaving = False
        self._child: Child | None = None
        self._deaths = 0
        self._guardian: Guardian | None = None
        self._document: AgentState | None = None
        self._fresh = False
        self._is_news = True
        self._next_news = self._next_beat = 0.0
        self._pause = _SHORTEST_PAUSE
        self._silence = 0.0
        """Seconds since the driver has heard of this agent."""
        self._last_step = time.monotonic()
        self._problem = ""
        """Why the last exchange failed."""

    def run(self, leaves: Callable[[], bool]) -> str:
        """Run tasks; return why this ended.

        Args:
            leaves: Returns whether to end: the running segment ends at its next report, and is handed back.

        Raises:
            HpsearchError: Its code differs from the driver's or can't be run, or there was no driver for too long.
        """
        self._guardian = start_guardian(self._link.scratch, own_group=False)
        try:
            while True:
                self._is_leaving = self._is_leaving or self._note(leaves())
                self._exchange()
                if (reason := self._why_end()) is not None:
                    self._end_child()
                    return reason
                self._obey()
                self._listen()
        finally:
            if self._child is not None:
                self._child.kill()
            self._guardian.stop()
            self._link.close()

    def _note(self, news: bool) -> bool:
        """Send a new document soon if there is news; return whether there is."""
        if news:
            self._is_news, self._pause = True, _SHORTEST_PAUSE
        return news

    # Talking with the driver.

    def _exchange(self) -> None:
        now = time.monotonic()
        self._silence += min(now - self._last_step, _STEP)
        self._last_step = now
        if (self._is_news and now >= self._next_news) or now >= self._next_beat or self._document is None:
            child = self._child
            ready = child is not None and child.is_idle and not self._is_leaving
            self._document = self._outbox.state(ready, self._is_leaving, self._refusal, self._mistake)
            self._next_news, self._next_beat = now + _SHORTEST_PAUSE, now + self._lease / _BEATS
            self._is_news = False
        try:
            if (content := self._link.announcement()) is not None:
                self._read_terms(content)
            orders = self._link.exchange(self._document)
        except (OSError, ValueError) as error:
            if not self._problem:
                self._say(f"{self._link.where}: can't reach the driver: {error}")
            self._problem = str(error)
            self._pause = min(2 * self._pause, 10 * _LONGEST_PAUSE)
            return
        self._problem = ""
        heard, driver = self._outbox.orders.heard, self._outbox.orders.driver
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE)
        if orders is not None and self._outbox.receive(orders):
            if self._outbox.orders.heard > heard or self._outbox.orders.driver != driver:
                self._silence = 0.0
            acknowledged = self._outbox.attempt is None and self._document.attempt is not None
            self._note(self._outbox.orders.driver != driver or acknowledged)
            self._pause = _SHORTEST_PAUSE

    def _why_end(self) -> str | None:
        """Return why to end now; None: go on.

        Raises:
            HpsearchError: As in `run`.
        """
        if self._ended or self._outbox.orders.stop:
            return f"the driver has ended: {self._ended or self._outbox.orders.stop}"
        if self._is_leaving and self._outbox.attempt is None and self._is_known(lambda state: state.leaving):
            return "left, with nothing open"
        if self._is_leaving and self._silence > self._lease:
            return "left; the driver didn't answer, and runs what was open again"
        problem = self._refusal or self._mistake
        if problem and self._is_known(lambda state: problem in (state.refusal, state.mistake)):
            raise TrainableError(problem)
        if self._silence > self._patience:
            raise BackendError(
                f"{self._link.where}: no driver has answered for {self._patience:g} s"
                f"{f' ({self._problem})' if self._problem else ''}. Start it with hpsearch run SWEEP --backend agents, "
                "or hpsearch resume DIR --backend agents, and this agent again; or give it more time with --patience"
            )
        return None

    @property
    def _lease(self) -> float:
        return _LEASE if self._terms is None else self._terms.lease

    def _is_known(self, says: Callable[[AgentState], bool]) -> bool:
        """Return whether the driver has received a document that says so, with nothing open, or doesn't answer."""
        document = self._document
        if document is None or not says(document) or document.attempt is not None:
            return False
        if not self._outbox.orders.driver:
            return self._silence > _STEP
        return self._outbox.orders.heard >= document.counter or self._silence > self._lease

    def _read_terms(self, content: bytes) -> None:
        """Read what a driver announces, and prepare for it."""
        self._note(True)
        try:
            raw = parse_json(content)
            version = raw.get("version") if isinstance(raw, dict) and raw.get("format") == FORMAT else "another version"
            if version != VERSION:
                raise ValueError(f"the driver must have hpsearch {VERSION}, as here, got {version}")
            terms = decode(Announcement, content)
            if terms.stop:  # one that ended before this agent began may be resumed soon
                self._ended = "" if self._terms is None else terms.stop
                return
            former, self._terms = self._terms, terms
            if former is not None and replace(former, driver="") == replace(self._terms, driver=""):
                return
            self._drop_child()
            self._job, self._refusal, self._mistake, self._deaths = None, "", "", 0
            self._job = self._job_of(self._terms)
        except (HpsearchError, ValueError) as error:
            self._refusal = str(error)

    def _job_of(self, terms: Announcement) -> Job:
        """Return the job of what a driver announces, with this machine's code.

        Raises:
            HpsearchError: The code isn't here, or differs.
        """
        sweep = Sweep.from_json(terms.sweep)
        self._fresh = sweep.resources.fresh_process
        trainable = trainable_of(sweep, str(self._code))
        if isinstance(trainable, CommandLine):
            check_command(trainable)
        folders = [str(self._code / folder) for folder in terms.search_path if _is_inside(folder)]
        job = job_of(sweep, str(self._link.root), trainable, (str(self._code), *folders), terms.mkl_cbwr)
        job = replace(job, resource=terms.resource, live=terms.live)
        check_trainable(job)
        self._check_code(job, terms)
        return job

    def _check_code(self, job: Job, terms: Announcement) -> None:
        """Check that the trainable's files are here, and as the driver has them.

        Raises:
            TrainableError: They aren't.
        """
        own = OwnFiles(job)
        if not own.paths or not own.paths[0].resolve().is_relative_to(self._code.resolve()):
            found = f"it is in {own.paths[0]}" if own.paths else "it isn't there"
            name = job.trainable.program if isinstance(job.trainable, CommandLine) else job.trainable
            raise TrainableError(
                f"{name} must be below {self._code}, but {found}: name the folder of its code with --code"
            )
        differing = sorted({name for name, _ in set(own.contents) ^ set(terms.files)})
        if differing:
            raise TrainableError(
                f"the code in {self._code} must be the driver's, but {', '.join(differing[:5])} differ"
                f"{'s' if len(differing) == 1 else ''}: copy the driver's files, and start this agent again"
            )

    # Running tasks.

    def _obey(self) -> None:
        """Begin, cut or end what the orders say."""
        outbox, child = self._outbox, self._child
        if child is not None and child.task is not None and not outbox.is_running(child.task.key):
            self._drop_child()  # the attempt is no longer this agent's
        attempt = outbox.attempt
        if attempt is not None and outbox.is_running(attempt.key) and self._silence > _LOST_LEASES * self._lease:
            self._lose(attempt.key, "its agent lost the driver", "spared")
        child = self._child
        if self._job is None or self._terms is None or self._refusal or self._mistake:
            return
        if child is None and not self._is_leaving:
            try:
                self._check_code(self._job, self._terms)
            except TrainableError as error:
                self._refusal = str(error)
                self._note(True)
                return
            self._child = child = Child(
                self._job, self._link.root, self._link.client, self._code, self._guardian, self._start
            )
        if child is None:
            return
        task = None if self._is_leaving else outbox.next_task()
        if task is not None and child.is_idle and self._terms.driver == outbox.orders.driver:
            outbox.begin(task)
            child.begin(task)
            self._say(f"trial {task.trial.number}, attempt {task.segment.attempt}: from {task.segment.start}")
            self._note(True)
        if child.task is not None:
            child.signal(outbox.orders.cut or self._is_leaving, outbox.orders.decided)

    def _listen(self) -> None:
        """Take what the child says, for a while, and end it if it is late."""
        child = self._child
        if child is None:
            time.sleep(self._pause)
            return
        if not child.poll(self._pause):
            self._check_time(child)
            return
        while self._child is child and child.poll(0):
            try:
                message = child.receive()
            except (EOFError, OSError):
                self._bury(child)
                return
            self._take(child, message)
        self._check_time(child)

    def _take(self, child: Child, message: ToParent) -> None:
        if isinstance(message, tuple | Noted) and not (self._job is not None and self._job.live):
            self._next_beat = min(self._next_beat, time.monotonic() + _REPORT_SECONDS)
        else:
            self._note(True)
        match message:
            case Ready(mistake="", closes=closes):
                child.is_ready, child.closes = True, closes
                self._deaths = 0
            case Ready(mistake=mistake):
                self._mistake = mistake
                self._drop_child()
            case Begun():
                child.began = time.monotonic()
            case Saved():
                self._outbox.saved(message)
            case Noted(trial=trial, attempt=attempt, notes=notes):
                self._outbox.noted((trial, attempt), notes)
            case SegmentEnded(result=result, memory=memory):
                self._finish(child, result, memory)
            case (key, report):
                self._outbox.reported(key, report)

    def _finish(self, child: Child, result: Result, memory: int) -> None:
        task, child.task = child.task, None
        assert task is not None, "a task was begun"
        assert self._job is not None, "the child was made for it"
        scripts = isinstance(self._job.trainable, CommandLine)
        self._link.settle(task.segment)
        if self._is_leaving and result.failure is not None and result.failure.kind == "died":
            # A batch system ends a job's scripts with it.
            self._outbox.ended(task.key, Loss("its agent was told to end", "spared"))
        else:
            self._outbox.ended(task.key, result)
        reason = why_replaced(child.slot, result, memory, scripts)
        child.slot.warm = task.trial.number
        if reason is not None:
            self._drop_child()
        elif self._fresh and not scripts:
            self._end_child()

    def _check_time(self, child: Child) -> None:
        """End the child if its task exceeds its timeout, or closing the former object takes too long."""
        task, now = child.task, time.monotonic()
        if task is None or self._child is not child:
            return
        if child.began is None:
            if now - child.sent > CLOSE_SECONDS and child.closes:
                hung = close_hung(child.slot.warm).text
                self._lose(task.key, f"its worker was replaced: {hung}", "spared")
        elif task.timeout is not None and child.seconds > task.timeout:
            self._lose(task.key, "killed by its agent", "timeout", child.seconds)

    def _bury(self, child: Child) -> None:
        """Record that the child died."""
        reason, task, is_ready = child.death(), child.task, child.is_ready
        if task is not None:
            self._lose(task.key, reason, "died" if child.began is not None else "spared", child.seconds)
        else:
            self._drop_child()
            self._note(True)
        if not is_ready:
            self._deaths += 1
            if self._deaths == _MOST_DEATHS:
                self._mistake = f"{_MOST_DEATHS} workers in a row ended before they could run anything: {reason}"

    def _lose(self, key: Key, reason: str, kind: LossKind, seconds: float = 0.0) -> None:
        """End the child with its task."""
        self._drop_child()
        self._outbox.ended(key, Loss(reason, kind, seconds))
        self._note(True)

    def _drop_child(self) -> None:
        """Kill the child, and everything that it has started."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            if child.task is not None:
                self._link.settle(child.task.segment)

    def _end_child(self) -> None:
        """End the child in order, so that it closes its object."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
