"""Ranks with an NCCL communicator each, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.nccl_session import NcclSession
from hpsearch_comm.failure.abort import AbortState
from tests.comm.bare_nccl import BareNccl
from tests.comm.host_nccl import Gathering, HostNccl, HostStream, HostWorld, run_ranks


class Ranks:
    """What the communicators of some ranks are made from."""

    def __init__(self, size: int, timeout: float = 30.0) -> None:
        self.size = size
        self.timeout = timeout
        self.abort_states = [AbortState() for _ in range(size)]
        self.host = HostWorld(size)
        self.nccl = [HostNccl(self.host, rank) for rank in range(size)]
        self.gathering = Gathering(size)

    def communicator(self, rank: int, start_timeout: float = 60.0, interface: str | None = None) -> BareNccl:
        """Make a rank's communicator, in its thread."""
        nccl = self.nccl[rank]
        communicator = NcclCommunicator(
            NcclSession(rank, self.size, nccl.as_library(), self.abort_states[rank], self.timeout),
            nccl.stream(),
            self.gathering.of(rank),
            start_timeout=start_timeout,
            interface=interface,
        )
        return BareNccl(communicator, HostStream)

    def close(self) -> None:
        """End the threads that wait for a rank."""
        self.host.abort()
        for abort_state in self.abort_states:
            abort_state.close()


class World(Ranks):
    """Ranks with a communicator each."""

    def __init__(self, size: int, timeout: float = 30.0) -> None:
        super().__init__(size, timeout)
        self.communicators = run_ranks(size, self.communicator)


@contextmanager
def worlds() -> Iterator[Callable[..., World]]:
    """Give what makes worlds, which are closed at the end."""
    made: list[World] = []

    def make(size: int, timeout: float = 30.0) -> World:
        made.append(World(size, timeout))
        return made[-1]

    try:
        yield make
    finally:
        for world in made:
            world.close()
