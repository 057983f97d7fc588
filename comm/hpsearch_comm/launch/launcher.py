"""Starts an agent on each host, and goes on until all ranks have ended: the launcher itself.

The rank that failed first is named: what the others raise, they mostly raise because of it. The order in which ranks
end says little: one that raises in a `with comm.init()` tells the others, who may be quicker
to end than itself. So a rank whose last words are that another one is lost is only a witness, and counts as the first
to fail where nobody else failed.
"""

from __future__ import annotations

import re
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hpsearch_comm.launch.connection import Connection
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.fleet import LAST_SECONDS, Fleet
from hpsearch_comm.launch.frames import Frame, FrameKind, pack, pack_value
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.membership import Membership, name_ranks
from hpsearch_comm.launch.orphans import adopt_orphans, end_descendants
from hpsearch_comm.launch.output import STDERR, STDOUT, Output
from hpsearch_comm.launch.signals import Signals
from hpsearch_comm.launch.ssh import describe_failure
from hpsearch_comm.launch.standard_input import StandardInput
from hpsearch_comm.launch.startup import agent_process, compare_hosts, meeting_request, start_order
from hpsearch_comm.launch.writer import Writer
from hpsearch_comm.roster import DONE, Coming, read_message

__all__ = ["Death", "Interrupted", "Launcher", "Verdict", "is_witness", "last_traceback"]

# torch.distributed's own hook begins each line with the rank; groups of exceptions are drawn as a tree.
_MARGIN = rb"^(?:\[rank\d+\]: ?)?[ |]*"
_BEGIN = re.compile(_MARGIN + rb"(?:\+ Exception Group )?Traceback \(most recent call last\):", re.MULTILINE)
_WITNESS = re.compile(
    _MARGIN + rb"(?:hpsearch_comm\.errors\.|torch\.distributed\.DistBackendError: )?(?:PeerLost|RendezvousError): ",
    re.MULTILINE,
)


def is_witness(stderr: bytes) -> bool:
    """Whether a rank says, in the end of what it wrote to stderr, that it fails because of another."""
    return _WITNESS.search(stderr) is not None


def last_traceback(stderr: bytes) -> bytes:
    """Return the last traceback in what a rank wrote to stderr, and what follows it; empty where there is none."""
    begins = [match.start() for match in _BEGIN.finditer(stderr)]
    return stderr[begins[-1] :] if begins else b""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that failed."""

    rank: int
    code: int
    """Its exit code, or minus the signal that killed it."""
    witness: bool
    """Whether it says that it fails because of another."""

    @property
    def exit_code(self) -> int:
        """What a shell would make of it."""
        return self.code if self.code > 0 else 128 - self.code


class Verdict:
    """Hears of the ranks that failed, in the order in which that was seen."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []

    def add(self, death: Death) -> None:
        """Record a rank that failed on its own."""
        self.deaths.append(death)

    @property
    def first(self) -> Death | None:
        """The rank that failed first."""
        return min(self.deaths, key=lambda death: death.witness, default=None)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_SECONDS = 5.0
"""For the others to end by themselves once a rank has failed, and again once they were told to."""
_UNDONE = "; the others have ended without meeting again: what it alone was to do, such as saving, isn't done"
"""Of a loss that has hindered nobody: whoever is rank 0 of those that meet again does what the one before did."""
_QUIET_SECONDS = 10.0
"""For which ranks may wait, without a word, for others whose work is done."""
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

    def __init__(self, job: LaunchJob, writer: Writer) -> None:
        self._job = job
        self._writer = writer
        self._output = Output(writer, range(job.size), job.prefix, job.output)
        self._fleet = Fleet(self._on_frame, self._on_disconnect, self._log)
        self._signals = Signals(_PASSED_ON)
        self._input = StandardInput(self._fleet.selector, self._forward_input)
        self._meeting_address: dict[str, Any] | None = None
        self._running = False
        least = job.size if job.least is None else job.least
        self._membership = Membership((host_ranks.ranks for host_ranks in job.host_ranks), least)
        self._killed: set[int] = set()
        """Ranks that were killed because others waited for them in vain."""
        self._verdict = Verdict()
        self._lost: list[str] = []
        """What there is to say of hosts that were lost, since ranks last met."""
        self._failed_at: float | None = None
        self._killed_at: float | None = None
        """When the ranks are killed, since they were told to end."""
        self._interrupted = self._stopping = False
        self._next_keepalive = 0.0

    def __enter__(self) -> Launcher:
        adopt_orphans()  # of an agent here that is killed by force
        self._signals.__enter__()
        self._fleet.selector.register(self._signals, selectors.EVENT_READ, lambda: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._fleet.close()
            end_descendants()
        finally:
            self._signals.__exit__(kind, error, trace)
            self._output.close()

    def run(self) -> int:
        """Start the ranks and wait until they have ended; return the exit code.

        Raises:
            LaunchError: A host can't be reached, or its ranks can't be started.
            Interrupted: A signal came before they were.
        """
        self._connect()
        self._start()
        while self._fleet.is_open:
            self._step()
            if self._writer.error is not None:
                self._end(_GRACE_SECONDS)
        return self._report_end()

    # Before the ranks run.

    def _connect(self) -> None:
        """Start an agent on each host."""
        for host_ranks in self._job.host_ranks:
            command, environment = agent_process(self._job, host_ranks)
            self._log(
                f"ranks {host_ranks.ranks.start} to {host_ranks.ranks.stop - 1} on {host_ranks.host.name}: {command}"
            )
            self._fleet.open(host_ranks, command, environment)
        self._wait(lambda: all(connection.greeting for connection in self._fleet.connections))
        compare_hosts(self._fleet.connections)

    def _start(self) -> None:
        """Start the ranks on all hosts, once the meeting address is known."""
        connections = self._fleet.connections
        connections[0].send(pack_value(FrameKind.CHOOSE_ADDRESS, meeting_request(connections, self._job.interface)))
        self._wait(lambda: self._meeting_address is not None)
        assert self._meeting_address is not None
        self._log("the ranks meet at {address}, port {port}".format(**self._meeting_address))
        self._running = True
        for connection in connections:
            connection.send(pack_value(FrameKind.START, start_order(self._job, connection, **self._meeting_address)))
        self._input.open()

    def _wait(self, condition: Callable[[], bool]) -> None:
        seconds = self._job.start_timeout
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                silent = [connection.name for connection in self._fleet.connections if connection.greeting is None]
                raise LaunchError(
                    f"expected an answer of {' and '.join(silent or [self._fleet.connections[0].name])} within "
                    f"{seconds:g} s, got none: see that it can be reached, or give it more time (--start-timeout)"
                )
            self._step()

    # While they run.

    def _step(self) -> None:
        """Wait a moment for something to happen, and deal with it."""
        self._input.update()
        self._fleet.step(_TICK_SECONDS, receive=not self._writer.is_full)
        for number in self._signals.take():
            self._on_signal(number)
        self._check_deadlines()

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is FrameKind.STDOUT:
            self._output.feed(frame.number, STDOUT, frame.payload)
        elif frame.kind is FrameKind.STDERR:
            self._output.feed(frame.number, STDERR, frame.payload)
        elif frame.kind is FrameKind.ENDED:
            connection.alive.discard(frame.number)
            self._on_rank_ended(frame.number, int(frame.value))
        elif frame.kind is FrameKind.INPUT_TAKEN:
            self._input.acknowledge(more=frame.number == 0)
        elif frame.kind is FrameKind.FROM_RANK:
            self._on_rank_message(connection, frame.number, frame.payload)
        elif frame.kind is FrameKind.ADDRESS:
            self._meeting_address = frame.value
        elif frame.kind is FrameKind.FAILED:
            raise LaunchError(f"{connection.name}: {frame.payload.decode('utf-8', 'replace')}", frame.number)

    def _on_rank_ended(self, rank: int, code: int) -> None:
        self._output.finish(rank)
        self._membership.end(rank, succeeded=code == 0)
        if code != 0 and self._killed_at is None and rank not in self._killed:
            self._on_rank_failed(Death(rank, code, is_witness(self._output.tail(rank))))
        self._meet()

    def _on_rank_failed(self, death: Death) -> None:
        self._verdict.add(death)
        if self._can_continue():
            self._report_loss(self._describe(death))
            return
        self._failed_at = self._failed_at or time.monotonic()

    def _on_disconnect(self, connection: Connection) -> None:
        """Handle the end of an agent's output."""
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
        if self._can_continue():
            connection.alive.clear()
            self._report_loss(text)
            self._meet()
            return
        self._failed_at = self._failed_at or time.monotonic()

    # Where the others go on without ranks that have died.

    def _can_continue(self) -> bool:
        """Whether the loss of a rank is no failure of the job: enough are left, and nobody has asked for its end."""
        return self._may_meet() and not self._stopping

    def _may_meet(self) -> bool:
        """Whether ranks that have come to meet may: also those that handle a signal which has asked for their end."""
        return self._membership.suffices and self._failed_at is None

    def _report_loss(self, text: str) -> None:
        succeeded = len(self._membership.succeeded)
        remaining = f"{self._membership.count} left{f' and {succeeded} ended well' if succeeded else ''}"
        self._output.log(f"{text}: {remaining}, of {self._job.least} that must be (--min-np)")

    def _on_rank_message(self, connection: Connection, rank: int, line: bytes) -> None:
        """Take what a rank says of its meeting the others."""
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
        """Tell the waiting ranks to meet, if no other rank is awaited."""
        if not self._may_meet():
            return
        rosters = self._membership.meet()
        for connection in self._fleet.connections:
            for rank in rosters.keys() & set(connection.host_ranks.ranks):
                connection.send(pack(FrameKind.TO_RANK, rank, rosters[rank].to_line()))
        if rosters:
            # What has been lost before is no reason for what fails from now on.
            self._verdict, self._lost = Verdict(), []
            if len(rosters) < self._job.size:
                verb = "goes" if len(rosters) == 1 else "go"
                succeeded = self._membership.succeeded
                before = f"; {name_ranks(sorted(succeeded))} ended with exit code 0 before" if succeeded else ""
                self._output.log(
                    f"{name_ranks(sorted(rosters))} {verb} on, as {name_ranks(range(len(rosters)))}{before}"
                )

    def _check_late_ranks(self, now: float) -> None:
        """Kill the ranks for which others have waited for too long, and name those that may take longer."""
        since, seconds = self._membership.waiting_since, self._meeting_timeout()[0]
        if since is None or not self._may_meet():
            return
        if now - since > min(seconds, _QUIET_SECONDS) and (text := self._membership.waiting_notice()):
            self._output.log(text)
        if now - since <= seconds:
            return
        for rank in self._membership.late:
            self._killed.add(rank)
            self._membership.end(rank, succeeded=False)
            for connection in self._fleet.connections:
                if rank in connection.host_ranks.ranks:
                    connection.send(pack(FrameKind.KILL, rank))
            self._on_rank_failed(Death(rank, -signal.SIGKILL, witness=False))
        self._meet()

    def _meeting_timeout(self) -> tuple[float, str]:
        """Return for how long a rank is waited for, and the option that says so."""
        if self._membership.has_met:
            return self._job.elastic_timeout, "--elastic-timeout"
        return self._job.start_timeout, "--start-timeout"

    def _on_signal(self, number: int) -> None:
        if not self._running:
            if number in _ENDING:
                raise Interrupted(number)
        elif number == signal.SIGINT and self._interrupted:
            self._output.log("interrupted again: the ranks are killed")
            self._end(0.0)
        else:
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._stopping = self._stopping or number in _ENDING
            self._fleet.broadcast(pack(FrameKind.SIGNAL, number))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        self._output.flush_stale_lines()
        if now >= self._next_keepalive:
            self._next_keepalive = now + self._job.silence / _ALIVE_PER_SILENCE
            self._fleet.broadcast(pack(FrameKind.ALIVE))
        self._check_late_ranks(now)
        if self._failed_at is not None and now - self._failed_at > _GRACE_SECONDS:
            self._end(_GRACE_SECONDS)
        if self._killed_at is not None and now > self._killed_at + LAST_SECONDS:
            self._fleet.kill()

    def _end(self, seconds: float) -> None:
        """Make all agents end their ranks, and kill them after so many seconds. Another call can only shorten this."""
        killed_at = time.monotonic() + seconds
        if self._killed_at is None or killed_at < self._killed_at:
            self._killed_at = killed_at
            self._fleet.broadcast(pack(FrameKind.END, int(seconds * 1000)))

    def _forward_input(self, data: bytes) -> None:
        self._fleet.connections[0].send(pack(FrameKind.INPUT, 0, data))

    def _log(self, text: str) -> None:
        if self._job.verbose:
            self._output.log(text)

    # Behind them.

    def _report_end(self) -> int:
        """Say how it ended, and return the exit code."""
        self._output.finish_all()
        undone = _UNDONE if self._failed_at is None else ""
        for text in self._lost:
            self._output.log(f"{text}{undone}")
        first = self._verdict.first
        if first is None or (self._lost and first.witness):
            killed = 128 + signal.SIGINT if self._interrupted else 1
            return killed if self._lost or self._killed_at is not None else 0
        reason = last_traceback(self._output.tail(first.rank))
        if reason and not first.witness and any(death.witness for death in self._verdict.deaths):
            # What they wrote because of it may stand behind it.
            self._output.log(f"what {self._membership.name(first.rank)} wrote:")
            self._output.repeat(first.rank, reason)
        self._output.log(f"{self._describe(first)}{undone}")
        return first.exit_code

    def _describe(self, death: Death) -> str:
        host = next(
            connection.name for connection in self._fleet.connections if death.rank in connection.host_ranks.ranks
        )
        if death.rank in self._killed:
            seconds, option = self._meeting_timeout()
            how = f"is killed, as it hasn't come to meet the others within {seconds:g} s ({option})"
        elif death.code < 0:
            how = f"was killed by signal {-death.code} ({_signal_name(-death.code)})"
        else:
            how = f"ended with exit code {death.code}"
        return f"{self._membership.name(death.rank)} on {host} {how}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time ones have none
        return "real-time"
