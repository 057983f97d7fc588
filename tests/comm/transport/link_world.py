"""Ranks as threads of one process with real links between them, one constructor per transport."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.transport.link import Link
from hpsearch_comm.transport.mesh import Mesh

PATIENCE = 60.0
"""Seconds after which a test whose ranks wait for each other has failed."""

SIGNATURE = Signature(7, "allreduce", "ring", torch.float32, (3, 4), "sum")


class LinkWorld:
    """Ranks 0 to `size` - 1, each a thread with a abort state and a mesh of its own."""

    def __init__(self, meshes: list[Mesh], abort_states: list[AbortState]) -> None:
        self.meshes = meshes
        self.abort_states = abort_states
        self.size = len(meshes)

    def operation(self, rank: int, signature: Signature = SIGNATURE, **options: Any) -> Operation:
        """Return what a rank needs for one operation."""
        return Operation(rank, signature.pack(), options.pop("timeout", PATIENCE), self.abort_states[rank], **options)

    def outcomes(self, *tasks: Callable[[], Any]) -> list[Any]:
        """Run every task in a thread of its own, and return their results, or the CommErrors that they raised."""

        def outcome(task: Callable[[], Any]) -> Any:
            try:
                return task()
            except CommError as error:
                return error

        with ThreadPoolExecutor(len(tasks)) as pool:
            return [future.result() for future in [pool.submit(outcome, task) for task in tasks]]

    def run(self, task: Callable[[int], Any]) -> list[Any]:
        """Call `task` with every rank at once and return the results by rank; a rank's error is raised."""
        outcomes = self.outcomes(*(partial(task, rank) for rank in range(self.size)))
        for outcome in outcomes:
            if isinstance(outcome, CommError):
                raise outcome
        return outcomes


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a TCP connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connecting = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    for end in (accepted, connecting):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return accepted, connecting


@contextlib.contextmanager
def linked_world(size: int, streams: Callable[[int, int], int]) -> Iterator[LinkWorld]:
    """Connect every rank with every other by so many TCP streams, or by a Unix socket where it is 0."""
    links: list[dict[int, Link]] = [{} for _ in range(size)]
    for one, other in combinations(range(size), 2):
        count = streams(one, other)
        pairs = [connected_pair() for _ in range(count)] if count else [socket.socketpair()]
        links[one][other] = Link(other, [pair[0] for pair in pairs])
        links[other][one] = Link(one, [pair[1] for pair in pairs])
    with contextlib.ExitStack() as opened:
        abort_states = [opened.enter_context(contextlib.closing(AbortState())) for _ in range(size)]
        meshes = [opened.enter_context(contextlib.closing(Mesh(rank, links[rank]))) for rank in range(size)]
        yield LinkWorld(meshes, abort_states)


WORLDS: dict[str, Callable[[int], contextlib.AbstractContextManager[LinkWorld]]] = {
    "tcp over one stream": partial(linked_world, streams=lambda one, other: 1),
    "tcp over four streams": partial(linked_world, streams=lambda one, other: 4),
    "unix": partial(linked_world, streams=lambda one, other: 0),
    "unix and tcp": partial(linked_world, streams=lambda one, other: 2 * ((one + other) % 2)),
}
