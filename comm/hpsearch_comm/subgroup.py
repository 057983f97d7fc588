"""Options of a subgroup. Its addresses and secret are derived from the group that creates it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace

from hpsearch_comm.bootstrap.rendezvous import KnownAddresses
from hpsearch_comm.errors import UsageError
from hpsearch_comm.operations.arguments import whole_number
from hpsearch_comm.operations.host_collectives import algorithms_among
from hpsearch_comm.options import Options
from hpsearch_comm.topology import Topology


def check_members(ranks: Sequence[int], size: int) -> list[int]:
    """Return the ranks of a subgroup as ints, in the given order. The subgroup numbers its members in this order.

    Args:
        ranks: The members, as ranks of the group.
        size: Number of ranks of the group.

    Raises:
        UsageError: `ranks` is empty, has duplicates, or has ranks that the group doesn't have.
    """
    try:
        numbers = [whole_number(rank) for rank in ranks]
    except TypeError:  # not iterable
        numbers = [None]
    members = [number for number in numbers if number is not None and 0 <= number < size]
    if not members or len(members) != len(numbers) or len(set(members)) != len(members):
        raise UsageError(
            f"a subgroup must have one or more ranks from 0 to {size - 1}, each of them once, got {ranks!r}"
        )
    return members


def related_options(
    options: Options, number: int, members: Sequence[int], addresses: Sequence[str], sharing: Topology
) -> Options:
    """Return the options of a subgroup, for this rank.

    Args:
        options: The options of the parent group. An algorithm that the members can't run is replaced by `auto`.
        number: Number of groups derived from the parent so far, including this one.
        members: The members, as ranks of the parent.
        addresses: The addresses of the members.
        sharing: Which ranks of the parent share memory.
    """
    hosts = [ranks for host in sharing.hosts if (ranks := [rank for rank in host if rank in members])]
    name = f"{options.name}/{number}"
    return replace(
        options,
        rank=members.index(options.rank),
        size=len(members),
        rendezvous=KnownAddresses(addresses, None if options.rendezvous is None else options.rendezvous.host),
        secret=None if options.secret is None else related_secret(options.secret, name),
        name=name,
        deadline=None,
        algorithm=options.algorithm if options.algorithm in algorithms_among(hosts) else "auto",
    )


def related_secret(secret: bytes, name: str) -> bytes:
    """Derive another group's secret from this group's secret: HMAC-SHA256 over the other group's name."""
    return hmac.digest(secret, b"hpsearch_comm subgroup " + hashlib.sha256(name.encode()).digest(), "sha256")
