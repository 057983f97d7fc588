"""The address of a rank. The ranks exchange their addresses before they connect."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hpsearch_comm.bootstrap.interface import is_reachable
from hpsearch_comm.errors import ConfigurationError, RefusedError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one rank."""

    host: str
    """Identity of the host: two ranks are on the same host if and only if these are equal."""
    hostname: str
    """Name of the host, for messages."""
    pid: int
    """Process ID in the process's own namespace, for messages."""
    ip: str
    """Address that the TCP socket is bound to, IPv4 or IPv6."""
    port: int
    unix: str
    """Name of the abstract Unix socket, without the leading zero byte."""

    def to_text(self) -> str:
        """Return the address as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Parse a text that another rank's `to_text` returned.

        Raises:
            RefusedError: The text isn't JSON, or a field is missing, unknown or invalid.
        """
        try:
            address = cls(**json.loads(text))
            valid = all(type(getattr(address, field.name)).__name__ == field.type for field in fields(cls))
            valid = valid and is_reachable(ipaddress.ip_address(address.ip)) and 0 < address.port < 65536
        except (ValueError, RecursionError, TypeError):  # TypeError if the fields are others
            valid = False
        if not valid:
            names = ", ".join(field.name for field in fields(cls))
            raise RefusedError(f"it must be the JSON of an address, with the fields {names}, got {text!r:.200}")
        return address

    def name(self, rank: int) -> str:
        """Return the rank's name for messages: `rank 2 (pid 71 on node-b)`."""
        return f"rank {rank} (pid {self.pid} on {self.hostname})"


def host_identity(name: str | None = None) -> str:
    """Return this host's identity. It is equal for two processes if they can share memory through a Unix socket.

    They can if they run on the same kernel, in the same network namespace, and as the same user in the same user
    namespace. Two containers on one machine are two hosts unless they share all of these.

    Args:
        name: Name of a part of this machine, to divide it into several hosts; None for the whole machine. Equal names
            don't unite two machines.

    Raises:
        ConfigurationError: `name` isn't text.
    """
    if not isinstance(name, str | None):
        raise ConfigurationError(f"host (or HPSEARCH_COMM_HOST) must be text, got {name!r:.300}: name the host in text")
    marks = [*_machine(), str(os.geteuid()), name or ""]
    return hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:32]


def _machine() -> tuple[str, ...]:
    """Return the identity of kernel and namespaces. It is read each time: a thread can move to another namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return (boot, *(str(Path("/proc/thread-self/ns", kind).stat().st_ino) for kind in ("net", "user")))
    except (OSError, ValueError) as error:
        # If the host can't be identified, it gets a random identity: all messages are sent over TCP.
        _log.warning("can't tell which host this is (%s): this process will not share memory with others", error)
        return (secrets.token_hex(16),)
