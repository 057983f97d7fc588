"""The launcher's end of one agent: a process, ssh or the agent itself, with frames both ways.

And what it means when the agent doesn't come up.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, cast

from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import GREETING, Frame, read_frames
from hpsearch_comm.launch.hosts import LOCAL, HostRanks
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.streams import Writer, read_chunks
from hpsearch_comm.launch.variables import SECRET
from hpsearch_comm.launch.version import search_path

_AGENT = "hpsearch_comm.launch.agent"
_PROBES = 4
"""Unanswered ones in a row after which ssh counts the other host as gone."""
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
        """Close the agent's input: it ends its ranks, and itself."""
        self._writer.close(self._input)

    def exit_code(self) -> int | None:
        """Return how the process has ended; None where it goes on for seconds after it has nothing more to say."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDING_SECONDS)
            self._errors_read.wait(_ENDING_SECONDS)
        return self.process.returncode

    def _remember(self, data: bytes) -> None:
        self._diagnostics = (self._diagnostics + data)[-_TAIL:]


def agent_process(job: LaunchJob, host_ranks: HostRanks) -> tuple[list[str], dict[str, str]]:
    """Return the command line that brings up an agent on a host, and that process's environment: without the secret.

    By ssh nothing is asked, as nobody could answer: keys must be known on both sides. What a configuration says of
    forwarding, and of connections that are kept for later, is left out; what it says of host keys isn't touched.
    """
    environment = {name: value for name, value in job.environment.items() if name != SECRET}
    path, name = search_path(), host_ranks.host.name
    # Without the working directory in the path of modules.
    agent = [job.python, "-P", "-m", _AGENT]
    if name == LOCAL:
        return agent, environment | {"PYTHONPATH": path}
    options = (
        "BatchMode=yes",
        "ControlMaster=no",
        "ClearAllForwardings=yes",
        f"ServerAliveInterval={max(1, math.floor(job.silence / _PROBES))}",
        f"ServerAliveCountMax={_PROBES}",
    )
    words = [word for option in options for word in ("-o", option)]
    # For a login shell of any kind.
    remote = "exec " + shlex.join(["env", f"PYTHONPATH={path}", *agent, f"{job.silence:g}"])
    return ["ssh", "-T", "-a", "-x", *job.ssh, *words, "--", name, remote], environment


def describe_failure(host: str, python: str, code: int | None, output: str, local: bool) -> str:
    """Return why an agent hasn't come up, and what to do.

    Args:
        host: Where.
        python: The interpreter that was to run it.
        code: The exit code of ssh, or of the agent on this host; None where it still runs.
        output: What was written to stderr, and by a login to stdout.
        local: Whether it was started without ssh.
    """
    actual = f"got: {_last_lines(output)}" if output.strip() else f"got exit code {code}"
    if "No module named" in output and "hpsearch_comm" in output:
        return (
            f"expected hpsearch_comm to be installed for {python} on {host}, {actual}. Install the same version there, "
            "or name the Python that has it (--python)"
        )
    if "nknown option: -P" in output or "requires a different Python" in output:
        return f"expected {python} on {host} to be Python 3.11 or later, {actual}. Name another one (--python)"
    if code in (126, 127):
        return (
            f"expected a Python interpreter at {python} on {host}, {actual}. It must have the same path on all hosts; "
            "name another one (--python)"
        )
    if code == 255 and not local:
        return (
            f"expected to reach {host} by ssh without being asked for anything, {actual}. See that "
            f"`ssh -o BatchMode=yes {host} true` works; --ssh-port, --ssh-identity and --ssh-option change how"
        )
    return f"expected an agent of the launcher's to start on {host}, {actual} (exit code {code})"


def _last_lines(output: str, lines: int = 3) -> str:
    return " / ".join(line.strip() for line in output.strip().splitlines()[-lines:])
