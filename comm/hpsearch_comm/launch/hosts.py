"""Hosts and their slots, from `-H` or a hostfile, and the assignment of ranks to hosts.

Hostfiles can have the format of Horovod and Open MPI (`host slots=N`, also with `max_slots`) or of MPICH (`host:N`).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpsearch_comm.bootstrap.interface import is_local, resolve
from hpsearch_comm.errors import ConfigurationError

LOCAL = "localhost"

_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.+-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])", re.ASCII)
_MOST_SLOTS = 2**20
_IGNORED = re.compile(r"max[_-]slots=[1-9][0-9]*")
"""Open MPI's limit of oversubscription. It is ignored, because hosts are never oversubscribed here."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that the user has named."""

    name: str
    """A host name, an address or an ssh alias, optionally with a user. IPv6 addresses have no brackets."""
    slots: int
    """Maximum number of ranks on the host."""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of one host."""

    host: Host
    ranks: range


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parse a list such as `host1:2,host2:4`. A host without a number has one slot. Slots of repeated hosts are added.

    Raises:
        ConfigurationError: An entry is invalid; the error names it.
    """
    return _merge(_parse_host(entry.strip(), f"-H {text}") for entry in text.split(","))


def parse_hostfile(text: str, file: str) -> tuple[Host, ...]:
    """Parse a hostfile with one host per line, `host slots=N` or `host:N`. A `#` starts a comment.

    Args:
        text: The file's content.
        file: The file's name, for errors.

    Raises:
        ConfigurationError: A line is invalid, or there is no host. The error names the file and the line.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        first, *others = line.partition("#")[0].split() or [""]
        entry = " ".join([first, *(field for field in others if not _IGNORED.fullmatch(field))])
        if entry:
            hosts.append(_parse_host(entry.replace(" slots=", ":", 1), f"{file}, line {number}"))
    if not hosts:
        raise ConfigurationError(f"expected a host in {file}, such as `host1 slots=2`, found none")
    return _merge(hosts)


def assign_ranks(hosts: Sequence[Host], size: int) -> tuple[HostRanks, ...]:
    """Return the ranks of each host. Hosts are filled one after the other.

    Raises:
        ConfigurationError: There are fewer slots than ranks.
    """
    slots = sum(host.slots for host in hosts)
    if size > slots:
        listing = ", ".join(f"{host.name} {host.slots}" for host in hosts)
        raise ConfigurationError(
            f"expected at most as many processes (-np) as there are slots, got {size} for {slots} ({listing}): start "
            "fewer, or give the hosts more slots"
        )
    assigned, first = [], 0
    for host in hosts:
        last = min(size, first + host.slots)
        if last > first:
            assigned.append(HostRanks(host, range(first, last)))
        first = last
    return tuple(assigned)


def merge_local(hosts: Iterable[Host], here: Callable[[str], bool]) -> tuple[Host, ...]:
    """Merge all names of this host into one host `localhost`, at the position of the first."""
    return _merge(Host(LOCAL, host.slots) if here(host.name) else host for host in hosts)


def is_here(name: str) -> bool:
    """Return whether a name or an address is this host's, so that ssh isn't needed; False if it includes a user."""
    if "@" in name:
        return False
    if name.lower().rstrip(".") in (LOCAL, socket.gethostname().lower()):
        return True
    try:
        return all(is_local(address) for address in resolve(name))
    except ConfigurationError:
        return False  # an ssh alias, or a mistake that ssh will report


def _parse_host(text: str, where: str) -> Host:
    # An IPv6 address contains colons, so it must be in brackets.
    match = re.fullmatch(r"((?:[^@:\[\]]*@)?\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", text)
    if match is None or not _NAME.fullmatch(match[1]):
        raise ConfigurationError(
            f"expected a host, or a host and its slots, such as host1:2, user@host1:2 or [fd00::1]:2, got {text!r} in "
            f"{where}"
        )
    name = match[1].replace("[", "").replace("]", "")
    return Host(name, 1 if match[2] is None else _parse_slots(match[2], where))


def _parse_slots(text: str, where: str) -> int:
    if re.fullmatch(r"[0-9]{1,7}", text) and 1 <= int(text) <= _MOST_SLOTS:
        return int(text)
    raise ConfigurationError(f"expected slots to be a whole number from 1 to {_MOST_SLOTS}, got {text!r} in {where}")


def _merge(hosts: Iterable[Host]) -> tuple[Host, ...]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, number) for name, number in slots.items())
