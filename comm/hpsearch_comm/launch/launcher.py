"""The launcher: starts an agent on each host, and runs until all ranks have ended.

The launcher reports the rank that failed first, because the other ranks' errors are mostly consequences. The order in
which ranks end is not reliable: a rank that raises inside `with comm.init()` informs the other ranks, which may end
before it. So a rank whose last error says that another rank was lost is a witness. A witness counts as the first
failure only if all failed ranks are witnesses.
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpsearch_comm.bootstrap.exchange import name_ranks
from hpsearch_comm.launch.connection import Connection, describe_failure
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import Frame, FrameKind, pack, pack_value
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.membership import Membership
from hpsearch_comm.launch.output import STDERR, STDOUT, Output
from hpsearch_comm.launch.processes import adopt_orphans, end_descendants
from hpsearch_comm.launch.streams import Writer, handle_signals, start_thread
from hpsearch_comm.launch.variables import forwarded_variables
from hpsearch_comm.launch.version import PACKAGE, source_digest
from hpsearch_comm.roster import DONE, Coming, read_message

# torch.distributed's hook prefixes each line with the rank; exception groups are drawn as a tree.
_MARGIN = rb"^(?:\[rank\d+\]: ?)?[ |]*"
_BEGIN = re.compile(_MARGIN + rb"(?:\+ Exception Group )?Traceback \(most recent call last\):", re.MULTILINE)
_WITNESS = re.compile(
    _MARGIN + rb"(?:hpsearch_comm\.errors\.|torch\.distributed\.DistBackendError: )?(?:PeerLost|RendezvousError): ",
    re.MULTILINE,
)


def is_witness(stderr: bytes) -> bool:
    """Return whether the end of a rank's stderr says that the rank failed because of another rank."""
    return _WITNESS.search(stderr) is not None


def last_traceback(stderr: bytes) -> bytes:
    """Return the last traceback in a rank's stderr and the text after it; empty if there is no traceback."""
    begins = [match.start() for match in _BEGIN.finditer(stderr)]
    return stderr[begins[-1] :] if begins else b""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that failed."""

    rank: int
    code: int
    """The exit code, or minus the signal that killed the rank."""
    witness: bool
    """Whether the rank failed because of another rank, according to its stderr."""

    @property
    def exit_code(self) -> int:
        """The exit code as in a shell: 128 plus the signal for a killed rank."""
        return self.code if self.code > 0 else 128 - self.code


def first_failure(deaths: Sequence[Death]) -> Death | None:
    """Return the first failure that is no witness, in the order of observation.

    If all are witnesses, return the first; None if there are no failures.
    """
    return min(deaths, key=lambda death: death.witness, default=None)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_STREAMS = {FrameKind.STDOUT: STDOUT, FrameKind.STDERR: STDERR}
_GRACE_SECONDS = 5.0
"""Time for other ranks to end on their own after a rank has failed; and again between SIGTERM and SIGKILL."""
_TICK_SECONDS = 0.1
_LAST_SECONDS = 60.0
"""Time for agents to clean up at the end; longer than the agents' own timeouts."""
_ALIVE_PER_SILENCE = 6
"""Number of ALIVE frames per `silence` seconds."""


class Launcher:
    """Runs a job.

    Args:
        job: The job.
        writer: Writes to standard output and error.

    Raises:
        LaunchError: A file for the ranks' output can't be written.
    """

    def __init__(self, job: LaunchJob, writer: Writer) -> None:
        self._job = job
        self._writer = writer
        self._output = Output(writer, range(job.size), job.prefix, job.output)
        self._connections: list[Connection] = []
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        """Events from threads and signal handlers, for the main thread to handle."""
        self._meeting_address: dict[str, Any] = {}
        """The address and port at which ranks meet; empty until they are chosen."""
        self._running = False
        least = job.size if job.least is None else job.least
        self._membership = Membership((host_ranks.ranks for host_ranks in job.host_ranks), least)
        self._killed: set[int] = set()
        """Ranks that were killed because they didn't come to meet the others in time."""
        self._deaths: list[Death] = []
        self._lost: list[str] = []
        """Messages about hosts that were lost since the ranks last met."""
        self._failed_at = self._killed_at = math.inf
        """When the job failed, and when ranks that were asked to end are killed."""
        self._interrupted = self._stopping = False
        self._next_keepalive = 0.0

    def run(self) -> int:
        """Start the ranks, wait until all ranks and agents have ended, and return the exit code.

        Raises:
            LaunchError: A host can't be reached, or its ranks can't be started.
            SystemExit: A signal arrived before the ranks were started.
        """
        adopt_orphans()  # the ranks' children, if this host's agent is killed
        with handle_signals(_PASSED_ON, lambda number: self._events.put(partial(self._on_signal, number))):
            try:
                self._connect()
                self._start()
                while any(connection.is_open for connection in self._connections):
                    self._step()
                    if self._writer.error is not None:
                        self._end(_GRACE_SECONDS)
                return self._report_end()
            finally:
                self._close_connections()
                end_descendants()

    # Before the ranks run.

    def _connect(self) -> None:
        """Start an agent on each host."""
        for host_ranks in self._job.host_ranks:
            connection = Connection(self._job, host_ranks)
            ranks = host_ranks.ranks
            self._log(f"ranks {ranks.start} to {ranks.stop - 1} on {connection.name}: {connection.command}")
            self._connections.append(connection)
            start_thread(self._listen, connection)
            start_thread(self._listen_to_errors, connection)
        self._wait(lambda: all(connection.greeting for connection in self._connections))
        self._compare_hosts()

    def _compare_hosts(self) -> None:
        """Check that all agents have this version of the package, and run on different hosts."""
        digest, machines = source_digest(), dict[str, str]()
        for name, greeting in ((connection.name, connection.greeting) for connection in self._connections):
            if greeting.get("digest") != digest:
                raise LaunchError(
                    f"expected the same hpsearch_comm on {name} as here ({PACKAGE}; source {digest}), got "
                    f"{greeting.get('package')}; source {greeting.get('digest')}. Install the same version on all hosts"
                )
            first = machines.setdefault(greeting["identity"], name)
            if first != name:
                raise LaunchError(
                    f"expected each host once, got {first} and {name}, which are one: name it once, with all its slots"
                )

    def _start(self) -> None:
        """Start the ranks on all hosts, once the meeting address is known."""
        job, first, others = self._job, self._connections[0], self._connections[1:]
        if first.local:  # this host's addresses, as the other hosts see them
            seen = [address for connection in others for address in connection.greeting["ssh"][:1]]
        else:
            seen = first.greeting["ssh"][1:]
        request = {"alone": not others, "interface": job.interface, "seen": seen}
        first.send(pack_value(FrameKind.CHOOSE_ADDRESS, request))
        self._wait(lambda: bool(self._meeting_address))
        self._log("the ranks meet at {address}, port {port}".format(**self._meeting_address))
        self._running = True
        for connection in self._connections:
            ranks = connection.host_ranks.ranks
            order = {
                "ranks": [ranks.start, ranks.stop],
                "size": job.size,
                "secret": job.secret,
                "command": job.command,
                "directory": job.directory,
                "environment": dict(job.environment) if connection.local else forwarded_variables(job.environment),
                "exports": dict(job.exports),
                "elastic": job.least is not None,
            }
            connection.send(pack_value(FrameKind.START, self._meeting_address | order))

    def _wait(self, condition: Callable[[], bool]) -> None:
        seconds = self._job.start_timeout
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                silent = [connection.name for connection in self._connections if not connection.greeting]
                raise LaunchError(
                    f"expected an answer of {' and '.join(silent or [self._connections[0].name])} within "
                    f"{seconds:g} s, got none: see that it can be reached, or give it more time (--start-timeout)"
                )
            self._step()

    # In separate threads.

    def _listen(self, connection: Connection) -> None:
        """Read an agent's frames: queue events for the main thread, and write the ranks' output."""
        connection.read_greeting()
        try:
            for frame in connection.read():
                stream = _STREAMS.get(frame.kind)
                if stream is None:
                    self._events.put(partial(self._on_frame, connection, frame))
                elif self._writer.wait_for_room():
                    self._output.feed(frame.number, stream, frame.payload)
        except LaunchError as error:
            self._events.put(partial(_raise, error))
        self._events.put(partial(self._on_disconnect, connection))

    def _listen_to_errors(self, connection: Connection) -> None:
        for text in connection.read_errors():
            self._events.put(partial(self._log, text))

    # While they run.

    def _step(self) -> None:
        """Wait briefly for an event and handle it, then check the deadlines."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=_TICK_SECONDS)
            event()
        self._check_deadlines()

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is FrameKind.ENDED:
            connection.alive.discard(frame.number)
            self._on_rank_ended(frame.number, int(frame.value))
        elif frame.kind is FrameKind.FROM_RANK:
            self._on_rank_message(connection, frame.number, frame.payload)
        elif frame.kind is FrameKind.ADDRESS:
            self._meeting_address = frame.value
        elif frame.kind is FrameKind.FAILED:
            raise LaunchError(f"{connection.name}: {frame.payload.decode('utf-8', 'replace')}", frame.number)

    def _on_rank_ended(self, rank: int, code: int) -> None:
        self._output.finish(rank)
        self._membership.end(rank, succeeded=code == 0)
        if code != 0 and self._killed_at == math.inf and rank not in self._killed:
            self._on_rank_failed(Death(rank, code, is_witness(self._output.tail(rank))))
        self._meet()

    def _on_rank_failed(self, death: Death) -> None:
        self._deaths.append(death)
        self._on_loss(self._describe(death))

    def _on_disconnect(self, connection: Connection) -> None:
        """Handle the end of an agent's output."""
        connection.is_open = False
        if not connection.alive:
            return
        code = connection.exit_code()
        if not self._running:
            raise LaunchError(
                describe_failure(connection.name, self._job.python, code, connection.diagnostics, connection.local)
            )
        ranks = name_ranks(sorted(connection.alive))
        lines = connection.diagnostics.strip().splitlines()
        text = (
            f"expected {connection.name} to stay until its ranks have ended, lost it with {ranks}: "
            f"{lines[-1] if lines else f'its agent, or ssh, ended with exit code {code}'}"
        )
        for rank in connection.alive:
            self._membership.end(rank, succeeded=False)
        self._lost.append(text)
        self._on_loss(text)
        self._meet()

    # For jobs that continue without dead ranks.

    def _on_loss(self, text: str) -> None:
        """Handle the loss of ranks: the job fails if too few ranks are left, or if it is already ending."""
        if self._stopping or not self._may_meet():
            self._failed_at = min(self._failed_at, time.monotonic())
            return
        succeeded = len(self._membership.succeeded)
        remaining = f"{len(self._membership.alive)} left{f' and {succeeded} ended well' if succeeded else ''}"
        self._output.log(f"{text}: {remaining}, of {self._job.least} that must be (--min-np)")

    def _may_meet(self) -> bool:
        """Return whether ranks may meet. They may still do so while they handle a signal that asks them to end."""
        return self._membership.suffices and self._failed_at == math.inf

    def _on_rank_message(self, connection: Connection, rank: int, line: bytes) -> None:
        """Handle a rank's message about meeting the others."""
        try:
            message = read_message(line)
        except ValueError as error:
            raise LaunchError(f"{connection.name}: rank {rank}: {error}") from None
        if isinstance(message, Coming):
            self._membership.join(rank, message, time.monotonic())
            self._meet()
        else:
            self._membership.set_done(rank, done=message == DONE)

    def _meet(self) -> None:
        """Send the waiting ranks their rosters, if all expected ranks have come."""
        if not self._may_meet():
            return
        rosters = self._membership.meet()
        for rank, roster in rosters.items():
            self._connection_of(rank).send(pack(FrameKind.TO_RANK, rank, roster.to_line()))
        if rosters:
            # Earlier losses are not the cause of later failures.
            self._deaths, self._lost = [], []
            if len(rosters) < self._job.size:
                verb = "goes" if len(rosters) == 1 else "go"
                self._output.log(f"{name_ranks(sorted(rosters))} {verb} on, as {name_ranks(range(len(rosters)))}")

    def _check_late_ranks(self, now: float) -> None:
        """Kill the ranks that others have waited for too long."""
        since, seconds = self._membership.waiting_since, self._meeting_timeout()[0]
        if since is None or now - since <= seconds or not self._may_meet():
            return
        for rank in self._membership.late:
            self._killed.add(rank)
            self._membership.end(rank, succeeded=False)
            self._connection_of(rank).send(pack(FrameKind.KILL, rank))
            self._on_rank_failed(Death(rank, -signal.SIGKILL, witness=False))
        self._meet()

    def _meeting_timeout(self) -> tuple[float, str]:
        """Return how many seconds ranks wait for a missing rank, and the option that sets it."""
        if self._membership.meetings:
            return self._job.elastic_timeout, "--elastic-timeout"
        return self._job.start_timeout, "--start-timeout"

    def _on_signal(self, number: int) -> None:
        if not self._running:
            if number in _ENDING:
                raise SystemExit(128 + number)
        elif number == signal.SIGINT and self._interrupted:
            self._output.log("interrupted again: the ranks are killed")
            self._end(0.0)
        else:
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._stopping = self._stopping or number in _ENDING
            self._broadcast(pack(FrameKind.SIGNAL, number))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._next_keepalive:
            self._next_keepalive = now + self._job.silence / _ALIVE_PER_SILENCE
            self._broadcast(pack(FrameKind.ALIVE))
        self._check_late_ranks(now)
        if now > self._failed_at + _GRACE_SECONDS:
            self._end(_GRACE_SECONDS)
        if now > self._killed_at + _LAST_SECONDS:
            for connection in self._connections:
                connection.process.kill()

    def _end(self, seconds: float) -> None:
        """Make all agents end their ranks, and kill them after `seconds`. Later calls can only shorten the time."""
        killed_at = time.monotonic() + seconds
        if killed_at < self._killed_at:
            self._killed_at = killed_at
            self._broadcast(pack(FrameKind.END, int(seconds * 1000)))

    def _connection_of(self, rank: int) -> Connection:
        return next(connection for connection in self._connections if rank in connection.host_ranks.ranks)

    def _broadcast(self, message: bytes) -> None:
        """Send a frame to every agent that has started."""
        for connection in self._connections:
            if connection.greeting:
                connection.send(message)

    def _log(self, text: str) -> None:
        if self._job.verbose:
            self._output.log(text)

    # After the ranks have ended.

    def _close_connections(self) -> None:
        """Close the input of all agents, which then end their remaining processes, and wait for the agents."""
        self._writer.abandon()  # agents with much output must not be blocked by this process
        for connection in self._connections:
            connection.close_input()
            if not connection.greeting:
                connection.process.kill()  # ssh may wait for a host that doesn't answer
        deadline = time.monotonic() + _LAST_SECONDS
        for connection in self._connections:
            with contextlib.suppress(subprocess.TimeoutExpired):
                connection.process.wait(max(0.0, deadline - time.monotonic()))

    def _report_end(self) -> int:
        """Log how the job ended, and return the exit code."""
        self._output.finish_all()
        for text in self._lost:
            self._output.log(text)
        first = first_failure(self._deaths)
        if first is None or (self._lost and first.witness):
            killed = 128 + signal.SIGINT if self._interrupted else 1
            return killed if self._lost or self._killed_at < math.inf else 0
        reason = last_traceback(self._output.tail(first.rank))
        if reason and not first.witness and any(death.witness for death in self._deaths):
            # Consequent errors of other ranks may follow it in the output.
            self._output.log(f"what {self._membership.name(first.rank)} wrote:")
            self._output.repeat(first.rank, reason)
        self._output.log(self._describe(first))
        return first.exit_code

    def _describe(self, death: Death) -> str:
        if death.rank in self._killed:
            seconds, option = self._meeting_timeout()
            how = f"is killed, as it hasn't come to meet the others within {seconds:g} s ({option})"
        elif death.code < 0:
            how = f"was killed by signal {-death.code} ({_signal_name(-death.code)})"
        else:
            how = f"ended with exit code {death.code}"
        return f"{self._membership.name(death.rank)} on {self._connection_of(death.rank).name} {how}"


def _raise(error: LaunchError) -> None:
    raise error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return "real-time"
