"""Starts an agent on each host, and goes on until all ranks have ended: the launcher itself."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import IO

from hpsearch_comm.launch.connection import Connection
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import Frame, Kind, pack, pack_value
from hpsearch_comm.launch.job import Job
from hpsearch_comm.launch.output import STDERR, STDOUT, Output
from hpsearch_comm.launch.ssh import agent_command, remote_command, trouble
from hpsearch_comm.launch.standard_input import StandardInput
from hpsearch_comm.launch.variables import SECRET, going_along
from hpsearch_comm.launch.verdict import Death, Verdict, is_witness
from hpsearch_comm.launch.version import search_path, source_digest, version
from hpsearch_comm.launch.writer import Writer

__all__ = ["Interrupted", "Launcher"]

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_SECONDS = 5.0
"""For the others to end by themselves once a rank has failed, and again once they were told to."""
_LONG_GRACE_SECONDS = 30.0
"""The same, where a rank has written a traceback that is likely to be the reason, and hasn't ended yet."""
_LAST_SECONDS = 60.0
"""For agents to clear up at the end: longer than what they wait for themselves."""
_TICK_SECONDS = 0.1
_ALIVE_PER_SILENCE = 6
"""Words to an agent in the time after which it would count the launcher as gone."""


class Interrupted(Exception):
    """A signal came before the ranks were started.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Launcher:
    """Runs one job. Use it as a context: at its end the agents have ended, and with them all ranks.

    Args:
        job: What to start.
        writer: Writes to standard output and error.

    Raises:
        LaunchError: A file for the ranks' output can't be written.
    """

    def __init__(self, job: Job, writer: Writer) -> None:
        self._job = job
        self._writer = writer
        self._output = Output(writer, range(job.size), job.prefix, job.output)
        self._selector = selectors.PollSelector()  # unlike others, it takes files, such as standard input may be
        self._connections: list[Connection] = []
        self._input = StandardInput(self._selector, self._to_rank_0)
        self._signals: list[int] = []
        self._former: dict[int, object] = {}
        self._wake = socket.socketpair()
        self._place: dict[str, object] | None = None
        self._running = False
        self._verdict = Verdict()
        self._decided = False
        self._failed_at: float | None = None
        self._end_at: float | None = None
        self._give_up_at: float | None = None
        self._interrupted = False
        self._lost: list[str] = []
        self._next_word = 0.0

    def __enter__(self) -> Launcher:
        for sock in self._wake:
            sock.setblocking(False)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        for number in (*_PASSED_ON, signal.SIGTSTP):
            # What is ignored, as with nohup, stays so, for the ranks as well.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, lambda number, _: self._signals.append(number))
        self._selector.register(self._wake[0], _READ, self._awake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._dismiss()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in self._former.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            for sock in self._wake:
                sock.close()
            self._selector.close()
            self._output.close()

    def run(self) -> int:
        """Start the ranks and wait until they have ended; give the exit code.

        Raises:
            LaunchError: A host can't be reached, or its ranks can't be started.
            Interrupted: A signal came before they were.
        """
        self._connect()
        self._start(*self._meet())
        while any(connection.is_open for connection in self._connections):
            self._step()
            if self._writer.error is not None:
                self._end_now()
        return self._close_the_case()

    # Before the ranks.

    def _connect(self) -> None:
        """Have an agent on each host."""
        job = self._job
        deadline = time.monotonic() + job.start_timeout
        environment = {name: value for name, value in job.environment.items() if name != SECRET}
        for share in job.shares:
            local = share.host.name == "localhost"
            if local:
                command = agent_command(job.python)
            else:
                command = job.ssh.command(
                    share.host.name, remote_command(job.python, search_path(), job.silence), job.silence
                )
            self._explain(f"ranks {share.ranks.start} to {share.ranks.stop - 1} on {share.host.name}: {command}")
            try:
                connection = Connection(
                    share, command, environment | {"PYTHONPATH": search_path()} if local else environment
                )
            except OSError as error:
                raise LaunchError(
                    f"expected to be able to run {command[0]} on this host, got: {error.strerror or error}. Install "
                    "it" + (" (--python names another)" if local else "")
                ) from None
            self._connections.append(connection)
            self._selector.register(connection.error, _READ, partial(self._overhear, connection))
        self._wait(lambda: all(connection.greeting for connection in self._connections), deadline)
        self._compare_hosts()

    def _compare_hosts(self) -> None:
        digest, machines = source_digest(), dict[str, str]()
        for connection in self._connections:
            greeting = connection.greeting or {}
            if greeting["digest"] != digest:
                raise LaunchError(
                    f"expected the same hpsearch_comm on {connection.name} as here ({version()}; source {digest}), got "
                    f"{greeting['version']}; source {greeting['digest']}. Install the same version on all hosts"
                )
            other = machines.setdefault(greeting["identity"], connection.name)
            if other != connection.name:
                raise LaunchError(
                    f"expected each host once, got {other} and {connection.name}, which are one: name it once, with "
                    "all its slots"
                )

    def _meet(self) -> tuple[str, int]:
        """Give the address and the port where the ranks are to meet."""
        first, *others = self._connections
        greetings = [connection.greeting or {} for connection in self._connections]
        if first.local:
            seen = [address for greeting in greetings[1:] for address in greeting["ssh"][:1]]
        else:
            seen = greetings[0]["ssh"][1:]
        wanted = {"alone": not others, "interface": self._job.interface, "seen": seen}
        first.send(pack_value(Kind.PLACE, wanted))
        self._wait(lambda: self._place is not None, time.monotonic() + self._job.start_timeout)
        assert self._place is not None
        return str(self._place["address"]), int(str(self._place["port"]))

    def _start(self, address: str, port: int) -> None:
        job = self._job
        self._explain(f"the ranks meet at {address}, port {port}")
        self._running = True
        for connection in self._connections:
            ranks = connection.share.ranks
            order = {
                "ranks": [ranks.start, ranks.stop],
                "size": job.size,
                "address": address,
                "port": port,
                "secret": job.secret,
                "command": job.command,
                "directory": job.directory,
                "environment": dict(job.environment) if connection.local else going_along(job.environment),
                "exports": dict(job.exports),
            }
            connection.send(pack_value(Kind.START, order))
        self._input.open()

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            if time.monotonic() > deadline:
                silent = [connection.name for connection in self._connections if connection.greeting is None]
                raise LaunchError(
                    f"expected an answer of {' and '.join(silent) or 'all hosts'} within "
                    f"{self._job.start_timeout:g} s, got none: see that ssh reaches it, or give it more time "
                    "(--start-timeout)"
                )
            self._step()

    # While they run.

    def _step(self) -> None:
        """Wait a moment for something to happen, and deal with it."""
        for connection in self._connections:
            if connection.is_open:
                hear = not self._writer.is_full
                self._watch(connection.output, hear, _READ, partial(self._hear, connection))
                self._watch(connection.input, connection.is_sending, _WRITE, connection.flush)
        self._input.look()
        for key, _ in self._selector.select(_TICK_SECONDS):
            key.data()
        while self._signals:
            self._take_signal(self._signals.pop(0))
        self._look_at_the_time()

    def _watch(self, stream: IO[bytes], wanted: bool, events: int, action: Callable[[], None]) -> None:
        watched = stream in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(stream, events, action)
        elif watched and not wanted:
            self._selector.unregister(stream)

    def _awake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake[0].recv(4096)

    def _hear(self, connection: Connection) -> None:
        for frame in connection.read():
            self._take(connection, frame)
        if not connection.is_open:
            self._part(connection)

    def _overhear(self, connection: Connection) -> None:
        before = connection.said
        if not connection.read_error():
            self._selector.unregister(connection.error)
        elif self._job.verbose and connection.said != before:
            self._explain(f"{connection.name}: {connection.said.strip().splitlines()[-1]}")

    def _take(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is Kind.STDOUT:
            self._output.feed(frame.number, STDOUT, frame.payload)
        elif frame.kind is Kind.STDERR:
            self._output.feed(frame.number, STDERR, frame.payload)
        elif frame.kind is Kind.ENDED:
            connection.living.discard(frame.number)
            self._take_end(frame.number, int(frame.value))
        elif frame.kind is Kind.TAKEN:
            self._input.taken(more=frame.number == 0)
        elif frame.kind is Kind.FOUND:
            self._place = frame.value
        elif frame.kind is Kind.FAILED:
            raise LaunchError(f"{connection.name}: {frame.payload.decode('utf-8', 'replace')}", frame.number)

    def _take_end(self, rank: int, code: int) -> None:
        self._output.finish(rank)
        if code == 0 or self._end_at is not None:
            self._output.release(rank)
            return
        self._verdict.hear(Death(rank, code, is_witness(self._output.tail(rank))))
        self._failed_at = self._failed_at or time.monotonic()
        if self._verdict.certain:
            self._decide()

    def _decide(self) -> None:
        if not self._decided:
            self._decided = True
            first = self._verdict.first
            self._output.decide(None if first is None else first.rank)

    def _part(self, connection: Connection) -> None:
        """Take note that nothing more comes from an agent."""
        self._selector.unregister(connection.output)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.input)
        if not connection.living:
            return
        code = _exit_code(connection)
        connection.read_error()  # what ssh or the agent has to say of it
        if not self._running:
            raise LaunchError(trouble(connection.name, self._job.python, code, connection.said, connection.local))
        ranks = ", ".join(str(rank) for rank in sorted(connection.living))
        said = connection.said.strip().splitlines()
        self._lost.append(
            f"expected {connection.name} to stay until its ranks have ended, lost it with rank {ranks}: "
            f"{said[-1] if said else f'its agent, or ssh, ended with exit code {code}'}"
        )
        self._failed_at = self._failed_at or time.monotonic()

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif not self._running:
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                raise Interrupted(number)
        elif number == signal.SIGINT and self._interrupted:
            self._output.say("interrupted again: the ranks are killed")
            self._end(0.0)
        else:
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._tell_all(pack(Kind.SIGNAL, number))

    def _pause(self) -> None:
        """Stop the ranks, then this process, as the terminal asks; go on when it has the launcher go on."""
        self._tell_all(pack(Kind.SIGNAL, signal.SIGSTOP))
        deadline = time.monotonic() + 1.0
        while any(connection.is_sending for connection in self._connections) and time.monotonic() < deadline:
            time.sleep(0.01)
            for connection in self._connections:
                connection.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._tell_all(pack(Kind.SIGNAL, signal.SIGCONT))

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        self._output.look_at_the_time()
        if now >= self._next_word:
            self._next_word = now + self._job.silence / _ALIVE_PER_SILENCE
            self._tell_all(pack(Kind.ALIVE))
        if self._failed_at is not None and now - self._failed_at > self._grace():
            self._decide()
            self._end(_GRACE_SECONDS)
        if self._give_up_at is not None and now > self._give_up_at:
            for connection in self._connections:
                if connection.is_open:
                    connection.process.kill()

    def _grace(self) -> float:
        """Give how long the ranks may go on once one has failed: longer where the first to fail has yet to end."""
        suspects = (rank for connection in self._connections for rank in connection.living)
        waiting = not self._verdict.certain and any(self._output.is_failing(rank) for rank in suspects)
        return _LONG_GRACE_SECONDS if waiting else _GRACE_SECONDS

    def _end(self, seconds: float) -> None:
        """Have all agents end their ranks, and kill them after so many seconds. Each call may only hasten it."""
        now = time.monotonic()
        if self._end_at is not None and now + seconds >= self._end_at:
            return
        self._end_at = now + seconds
        self._give_up_at = self._end_at + _LAST_SECONDS
        self._tell_all(pack(Kind.END, int(seconds * 1000)))

    def _end_now(self) -> None:
        self._decide()
        self._end(_GRACE_SECONDS)

    def _tell_all(self, message: bytes) -> None:
        for connection in self._connections:
            if connection.is_open and connection.greeting is not None:
                connection.send(message)

    def _to_rank_0(self, data: bytes) -> None:
        self._connections[0].send(pack(Kind.INPUT, 0, data))

    def _explain(self, text: str) -> None:
        if self._job.verbose:
            self._output.say(text)

    # Behind them.

    def _close_the_case(self) -> int:
        self._decide()
        for text in self._lost:
            self._output.say(text)
        first = self._verdict.first
        if first is None or (self._lost and first.witness):
            killed = 128 + signal.SIGINT if self._interrupted else 1
            return killed if self._lost or self._end_at is not None else 0
        host = next(it.name for it in self._connections if first.rank in it.share.ranks)
        if first.code < 0:
            how = f"was killed by signal {-first.code} ({signal.Signals(-first.code).name})"
        else:
            how = f"ended with exit code {first.code}"
        self._output.say(f"rank {first.rank} on {host} {how}")
        return first.exit_code

    def _dismiss(self) -> None:
        """Let all agents go: they end what still runs. Wait until they have."""
        for connection in self._connections:
            connection.let_go()
            if connection.greeting is None:
                connection.process.kill()  # ssh may wait for a host that doesn't answer
        deadline = time.monotonic() + _LAST_SECONDS
        for connection in self._connections:
            while connection.process.poll() is None and time.monotonic() < deadline:
                # An agent that has much to say must not wait for this process.
                with contextlib.suppress(LaunchError):
                    connection.read()
                connection.read_error()
                time.sleep(0.01)
            connection.close()


def _exit_code(connection: Connection) -> int | None:
    """Give how the process of a connection that says no more has ended, as soon as it has."""
    deadline = time.monotonic() + 5.0
    while connection.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return connection.process.poll()
