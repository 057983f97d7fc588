"""Children that a rank forks, as a data loader does, must not stand in for the rank when it is killed."""

from __future__ import annotations

import secrets
import socket
import time
from typing import Any

import pytest

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connect import connect
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.listener import Listener
from tests.comm.bootstrap.connecting_rank import ConnectingRank, connecting_rank
from tests.comm.forming import LOOPBACK, PATIENCE, read


@pytest.mark.parametrize("host", [None, "another"], ids=["unix", "tcp"])
def test_a_forked_child_does_not_hide_the_death_of_its_parent(host):
    secret = secrets.token_bytes(32)
    with connecting_rank() as killed, Listener(LOOPBACK, host=host) as listener:
        killed.ask("listen", interface=LOOPBACK)
        addresses = [listener.address, Address.from_text(killed.answer())]
        killed.ask("connect", rank=1, addresses=[address.to_text() for address in addresses], secret=secret.hex())
        made = connect(
            0,
            addresses,
            listener,
            Credentials(secret),
            streams=2,
            tcp_only=False,
            heartbeat_timeout=60.0,
            deadline=time.monotonic() + PATIENCE,
        )
        try:
            assert "error" not in killed.answer()
            assert ask(killed, "sockets") == 3
            assert ask(killed, "fork") == 0
            # The parent's own are as they were.
            made.controls[1].settimeout(0.05)
            with pytest.raises(TimeoutError):
                made.controls[1].recv(1)
            killed.process.kill()
            every: list[socket.socket] = [*made.controls.values(), *made.streams[1]]
            for sock in every:
                sock.settimeout(PATIENCE)
                assert read(sock, 1) == b""
            # The child is still there: it holds the other end of the channel.
            killed.ask("nothing")
        finally:
            made.close()


def ask(rank: ConnectingRank, order: str, **arguments: Any) -> Any:
    rank.ask(order, **arguments)
    return rank.answer()
