"""Groups whose ranks are processes, forked from one that has imported torch: a group of four in a tenth of a second.

The test process itself can't be forked safely: other tests may have started threads in it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any, Self

import hpsearch_comm as comm
from hpsearch_comm.bootstrap.handshake import Credentials
from tests.forking import Forked

SECRET = bytes(range(32))


@dataclass(frozen=True)
class Outcome:
    """How a rank ended."""

    code: int
    """0, or minus the number of the signal that killed it."""
    result: Any = None
    error: str = ""
    """Name of the class of what it raised."""
    text: str = ""
    rank: int | None = None
    """Of the error: the rank that it names."""


class ServedRanks:
    """A process that forks ranks which call functions of a module.

    Args:
        server: The module that it runs: it reads a request from each line, and writes the ranks' outcomes.
        module: Where the functions are; imported once.
    """

    def __init__(self, server: str, module: str) -> None:
        self._words = (server, module)
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def request(self, *what: Any) -> list[Outcome]:
        """Send a request; return how each rank ended.

        Where a test breaks off meanwhile, as at its timeout, its ranks are killed: the next test has others.
        """
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            return [Outcome(**outcome) for outcome in json.loads(self._process.stdout.readline())]
        except BaseException:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = self._start()
            raise

    def _start(self) -> Forked:
        return Forked(*self._words, env=os.environ | {"OMP_NUM_THREADS": "1"}, new_session=True)


class ProcessRanks(ServedRanks):
    """Calls functions of a module on the ranks of new groups.

    Args:
        module: Where the functions are; imported once. Each is called with the group and the arguments.
    """

    def __init__(self, module: str) -> None:
        super().__init__("tests.comm.process_ranks", module)

    def call(
        self, size: int, function: str, *arguments: Any, hosts: list[str] | None = None, **options: Any
    ) -> list[Outcome]:
        """Call a function on each rank of a new group; return how each ended, by rank."""
        return self.request(size, function, arguments, hosts, options)


class _ThroughParent(comm.Rendezvous):
    def __init__(self, channel: socket.socket) -> None:
        self._file = channel.makefile("rw")

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        self._file.write(json.dumps(mine) + "\n")
        self._file.flush()
        return list(json.loads(self._file.readline()))


def _serve(module: str) -> None:
    functions = importlib.import_module(module)
    for line in sys.stdin:
        size, function, arguments, hosts, options = json.loads(line)
        channels: list[socket.socket] = []
        children: list[int] = []
        for rank in range(size):
            ours, theirs = socket.socketpair()
            child = os.fork()
            if child == 0:
                for channel in (*channels, ours):
                    channel.close()
                if hosts:
                    options["host"] = hosts[rank]
                _run_rank(rank, size, theirs, getattr(functions, function), arguments, options)
            theirs.close()
            channels.append(ours)
            children.append(child)
        files = [channel.makefile("rw") for channel in channels]
        addresses = [json.loads(file.readline()) for file in files] if size > 1 else []
        for file in files:
            if size > 1:
                file.write(json.dumps(addresses) + "\n")
                file.flush()
        outcomes = []
        for child, file, channel in zip(children, files, channels, strict=True):
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            # What it said is there by now. Its own children may hold the other end open for longer.
            channel.setblocking(False)
            try:
                outcome = channel.recv(1 << 20)
            except BlockingIOError:
                outcome = b""
            outcomes.append({"code": code} | json.loads(outcome or b"{}"))
            file.close()
            channel.close()
        print(json.dumps(outcomes), flush=True)


def _run_rank(rank: int, size: int, channel: socket.socket, function: Any, arguments: Any, options: Any) -> None:
    # A rank that hangs is a bug; its stacks say where.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr  # what ranks print is no outcome
    outcome: dict[str, Any] = {}
    try:
        with comm.Group(rank, size, rendezvous=_ThroughParent(channel), secret=SECRET, **options) as group:
            outcome["result"] = function(group, *arguments)
    except comm.CommError as error:
        outcome = {"error": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None)}
    except BaseException as error:
        traceback.print_exc()
        outcome = {"error": type(error).__name__, "text": str(error)}
    channel.sendall(json.dumps(outcome).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
