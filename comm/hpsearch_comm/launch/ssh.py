"""How an agent is started on another host, and what it means when it doesn't come up."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

__all__ = ["Ssh", "agent_command", "describe_failure", "remote_command"]

_AGENT = "hpsearch_comm.launch.agent"
_PROBES = 4
"""Unanswered ones in a row after which ssh counts the other host as gone."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """The user's wishes on top of their own ssh configuration."""

    port: int | None = None
    identity: str | None = None
    """A file with a private key."""
    config: str | None = None
    """A configuration file in place of the user's."""
    options: tuple[str, ...] = ()
    """As after `ssh -o`."""

    def command(self, host: str, remote: str, silence: float) -> list[str]:
        """Return the command line that runs a command on a host.

        Nothing is asked, as nobody could answer: keys must be known on both sides. What a configuration says of
        forwarding, and of connections that are kept for later, is left out; what it says of host keys isn't touched.

        Args:
            host: As ssh knows it.
            remote: A command for the login shell there.
            silence: Seconds without an answer after which the connection counts as lost.
        """
        argv = ["ssh", "-T", "-a", "-x"]
        argv += [] if self.config is None else ["-F", self.config]
        argv += [] if self.port is None else ["-p", str(self.port)]
        argv += [] if self.identity is None else ["-i", self.identity]
        for option in (
            *self.options,
            "BatchMode=yes",
            "ControlMaster=no",
            "ClearAllForwardings=yes",
            f"ServerAliveInterval={max(1, math.floor(silence / _PROBES))}",
            f"ServerAliveCountMax={_PROBES}",
        ):
            argv += ["-o", option]
        return [*argv, "--", host, remote]


def agent_command(python: str, silence: float = 0.0) -> list[str]:
    """Return the command line that runs an agent; without the working directory in the path of modules."""
    return [python, "-P", "-m", _AGENT, *([f"{silence:g}"] if silence else [])]


def remote_command(python: str, path: str, silence: float) -> str:
    """Return the command that runs an agent, for a login shell of any kind.

    Args:
        python: The interpreter.
        path: PYTHONPATH, where the agent's code may lie.
        silence: Seconds without a word from the launcher after which it counts as gone.
    """
    return "exec " + shlex.join(["env", f"PYTHONPATH={path}", *agent_command(python, silence)])


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
