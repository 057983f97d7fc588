"""Choose the address by which other ranks reach this host: by routing, or by the user's choice.

No packet is sent for this. Connecting a UDP socket only makes the kernel look up the route, and with it the source
address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from collections import defaultdict

from hpsearch_comm.errors import ConfigurationError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_VARIABLE = "HPSEARCH_COMM_INTERFACE (or interface=)"
_OUTSIDE = ("198.51.100.1", "2001:db8::1")
"""Addresses reserved for documentation: the route to them is the default route."""
_BROADCAST = ipaddress.ip_address("255.255.255.255")
_RETRY_SECONDS = 0.5
_log = logging.getLogger(__name__)


def local_address(towards: str | None = None, interface: str | None = None) -> str:
    """Return the address of this host that other ranks are to connect to.

    Args:
        towards: Host name or address of rank 0: the source address of the route to it is returned. None uses the
            default route, or loopback if there is none.
        interface: The user's choice, which replaces the route: the name of an interface (`eth0`), an address of this
            host, or a network (`10.1.0.0/16`), which also works if the hosts name their interfaces differently.

    Raises:
        ConfigurationError: There is no such address; lists the existing ones.
    """
    if interface:
        return _chosen(interface, towards)
    if towards is None:
        return _outward()
    addresses = resolve(towards)
    if is_own_name(towards, addresses):
        return _outward()
    # Loopback last: a system may also map its own name to 127.0.1.1, where ranks of other hosts can't reach it.
    for address in sorted(addresses, key=lambda address: ipaddress.ip_address(address).is_loopback):
        source = _source(address)
        if source is not None:
            return source
    raise ConfigurationError(
        f"expected a route to the host of rank 0, {towards!r} ({', '.join(addresses)}), found none: check MASTER_ADDR, "
        f"or set {_VARIABLE} to the interface that leads there. {describe_interfaces()}"
    )


def interface_name(interface: str, towards: str | None = None) -> str | None:
    """Return the name of the interface that `local_address` chooses for the user's choice; None if it is unknown."""
    try:
        address = local_address(towards, interface)
        return next((name for name, own in interface_addresses() if str(own.ip) == address), None)
    except ConfigurationError:
        return None


def resolve(host: str, deadline: float | None = None) -> tuple[str, ...]:
    """Resolve a host name, and return its addresses in the order in which to try them.

    Args:
        host: A name or an address.
        deadline: Until when to retry an unknown name, in seconds of `time.monotonic()`: in clusters, a host name may
            start to resolve only some time after the host has started.

    Raises:
        ConfigurationError: The name is unknown, or doesn't mean a single host (`0.0.0.0`).
    """
    results, warned = None, False
    while results is None:
        try:
            results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            remaining = 0.0 if deadline is None else deadline - time.monotonic()
            if remaining <= 0 or isinstance(error, UnicodeError):
                raise ConfigurationError(
                    f"expected the host of rank 0 (MASTER_ADDR) as a name or address that this host can resolve, "
                    f"got {host!r}: {error}"
                ) from None
            if not warned:
                _log.warning("the host of rank 0, %r, isn't known yet (%s): waiting for it", host, error)
                warned = True
            time.sleep(min(_RETRY_SECONDS, remaining))
    addresses = tuple(dict.fromkeys(_plain(str(result[4][0])) for result in results))
    if any(_is_nobodys(ipaddress.ip_address(address)) for address in addresses):
        raise ConfigurationError(
            f"expected the host of rank 0 (MASTER_ADDR) as an address that every rank can connect to, got {host!r}, "
            "which stands for no single host"
        )
    return addresses


def _plain(address: str) -> str:
    """Convert an IPv4-mapped IPv6 address (`::ffff:10.0.0.2`) to IPv4; return other addresses unchanged."""
    mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
    return str(mapped) if mapped is not None else address


def is_reachable(address: IPAddress) -> bool:
    """Return whether ranks of other hosts can connect to an address of this host."""
    return not _is_nobodys(address) and not _needs_scope(address)


def _is_nobodys(address: IPAddress) -> bool:
    return address.is_unspecified or address.is_multicast or address == _BROADCAST


def is_own_name(host: str, addresses: tuple[str, ...]) -> bool:
    """Return whether a name resolves to loopback because it is this host's own name: many systems map it to 127.0.1.1.

    On other hosts the name resolves to another address, which should be used. `localhost` and addresses return False.
    """
    first = host.lower().rstrip(".")
    if first.partition(".")[0] in ("localhost", "ip6-localhost") or first.endswith(".localhost") or _literal(host):
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def is_local(address: str) -> bool:
    """Return whether a socket of this host can be bound to the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True


def describe_interfaces() -> str:
    """Describe this host's addresses for an error: `Interfaces of this host: lo 127.0.0.1/8; ...`."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for name, own in interface_addresses():
        by_name[name].append(str(own))
    listing = "; ".join(f"{name} {', '.join(addresses)}" for name, addresses in by_name.items())
    return f"Interfaces of this host: {listing or 'none that the kernel lists'}."


def _chosen(interface: str, towards: str | None) -> str:
    literal = _literal(interface)
    matching = _matching(interface) if literal is None else [literal] if is_local(interface) else []
    candidates = [address for address in matching if is_reachable(address)]
    if not candidates:
        raise ConfigurationError(
            f"expected {_VARIABLE} to be an interface, an address or a network of this host with an address that "
            f"other hosts can connect to, got {interface!r}. {describe_interfaces()}"
        )
    # Use the address family of rank 0. If it is unknown, use IPv4, which is routed more widely.
    version = 4
    if towards is not None and len(candidates) > 1:
        with contextlib.suppress(ConfigurationError):
            version = ipaddress.ip_address(resolve(towards)[0]).version
    return str(min(candidates, key=lambda address: address.version != version))


def _matching(interface: str) -> list[IPAddress]:
    if "/" not in interface:
        return [own.ip for name, own in interface_addresses() if name == interface]
    try:
        network = ipaddress.ip_network(interface, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"expected {_VARIABLE} to be a network such as 10.1.0.0/16, got {interface!r}"
        ) from None
    return [own.ip for _, own in interface_addresses() if own.ip in network]


def _outward() -> str:
    for address in _OUTSIDE:
        source = _source(address)
        if source is not None and not ipaddress.ip_address(source).is_loopback:
            return source
    for _, own in interface_addresses():
        if not own.ip.is_loopback and not _needs_scope(own.ip):
            return str(own.ip)
    return "127.0.0.1" if is_local("127.0.0.1") else "::1"


def _source(address: str) -> str | None:
    """Return the source address for packets to an address; None if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            source = ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return None
    return None if _needs_scope(source) else str(source)


def _literal(text: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _needs_scope(address: IPAddress) -> bool:
    """Return whether an address (link-local IPv6) needs an interface, whose name differs between hosts."""
    return address.version == 6 and address.is_link_local


def interface_addresses() -> list[tuple[str, IPInterface]]:
    """Return the names of this host's interfaces with an address and its network, IPv4 first.

    It is empty if the kernel doesn't list them, as in some sandboxes.
    """
    import psutil  # imported here, because routing usually suffices

    addresses = []
    with contextlib.suppress(OSError):
        for name, entries in psutil.net_if_addrs().items():
            for entry in entries:
                if entry.family not in (socket.AF_INET, socket.AF_INET6) or entry.netmask is None:
                    continue
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                # Skip tentative addresses and duplicates of another host's address: they can't be used.
                if _needs_scope(address) or is_local(str(address)):
                    own = ipaddress.ip_interface((address, int(ipaddress.ip_address(entry.netmask)).bit_count()))
                    addresses.append((name.partition(":")[0], own))  # eth0:1 is an alias of eth0
    return sorted(addresses, key=lambda named: named[1].version)
