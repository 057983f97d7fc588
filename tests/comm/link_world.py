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
from hpsearch_comm.fate import Fate
from hpsearch_comm.links.link import Link
from hpsearch_comm.links.mesh import Mesh
from hpsearch_comm.links.shared_link import links_within
from hpsearch_comm.links.tcp_link import TcpLink
from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.operation import Operation
from hpsearch_comm.signature import Signature

PATIENCE = 60.0
"""Seconds after which a test whose ranks wait for each other has failed."""

SIGNATURE = Signature(7, "allreduce", "ring", torch.float32, (3, 4), "sum")


class LinkWorld:
    """Ranks 0 to `size` - 1, each a thread with a fate and a mesh of its own."""

    def __init__(self, meshes: list[Mesh], fates: list[Fate]) -> None:
        self.meshes = meshes
        self.fates = fates
        self.size = len(meshes)

    def operation(self, rank: int, signature: Signature = SIGNATURE, **options: Any) -> Operation:
        """Give what a rank needs for one operation."""
        return Operation(rank, signature, options.pop("timeout", PATIENCE), self.fates[rank], **options)

    def outcomes(self, *tasks: Callable[[], Any]) -> list[Any]:
        """Run every task in a thread of its own, and give their results, or the CommErrors that they raised."""

        def outcome(task: Callable[[], Any]) -> Any:
            try:
                return task()
            except CommError as error:
                return error

        with ThreadPoolExecutor(len(tasks)) as pool:
            return [future.result() for future in [pool.submit(outcome, task) for task in tasks]]

    def run(self, task: Callable[[int], Any]) -> list[Any]:
        """Call `task` with every rank at once and give the results by rank; a rank's error is raised."""
        outcomes = self.outcomes(*(partial(task, rank) for rank in range(self.size)))
        for outcome in outcomes:
            if isinstance(outcome, CommError):
                raise outcome
        return outcomes


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Give the two ends of a TCP connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connecting = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return accepted, connecting


@contextlib.contextmanager
def tcp_world(size: int, streams: int) -> Iterator[LinkWorld]:
    """Connect every rank with every other by so many TCP streams."""
    links = tcp_links(list(combinations(range(size), 2)), size, streams)
    with contextlib.ExitStack() as opened:
        fates = [opened.enter_context(contextlib.closing(Fate())) for _ in range(size)]
        yield LinkWorld(
            [opened.enter_context(contextlib.closing(Mesh(rank, links[rank]))) for rank in range(size)], fates
        )


@contextlib.contextmanager
def shared_world(size: int, sharing: Callable[[int, int], bool]) -> Iterator[LinkWorld]:
    """Connect ranks through the memory of one arena where `sharing` says so, and by two TCP streams elsewhere."""
    pairs = list(combinations(range(size), 2))
    links = tcp_links([pair for pair in pairs if not sharing(*pair)], size, 2)
    descriptors: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one, other in pairs:
        descriptors[one][other], descriptors[other][one] = socket.socketpair()
    with contextlib.ExitStack() as opened:
        fates = [opened.enter_context(contextlib.closing(Fate())) for _ in range(size)]
        with ThreadPoolExecutor(size) as pool:
            making = [pool.submit(Arena, rank, range(size), descriptors[rank], fates[rank]) for rank in range(size)]
        arenas = [opened.enter_context(contextlib.closing(arena.result())) for arena in making]
        for rank, arena in enumerate(arenas):
            through_memory = {peer: link for peer, link in links_within(arena).items() if sharing(rank, peer)}
            links[rank] = through_memory | links[rank]
        meshes = [Mesh(rank, links[rank], arenas[rank].bell) for rank in range(size)]
        yield LinkWorld([opened.enter_context(contextlib.closing(mesh)) for mesh in meshes], fates)


def tcp_links(pairs: Sequence[tuple[int, int]], size: int, streams: int) -> list[dict[int, Link]]:
    """Connect pairs of ranks; give each rank's links by peer."""
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
