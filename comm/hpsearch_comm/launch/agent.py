"""The launcher's hand on a host: starts its ranks, sends what they write, says how they end, and leaves nothing behind.

It hears the launcher on its standard input. Where that ends, or the launcher is silent for too long, the ranks are
ended: with SIGTERM, and after a while with SIGKILL. If the agent itself is killed, the kernel kills the ranks, and on
the launcher's own host the launcher what they have started.
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
"""Of a line that a rank says."""
_MOST_DRAINED = 16
"""Pieces read from a pipe of a rank that has ended: what it wrote itself fits in. A child of its may write on."""
_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, where the launcher is gone."""
_LEAVING_SECONDS = 1.0
"""For what ranks have started to end by itself behind them, as helpers that clear up do; and again when it was told."""
_LAST_SECONDS = 30.0
"""After which what can't be killed is left, and named."""
_TICK_SECONDS = 0.05
_CAN_NOT_RUN, _NOT_FOUND = 126, 127  # as in shells


def read_lines(sock: socket.socket) -> Iterator[bytes]:
    """Yield the lines that a rank says, each with its end, until the rank is gone.

    Raises:
        LaunchError: One has no end.
    """
    with sock.makefile("rb") as stream, contextlib.suppress(OSError):
        while (line := stream.readline(_MOST_BYTES)).endswith(b"\n"):
            yield line
        if len(line) == _MOST_BYTES:
            raise LaunchError(f"expected lines of at most {_MOST_BYTES} bytes of a rank, got {line[:64]!r}...")


class Agent:
    """Serves one launcher, from greeting to end.

    Args:
        silence: Seconds without a word from the launcher after which it is gone; 0 where only the end of input says so.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._last_heard = time.monotonic()
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        """What threads have heard, for the main one to deal with."""
        self._launcher = Writer()
        self._held_port: socket.socket | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._outputs = selectors.DefaultSelector()
        """What ranks write, and what their children still write when they have ended."""
        self._forwarding = threading.Lock()
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """For rank 0."""
        self._to_ranks: dict[int, tuple[socket.socket, Writer]] = {}
        """By which ranks are told whom they meet, where the job goes on without dead ones."""
        self._launcher_gone = False
        self._kill_at = math.inf
        """When ranks that were told to end are killed."""
        self._leaving: dict[int | None, float] = {}
        """When what ranks have left is told to end: all of it (None), or the process group of one that has died."""
        self._terminated: set[int] = set()
        """The processes that were."""

    def run(self) -> int:
        """Serve until the ranks have ended and nothing is left of them; return the exit code."""
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
            # Client, its port, server and its port; see ssh(1).
            "ssh": os.environ.get("SSH_CONNECTION", "").split()[::2],
        }
        # On a line of its own, whatever a login has written before.
        self._send(b"\n" + GREETING + json.dumps(facts).encode() + b"\n")

    def _listen(self) -> None:
        """Hear the launcher."""
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
        base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the agent's own
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

    # What ranks write and read, in threads.

    def _forward_outputs(self) -> None:
        while self._outputs.get_map():
            for key, _ in self._outputs.select():
                self._forward(key)
            self._launcher.wait_for_room()

    def _forward(self, key: selectors.SelectorKey) -> bool:
        """Send what there is in a stream. Returns whether there was anything."""
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
        """Send what is left in the streams. Returns whether there was anything."""
        with self._forwarding:
            keys = list(self._outputs.get_map().values())
        return any([self._forward(key) for key in keys])

    def _feed(self, stdin: IO[bytes]) -> None:
        try:
            while data := self._input.get():
                write_all(stdin.fileno(), data)
                self._send(pack(FrameKind.INPUT_TAKEN))
        except OSError:  # it reads no more
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
        """End the ranks, and kill them after so many seconds."""
        if self._kill_at == math.inf and seconds > 0:
            for rank in self._running():
                rank.signal(signal.SIGTERM)
                rank.signal(signal.SIGCONT)  # one that is stopped would not hear of it
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
        """Return those that haven't been reaped."""
        return [rank for rank in self._ranks.values() if rank.process.returncode is None]

    def _is_done(self) -> bool:
        """Whether all is over, and all that was written is on its way."""
        if not self._has_no_ranks():
            return False
        if descendants():
            is_over = time.monotonic() > self._leaving.get(None, math.inf) + _LAST_SECONDS
        else:
            is_over = not self._forward_remaining()
        # Last, since another thread may have sent something a moment ago.
        return is_over and (self._launcher.is_idle or self._launcher_gone)


def hold_port() -> socket.socket:
    """Take a free port, for as long as the socket is open, that rank 0 can nevertheless listen on.

    The socket is bound with SO_REUSEADDR and never listens. The kernel gives such a port to nobody who asks for any
    port, and to no outgoing connection; but who names it, and sets SO_REUSEADDR too, may bind and listen. So do ranks
    of this package, and torch.distributed's store.

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
        interface: The user's choice: an interface, an address or a network; None takes what was seen.
        seen: Addresses by which another host has reached this one, or seen it, the likeliest first.

    Raises:
        ConfigurationError: There is no such interface, or no address that other hosts could reach.
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
    """Whether it isn't, as behind a jump host or a translated address, another one's. With a scope, it is of no use."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return "%" not in address and is_local(address)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent. The one argument is the silence, in seconds, that it bears."""
    argv = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, nobody would learn how a rank has ended
    try:
        return Agent(float(argv[0]) if argv else 0.0).run()
    finally:
        end_descendants()


if __name__ == "__main__":
    sys.exit(main())
