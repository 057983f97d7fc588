from __future__ import annotations

import ipaddress
import socket
import time
from typing import NoReturn

import psutil
import pytest

from hpsearch_comm.bootstrap import interface as interface_module
from hpsearch_comm.bootstrap.interface import (
    describe_interfaces,
    interface_addresses,
    is_local,
    is_own_name,
    local_address,
    resolve,
)
from hpsearch_comm.errors import ConfigurationError
from tests.comm.network import in_a_network


def loopback() -> str:
    """Give the name of the interface that has 127.0.0.1."""
    for name, own in interface_addresses():
        if str(own.ip) == "127.0.0.1":
            return name
    pytest.skip("this host has no 127.0.0.1")


def other_addresses() -> list[str]:
    return [str(own.ip) for _, own in interface_addresses() if not own.ip.is_loopback]


def name_for(monkeypatch: pytest.MonkeyPatch, addresses: dict[str, list[str]]) -> None:
    """Make these the host names that the resolver knows."""

    def getaddrinfo(host: str, *_args, **_kinds):
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
            for address in addresses[host]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_loopback_leads_to_loopback():
    assert local_address("127.0.0.1") == "127.0.0.1"
    assert ipaddress.ip_address(local_address("localhost")).is_loopback


def test_an_own_address_is_reached_from_itself():
    for address in other_addresses():
        if not ipaddress.ip_address(address).is_link_local:
            assert local_address(address) == address


def test_an_interface_is_chosen_by_name_address_or_network():
    assert local_address(interface=loopback()) == "127.0.0.1"
    assert local_address(interface="127.0.0.1") == "127.0.0.1"
    assert local_address(interface="127.0.0.0/8") == "127.0.0.1"
    assert local_address("127.0.0.1", "127.0.0.2") == "127.0.0.2"


def test_the_choice_takes_the_family_of_rank_0():
    if not is_local("::1"):
        pytest.skip("this host has no IPv6")
    assert local_address("::1", loopback()) == "::1"
    assert local_address("127.0.0.1", loopback()) == local_address("no-such-host.invalid", loopback()) == "127.0.0.1"


@pytest.mark.parametrize(
    "interface",
    [
        "no-such-interface",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "203.0.113.7",
        "203.0.113.0/24",
        "10.1/99",
        "fe80::1",
    ],
)
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(interface):
    with pytest.raises(ConfigurationError) as refusal:
        local_address(interface=interface)
    assert "HPSEARCH_COMM_INTERFACE" in str(refusal.value)
    assert repr(interface) in str(refusal.value)
    if interface != "10.1/99":
        assert describe_interfaces() in str(refusal.value)
        assert f"{loopback()} 127.0.0.1/8" in str(refusal.value)


def test_an_unknown_host_is_named():
    with pytest.raises(ConfigurationError, match=r"MASTER_ADDR.*'no-such-host\.invalid'"):
        resolve("no-such-host.invalid")
    with pytest.raises(ConfigurationError, match="MASTER_ADDR"):
        resolve("x" * 300)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"])
def test_many_hosts_at_once_are_no_place_to_meet(host):
    with pytest.raises(ConfigurationError, match="stands for no single host"):
        local_address(host)


def test_an_ipv4_address_in_ipv6s_clothes_is_what_it_is():
    assert resolve("::ffff:127.0.0.1") == ("127.0.0.1",)


def test_a_name_that_becomes_known_later_is_waited_for(monkeypatch):
    known: dict[str, list[str]] = {}
    name_for(monkeypatch, known)

    def sleep(_seconds: float) -> None:
        known["late"] = ["192.0.2.9"]

    monkeypatch.setattr(time, "sleep", sleep)
    assert resolve("late", time.monotonic() + 60) == ("192.0.2.9",)
    with pytest.raises(ConfigurationError, match="'never'"):
        resolve("never", time.monotonic() - 1)


def test_a_hosts_own_name_does_not_mean_loopback(monkeypatch):
    # As Debian writes it into /etc/hosts; other hosts know node0 by another address.
    name_for(monkeypatch, {"node0": ["127.0.1.1"], "localhost": ["127.0.0.1"]})
    assert local_address("node0") == local_address(None)
    assert local_address("localhost") == "127.0.0.1"
    outside = [address for address in other_addresses() if not ipaddress.ip_address(address).is_link_local]
    assert local_address("node0") in outside or not outside


def test_loopback_among_a_names_addresses_is_the_last_choice(monkeypatch):
    outside = [address for address in other_addresses() if not ipaddress.ip_address(address).is_link_local]
    if not outside:
        pytest.skip("this host has loopback only")
    name_for(monkeypatch, {"node0": ["127.0.1.1", outside[0]]})
    assert local_address("node0") == outside[0]


def test_own_names_are_told_from_localhost():
    assert is_own_name("node0", ("127.0.1.1",))
    assert is_own_name("node0.example.org", ("::1", "127.0.0.1"))
    for host, addresses in {
        "localhost": ("127.0.0.1",),
        "LOCALHOST.": ("127.0.0.1",),
        "localhost.localdomain": ("127.0.0.1",),
        "ip6-localhost": ("::1",),
        "app.localhost": ("127.0.0.1",),
        "127.0.1.1": ("127.0.1.1",),
        "node1": ("192.0.2.1", "127.0.0.1"),
    }.items():
        assert not is_own_name(host, addresses)


def test_addresses_are_those_that_sockets_can_be_bound_to():
    interfaces = interface_addresses()
    assert {name for name, _ in interfaces} <= {name for _index, name in socket.if_nameindex()}
    for _, entry in interfaces:
        if not (entry.version == 6 and entry.ip.is_link_local):
            assert is_local(str(entry.ip))
    assert not is_local("203.0.113.7")


def test_a_kernel_that_does_not_list_its_interfaces_is_no_obstacle(monkeypatch):
    def refuse() -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(psutil, "net_if_addrs", refuse)
    assert local_address(interface="127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"got 'lo'. Interfaces of this host: none that the kernel lists"):
        local_address(interface="lo")
    monkeypatch.setattr(interface_module, "_OUTSIDE", ())
    assert is_local(local_address())


def answers(setup: str, *questions: str) -> list[str]:
    """Ask in a network of its own for the address towards `host@interface`."""

    def ask() -> list[str]:
        found = []
        for question in questions:
            towards, _, interface = question.partition("@")
            try:
                found.append(local_address(towards or None, interface or None))
            except ConfigurationError as error:
                found.append(str(error))
        return found

    return in_a_network(setup, ask)


def test_the_route_decides_among_several_interfaces():
    setup = """
        ip link set lo up
        ip link add fast type veth peer name fast-peer; ip link add slow type veth peer name slow-peer
        for name in fast fast-peer slow slow-peer; do ip link set $name up; done
        ip addr add 10.1.0.7/24 dev fast; ip addr add 10.2.0.7/24 dev slow; ip addr add 10.2.0.8/24 dev slow
        ip route add default via 10.2.0.1
    """
    found = answers(
        setup,
        "10.1.0.1@",
        "10.2.0.1@",
        "198.18.0.1@",
        "@",
        "10.1.0.1@slow",
        "10.2.0.1@10.1.0.0/16",
        "@10.2.0.8",
        "@fast-peer",
    )
    assert found[:7] == ["10.1.0.7", "10.2.0.7", "10.2.0.7", "10.2.0.7", "10.2.0.7", "10.1.0.7", "10.2.0.8"]
    assert "fast 10.1.0.7/24" in found[7]
    assert "slow 10.2.0.7/24, 10.2.0.8/24" in found[7]


def test_without_a_default_route_any_outward_address_is_taken():
    setup = """
        ip link set lo up; ip link add lan type veth peer name far; ip link set lan up; ip link set far up
        ip addr add 10.1.0.7/24 dev lan
    """
    found = answers(setup, "@", "192.0.2.1@")
    assert found[0] == "10.1.0.7"
    assert "expected a route to the host of rank 0, '192.0.2.1'" in found[1]


def test_a_host_by_itself_uses_loopback():
    assert answers("ip link set lo up", "@", "127.0.0.1@") == ["127.0.0.1", "127.0.0.1"]
