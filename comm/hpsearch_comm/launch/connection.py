"""The launcher's connection to an agent, through a local process or ssh, and errors when the agent doesn't start."""

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
from hpsearch_comm.launch.streams import Writer
from hpsearch_comm.launch.variables import SECRET
from hpsearch_comm.launch.version import search_path

_AGENT = "hpsearch_comm.launch.agent"
_PROBES = 4
"""Unanswered keepalive messages in sequence after which ssh counts the other host as gone."""
_ENDING_SECONDS = 5.0
_TAIL = 4000
"""Bytes of output outside the frames that are kept for an error message."""


class Connection:
    """Starts an agent, and exchanges frames with it.

    Args:
        job: The job.
        host_ranks: The host, and the ranks that the agent starts.

    Raises:
        LaunchError: The agent's command can't be run.
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
                # Ctrl-C reaches only the launcher, and ssh can't ask for a password on the terminal.
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
        """The agent's version and facts about its host; empty until the greeting arrives."""
        self.alive = set(host_ranks.ranks)
        """The ranks whose end hasn't been reported."""
        self.is_open = True
        """Whether the agent may send more frames."""
        self._diagnostics = b""
        self._writer = Writer()
        self._errors_read = threading.Event()

    @property
    def diagnostics(self) -> str:
        """The end of the output outside the frames: from ssh, the login, and errors of the agent."""
        return self._diagnostics.decode("utf-8", "replace")

    def read_greeting(self) -> None:
        """Wait for the agent's greeting, or the end of its output."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(GREETING):
                self.greeting = json.loads(line.removeprefix(GREETING))
                return
            self._remember(line)

    def read(self) -> Iterator[Frame]:
        """Yield the frames that the agent sends after its greeting, until the end of its output.

        Raises:
            LaunchError: The output is no valid frame; the error names the host.
        """
        try:
            yield from read_frames(cast(BufferedReader, self.process.stdout))
        except LaunchError as error:
            raise LaunchError(f"{self.name}: {error}") from None

    def read_errors(self) -> Iterator[str]:
        """Yield the lines of stderr."""
        assert self.process.stderr
        for line in self.process.stderr:
            self._remember(line)
            yield f"{self.name}: {line.decode('utf-8', 'replace').rstrip()}"
        self._errors_read.set()

    def send(self, message: bytes) -> None:
        """Queue a frame for the agent."""
        self._writer.write(self._input, message)

    def close_input(self) -> None:
        """Close the agent's input. The agent then ends its ranks and exits."""
        self._writer.close(self._input)

    def exit_code(self) -> int | None:
        """Return the process's exit code; None if it is still running seconds after the end of its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDING_SECONDS)
            self._errors_read.wait(_ENDING_SECONDS)
        return self.process.returncode

    def _remember(self, data: bytes) -> None:
        self._diagnostics = (self._diagnostics + data)[-_TAIL:]


def agent_process(job: LaunchJob, host_ranks: HostRanks) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts an agent on a host, and its environment without the secret.

    ssh runs in batch mode: it asks for nothing, so keys must be set up on both sides. The options override the user's
    settings of forwarding and of shared connections (ControlMaster), but not of host keys.
    """
    environment = {name: value for name, value in job.environment.items() if name != SECRET}
    path, name = search_path(), host_ranks.host.name
    # -P: the working directory is not in the module search path.
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
    # Valid in any login shell.
    remote = "exec " + shlex.join(["env", f"PYTHONPATH={path}", *agent, f"{job.silence:g}"])
    return ["ssh", "-T", "-a", "-x", *job.ssh, *words, "--", name, remote], environment


def describe_failure(host: str, python: str, code: int | None, output: str, local: bool) -> str:
    """Return a message that says why an agent hasn't started, and what to do.

    Args:
        host: The agent's host.
        python: The interpreter for the agent.
        code: The exit code of ssh, or of the agent on this host; None if it is still running.
        output: The output on stderr, and of the login on stdout.
        local: Whether the agent was started without ssh.
    """
    actual = f"got: {_last_lines(output)}" if output.strip() else f"got exit code {code}"
    if "No module named" in output and "hpsearch_comm" in output:
        return (
            f"expected hpsearch_comm to be installed for {python} on {host}, {actual}. Install the same version there, "
            "or name the Python that has it (--python)"
        )
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
