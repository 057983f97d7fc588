"""A rank in a process of its own, which does what the lines on its standard input say, and answers each with a line.

Run as `python -m tests.comm.connecting_rank`; `ConnectingRank` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpsearch_comm.errors import CommError
from hpsearch_comm.formation.address import read_addresses
from hpsearch_comm.formation.connect import Connections, connect
from hpsearch_comm.formation.handshake import Credentials
from hpsearch_comm.formation.listener import Listener
from tests.comm.forming import PATIENCE

_ROOT = Path(__file__).parents[2]


class ConnectingRank:
    """Such a process.

    Args:
        prefix: A command that runs it, such as `ip netns exec`.
    """

    def __init__(self, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.comm.connecting_rank"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ConnectingRank:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def ask(self, order: str, **arguments: Any) -> None:
        """Have it do something, without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([order, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for what came of the oldest order that has not been answered."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def meet(ranks: Sequence[ConnectingRank], listening: Sequence[dict[str, Any]], **arguments: Any) -> list[Any]:
    """Have some ranks listen and then connect; gives what each says of its connections."""
    for rank, where in zip(ranks, listening, strict=True):
        rank.ask("listen", **where)
    addresses = [rank.answer() for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.ask("connect", rank=number, addresses=addresses, **arguments)
    return [rank.answer() for rank in ranks]


class _Rank:
    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._connections: Connections | None = None

    def listen(self, interface: str | None = None, towards: str | None = None) -> str:
        self._listener = Listener(interface, towards)
        return self._listener.address.to_text()

    def connect(self, rank: int, addresses: list[str], secret: str, streams: int = 2) -> dict[str, Any]:
        assert self._listener is not None
        if self._connections is not None:
            self._connections.close()
        self._connections = made = connect(
            rank,
            read_addresses(addresses),
            self._listener,
            Credentials(bytes.fromhex(secret)),
            streams=streams,
            tcp_only=False,
            deadline=time.monotonic() + PATIENCE,
        )
        sockets = [*made.controls.values(), *(sock for streams in made.streams.values() for sock in streams)]
        return {
            "hosts": made.topology.hosts,
            "descriptors": list(made.descriptors),
            "ends": [[_place(sock.getsockname()), _place(sock.getpeername())] for sock in sockets],
        }

    def fork(self) -> int:
        """Leave a child behind that waits for the end of standard input; gives how many sockets it holds."""
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, str(_open_sockets()).encode())
            sys.stdin.read()
            os._exit(0)
        held = int(os.read(reader, 10))
        os.close(reader)
        os.close(writer)
        return held

    def sockets(self) -> int:
        return _open_sockets()

    def wait_for_end(self) -> str:
        """Wait until the control connection to the other rank ends; gives how."""
        assert self._connections is not None
        [control] = self._connections.controls.values()
        control.settimeout(PATIENCE)
        try:
            return control.recv(1).hex()
        except OSError as error:
            return os.strerror(error.errno or 0)


def _place(name: Any) -> str:
    return name if isinstance(name, str) else str(name[0])


def _open_sockets() -> int:
    found = 0
    for number in range(256):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")  # noqa: PTH115
        except OSError:
            continue
    return found


def _serve() -> None:
    rank = _Rank()
    for line in sys.stdin:
        order, arguments = json.loads(line)
        try:
            answer = getattr(rank, order)(**arguments)
        except (CommError, socket.gaierror) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
