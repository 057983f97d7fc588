"""The address of a rank. The ranks exchange their addresses before they connect."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hpsearch_comm.bootstrap.interface import is_reachable
from hpsearch_comm.errors import ConfigurationError, RefusedError

MOST_BYTES = 4096
"""Maximum length of an address's text, in UTF-8."""

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_UNIX = re.compile(r"[0-9a-z-]{1,100}")
_HOSTNAME = 255
_HIGHEST_PID = 2**31 - 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one rank.

    Raises:
        RefusedError: A field is invalid.
    """

    host: str
    """Identity of the host, 32 hex digits: two ranks are on the same host if and only if these are equal."""
    hostname: str
    """Name of the host, for messages."""
    pid: int
    """Process ID in the process's own namespace, for messages."""
    ip: str
    """Address that the TCP socket is bound to, IPv4 or IPv6."""
    port: int
    unix: str
    """Name of the abstract Unix socket, without the leading zero byte."""

    def __post_init__(self) -> None:
        _expect(_matches(_IDENTITY, self.host), "the host's identity must be 32 hex digits", self.host)
        plain = isinstance(self.hostname, str) and self.hostname.isprintable() and 0 < len(self.hostname) <= _HOSTNAME
        _expect(plain, f"the host's name must be 1 to {_HOSTNAME} printable characters", self.hostname)
        _expect(_between(self.pid, 0, _HIGHEST_PID), f"the process must be a number from 0 to {_HIGHEST_PID}", self.pid)
        _expect(_is_ip(self.ip), "the address must be one of IPv4 or IPv6 that can be connected to", self.ip)
        _expect(_between(self.port, 1, 65535), "the port must be a number from 1 to 65535", self.port)
        _expect(
            _matches(_UNIX, self.unix),
            "the Unix socket's name must be 1 to 100 small letters, digits and dashes",
            self.unix,
        )

    def to_text(self) -> str:
        """Return the address as one line of JSON, at most MOST_BYTES long."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Parse a text that another rank's `to_text` returned.

        Raises:
            RefusedError: The text is longer than MOST_BYTES, isn't JSON, or a field is missing, unknown or invalid.
        """
        short = isinstance(text, str) and len(text.encode("utf-8", "replace")) <= MOST_BYTES
        _expect(short, f"it must be text of at most {MOST_BYTES} bytes", text)
        try:
            return cls(**json.loads(text))
        except (ValueError, RecursionError, TypeError):  # TypeError if the fields are others
            raise _refusal(f"it must be JSON with the fields {', '.join(cls.__dataclass_fields__)}", text) from None

    def name(self, rank: int) -> str:
        """Return the rank's name for messages: `rank 2 (pid 71 on node-b)`."""
        return f"rank {rank} (pid {self.pid} on {self.hostname})"


def read_addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """Parse the addresses of all ranks, by rank.

    Raises:
        RefusedError: An address is invalid; names the rank.
    """
    addresses = []
    for rank, text in enumerate(texts):
        try:
            addresses.append(Address.from_text(text))
        except RefusedError as error:
            raise RefusedError(f"the address of rank {rank}: {error}") from None
    return tuple(addresses)


def host_identity(name: str | None = None) -> str:
    """Return this host's identity. It is equal for two processes if they can share memory through a Unix socket.

    They can if they run on the same kernel, in the same network namespace, and as the same user in the same user
    namespace. Two containers on one machine are two hosts unless they share all of these.

    Args:
        name: Name of a part of this machine, to divide it into several hosts; None for the whole machine. Equal names
            don't unite two machines.

    Raises:
        ConfigurationError: `name` isn't text of at most 255 characters.
    """
    if name is not None and (not isinstance(name, str) or len(name) > _HOSTNAME):
        raise ConfigurationError(
            f"host (or HPSEARCH_COMM_HOST) must be text of at most {_HOSTNAME} characters, got {name!r:.300}"
        )
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


def _expect(holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise _refusal(rule, got)


def _refusal(rule: str, got: object) -> RefusedError:
    return RefusedError(f"{rule}, got {got!r:.100}")


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _between(number: object, lowest: int, highest: int) -> bool:
    return type(number) is int and lowest <= number <= highest


def _is_ip(text: object) -> bool:
    try:
        return isinstance(text, str) and "%" not in text and is_reachable(ipaddress.ip_address(text))
    except ValueError:
        return False
