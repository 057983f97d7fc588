"""What is to be known, compared and told before ranks start on several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpsearch_comm.launch.connection import Connection
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.hosts import LOCAL, HostRanks
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.ssh import agent_command, remote_command
from hpsearch_comm.launch.variables import SECRET, forwarded_variables
from hpsearch_comm.launch.version import search_path, source_digest, version

__all__ = ["agent_process", "compare_hosts", "meeting_request", "start_order"]


def agent_process(job: LaunchJob, host_ranks: HostRanks) -> tuple[list[str], dict[str, str]]:
    """Return the command line that brings up an agent on a host, and that process's environment: without the secret."""
    environment = {name: value for name, value in job.environment.items() if name != SECRET}
    path = search_path()
    if host_ranks.host.name == LOCAL:
        return agent_command(job.python), environment | {"PYTHONPATH": path}
    remote = remote_command(job.python, path, job.silence)
    return job.ssh.command(host_ranks.host.name, remote, job.silence), environment


def compare_hosts(connections: Sequence[Connection]) -> None:
    """Check that all agents have this version, and that each is on another host.

    Raises:
        LaunchError: One doesn't meet this; names it.
    """
    digest, machines = source_digest(), dict[str, str]()
    for connection in connections:
        greeting = connection.greeting or {}
        if greeting.get("digest") != digest:
            raise LaunchError(
                f"expected the same hpsearch_comm on {connection.name} as here ({version()}; source {digest}), got "
                f"{greeting.get('version')}; source {greeting.get('digest')}. Install the same version on all hosts"
            )
        first = machines.setdefault(greeting["identity"], connection.name)
        if first != connection.name:
            raise LaunchError(
                f"expected each host once, got {first} and {connection.name}, which are one: name it once, with all "
                "its slots"
            )


def meeting_request(connections: Sequence[Connection], interface: str | None) -> dict[str, Any]:
    """Return what rank 0's agent has to know in order to find the place where the ranks meet."""
    greetings = [connection.greeting or {} for connection in connections]
    if connections[0].local:
        addresses = [address for greeting in greetings[1:] for address in greeting["ssh"][:1]]
    else:
        addresses = greetings[0]["ssh"][1:]
    return {"alone": len(connections) == 1, "interface": interface, "seen": addresses}


def start_order(job: LaunchJob, connection: Connection, address: str, port: int) -> dict[str, Any]:
    """Return all that an agent has to know in order to start its ranks, the secret among it.

    Args:
        job: What is started.
        connection: To the agent.
        address: Where the ranks meet.
        port: A port there that is kept for rank 0.
    """
    ranks = connection.host_ranks.ranks
    return {
        "ranks": [ranks.start, ranks.stop],
        "size": job.size,
        "address": address,
        "port": port,
        "secret": job.secret,
        "command": job.command,
        "directory": job.directory,
        "environment": dict(job.environment) if connection.local else forwarded_variables(job.environment),
        "exports": dict(job.exports),
        "elastic": job.least is not None,
    }
