from __future__ import annotations

import ctypes
import json
import threading
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.bootstrap.address import Address, host_identity
from hpsearch_comm.errors import ConfigurationError, RefusedError

CLONE_NEWNET = 0x40000000

ADDRESS = Address("0123456789abcdef" * 2, "node-b", 71, "10.0.0.2", 4711, "hpsearch-comm-1f")


@pytest.mark.parametrize("ip", ["127.0.0.1", "fd00::2", "::ffff:10.0.0.2"])
def test_an_address_survives_its_text(ip):
    address = replace(ADDRESS, ip=ip)
    assert Address.from_text(address.to_text()) == address
    assert address.name(2) == "rank 2 (pid 71 on node-b)"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("host", 5),
        ("hostname", None),
        ("pid", True),
        ("pid", 1.5),
        ("ip", "node-b"),
        ("ip", "1.2.3"),
        ("ip", "0.0.0.0"),
        ("ip", "::"),
        ("ip", "224.0.0.1"),
        ("ip", "255.255.255.255"),
        ("ip", "fe80::1"),
        ("ip", "fe80::1%eth0"),
        ("ip", 16909060),
        ("port", 0),
        ("port", 65536),
        ("port", "80"),
        ("unix", []),
    ],
)
def test_a_field_out_of_bounds_is_refused(field, wrong):
    text = json.dumps({**asdict(ADDRESS), field: wrong})
    with pytest.raises(RefusedError, match=r"must be .*, got "):
        Address.from_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "[" * 4000,
        "1" * 4096,
        json.dumps({**asdict(ADDRESS), "more": 1}),
        "\ud800",
        "ä" * 2049,
        b"{}",
    ],
    ids=range(10),
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(RefusedError, match="must be"):
        Address.from_text(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


@given(st.text() | st.fixed_dictionaries({name: json_values for name in asdict(ADDRESS)}).map(json.dumps))
def test_any_text_is_read_or_refused(text):
    try:
        address = Address.from_text(text)
    except RefusedError:
        return
    assert Address.from_text(address.to_text()) == address


def test_a_part_splits_a_machine_and_no_part_is_all_of_it():
    assert host_identity() == host_identity() == host_identity("")
    assert len({host_identity(), host_identity("a"), host_identity("b")}) == 3


def test_a_part_must_be_text():
    with pytest.raises(ConfigurationError, match=r"HPSEARCH_COMM_HOST\) must be text, got 3"):
        host_identity(3)  # type: ignore[arg-type]


def test_a_network_of_its_own_is_another_host():
    found: list[str | None] = []

    def enter_and_look() -> None:
        # Namespaces are a thread's: the rest of the process stays where it is.
        moved = ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        found.append(host_identity() if moved else None)

    thread = threading.Thread(target=enter_and_look)
    thread.start()
    thread.join()
    if found == [None]:
        pytest.skip("this user may not make a network namespace")
    assert found != [host_identity()]
