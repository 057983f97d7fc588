"""How an agent is started, by ssh on another host, and what it means when it doesn't come up."""

from __future__ import annotations

import math
import shlex

from hpsearch_comm.launch.hosts import LOCAL, HostRanks
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.variables import SECRET
from hpsearch_comm.launch.version import search_path

__all__ = ["agent_process", "describe_failure"]

_AGENT = "hpsearch_comm.launch.agent"
_PROBES = 4
"""Unanswered ones in a row after which ssh counts the other host as gone."""


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
