"""Another group of some ranks of a group, whose addresses and secret come from that one."""

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
    """Return the ranks of a subgroup as ints, in the order given, which numbers them anew.

    Args:
        ranks: Of the group.
        size: Number of ranks of the group.

    Raises:
        UsageError: They aren't some ranks of the group, each of them once.
    """
    try:
        numbers = [whole_number(rank) for rank in ranks]
    except TypeError:  # it can't be gone through
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
    """Return what the new group is asked for, on one of its ranks.

    Args:
        options: Of the group that it comes from. A forced algorithm that can't be had among the members is let go.
        number: How many groups have come from it, this one included.
        members: Its ranks of which the new one consists.
        addresses: Theirs.
        sharing: Which ranks of the old group share memory.
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
    """Derive the secret of another group from that of this one: HMAC-SHA256 of its name."""
    return hmac.digest(secret, b"hpsearch_comm subgroup " + hashlib.sha256(name.encode()).digest(), "sha256")
