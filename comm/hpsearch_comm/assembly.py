"""Create and release the parts of a group: connections, shared memory, links, failure detector."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connect import Connections, connect
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.detector import Detector
from hpsearch_comm.history import History
from hpsearch_comm.operations.point_to_point import PointToPoint
from hpsearch_comm.operations.work_queue import WorkQueue
from hpsearch_comm.options import Options
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.topology import Topology
from hpsearch_comm.transport.link import Link
from hpsearch_comm.transport.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a formed group. The group closes them."""

    topology: Topology
    """Which ranks are on which host."""
    sharing: Topology
    """Which ranks share memory: the ranks of each host, or none if all messages are sent over TCP."""
    shm: ShmSegment
    mesh: Mesh
    messages: PointToPoint
    control: Detector
    abort_state: AbortState
    history: History

    def close(self) -> None:
        """Notify the other ranks and release all parts, even if Ctrl-C interrupts."""
        with contextlib.ExitStack() as closing:
            for resource in (self.abort_state, self.shm, self.mesh, self.messages, self.control):  # closed in reverse
                closing.callback(resource.close)


def assemble(options: Options, make_listener: Callable[[], Listener]) -> Assembly:
    """Bring the ranks together.

    Args:
        options: The group's options.
        make_listener: Returns the listener by which others reach this rank; it is closed when all are connected.

    Raises:
        RendezvousError: Not all ranks started; names the missing ones.
        ConfigurationError: The arguments are invalid, or contradict those of other ranks.
        RefusedError: This rank doesn't belong to the group that it reached.
    """
    rank, size, rendezvous = options.rank, options.size, options.rendezvous
    tcp_only = options.transport == "tcp"
    credentials = options.credentials()
    deadline = time.monotonic() + options.start_timeout if options.deadline is None else options.deadline
    with contextlib.ExitStack() as undo:
        abort_state = AbortState()
        undo.callback(abort_state.close)
        names: dict[int, str] = {}
        connections = Connections(Topology(0, ((0,),)))
        if rendezvous is not None and size > 1:
            listener = undo.enter_context(make_listener())
            texts = rendezvous.exchange(rank, size, listener.address.to_text(), credentials, deadline)
            addresses = tuple(map(Address.from_text, texts))
            names = {peer: address.name(peer) for peer, address in enumerate(addresses)}
            connections = connect(
                rank,
                addresses,
                listener,
                credentials,
                streams=options.streams + 1,
                tcp_only=tcp_only,
                heartbeat_timeout=options.heartbeat_timeout,
                deadline=deadline,
            )
            undo.callback(connections.close)
        topology = connections.topology
        sharing = Topology(rank, tuple((peer,) for peer in range(size))) if tcp_only else topology
        history = History()
        control = Detector(rank, connections.controls, names, abort_state, history)
        undo.callback(control.close)
        patience = max(1.0, deadline - time.monotonic())
        streams, local = connections.streams, sharing.local_ranks
        descriptors = {peer: sockets[0] for peer, sockets in streams.items() if peer in local}
        shm = ShmSegment(rank, local, descriptors, abort_state, timeout=patience)
        undo.callback(shm.close)
        # The last stream is for send and recv.
        mesh = Mesh(rank, {peer: Link(peer, sockets[:-1]) for peer, sockets in streams.items()})
        links = {peer: Link(peer, sockets[-1:]) for peer, sockets in streams.items()}
        messages = PointToPoint(rank, links, abort_state, options.timeout)
        undo.pop_all()
        return Assembly(topology, sharing, shm, mesh, messages, control, abort_state, history)


def release(rank: int, parts: Assembly, work_queue: WorkQueue, leave: Sequence[Callable[[], None]]) -> None:
    """Release a group: when it is closed or garbage collected, or when the process ends.

    Args:
        rank: This rank.
        parts: The parts of the group.
        work_queue: The group's operations. Asynchronous calls and pending sends are finished first.
        leave: Functions to call, in this order, before the other ranks are notified.
    """
    if work_queue.inherited:  # a forked child shares its parent's connections: it must not send on them
        work_queue.close()
        return
    # Set if an exception has ended the program. In an interactive session it is only the last exception.
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
        parts.abort_state.break_off(rank, error)
    with contextlib.ExitStack() as closing:
        closing.callback(parts.close)
        for step in reversed(leave):
            closing.callback(step)
        try:
            work_queue.close()
            parts.messages.finish()
        except BaseException as interruption:
            parts.abort_state.break_off(rank, interruption)
            work_queue.close()  # aborts running operations
            parts.messages.finish()
            raise
