"""The launcher's hand on a host: starts its ranks, sends what they write, says how they end, and leaves nothing behind.

It hears the launcher on its standard input. Where that ends, or the launcher is silent for too long, the ranks are
ended: with SIGTERM, and after a while with SIGKILL. If the agent itself is killed, the kernel kills the ranks, and on
the launcher's own host the launcher what they have started.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpsearch_comm.bootstrap.address import host_identity
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, FrameKind, FrameReader, pack, pack_value
from hpsearch_comm.launch.orphans import adopt_orphans, descendants, end_descendants, in_group
from hpsearch_comm.launch.place import hold_port, meeting_address
from hpsearch_comm.launch.ranks import RankProcess, reap
from hpsearch_comm.launch.signals import Signals
from hpsearch_comm.launch.variables import SECRET, rank_variables, without_other_launchers
from hpsearch_comm.launch.version import source_digest, version

__all__ = ["Agent", "Channel", "main"]

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 16
"""Of a line that a rank says."""


class Channel:
    """Lines both ways; nothing here waits.

    Args:
        sock: This end.
        selector: Calls what is due.
        on_line: Is given each line that the rank says, without its end.
    """

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, on_line: Callable[[bytes], None]) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._on_line = on_line
        self._selector: selectors.BaseSelector | None = selector
        self._received = b""
        self._outgoing = b""
        selector.register(self._sock, selectors.EVENT_READ, self._on_ready)

    def send(self, line: bytes) -> None:
        """Put a line, with its end, on its way to the rank."""
        self._outgoing += line
        self._write()

    def close(self) -> None:
        """Say and hear no more."""
        self._stop()
        self._sock.close()

    def _on_ready(self) -> None:
        self._read()
        self._write()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # nobody has the other end any more
            self._stop()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _MOST_BYTES:
            raise LaunchError(
                f"expected lines of at most {_MOST_BYTES} bytes of a rank, got {self._received[:64]!r}..."
            )
        for line in lines:
            self._on_line(line)

    def _write(self) -> None:
        if self._selector is None:
            return
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._sock.send(self._outgoing) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, as its process will tell
            self._outgoing = b""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        with contextlib.suppress(KeyError):
            self._selector.modify(self._sock, events, self._on_ready)

    def _stop(self) -> None:
        if self._selector is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._sock)
        self._selector = None


_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_CHUNK = 1 << 16
_MUCH, _LITTLE = 1 << 20, 1 << 18
"""Bytes on their way to the launcher from which on, and below which again, nothing more of the ranks' is read."""
_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, where the launcher is gone."""
_LEAVING_SECONDS = 1.0
"""For what ranks have started to end by itself behind them, as helpers that clear up do; and again when it was told."""
_LAST_SECONDS = 30.0
"""After which what can't be killed is left, and named."""
_TICK_SECONDS = 0.05
_CAN_NOT_RUN, _NOT_FOUND = 126, 127  # as in shells
_KINDS = {"stdout": FrameKind.STDOUT, "stderr": FrameKind.STDERR}


class Agent:
    """Serves one launcher, from greeting to end.

    Args:
        silence: Seconds without a word from the launcher after which it is gone; 0 where only the end of input says so.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._last_heard = time.monotonic()
        self._selector = selectors.PollSelector()
        self._reader = FrameReader()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._queued = 0
        self._throttled = False
        self._held_port: socket.socket | None = None
        self._ranks: dict[int, RankProcess] = {}
        """Those that haven't been reaped."""
        self._channels: dict[int, Channel] = {}
        """To those that haven't been reaped, where the job goes on without dead ones."""
        self._ended: list[RankProcess] = []
        """Those that have, whose children may still write."""
        self._input = memoryview(b"")
        self._started = self._launcher_gone = self._is_stopping = False
        self._kill_at: float | None = None
        self._orphaned_groups: dict[int, float] = {}
        """When what a rank has left that has died, in its process group, is told to end, where the others go on."""
        self._clear_at: float | None = None
        """When what the ranks have left is told to end."""
        self._terminated: set[int] = set()
        """The processes that were."""

    def run(self) -> int:
        """Serve until the ranks have ended and nothing is left of them; return the exit code."""
        adopt_orphans()
        with Signals((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
            for descriptor in (0, 1):
                os.set_blocking(descriptor, False)
            self._selector.register(signals, _READ, lambda: None)
            self._selector.register(0, _READ, self._read_launcher)
            self._greet()
            while not self._is_done():
                for key, _ in self._selector.select(_TICK_SECONDS if self._is_ending() else 1.0):
                    key.data()
                for number in signals.take():
                    if number != signal.SIGCHLD:
                        name = signal.Signals(number).name
                        reason = f"expected the agent to stay until its ranks have ended, got {name}"
                        self._fail(1, reason, _GRACE_SECONDS)
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

    def _read_launcher(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._last_heard = time.monotonic()
        if not data:
            self._on_launcher_gone()
            return
        for frame in self._reader.feed(data):
            self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.CHOOSE_ADDRESS:
            self._choose_address(frame.value)
        elif frame.kind is FrameKind.START:
            self._start(frame.value)
        elif frame.kind is FrameKind.INPUT:
            self._take_input(frame.payload)
        elif frame.kind is FrameKind.SIGNAL:
            for rank in self._ranks.values():
                rank.signal(frame.number)
        elif frame.kind is FrameKind.TO_RANK:
            if frame.number in self._channels:
                self._channels[frame.number].send(frame.payload)
        elif frame.kind is FrameKind.KILL:
            if frame.number in self._ranks:
                self._ranks[frame.number].signal(signal.SIGKILL)
        elif frame.kind is FrameKind.END:
            self._end(frame.number / 1000)

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
        self._started = True
        for rank in ranks:
            variables = rank_variables(rank, ranks, order["size"], order["address"], order["port"])
            environment = base | order["exports"] | variables
            try:
                process = RankProcess(rank, command, environment, rank == 0, order["elastic"])
            except (OSError, ValueError) as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CAN_NOT_RUN
                reason = getattr(error, "strerror", None) or error
                self._fail(code, f"expected a program that can be run, got {command[0]!r}: {reason}")
                return
            self._ranks[rank] = process
            if process.elastic_socket is not None:
                self._channels[rank] = Channel(
                    process.elastic_socket, self._selector, partial(self._send_from_rank, FrameKind.FROM_RANK, rank)
                )
        if not self._throttled:
            self._listen_to_ranks()

    def _fail(self, code: int, reason: str, grace: float = 0.0) -> None:
        self._send(pack(FrameKind.FAILED, code, reason.encode("utf-8", "replace")))
        self._end(grace)

    # What ranks write.

    def _listen_to_ranks(self) -> None:
        for rank in (*self._ranks.values(), *self._ended):
            for descriptor in rank.outputs:
                self._selector.register(descriptor, _READ, lambda rank=rank, it=descriptor: self._forward(rank, it))

    def _forward(self, rank: RankProcess, descriptor: int) -> None:
        # Another one's callback may have throttled all in the meantime, or closed this one.
        if self._throttled or descriptor not in rank.outputs:
            return
        data = rank.read(descriptor)
        if data:
            self._send_from_rank(_KINDS[rank.streams[descriptor]], rank.rank, data)
        elif data is not None:
            self._selector.unregister(descriptor)
            rank.outputs.remove(descriptor)
            os.close(descriptor)

    def _forward_remaining(self) -> bool:
        """Send what is left in the streams of ranks that have ended. Returns whether there was anything."""
        sent = False
        for rank in self._ended:
            for descriptor in rank.outputs:
                if data := rank.drain(descriptor):
                    self._send_from_rank(_KINDS[rank.streams[descriptor]], rank.rank, data)
                    sent = True
        return sent

    def _reap(self) -> None:
        for rank in reap(list(self._ranks.values())):
            for descriptor in rank.outputs:
                if data := rank.drain(descriptor):
                    self._send_from_rank(_KINDS[rank.streams[descriptor]], rank.rank, data)
            self._stop_input(rank)
            del self._ranks[rank.rank]
            if channel := self._channels.pop(rank.rank, None):
                channel.close()
                if rank.process.returncode != 0:
                    self._orphaned_groups[rank.process.pid] = time.monotonic() + _LEAVING_SECONDS
            self._ended.append(rank)
            self._send(pack_value(FrameKind.ENDED, rank.process.returncode, rank.rank))

    # What rank 0 reads.

    def _take_input(self, data: bytes) -> None:
        rank = self._ranks.get(0)
        if rank is None or rank.input is None:
            self._send(pack(FrameKind.INPUT_TAKEN, 1))
        elif not data:
            self._stop_input(rank)
        else:
            self._input = memoryview(data)
            self._selector.register(rank.input, _WRITE, lambda: self._feed(rank))

    def _feed(self, rank: RankProcess) -> None:
        if rank.input is None:
            return
        try:
            self._input = self._input[os.write(rank.input, self._input) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._stop_input(rank)
            self._send(pack(FrameKind.INPUT_TAKEN, 1))
            return
        if not self._input:
            self._selector.unregister(rank.input)
            self._send(pack(FrameKind.INPUT_TAKEN))

    def _stop_input(self, rank: RankProcess) -> None:
        if rank.input is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(rank.input)
        rank.close_input()

    # To the launcher.

    def _send_from_rank(self, kind: FrameKind, rank: int, data: bytes) -> None:
        self._send(pack(kind, rank, data))

    def _send(self, message: bytes) -> None:
        if self._launcher_gone:
            return
        self._outgoing.append(memoryview(message))
        self._queued += len(message)
        self._flush()

    def _flush(self) -> None:
        while self._outgoing:
            try:
                written = os.write(1, self._outgoing[0][:_CHUNK])
            except BlockingIOError:
                break
            except OSError:
                self._on_launcher_gone()
                return
            self._queued -= written
            self._outgoing[0] = self._outgoing[0][written:]
            if not self._outgoing[0]:
                self._outgoing.popleft()
        self._watch_output(bool(self._outgoing))
        self._throttle()

    def _watch_output(self, enabled: bool) -> None:
        # Where standard input and output are one socket, as under sshd, they are still two descriptors.
        watched = 1 in self._selector.get_map()
        if enabled and not watched:
            self._selector.register(1, _WRITE, self._flush)
        elif watched and not enabled:
            self._selector.unregister(1)

    def _throttle(self) -> None:
        if not self._throttled and self._queued > _MUCH:
            self._throttled = True
            for rank in (*self._ranks.values(), *self._ended):
                for descriptor in rank.outputs:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(descriptor)
        elif self._throttled and self._queued < _LITTLE:
            self._throttled = False
            self._listen_to_ranks()

    # The end.

    def _on_launcher_gone(self) -> None:
        """End the ranks, as the launcher is gone."""
        if self._launcher_gone:
            return
        self._launcher_gone = True
        self._outgoing.clear()
        self._queued = 0
        for descriptor in (0, 1):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        if self._throttled:
            self._throttle()
        self._end(_GRACE_SECONDS)

    def _end(self, seconds: float) -> None:
        """End the ranks, and kill them after so many seconds."""
        first, self._is_stopping = not self._is_stopping, True
        if first and seconds > 0:
            for rank in self._ranks.values():
                rank.signal(signal.SIGTERM)
                rank.signal(signal.SIGCONT)  # one that is stopped would not hear of it
        deadline = time.monotonic() + seconds
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def _is_ending(self) -> bool:
        return self._is_stopping or self._clear_at is not None or bool(self._orphaned_groups)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._silence and not self._launcher_gone and now - self._last_heard > self._silence:
            print("the launcher was silent for too long", file=sys.stderr, flush=True)
            self._on_launcher_gone()
        if self._kill_at is not None and now >= self._kill_at:
            for rank in self._ranks.values():
                rank.signal(signal.SIGKILL)
        if self._has_no_ranks():
            self._clear_at = self._clear_at or now + _LEAVING_SECONDS
            self._kill_leftovers(descendants(os.getpid()), self._clear_at, now)
        for group, deadline in list(self._orphaned_groups.items()):
            if leftovers := in_group(group, descendants(os.getpid())):
                self._kill_leftovers(leftovers, deadline, now)
            else:
                del self._orphaned_groups[group]

    def _kill_leftovers(self, processes: list[int], deadline: float, now: float) -> None:
        """End what ranks have left: what hasn't ended by itself by then is told to, and a little later killed."""
        if now >= deadline:
            number = signal.SIGTERM if now < deadline + _LEAVING_SECONDS else signal.SIGKILL
            for process in processes:
                if number == signal.SIGKILL or process not in self._terminated:
                    self._terminated.add(process)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, number)

    def _has_no_ranks(self) -> bool:
        return not self._ranks and (self._started or self._is_stopping)

    def _is_done(self) -> bool:
        """Whether all is over, and all that was written is on its way."""
        if not self._has_no_ranks() or self._outgoing:
            return False
        if descendants(os.getpid()):
            return self._clear_at is not None and time.monotonic() > self._clear_at + _LAST_SECONDS
        return not self._forward_remaining()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent. The one argument is the silence, in seconds, that it bears."""
    argv = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, nobody would learn how a rank has ended
    try:
        return Agent(float(argv[0]) if argv else 0.0).run()
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        end_descendants()


if __name__ == "__main__":
    sys.exit(main())
