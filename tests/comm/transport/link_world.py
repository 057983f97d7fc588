"""Ranks as threads of one process with real links between them, one constructor per transport."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.shm.barrier import Bell, Words
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.transport.link import Link
from hpsearch_comm.transport.mesh import Mesh
from hpsearch_comm.transport.shm_link import links_within
from hpsearch_comm.transport.tcp_link import TcpLink

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
    return accepted, connecting


@contextlib.contextmanager
def tcp_world(size: int, streams: int) -> Iterator[LinkWorld]:
    """Connect every rank with every other by so many TCP streams."""
    links = tcp_links(list(combinations(range(size), 2)), size, streams)
    with contextlib.ExitStack() as opened:
        abort_states = [opened.enter_context(contextlib.closing(AbortState())) for _ in range(size)]
        yield LinkWorld(
            [opened.enter_context(contextlib.closing(Mesh(rank, links[rank], quiet_bell()))) for rank in range(size)],
            abort_states,
        )


def quiet_bell() -> Bell:
    """Return a bell that is never rung."""
    memory = bytearray(4096)
    return Bell(Words(torch.frombuffer(memory, dtype=torch.uint8), memoryview(memory)), 64)


@contextlib.contextmanager
def shared_world(size: int, sharing: Callable[[int, int], bool]) -> Iterator[LinkWorld]:
    """Connect ranks through the memory of one segment where `sharing` says so, and by two TCP streams elsewhere."""
    pairs = list(combinations(range(size), 2))
    links = tcp_links([pair for pair in pairs if not sharing(*pair)], size, 2)
    descriptors: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one, other in pairs:
        descriptors[one][other], descriptors[other][one] = socket.socketpair()
    with contextlib.ExitStack() as opened:
        abort_states = [opened.enter_context(contextlib.closing(AbortState())) for _ in range(size)]
        with ThreadPoolExecutor(size) as pool:
            making = [
                pool.submit(ShmSegment, rank, range(size), descriptors[rank], abort_states[rank])
                for rank in range(size)
            ]
        segments = [opened.enter_context(contextlib.closing(shm.result())) for shm in making]
        for rank, shm in enumerate(segments):
            through_memory = {peer: link for peer, link in links_within(shm).items() if sharing(rank, peer)}
            links[rank] = through_memory | links[rank]
        meshes = [Mesh(rank, links[rank], segments[rank].bell) for rank in range(size)]
        yield LinkWorld([opened.enter_context(contextlib.closing(mesh)) for mesh in meshes], abort_states)


def tcp_links(pairs: Sequence[tuple[int, int]], size: int, streams: int) -> list[dict[int, Link]]:
    """Connect pairs of ranks; return each rank's links by peer."""
    links: list[dict[int, Link]] = [{} for _ in range(size)]
    for one, other in pairs:
        connections = [connected_pair() for _ in range(streams)]
        links[one][other] = TcpLink(other, [pair[0] for pair in connections])
        links[other][one] = TcpLink(one, [pair[1] for pair in connections])
    return links


WORLDS: dict[str, Callable[[int], contextlib.AbstractContextManager[LinkWorld]]] = {
    "tcp over one stream": partial(tcp_world, streams=1),
    "tcp over four streams": partial(tcp_world, streams=4),
    "shared memory": partial(shared_world, sharing=lambda one, other: True),
    "shared memory and tcp": partial(shared_world, sharing=lambda one, other: (one + other) % 2 == 0),
}
