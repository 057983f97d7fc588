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
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpsearch_comm.bootstrap.address import host_identity
from hpsearch_comm.bootstrap.interface import is_local, local_address
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, FrameKind, pack, pack_value, read_frames
from hpsearch_comm.launch.processes import (
    RankProcess,
    adopt_orphans,
    descendants,
    end_descendants,
    kill,
    reap,
)
from hpsearch_comm.launch.streams import CHUNK, Writer, handle_signals, start_thread
from hpsearch_comm.launch.variables import SECRET, rank_variables, without_other_launchers
from hpsearch_comm.launch.version import PACKAGE, source_digest

_GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL if the launcher is gone."""
_LEAVING_SECONDS = 2.0
"""Time for the ranks' children to end on their own, as cleanup helpers do, after the last rank has ended."""
_ORPHAN_SECONDS = 1.0
"""The same for the children of a dead rank, if the job continues without it."""
_TICK_SECONDS = 0.05
_CAN_NOT_RUN, _NOT_FOUND = 126, 127  # as in shells


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
        self._to_ranks: dict[int, tuple[socket.socket, Writer]] = {}
        """By rank, the socket for rosters, if the job continues without dead ranks."""
        self._launcher_gone = False
        self._kill_at = math.inf
        """When the ranks are killed, after they were asked to end."""
        self._leaving: dict[int, float] = {}
        """When the processes that a dead rank left are killed, by process group, if the job continues without it."""
        self._leaving_until = math.inf
        """When leftover processes are killed, after the last rank has ended."""

    def run(self) -> int:
        """Run until the ranks and their leftover processes have ended; return the exit code."""
        adopt_orphans()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with handle_signals(numbers, lambda number: self._events.put(partial(self._on_signal, number))):
            self._greet()
            start_thread(self._listen)
            while not self._is_done():
                self._forward_outputs(_TICK_SECONDS)
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._events.get_nowait()()
                self._reap()
                self._check_deadlines()
        return 0

    def _greet(self) -> None:
        facts = {
            "digest": source_digest(),
            "package": str(PACKAGE),
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
                process = RankProcess(rank, command, environment, order["elastic"])
            except (OSError, ValueError) as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CAN_NOT_RUN
                reason = getattr(error, "strerror", None) or error
                self._fail(code, f"expected a program that can be run, got {command[0]!r}: {reason}")
                break
            self._ranks[rank] = process
            for stream, kind in process.outputs.items():
                self._outputs.register(stream, selectors.EVENT_READ, (rank, kind))
        for rank, process in self._ranks.items():
            if process.elastic_socket:
                self._to_ranks[rank] = process.elastic_socket, Writer()
                start_thread(self._hear_rank, rank, process.elastic_socket)

    def _fail(self, code: int, reason: str, grace: float = 0.0) -> None:
        self._send(pack(FrameKind.FAILED, code, reason.encode("utf-8", "replace")))
        self._end(grace)

    # Input and output of ranks.

    def _forward_outputs(self, seconds: float) -> bool:
        """Wait for output, at most this long, and send a chunk of each stream. Returns whether there was any."""
        if not self._launcher.has_room:
            time.sleep(seconds)
            return True
        return any([self._forward(key) for key, _ in self._outputs.select(seconds)])

    def _forward(self, key: selectors.SelectorKey) -> bool:
        with contextlib.suppress(BlockingIOError):
            rank, kind = key.data
            if data := os.read(key.fd, CHUNK):
                self._send(pack(kind, rank, data))
                return True
            self._outputs.unregister(key.fd)
        return False

    def _hear_rank(self, rank: int, sock: socket.socket) -> None:
        with sock.makefile("rb") as stream, contextlib.suppress(OSError):
            while (line := stream.readline()).endswith(b"\n"):
                self._send(pack(FrameKind.FROM_RANK, rank, line))

    def _send(self, message: bytes) -> None:
        if not self._launcher_gone:
            self._launcher.write(1, message)

    # The end.

    def _reap(self) -> None:
        for rank in reap(self._running()):
            for stream in rank.outputs:
                if key := self._outputs.get_map().get(stream):
                    self._forward(key)  # a chunk is as large as a pipe: it has all that the rank has written
            if rank.elastic_socket and rank.process.returncode != 0:
                self._leaving[rank.process.pid] = time.monotonic() + _ORPHAN_SECONDS
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
        for group in [group for group, deadline in self._leaving.items() if now >= deadline]:
            del self._leaving[group]
            kill(descendants(group))

    def _has_no_ranks(self) -> bool:
        return (bool(self._ranks) or self._kill_at < math.inf) and not self._running()

    def _running(self) -> list[RankProcess]:
        """Return the ranks that haven't been reaped."""
        return [rank for rank in self._ranks.values() if rank.process.returncode is None]

    def _is_done(self) -> bool:
        """Return whether all processes have ended, or have had their time, and the output has been sent."""
        if not self._has_no_ranks():
            return False
        now = time.monotonic()
        self._leaving_until = min(self._leaving_until, now + _LEAVING_SECONDS)
        if descendants():
            if now < self._leaving_until:
                return False
            end_descendants()
        is_over = not self._forward_outputs(0.0)
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
