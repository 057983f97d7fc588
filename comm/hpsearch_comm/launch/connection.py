"""The launcher's end of one agent: a process, ssh or the agent itself, with frames both ways."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, cast

from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, read_frames
from hpsearch_comm.launch.hosts import LOCAL, HostRanks
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.ssh import agent_process
from hpsearch_comm.launch.streams import Writer, read_chunks

__all__ = ["Connection"]

_ENDING_SECONDS = 5.0
_TAIL = 4000
"""Bytes of what is said beside the frames that are kept, for an error."""


class Connection:
    """Starts an agent, and speaks with it.

    Args:
        job: Of which it starts some ranks.
        host_ranks: The host and its ranks.

    Raises:
        LaunchError: The command can't be run.
    """

    def __init__(self, job: LaunchJob, host_ranks: HostRanks) -> None:
        self.host_ranks = host_ranks
        self.name = host_ranks.host.name
        self.local = self.name == LOCAL
        self.command, environment = agent_process(job, host_ranks)
        source, self._input = os.pipe()
        try:
            self.process = subprocess.Popen(
                self.command,
                env=environment,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A terminal's Ctrl-C comes to the launcher alone, and ssh can't ask the terminal for a password.
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(
                f"expected to be able to run {self.command[0]} on this host, got: {error.strerror or error}. Install it"
                + (", or name another Python (--python)" if "ssh" not in self.command[0] else "")
            ) from None
        finally:
            os.close(source)
        self.greeting: dict[str, Any] = {}
        """What the agent has said of itself and its host; empty until it has."""
        self.alive = set(host_ranks.ranks)
        """The ranks whose end hasn't been told."""
        self.is_open = True
        """Whether more may come from the agent."""
        self._diagnostics = b""
        self._writer = Writer()
        self._errors_read = threading.Event()

    @property
    def diagnostics(self) -> str:
        """The end of what came beside the frames: from ssh, a login, the agent's own mishaps."""
        return self._diagnostics.decode("utf-8", "replace")

    def read_greeting(self) -> None:
        """Wait for the agent's first line, or the end of what comes."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(GREETING):
                self.greeting = json.loads(line.removeprefix(GREETING))
                return
            self._remember(line)

    def read(self) -> Iterator[Frame]:
        """Yield what the agent sends behind its greeting, until the end.

        Raises:
            LaunchError: What came makes no sense; names the host.
        """
        try:
            yield from read_frames(cast(BufferedReader, self.process.stdout))
        except LaunchError as error:
            raise LaunchError(f"{self.name}: {error}") from None

    def read_errors(self) -> Iterator[str]:
        """Yield the last lines of what is written to stderr, as it comes."""
        assert self.process.stderr
        for data in read_chunks(self.process.stderr.fileno()):
            self._remember(data)
            if lines := self.diagnostics.strip().splitlines():
                yield f"{self.name}: {lines[-1]}"
        self._errors_read.set()

    def send(self, message: bytes) -> None:
        """Put a frame on its way."""
        self._writer.write(self._input, message)

    def close_input(self) -> None:
        """Let its input end: the agent ends its ranks, and itself."""
        self._writer.close(self._input)

    def exit_code(self) -> int | None:
        """Return how the process has ended; None where it goes on for seconds after it has nothing more to say."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDING_SECONDS)
            self._errors_read.wait(_ENDING_SECONDS)
        return self.process.returncode

    def _remember(self, data: bytes) -> None:
        self._diagnostics = (self._diagnostics + data)[-_TAIL:]
