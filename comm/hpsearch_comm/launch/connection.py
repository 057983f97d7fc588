"""The launcher's end of one agent: a process, ssh or the agent itself, with frames both ways."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, FrameReader
from hpsearch_comm.launch.hosts import LOCAL, HostRanks

__all__ = ["Connection"]

_CHUNK = 1 << 16
_ENDING_SECONDS = 5.0
_TAIL = 4000
"""Bytes of what is said beside the frames that are kept, for an error."""


class Connection:
    """Starts an agent, and speaks with it. Nothing here waits.

    Args:
        host_ranks: The host and its ranks.
        command: What runs the agent.
        environment: Of that process.

    Raises:
        OSError: The command can't be run.
    """

    def __init__(self, host_ranks: HostRanks, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.host_ranks = host_ranks
        self.name = host_ranks.host.name
        self.local = self.name == LOCAL
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # A terminal's Ctrl-C comes to the launcher alone, and ssh can't ask the terminal for a password.
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.input, self.output, self.error = self.process.stdin, self.process.stdout, self.process.stderr
        for stream in (self.input, self.output, self.error):
            os.set_blocking(stream.fileno(), False)
        self.greeting: dict[str, Any] | None = None
        """What the agent has said of itself and its host."""
        self.alive = set(host_ranks.ranks)
        """The ranks whose end hasn't been told."""
        self.is_open = True
        """Whether more may come from the agent."""
        self._reader = FrameReader()
        self._head = b""
        self._diagnostics = b""
        self._outgoing: collections.deque[memoryview] = collections.deque()

    @property
    def diagnostics(self) -> str:
        """The end of what came beside the frames: from ssh, a login, the agent's own mishaps."""
        return self._diagnostics.decode("utf-8", "replace")

    def read(self) -> list[Frame]:
        """Take what the agent has sent; at its end `is_open` is no longer set.

        Raises:
            LaunchError: What came makes no sense; names the host.
        """
        data = _read(self.output.fileno())
        if data is None:
            return []
        if not data:
            self.is_open = False
            self._remember(self._head)
            return []
        try:
            return list(self._reader.feed(data if self.greeting is not None else self._read_greeting(data)))
        except LaunchError as error:
            raise LaunchError(f"{self.name}: {error}") from None

    def read_error(self) -> bool:
        """Take what was written to stderr. Returns whether there may be more."""
        data = _read(self.error.fileno())
        self._remember(data or b"")
        return data != b""

    def send(self, message: bytes) -> None:
        """Put a frame on its way."""
        self._outgoing.append(memoryview(message))
        self.flush()

    def flush(self) -> None:
        """Write what fits."""
        while self._outgoing:
            try:
                written = os.write(self.input.fileno(), self._outgoing[0][:_CHUNK])
            except BlockingIOError:
                return
            except (OSError, ValueError):  # it has ended, which its output will tell, or was let go
                self._outgoing.clear()
                return
            self._outgoing[0] = self._outgoing[0][written:]
            if not self._outgoing[0]:
                self._outgoing.popleft()

    @property
    def is_sending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._outgoing)

    def close_input(self) -> None:
        """Close the agent's input: it ends its ranks, and itself."""
        self._outgoing.clear()
        with contextlib.suppress(OSError):
            self.input.close()

    def exit_code(self) -> int | None:
        """Return how the process has ended; None where it goes on for seconds after it has nothing more to say."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDING_SECONDS)
        return self.process.returncode

    def close(self) -> None:
        """Close everything, and take leave of the process, which has ended or is killed."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.input, self.output, self.error):
            with contextlib.suppress(OSError):
                stream.close()

    def _read_greeting(self, data: bytes) -> bytes:
        """Look for the greeting; return what follows it."""
        self._head += data
        begin = self._head.find(b"\n" + GREETING)
        end = self._head.find(b"\n", begin + 1)
        if begin < 0 or end < 0:
            return b""
        self._remember(self._head[:begin])
        self.greeting = json.loads(self._head[begin + 1 + len(GREETING) : end])
        remaining, self._head = self._head[end + 1 :], b""
        return remaining

    def _remember(self, data: bytes) -> None:
        self._diagnostics = (self._diagnostics + data)[-_TAIL:]


def _read(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
