"""Where a rank is and how it is reached: what ranks tell each other before they connect."""

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
"""The longest text of an address, in UTF-8."""

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_UNIX = re.compile(r"[0-9a-z-]{1,100}")
_HOSTNAME = 255
_HIGHEST_PID = 2**31 - 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where one rank is reached.

    Raises:
        RefusedError: A field isn't what it must be.
    """

    host: str
    """Identity of its host, 32 hex digits: two ranks are on one host exactly when these are equal."""
    hostname: str
    """For messages."""
    pid: int
    """For messages; as seen from its own namespace."""
    ip: str
    """Address that its TCP socket is bound to, IPv4 or IPv6."""
    port: int
    unix: str
    """Name of its Unix socket, an abstract one, without the leading zero byte."""

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
        """Return it as one line of JSON, at most MOST_BYTES long."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Read what `to_text` gave on another rank.

        Raises:
            RefusedError: It is longer than MOST_BYTES, isn't JSON, or a field is missing, unknown or out of bounds.
        """
        short = isinstance(text, str) and len(text.encode("utf-8", "replace")) <= MOST_BYTES
        _expect(short, f"it must be text of at most {MOST_BYTES} bytes", text)
        try:
            return cls(**json.loads(text))
        except (ValueError, RecursionError, TypeError):  # the last one where it has other fields
            raise _refusal(f"it must be JSON with the fields {', '.join(cls.__dataclass_fields__)}", text) from None

    def name(self, rank: int) -> str:
        """Return who this is, as in `rank 2 (pid 71 on node-b)`."""
        return f"rank {rank} (pid {self.pid} on {self.hostname})"


def read_addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """Read the addresses of all ranks, by rank.

    Raises:
        RefusedError: One can't be read; the error names the rank.
    """
    addresses = []
    for rank, text in enumerate(texts):
        try:
            addresses.append(Address.from_text(text))
        except RefusedError as error:
            raise RefusedError(f"the address of rank {rank}: {error}") from None
    return tuple(addresses)


def host_identity(name: str | None = None) -> str:
    """Return which host this is: equal for processes that can share memory through an abstract Unix socket, else not.

    That takes one running kernel, one network namespace, and one user in one user namespace. Two containers on a
    machine are two hosts unless they share these.

    Args:
        name: Splits one machine into several hosts, by a name for this one; None for all of it. It can't unite two.

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
    """Read afresh each time: a thread can move to another namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return (boot, *(str(Path("/proc/thread-self/ns", kind).stat().st_ino) for kind in ("net", "user")))
    except (OSError, ValueError) as error:
        # Nobody shares a host that can't be told from others: everything goes over TCP.
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
