"""Which hosts there are, how many ranks each takes, and which rank runs where: `-H`, hostfiles, and their mistakes.

A hostfile's formats are those of Horovod and Open MPI (`host slots=N`, also with `max_slots`) and of MPICH (`host:N`).
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
"""Open MPI's bound on oversubscription, which there is none of here."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as the user names it."""

    name: str
    """A name, an address or an alias of ssh's, also with a user; IPv6 without brackets."""
    slots: int
    """How many ranks it takes."""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of one host."""

    host: Host
    ranks: range


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `host1:2,host2:4`; without a number it is one slot. A host that is named twice has the slots of both.

    Raises:
        ConfigurationError: It can't be read; says which part.
    """
    return _merge(_parse_host(entry.strip(), f"-H {text}") for entry in text.split(","))


def parse_hostfile(text: str, file: str) -> tuple[Host, ...]:
    """Read a hostfile: a host per line, `host slots=N` or `host:N`; what follows a `#` is a comment.

    Args:
        text: Its content.
        file: Its name, for errors.

    Raises:
        ConfigurationError: A line can't be read, or there is no host; names file and line.
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
    """Return which ranks run where: each host is filled in turn.

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
    """Make one of all names of this host, at the place of the first, whose name becomes `localhost`."""
    return _merge(Host(LOCAL, host.slots) if here(host.name) else host for host in hosts)


def is_here(name: str) -> bool:
    """Whether a name or an address is this host's, so that no ssh is needed. One with a user isn't."""
    if "@" in name:
        return False
    if name.lower().rstrip(".") in (LOCAL, socket.gethostname().lower()):
        return True
    try:
        return all(is_local(address) for address in resolve(name))
    except ConfigurationError:
        return False  # an alias of ssh's, or a mistake, of which ssh will speak


def _parse_host(text: str, where: str) -> Host:
    # An address of IPv6 has colons of its own, and stands in brackets.
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
