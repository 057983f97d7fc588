"""What a group stands on, put together and taken apart: connections, shared memory, links, the watching thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpsearch_comm.bootstrap.address import read_addresses
from hpsearch_comm.bootstrap.connect import Connections, connect
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.control import Control
from hpsearch_comm.fate import Fate
from hpsearch_comm.links.link import Link
from hpsearch_comm.links.mesh import Mesh
from hpsearch_comm.links.tcp_link import TcpLink
from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.operation import Operation
from hpsearch_comm.options import Options
from hpsearch_comm.recent import Recent
from hpsearch_comm.topology import Topology

__all__ = ["Assembly", "assemble"]


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a formed group, its own to close."""

    topology: Topology
    """Which ranks are on which host."""
    sharing: Topology
    """Which ranks share memory: the same, or every rank alone where everything goes over TCP."""
    arena: Arena
    mesh: Mesh
    control: Control
    fate: Fate
    recent: Recent

    def close(self) -> None:
        """Say goodbye, and give everything back."""
        self.control.close()
        self.mesh.close()
        self.arena.close()
        self.fate.close()


def assemble(options: Options, make_listener: Callable[[], Listener]) -> Assembly:
    """Bring the ranks together.

    Args:
        options: The group's.
        make_listener: Gives the socket by which others reach this rank; it is closed when all are connected.

    Raises:
        RendezvousError: Not all ranks came; names those that are missing.
        ConfigurationError: The arguments, or those of different ranks, don't fit.
        RefusedError: This rank doesn't belong to the group that it reached.
    """
    rank, size, rendezvous = options.rank, options.size, options.rendezvous
    tcp_only = options.transport == "tcp"
    credentials = options.credentials()
    deadline = time.monotonic() + options.start_timeout if options.deadline is None else options.deadline
    with contextlib.ExitStack() as undo:
        fate = Fate()
        undo.callback(fate.close)
        names: dict[int, str] = {}
        connections = Connections(Topology(0, ((0,),)))
        if rendezvous is not None and size > 1:
            listener = undo.enter_context(make_listener())
            texts = rendezvous.exchange(rank, size, listener.address.to_text(), credentials, deadline)
            addresses = read_addresses(texts)
            names = {peer: address.name(peer) for peer, address in enumerate(addresses)}
            connections = connect(
                rank, addresses, listener, credentials, streams=options.streams, tcp_only=tcp_only, deadline=deadline
            )
            undo.callback(connections.close)
        topology = connections.topology
        sharing = Topology(rank, tuple((peer,) for peer in range(size))) if tcp_only else topology
        recent = Recent()
        control = Control(rank, connections.controls, names, fate, recent)
        undo.callback(control.close)
        patience = max(1.0, deadline - time.monotonic())
        arena = Arena(rank, sharing.local_ranks, connections.descriptors, fate, timeout=patience)
        undo.callback(arena.close)
        links: dict[int, Link] = arena.links()
        for peer, streams_to_peer in connections.streams.items():
            links[peer] = TcpLink(peer, streams_to_peer)

        def on_delay(operation: Operation) -> None:
            arena.compare(operation)
            control.announce(operation)

        mesh = Mesh(rank, links, arena.bell, on_delay)
        undo.pop_all()
        return Assembly(topology, sharing, arena, mesh, control, fate, recent)
