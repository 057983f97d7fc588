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
from hpsearch_comm.launch.ssh import trouble
from hpsearch_comm.launch.standard_input import StandardInput
from hpsearch_comm.launch.startup import agent_process, compare_hosts, start_order, where_to_meet
from hpsearch_comm.launch.writer import Writer
from hpsearch_comm.roster import DONE, Coming, read_word

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
    begins = [found.start() for found in _BEGIN.finditer(stderr)]
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

    def hear(self, death: Death) -> None:
        """Take note of a rank that failed by itself."""
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
        self._fleet = Fleet(self._take, self._part, self._explain)
        self._signals = Signals(_PASSED_ON)
        self._input = StandardInput(self._fleet.selector, self._to_rank_0)
        self._place: dict[str, Any] | None = None
        self._running = False
        least = job.size if job.least is None else job.least
        self._membership = Membership((share.ranks for share in job.shares), least)
        self._given_up: set[int] = set()
        """Ranks that were killed because others waited for them in vain."""
        self._verdict = Verdict()
        self._lost: list[str] = []
        """What there is to say of hosts that were lost, since ranks last met."""
        self._failed_at: float | None = None
        self._killed_at: float | None = None
        """When the ranks are killed, since they were told to end."""
        self._interrupted = self._stopping = False
        self._next_word = 0.0

    def __enter__(self) -> Launcher:
        adopt_orphans()  # of an agent here that is killed by force
        self._signals.__enter__()
        self._fleet.selector.register(self._signals, selectors.EVENT_READ, lambda: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._fleet.dismiss()
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
        return self._close_the_case()

    # Before the ranks run.

    def _connect(self) -> None:
        """Have an agent on each host."""
        for share in self._job.shares:
            command, environment = agent_process(self._job, share)
            self._explain(f"ranks {share.ranks.start} to {share.ranks.stop - 1} on {share.host.name}: {command}")
            self._fleet.open(share, command, environment)
        self._wait(lambda: all(connection.greeting for connection in self._fleet.connections))
        compare_hosts(self._fleet.connections)

    def _start(self) -> None:
        """Have the ranks started everywhere, once it is known where they meet."""
        connections = self._fleet.connections
        connections[0].send(pack_value(FrameKind.PLACE, where_to_meet(connections, self._job.interface)))
        self._wait(lambda: self._place is not None)
        assert self._place is not None
        self._explain("the ranks meet at {address}, port {port}".format(**self._place))
        self._running = True
        for connection in connections:
            connection.send(pack_value(FrameKind.START, start_order(self._job, connection, **self._place)))
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
        self._input.look()
        self._fleet.step(_TICK_SECONDS, hear=not self._writer.is_full)
        for number in self._signals.take():
            self._take_signal(number)
        self._look_at_the_time()

    def _take(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is FrameKind.STDOUT:
            self._output.feed(frame.number, STDOUT, frame.payload)
        elif frame.kind is FrameKind.STDERR:
            self._output.feed(frame.number, STDERR, frame.payload)
        elif frame.kind is FrameKind.ENDED:
            connection.living.discard(frame.number)
            self._take_end(frame.number, int(frame.value))
        elif frame.kind is FrameKind.TAKEN:
            self._input.taken(more=frame.number == 0)
        elif frame.kind is FrameKind.SAID:
            self._hear(connection, frame.number, frame.payload)
        elif frame.kind is FrameKind.FOUND:
            self._place = frame.value
        elif frame.kind is FrameKind.FAILED:
            raise LaunchError(f"{connection.name}: {frame.payload.decode('utf-8', 'replace')}", frame.number)

    def _take_end(self, rank: int, code: int) -> None:
        self._output.finish(rank)
        self._membership.end(rank, well=code == 0)
        if code != 0 and self._killed_at is None and rank not in self._given_up:
            self._take_death(Death(rank, code, is_witness(self._output.tail(rank))))
        self._meet()

    def _take_death(self, death: Death) -> None:
        self._verdict.hear(death)
        if self._goes_on():
            self._tell_of_loss(self._describe(death))
            return
        self._failed_at = self._failed_at or time.monotonic()

    def _part(self, connection: Connection) -> None:
        """Take note that nothing more comes from an agent."""
        if not connection.living:
            return
        code = connection.exit_code()
        if not self._running:
            raise LaunchError(trouble(connection.name, self._job.python, code, connection.said, connection.local))
        ranks = name_ranks(sorted(connection.living))
        said = connection.said.strip().splitlines()
        text = (
            f"expected {connection.name} to stay until its ranks have ended, lost it with {ranks}: "
            f"{said[-1] if said else f'its agent, or ssh, ended with exit code {code}'}"
        )
        for rank in connection.living:
            self._membership.end(rank, well=False)
        self._lost.append(text)
        if self._goes_on():
            connection.living.clear()
            self._tell_of_loss(text)
            self._meet()
            return
        self._failed_at = self._failed_at or time.monotonic()

    # Where the others go on without ranks that have died.

    def _goes_on(self) -> bool:
        """Whether the loss of a rank is no failure of the job: enough are left, and nobody has asked for its end."""
        return self._may_meet() and not self._stopping

    def _may_meet(self) -> bool:
        """Whether ranks that have come to meet may: also those that handle a signal which has asked for their end."""
        return self._membership.suffices and self._failed_at is None

    def _tell_of_loss(self, text: str) -> None:
        well = len(self._membership.well)
        left = f"{self._membership.count} left{f' and {well} ended well' if well else ''}"
        self._output.say(f"{text}: {left}, of {self._job.least} that must be (--min-np)")

    def _hear(self, connection: Connection, rank: int, line: bytes) -> None:
        """Take what a rank says of its meeting the others."""
        try:
            word = read_word(line)
        except ValueError as error:
            raise LaunchError(f"{connection.name}: rank {rank}: {error}") from None
        if isinstance(word, Coming):
            self._membership.come(rank, word, time.monotonic())
            self._meet()
        else:
            self._membership.be_done(rank, done=word == DONE)

    def _meet(self) -> None:
        """Have the ranks that want to meet do so, if nobody is awaited."""
        if not self._may_meet():
            return
        rosters = self._membership.meet()
        for connection in self._fleet.connections:
            for rank in rosters.keys() & set(connection.share.ranks):
                connection.send(pack(FrameKind.TELL, rank, rosters[rank].to_line()))
        if rosters:
            # What has been lost before is no reason for what fails from now on.
            self._verdict, self._lost = Verdict(), []
            if len(rosters) < self._job.size:
                go = "goes" if len(rosters) == 1 else "go"
                well = self._membership.well
                before = f"; {name_ranks(sorted(well))} ended with exit code 0 before" if well else ""
                self._output.say(f"{name_ranks(sorted(rosters))} {go} on, as {name_ranks(range(len(rosters)))}{before}")

    def _look_at_the_awaited(self, now: float) -> None:
        """Kill the ranks for which others have waited for too long, and name those that may take longer."""
        since, seconds = self._membership.waiting_since, self._patience()[0]
        if since is None or not self._may_meet():
            return
        if now - since > min(seconds, _QUIET_SECONDS) and (text := self._membership.name_done()):
            self._output.say(text)
        if now - since <= seconds:
            return
        for rank in self._membership.late:
            self._given_up.add(rank)
            self._membership.end(rank, well=False)
            for connection in self._fleet.connections:
                if rank in connection.share.ranks:
                    connection.send(pack(FrameKind.KILL, rank))
            self._take_death(Death(rank, -signal.SIGKILL, witness=False))
        self._meet()

    def _patience(self) -> tuple[float, str]:
        """Return for how long a rank is waited for, and the option that says so."""
        if self._membership.has_met:
            return self._job.elastic_timeout, "--elastic-timeout"
        return self._job.start_timeout, "--start-timeout"

    def _take_signal(self, number: int) -> None:
        if not self._running:
            if number in _ENDING:
                raise Interrupted(number)
        elif number == signal.SIGINT and self._interrupted:
            self._output.say("interrupted again: the ranks are killed")
            self._end(0.0)
        else:
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._stopping = self._stopping or number in _ENDING
            self._fleet.tell_all(pack(FrameKind.SIGNAL, number))

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        self._output.look_at_the_time()
        if now >= self._next_word:
            self._next_word = now + self._job.silence / _ALIVE_PER_SILENCE
            self._fleet.tell_all(pack(FrameKind.ALIVE))
        self._look_at_the_awaited(now)
        if self._failed_at is not None and now - self._failed_at > _GRACE_SECONDS:
            self._end(_GRACE_SECONDS)
        if self._killed_at is not None and now > self._killed_at + LAST_SECONDS:
            self._fleet.give_up()

    def _end(self, seconds: float) -> None:
        """Have all agents end their ranks, and kill them after so many seconds. Another call may only hasten it."""
        killed_at = time.monotonic() + seconds
        if self._killed_at is None or killed_at < self._killed_at:
            self._killed_at = killed_at
            self._fleet.tell_all(pack(FrameKind.END, int(seconds * 1000)))

    def _to_rank_0(self, data: bytes) -> None:
        self._fleet.connections[0].send(pack(FrameKind.INPUT, 0, data))

    def _explain(self, text: str) -> None:
        if self._job.verbose:
            self._output.say(text)

    # Behind them.

    def _close_the_case(self) -> int:
        """Say how it ended, and return the exit code."""
        self._output.finish_all()
        undone = _UNDONE if self._failed_at is None else ""
        for text in self._lost:
            self._output.say(f"{text}{undone}")
        first = self._verdict.first
        if first is None or (self._lost and first.witness):
            killed = 128 + signal.SIGINT if self._interrupted else 1
            return killed if self._lost or self._killed_at is not None else 0
        reason = last_traceback(self._output.tail(first.rank))
        if reason and not first.witness and any(death.witness for death in self._verdict.deaths):
            # What they wrote because of it may stand behind it.
            self._output.say(f"what {self._membership.name(first.rank)} wrote:")
            self._output.repeat(first.rank, reason)
        self._output.say(f"{self._describe(first)}{undone}")
        return first.exit_code

    def _describe(self, death: Death) -> str:
        host = next(it.name for it in self._fleet.connections if death.rank in it.share.ranks)
        if death.rank in self._given_up:
            seconds, option = self._patience()
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
