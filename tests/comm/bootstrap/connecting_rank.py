"""A rank in a process of its own, which does what it is asked to and answers each order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connect import Connections, connect
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.rendezvous import KnownAddresses
from hpsearch_comm.errors import CommError
from hpsearch_comm.group import Group
from tests.comm.forming import PATIENCE, open_files
from tests.forked import forked
from tests.forking import Forked


class ConnectingRank:
    """The test's end of such a process."""

    def __init__(self, process: Forked, channel: Connection) -> None:
        self.process = process
        self.channel = channel

    def ask(self, order: str, **arguments: Any) -> None:
        """Have it do something, without waiting."""
        self.channel.send((order, arguments))

    def answer(self) -> Any:
        """Wait for what came of the oldest order that has not been answered."""
        return self.channel.recv()


@contextlib.contextmanager
def connecting_rank(network: str | None = None) -> Iterator[ConnectingRank]:
    """Start such a process, in a network namespace of that name if one is given."""
    with forked(_serve, network) as (process, channel):
        yield ConnectingRank(process, channel)


def meet(
    ranks: Sequence[ConnectingRank], listening: Sequence[dict[str, Any]], how: str = "connect", **arguments: Any
) -> list[Any]:
    """Have some ranks listen and then connect, or `join` a group; return what each says of it."""
    for rank, where in zip(ranks, listening, strict=True):
        rank.ask("listen", **where)
    addresses = [rank.answer() for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.ask(how, rank=number, addresses=addresses, **arguments)
    return [rank.answer() for rank in ranks]


class _Rank:
    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self._listener: Listener | None = None
        self._connections: Connections | None = None
        self._group: Group | None = None

    def listen(self, interface: str | None = None, towards: str | None = None) -> str:
        self._listener = Listener(interface, towards)
        return self._listener.address.to_text()

    def connect(
        self, rank: int, addresses: list[str], secret: str, streams: int = 2, heartbeat_timeout: float = 60.0
    ) -> dict[str, Any]:
        assert self._listener is not None
        if self._connections is not None:
            self._connections.close()
        self._connections = made = connect(
            rank,
            [Address.from_text(address) for address in addresses],
            self._listener,
            Credentials(bytes.fromhex(secret)),
            streams=streams,
            tcp_only=False,
            heartbeat_timeout=heartbeat_timeout,
            deadline=time.monotonic() + PATIENCE,
        )
        sockets = [*made.controls.values(), *(sock for streams in made.streams.values() for sock in streams)]
        return {
            "hosts": made.topology.hosts,
            "ends": [[_place(sock.getsockname()), _place(sock.getpeername())] for sock in sockets],
        }

    def fork(self) -> int:
        """Leave a child behind that waits for the end of the orders; return how many sockets it holds."""
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, str(self.sockets()).encode())
            with contextlib.suppress(EOFError):
                while True:
                    self._orders.recv()
            os._exit(0)
        held = int(os.read(reader, 10))
        os.close(reader)
        os.close(writer)
        return held

    def sockets(self) -> int:
        """Count the open sockets, without the one by which the orders come."""
        files = [path for number, path in open_files().items() if int(number) != self._orders.fileno()]
        return sum(path.startswith("socket:") for path in files)

    def join(self, rank: int, addresses: list[str], secret: str, **options: Any) -> None:
        """Make a group."""
        self._group = Group(
            rank,
            len(addresses),
            rendezvous=KnownAddresses(addresses),
            listener=self._listener,
            secret=bytes.fromhex(secret),
            **options,
        )

    def sums(self, count: int) -> float:
        """Sum ones with the others, one time after the other."""
        assert self._group is not None
        return sum(self._group.allreduce(torch.ones(1000), "sum")[0].item() for _ in range(count))

    def leave(self) -> None:
        """Close the group."""
        assert self._group is not None
        self._group.close()

    def wait_for_end(self) -> str:
        """Wait until the control connection to the other rank ends; return how."""
        assert self._connections is not None
        [control] = self._connections.controls.values()
        control.settimeout(PATIENCE)
        try:
            return control.recv(1).hex()
        except OSError as error:
            return os.strerror(error.errno or 0)


def _place(name: Any) -> str:
    return name if isinstance(name, str) else str(name[0])


def _serve(orders: Connection, network: str | None) -> None:
    if network is not None:
        _enter(network)
    rank = _Rank(orders)
    with contextlib.suppress(EOFError):
        while True:
            order, arguments = orders.recv()
            try:
                answer = getattr(rank, order)(**arguments)
            except (CommError, socket.gaierror) as error:
                answer = {"error": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None)}
            orders.send(answer)


def _enter(network: str) -> None:
    with Path("/run/netns", network).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter the network {network}")
