"""Two hosts with two networks between them, as network namespaces: `near` is the slow network, `far` the one to choose.

host a                     host b
near  10.77.1.1  --------  near  10.77.1.2
far   10.77.2.1  --------  far   10.77.2.2
      fd77::1                    fd77::2
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.comm.bootstrap.connecting_rank import ConnectingRank, connecting_rank, meet

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"
HOSTS = tuple(f"hpsearch-{name}-{os.getpid()}" for name in "ab")


def ip(*arguments: str) -> str:
    return subprocess.run([IP, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[str, str]]:
    made = []
    try:
        try:
            for host in HOSTS:
                ip("netns", "add", host)
                made.append(host)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"network namespaces can't be made here: {reason}")
        first, second = HOSTS
        for number, name in ((1, "near"), (2, "far")):
            ip("link", "add", name, "netns", first, "type", "veth", "peer", "name", name, "netns", second)
            for index, host in enumerate(HOSTS, 1):
                ip("-n", host, "address", "add", f"10.77.{number}.{index}/24", "dev", name)
                if name == "far":
                    ip("-n", host, "address", "add", f"fd77::{index}/64", "dev", name, "nodad")
                ip("-n", host, "link", "set", name, "up")
        for host in HOSTS:
            ip("-n", host, "link", "set", "lo", "up")
        yield first, second
    finally:
        for host in made:
            ip("netns", "delete", host)


@pytest.fixture(scope="module")
def ranks(network: tuple[str, str]) -> Iterator[list[ConnectingRank]]:
    first, second = network
    with connecting_rank(first) as a, connecting_rank(second) as b:
        yield [a, b]


@pytest.mark.parametrize(
    ("listening", "expected"),
    [
        ([{"interface": "far"}, {"interface": "far"}], "10.77.2.0/24"),
        ([{"interface": "10.77.2.0/24"}] * 2, "10.77.2.0/24"),
        ([{"interface": "near", "towards": "10.77.2.1"}, {"interface": "10.77.1.2", "towards": "10.77.2.1"}],
         "10.77.1.0/24"),
        ([{"towards": "10.77.1.1"}] * 2, "10.77.1.0/24"),
        ([{"towards": "10.77.2.1"}] * 2, "10.77.2.0/24"),
        ([{"towards": "fd77::1"}] * 2, "fd77::/64"),
        ([{"interface": "fd77::/64"}] * 2, "fd77::/64"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value[0]),
)  # fmt: skip
def test_ranks_of_two_hosts_connect_through_the_interface_chosen(ranks, listening, expected):
    for made in meet(ranks, listening, secret=secrets.token_hex(32), streams=3):
        assert made["hosts"] == ((0,), (1,)), made
        assert len(made["ends"]) == 4
        places = {ipaddress.ip_address(place) for ends in made["ends"] for place in ends}
        assert len(places) == 2
        assert all(place in ipaddress.ip_network(expected) for place in places)


def test_an_interface_without_an_address_that_the_other_host_reaches_is_named(ranks):
    ranks[0].ask("listen", interface="eth7")
    answer = ranks[0].answer()
    assert answer["error"] == "ConfigurationError"
    assert "near" in answer["text"]
    assert "far" in answer["text"]


@pytest.mark.slow
def test_a_host_that_is_gone_without_a_word_is_noticed_within_seconds(ranks, network):
    meet(ranks, [{"interface": "far"}] * 2, secret=secrets.token_hex(32), heartbeat_timeout=2.0)
    for rank in ranks:
        rank.ask("wait_for_end")
    ip("-n", network[0], "link", "set", "far", "down")
    try:
        answers = [rank.answer() for rank in ranks]
    finally:
        ip("-n", network[0], "link", "set", "far", "up")
    assert set(answers) <= {os.strerror(110), os.strerror(113), os.strerror(101)}


@contextlib.contextmanager
def silence(network: tuple[str, str]) -> Iterator[None]:
    """Let no packet come to the other host, as while a virtual machine migrates: frames go to an address of nobody."""
    others = ("10.77.2.2", "10.77.2.1")
    for host, other in zip(network, others, strict=True):
        ip("-n", host, "neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "dev", "far", "nud", "permanent")
    try:
        yield
    finally:
        for host, other in zip(network, others, strict=True):
            ip("-n", host, "neigh", "delete", other, "dev", "far")


@pytest.mark.slow
def test_a_host_that_is_frozen_for_some_seconds_is_waited_for(ranks, network):
    meet(ranks, [{"interface": "far"}] * 2, how="join", secret=secrets.token_hex(32))
    ranks[0].ask("sums", count=1)
    with silence(network):
        time.sleep(8.0)  # longer than the six seconds for which TCP was let ask
    ranks[1].ask("sums", count=1)
    for rank in ranks:
        assert rank.answer() == 2.0
        rank.ask("leave")
    assert [rank.answer() for rank in ranks] == [None, None]


@pytest.mark.slow
def test_a_host_that_stays_frozen_is_given_up_at_last(ranks, network):
    meet(ranks, [{"interface": "far"}] * 2, how="join", secret=secrets.token_hex(32), heartbeat_timeout=1.0)
    ranks[0].ask("sums", count=1)
    with silence(network):
        answer = ranks[0].answer()
    assert (answer["error"], answer["rank"]) == ("PeerLost", 1)
    assert "its host answers no more" in answer["text"]
    for rank in ranks:
        rank.ask("leave")
    assert [rank.answer() for rank in ranks] == [None, None]
