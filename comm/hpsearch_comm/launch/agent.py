"""The launcher's agent on a host: starts the host's ranks, forwards their output and exit codes, and ends leftovers.

The agent receives frames from the launcher on its standard input. If the input ends, or the launcher is silent for too
long, the agent ends the ranks: with SIGTERM, and after a grace period with SIGKILL. If the agent itself is killed, the
kernel kills the ranks. On the launcher's own host, the launcher then kills the processes that the ranks started.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, Any

from hpsearch_comm.bootstrap.address import host_identity
from hpsearch_comm.bootstrap.interface import is_local, local_address
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, FrameKind, pack, pack_value, read_frames
from hpsearch_comm.launch.processes import (
    RankProcess,
    adopt_orphans,
    descendants,
    end,
    end_descendants,
    reap,
)
from hpsearch_comm.launch.streams import CHUNK, Writer, handle_signals, start_thread, write_all
from hpsearch_comm.launch.variables import SECRET, rank_variables, without_other_launchers
from hpsearch_comm.launch.version import source_digest, version

_MOST_BYTES = 1 << 16
"""Maximum length of a line that a rank sends to the launcher."""
_MOST_DRAINED = 16
"""Maximum number of reads from an ended rank's pipe: enough for all its own output. Its children may still write."""
_GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL if the launcher is gone."""
_LEAVING_SECONDS = 1.0
"""Time for an ended rank's children to end on their own, as cleanup helpers do; and between SIGTERM and SIGKILL."""
_LAST_SECONDS = 30.0
"""Time after which the agent stops waiting for processes that can't be killed. It prints their ids."""
_TICK_SECONDS = 0.05
_CAN_NOT_RUN, _NOT_FOUND = 126, 127  # as in shells


def read_lines(sock: socket.socket) -> Iterator[bytes]:
    """Yield the lines that a rank sends, with their line ends, until the rank is gone.

    Raises:
        LaunchError: A line is too long.
    """
    with sock.makefile("rb") as stream, contextlib.suppress(OSError):
        while (line := stream.readline(_MOST_BYTES)).endswith(b"\n"):
            yield line
        if len(line) == _MOST_BYTES:
            raise LaunchError(f"expected lines of at most {_MOST_BYTES} bytes of a rank, got {line[:64]!r}...")


class Agent:
    """Runs the ranks of one host for a launcher.

    Args:
        silence: Seconds without a frame after which the launcher counts as gone; 0 for no such limit.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._last_heard = time.monotonic()
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        """Actions from other threads, for the main thread to run."""
        self._launcher = Writer()
        self._held_port: socket.socket | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._outputs = selectors.DefaultSelector()
        """The ranks' output pipes. Their children may still write when the ranks have ended."""
        self._forwarding = threading.Lock()
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Standard input for rank 0."""
        self._to_ranks: dict[int, tuple[socket.socket, Writer]] = {}
        """By rank, the socket for rosters, if the job continues without dead ranks."""
        self._launcher_gone = False
        self._kill_at = math.inf
        """When the ranks are killed, after they were asked to end."""
        self._leaving: dict[int | None, float] = {}
        """When leftover processes get SIGTERM: all of them (None), or those of a dead rank's process group."""
        self._terminated: set[int] = set()
        """The leftover processes that got SIGTERM."""

    def run(self) -> int:
        """Run until the ranks and their leftover processes have ended; return the exit code."""
        adopt_orphans()
        numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with handle_signals(numbers, lambda number: self._events.put(partial(self._on_signal, number))):
            self._greet()
            start_thread(self._listen)
            while not self._is_done():
                with contextlib.suppress(queue.Empty):
                    is_ending = self._leaving or self._kill_at < math.inf
                    action = self._events.get(timeout=_TICK_SECONDS if is_ending else 1.0)
                    while True:
                        action()
                        action = self._events.get_nowait()
                self._reap()
                self._check_deadlines()
        return 0

    def _greet(self) -> None:
        facts = {
            "digest": source_digest(),
            "version": version(),
            "identity": host_identity(),
            # Client address, client port, server address, server port; see ssh(1).
            "ssh": os.environ.get("SSH_CONNECTION", "").split()[::2],
        }
        # On a separate line: the login may have written an incomplete line before.
        self._send(b"\n" + GREETING + json.dumps(facts).encode() + b"\n")

    def _listen(self) -> None:
        """Read the launcher's frames."""
        try:
            with open(0, "rb", closefd=False) as stream:
                for frame in read_frames(stream):
                    self._last_heard = time.monotonic()
                    self._events.put(partial(self._handle, frame))
        except (LaunchError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
        self._events.put(self._on_launcher_gone)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.CHOOSE_ADDRESS:
            self._choose_address(frame.value)
        elif frame.kind is FrameKind.START:
            self._start(frame.value)
        elif frame.kind is FrameKind.INPUT:
            self._input.put(frame.payload)
        elif frame.kind is FrameKind.SIGNAL:
            for rank in self._ranks.values():
                rank.signal(frame.number)
        elif frame.kind is FrameKind.TO_RANK:
            sock, writer = self._to_ranks[frame.number]
            writer.write(sock.fileno(), frame.payload)
        elif frame.kind is FrameKind.KILL:
            self._ranks[frame.number].signal(signal.SIGKILL)
        elif frame.kind is FrameKind.END:
            self._end(frame.number / 1000)

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGCHLD:
            name = signal.Signals(number).name
            self._fail(1, f"expected the agent to stay until its ranks have ended, got {name}", _GRACE_SECONDS)

    def _choose_address(self, request: dict[str, Any]) -> None:
        try:
            address = meeting_address(**request)
            self._held_port = hold_port()
        except (ConfigurationError, OSError) as error:
            self._fail(1, str(error))
            return
        self._send(pack_value(FrameKind.ADDRESS, {"address": address, "port": self._held_port.getsockname()[1]}))

    def _start(self, order: dict[str, Any]) -> None:
        ranks, command = range(*order["ranks"]), order["command"]
        base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # set for the agent
        base = without_other_launchers(base | order["environment"])
        base.setdefault("PYTHONUNBUFFERED", "1")
        base[SECRET] = order["secret"]
        try:
            os.chdir(order["directory"])
        except OSError as error:
            self._fail(1, f"expected the directory {order['directory']}, got: {error.strerror}. --wdir names another")
            return
        for rank in ranks:
            variables = rank_variables(rank, ranks, order["size"], order["address"], order["port"])
            environment = base | order["exports"] | variables
            try:
                process = RankProcess(rank, command, environment, rank == 0, order["elastic"])
            except (OSError, ValueError) as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CAN_NOT_RUN
                reason = getattr(error, "strerror", None) or error
                self._fail(code, f"expected a program that can be run, got {command[0]!r}: {reason}")
                break
            self._ranks[rank] = process
            for stream, kind in process.outputs.items():
                self._outputs.register(stream, selectors.EVENT_READ, (rank, kind))
        start_thread(self._forward_outputs)
        for rank, process in self._ranks.items():
            if process.process.stdin:
                start_thread(self._feed, process.process.stdin)
            if process.elastic_socket:
                self._to_ranks[rank] = process.elastic_socket, Writer()
                start_thread(self._hear_rank, rank, process.elastic_socket)

    def _fail(self, code: int, reason: str, grace: float = 0.0) -> None:
        self._send(pack(FrameKind.FAILED, code, reason.encode("utf-8", "replace")))
        self._end(grace)

    # Input and output of ranks, in threads.

    def _forward_outputs(self) -> None:
        while self._outputs.get_map():
            for key, _ in self._outputs.select():
                self._forward(key)
            self._launcher.wait_for_room()

    def _forward(self, key: selectors.SelectorKey) -> bool:
        """Send a chunk of a stream's available data. Returns whether there was any."""
        with self._forwarding:
            try:
                data = os.read(key.fd, CHUNK)
            except BlockingIOError:
                return False
            rank, kind = key.data
            if data:
                self._send(pack(kind, rank, data))
            elif key.fd in self._outputs.get_map():
                self._outputs.unregister(key.fd)
            return bool(data)

    def _forward_remaining(self) -> bool:
        """Send a chunk of each stream's available data. Returns whether there was any."""
        with self._forwarding:
            keys = list(self._outputs.get_map().values())
        return any([self._forward(key) for key in keys])

    def _feed(self, stdin: IO[bytes]) -> None:
        try:
            while data := self._input.get():
                write_all(stdin.fileno(), data)
                self._send(pack(FrameKind.INPUT_TAKEN))
        except OSError:  # rank 0 has closed its input
            self._send(pack(FrameKind.INPUT_TAKEN, 1))
        stdin.close()

    def _hear_rank(self, rank: int, sock: socket.socket) -> None:
        try:
            for line in read_lines(sock):
                self._send(pack(FrameKind.FROM_RANK, rank, line))
        except LaunchError as error:
            self._events.put(partial(self._fail, 1, str(error)))

    def _send(self, message: bytes) -> None:
        if not self._launcher_gone:
            self._launcher.write(1, message)

    # The end.

    def _reap(self) -> None:
        for rank in reap(self._running()):
            for stream in rank.outputs:
                key = self._outputs.get_map().get(stream)
                for _ in range(_MOST_DRAINED):
                    if key is None or not self._forward(key):
                        break
            if rank.elastic_socket and rank.process.returncode != 0:
                self._leaving[rank.process.pid] = time.monotonic() + _LEAVING_SECONDS
            self._send(pack_value(FrameKind.ENDED, rank.process.returncode, rank.rank))

    def _on_launcher_gone(self) -> None:
        self._launcher_gone = True
        self._launcher.abandon()
        self._end(_GRACE_SECONDS)

    def _end(self, seconds: float) -> None:
        """Send SIGTERM to the ranks, and kill them after `seconds`."""
        if self._kill_at == math.inf and seconds > 0:
            for rank in self._running():
                rank.signal(signal.SIGTERM)
                rank.signal(signal.SIGCONT)  # a stopped process would not receive SIGTERM
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._silence and not self._launcher_gone and now - self._last_heard > self._silence:
            print("the launcher was silent for too long", file=sys.stderr, flush=True)
            self._on_launcher_gone()
        if now >= self._kill_at:
            for rank in self._running():
                rank.signal(signal.SIGKILL)
        if self._has_no_ranks():
            self._leaving.setdefault(None, now + _LEAVING_SECONDS)
        for group, deadline in list(self._leaving.items()):
            leftovers = descendants(group)
            if now >= deadline + _LEAVING_SECONDS:
                end(leftovers, signal.SIGKILL)
            elif now >= deadline:
                end(set(leftovers) - self._terminated, signal.SIGTERM)
                self._terminated.update(leftovers)
            if group is not None and not leftovers:
                del self._leaving[group]

    def _has_no_ranks(self) -> bool:
        return (bool(self._ranks) or self._kill_at < math.inf) and not self._running()

    def _running(self) -> list[RankProcess]:
        """Return the ranks that haven't been reaped."""
        return [rank for rank in self._ranks.values() if rank.process.returncode is None]

    def _is_done(self) -> bool:
        """Return whether all processes have ended, and all their output has been sent."""
        if not self._has_no_ranks():
            return False
        if descendants():
            is_over = time.monotonic() > self._leaving.get(None, math.inf) + _LAST_SECONDS
        else:
            is_over = not self._forward_remaining()
        # Checked last: another thread may have queued output just before.
        return is_over and (self._launcher.is_idle or self._launcher_gone)


def hold_port() -> socket.socket:
    """Reserve a free port while the returned socket is open. Rank 0 can still listen on it.

    The socket is bound with SO_REUSEADDR and never listens. The kernel doesn't assign such a port to a socket that asks
    for any free port, or to an outgoing connection. A socket that names the port and sets SO_REUSEADDR can bind and
    listen, as ranks of this package and torch.distributed's store do.

    Raises:
        OSError: No port is free.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("", 0))
    return sock


def meeting_address(alone: bool, interface: str | None, seen: Sequence[str]) -> str:
    """Return this host's address for MASTER_ADDR.

    Args:
        alone: Whether all ranks are on this host.
        interface: The user's choice: an interface, an address or a network. With None, `seen` is used.
        seen: Addresses of this host in ssh connections with other hosts, the most likely first.

    Raises:
        ConfigurationError: There is no such interface, or no address that other hosts can reach.
    """
    if interface:
        return local_address(None, interface)
    if alone:
        return "127.0.0.1" if is_local("127.0.0.1") else "::1"
    for address in (*(address for address in seen if _is_of_this_host(address)), local_address()):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    raise ConfigurationError(
        "expected the host of rank 0 to have an address that the other hosts reach, found only loopback: name its "
        "interface or network (--interface)"
    )


def _is_of_this_host(address: str) -> bool:
    """Return whether an address is this host's, and usable: behind a jump host or NAT it may be another host's.

    An IPv6 address with a scope is not usable.
    """
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return "%" not in address and is_local(address)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent. The optional argument is `Agent`'s `silence` in seconds."""
    argv = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, ranks' exit codes would be lost
    try:
        return Agent(float(argv[0]) if argv else 0.0).run()
    finally:
        end_descendants()


if __name__ == "__main__":
    sys.exit(main())
