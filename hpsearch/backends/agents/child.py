"""The process of an agent that runs segments, and the pipe to its parent: both ends."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Protocol

import psutil

from hpsearch.backends.agents.http import Client, RefusedError
from hpsearch.backends.agents.messages import Key
from hpsearch.backends.gangs import CLOSE_SECONDS
from hpsearch.backends.slots import Slot
from hpsearch.errors import CheckpointError, HpsearchError, StorageError, UnreadableCheckpointError
from hpsearch.events import Noted, Saved
from hpsearch.task import Result, Task
from hpsearch.trainable.addresses import path_of
from hpsearch.trainable.failures import failure_of
from hpsearch.trial import Report
from hpsearch.worker.child_process import ignore_preemption, thread_environment
from hpsearch.worker.guardian import MARK, Guardian, start_guardian
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process is started with."""

    job: Job
    root: Path
    """As in `Worker`."""
    client: Client | None
    """Its requests to the driver, if the root isn't the study's directory."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What the parent says about the running attempt."""

    key: Key
    cut: bool
    decided: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The process can run segments, or says why it can't."""

    mistake: str
    closes: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """The former trial's object is closed, and the segment begins."""

    key: Key


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """A segment has ended."""

    result: Result
    memory: int
    """Resident bytes of the process."""


ToParent = Ready | Begun | tuple[Key, Report] | Noted | Saved | SegmentEnded


def serve(descriptor: int) -> None:
    """Main function of the process: run segments until the pipe is closed, or until None comes."""
    _keep_from_signals()
    connection = Connection(descriptor)
    setup: Setup = connection.recv()
    guardian = start_guardian()
    try:
        worker = Worker(setup.job, setup.root)
    except HpsearchError as error:
        connection.send(Ready(str(error), False))
        return
    gc.freeze()  # modules stay alive, and scanning them takes the garbage collector 0.2 s
    reader = _Reader(connection)
    connection.send(Ready("", worker.closes))
    while (task := reader.tasks.get()) is not None:
        if worker.closes:
            worker.close_object(task.segment.trial)
        connection.send(Begun(task.key))
        result = _run(worker, task, _Channel(connection, reader, task, setup))
        connection.send(SegmentEnded(result, psutil.Process().memory_info().rss))
    worker.close()
    guardian.stop()


def _run(worker: Worker, task: Task, channel: _Channel) -> Result:
    """Run a segment, between the transfers of its checkpoints if the study's directory is elsewhere."""
    try:
        channel.fetch()
        result = worker.run(task.trial, task.segment, channel)
        if result.checkpoint is not None:
            channel.send(result.checkpoint, result.iteration)
        return result
    except HpsearchError as error:
        return Result(*task.key, channel.iteration, None, (), False, 0.0, failure_of(error))


class _Reader:
    """Reads what the parent says, in a thread. Without its parent the process ends."""

    def __init__(self, connection: Connection) -> None:
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._connection = connection
        self._changed = threading.Condition()
        self._signal = Signal((-1, -1), False, 0)
        threading.Thread(target=self._read, name="hpsearch-agent", daemon=True).start()

    def is_cut(self, key: Key) -> bool:
        """Return whether an attempt should end."""
        return self._signal.key == key and self._signal.cut

    def wait_for_decision(self, key: Key, iteration: int) -> None:
        """Wait until the scheduler has handled a report. The parent ends this process if nobody will."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._signal.key == key and (self._signal.cut or self._signal.decided >= iteration)
            )

    def _read(self) -> None:
        while True:
            try:
                message: Signal | Task | None = self._connection.recv()
            except (EOFError, OSError):
                os.kill(os.getpid(), signal.SIGKILL)
                return
            if isinstance(message, Signal):
                with self._changed:
                    self._signal = message
                    self._changed.notify_all()
            else:
                self.tasks.put(message)


class _Channel:
    """Passes a segment's messages to the parent."""

    def __init__(self, connection: Connection, reader: _Reader, task: Task, setup: Setup) -> None:
        self._connection = connection
        self._reader = reader
        self._segment = task.segment
        self._key = task.key
        self._setup = setup
        self._undecided: int | None = None
        self.iteration = task.segment.start
        """Iteration of the last checkpoint."""

    def fetch(self) -> None:
        """Get the checkpoint that the segment starts from, if it isn't here."""
        client, address = self._setup.client, self._segment.checkpoint
        if client is None or address is None:
            return
        checkpoint = self._setup.root / path_of(address)
        if not checkpoint.exists():
            _patiently(functools.partial(client.fetch, checkpoint))

    def send(self, checkpoint: str, iteration: int) -> None:
        """Send a checkpoint to the driver, if it doesn't see it."""
        client = self._setup.client
        if client is not None:
            _patiently(functools.partial(client.send, self._setup.root / checkpoint, self._segment, iteration))

    def reported(self, report: Report) -> None:
        self._connection.send((self._key, report))
        self._undecided = report.iteration

    def noted(self, notes: Mapping[str, str]) -> None:
        self._connection.send(Noted(*self._key, notes))

    def saved(self, saved: Saved) -> None:
        assert saved.checkpoint is not None, "what is saved has an address"
        self.send(saved.checkpoint, saved.iteration)
        self._connection.send(saved)
        self.iteration = saved.iteration

    def cut_requested(self) -> bool:
        if self._setup.job.live and self._undecided is not None:
            self._reader.wait_for_decision(self._key, self._undecided)
            self._undecided = None
        return self._reader.is_cut(self._key)


def _patiently(request: Callable[[], None]) -> None:
    """Make a request until it succeeds. The parent ends this process if the driver doesn't answer for too long.

    Raises:
        HpsearchError: It will never succeed.
    """
    pause = 0.1
    while True:
        try:
            request()
            return
        except RefusedError as error:
            if error.status == 409:  # it is another agent's by now: the parent learns so, and ends this process
                threading.Event().wait()
            if error.status == 507:
                raise StorageError(f"{error}. Make room there, then resume.") from error
            raise (UnreadableCheckpointError if error.status == 404 else CheckpointError)(str(error)) from error
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _keep_from_signals() -> None:
    """Leave signals that a batch system sends to all processes of a job to the parent, which ends this one in order.

    Processes that a trainable forks end as usual.
    """
    ignore_preemption()
    this_process = os.getpid()

    def on_term(number: int, frame: FrameType | None) -> None:
        if os.getpid() != this_process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with contextlib.suppress(ValueError):
            signal.signal(number, on_term)


class Process(Protocol):
    """A process that was started."""

    def kill(self) -> None:
        """Kill it, if it runs."""

    def wait(self) -> int:
        """Wait for its end; return its exit code, or minus the number of a signal."""


def start_process(descriptor: int, folder: Path, environment: Mapping[str, str]) -> Process:
    """Start the process that runs segments."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from hpsearch.backends.agents.child import serve; serve({descriptor})"],
        stdin=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        cwd=folder,
        env=environment,
    )


class Child:
    """The process that runs segments, as its parent sees it."""

    def __init__(
        self,
        job: Job,
        root: Path,
        client: Client | None,
        code: Path,
        guardian: Guardian | None,
        start: Callable[[int, Path, Mapping[str, str]], Process],
    ) -> None:
        self._connection, other = Pipe()
        environment = {**os.environ, **thread_environment(job.threads)}
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
        if guardian is not None:
            environment[MARK] = guardian.mark
        if not job.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # before the import of the trainable, which may look for GPUs
        with other:
            self._process = start(other.fileno(), code, environment)
        self._connection.send(Setup(job, root, client))
        self.slot = Slot(None, "")
        self.task: Task | None = None
        self.sent = 0.0
        self.began: float | None = None
        self.is_ready = False
        self.closes = False
        self._signal: Signal | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it could begin a task."""
        return self.is_ready and self.task is None

    @property
    def seconds(self) -> float:
        """How long its task has run."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def begin(self, task: Task) -> None:
        """Begin a task."""
        self.task, self.sent, self.began = task, time.monotonic(), None
        self._send(task)

    def signal(self, cut: bool, decided: int) -> None:
        """Tell what the driver says about the task, if it is new."""
        assert self.task is not None
        signal = Signal(self.task.key, cut, decided)
        if signal != self._signal:
            self._signal = signal
            self._send(signal)

    def poll(self, seconds: float) -> bool:
        """Return whether it has said something, or has died; wait for that for a while."""
        return bool(multiprocessing.connection.wait([self._connection], seconds))

    def receive(self) -> ToParent:
        """Return what it says.

        Raises:
            EOFError, OSError: It has died.
        """
        message: ToParent = self._connection.recv()
        return message

    def death(self) -> str:
        """Return how it has ended."""
        self._process.kill()  # it may have closed its end and live
        code = self._process.wait()
        return f"its worker's process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"

    def kill(self) -> None:
        """Kill it. Its guardian kills what it has started."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def end(self) -> None:
        """Let it close its object, if it has one, and end it."""
        if self.is_idle and self.closes:
            self._send(None)
            self.poll(CLOSE_SECONDS)  # its end of the pipe closes with it
        self.kill()

    def _send(self, message: object) -> None:
        with suppress(OSError):  # it died, which is seen when it is listened to
            self._connection.send(message)
