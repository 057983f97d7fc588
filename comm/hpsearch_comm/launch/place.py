"""Where the ranks meet: an address of rank 0's host that the others reach, and a port that is kept for rank 0."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from hpsearch_comm.bootstrap.interface import is_local, local_address
from hpsearch_comm.errors import ConfigurationError

__all__ = ["hold_port", "meeting_address"]


def hold_port() -> socket.socket:
    """Take a free port, for as long as the socket is open, that rank 0 can nevertheless listen on.

    The socket is bound with SO_REUSEADDR and never listens. The kernel gives such a port to nobody who asks for any
    port, and to no outgoing connection; but who names it, and sets SO_REUSEADDR too, may bind and listen. So do ranks
    of this package, and torch.distributed's store.

    Raises:
        OSError: No port is free.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", 0))
    except OSError:
        sock.close()
        raise
    return sock


def meeting_address(alone: bool, interface: str | None, seen: Sequence[str]) -> str:
    """Return this host's address for MASTER_ADDR.

    Args:
        alone: Whether all ranks are on this host.
        interface: The user's choice: an interface, an address or a network; None takes what was seen.
        seen: Addresses by which another host has reached this one, or seen it, the likeliest first.

    Raises:
        ConfigurationError: There is no such interface, or no address that other hosts could reach.
    """
    if interface:
        return local_address(None, interface)
    if alone:
        return "127.0.0.1" if is_local("127.0.0.1") else "::1"
    for address in (*(address for address in seen if _is_of_this_host(address)), local_address()):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    raise ConfigurationError(
        "expected the host of rank 0 to have an address that the other hosts reach, found only loopback: name its "
        "interface or network (--interface)"
    )


def _is_of_this_host(address: str) -> bool:
    """Whether it isn't, as behind a jump host or a translated address, another one's. With a scope, it is of no use."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return "%" not in address and is_local(address)
