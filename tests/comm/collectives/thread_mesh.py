"""Ranks as threads of one process, and links between them that only note what moves: for testing algorithms."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.transport.link import Combine
from hpsearch_comm.transport.mesh import Mesh

PATIENCE = 20.0
"""Seconds after which a test whose ranks wait for each other has failed."""


class BrokenWorld(CommError):
    """A rank stopped waiting because another has failed."""


@dataclass
class Moved:
    """What one rank did."""

    steps: list[int] = field(default_factory=list)
    """Number of every exchange."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """(peer, bytes) of every message, in order."""

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.sent)


class ThreadWorld:
    """Ranks 0 to `size` - 1, each a thread.

    Args:
        size: Number of ranks.
        chunk: Elements that arrive at once: a combine sees that many at most.
    """

    def __init__(self, size: int, chunk: int = 1 << 20) -> None:
        self.size = size
        self.chunk = chunk
        self.moved = [Moved() for _ in range(size)]
        self.arrived = threading.Condition()
        self.broken = False
        self.abort_states: list[AbortState] = []
        self.on_the_way: dict[tuple[int, int], deque[tuple[bytes, torch.Tensor]]] = defaultdict(deque)

    def run(self, task: Callable[[ThreadMesh, Operation], Any], signature: Signature | None = None) -> list[Any]:
        """Call `task` on every rank at once and return the results by rank. A rank's error is raised."""
        signature = signature or Signature(0, "allreduce", "ring")
        self.abort_states = [AbortState() for _ in range(self.size)]
        with ThreadPoolExecutor(self.size) as threads:
            futures = [threads.submit(self._run, rank, task, signature) for rank in range(self.size)]
        for abort_state in self.abort_states:
            abort_state.close()
        errors = [error for future in futures if (error := future.exception()) is not None]
        # Ranks that only stopped because another failed come last.
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenWorld)):
            raise error
        assert not any(self.on_the_way.values()), "something was sent that nobody received"
        return [future.result() for future in futures]

    def _run(self, rank: int, task: Callable[[ThreadMesh, Operation], Any], signature: Signature) -> Any:
        try:
            return task(ThreadMesh(self, rank), Operation(rank, signature.pack(), PATIENCE, self.abort_states[rank]))
        except BaseException:
            with self.arrived:
                self.broken = True
                self.arrived.notify_all()
            for abort_state in self.abort_states:  # what a group's control does
                abort_state.fail(BrokenWorld(f"rank {rank} has failed"))
            raise


class ThreadMesh(Mesh):
    """Moves messages by copying them, and is stricter than a real mesh: it refuses what that may not notice."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        super().__init__(rank, {})
        self._world = world
        self._last: dict[tuple[str, int], int] = {}

    def exchange(
        self,
        operation: Operation,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor, Combine | None]],
    ) -> None:
        world = self._world
        self._check(operation, sends, receives)
        world.moved[self.rank].steps.append(operation.step)
        with world.arrived:
            for peer, payload in sends:
                nbytes = payload.numel() * payload.element_size()
                world.moved[self.rank].sent.append((peer, nbytes))
                world.on_the_way[self.rank, peer].append((operation.header(nbytes), payload.clone()))
            world.arrived.notify_all()
        for peer, payload, combine in receives:
            header, theirs = self._next(peer)
            ours = operation.header(payload.numel() * payload.element_size())
            if header != ours:
                raise operation.disagree(peer, header, ours)
            assert theirs.dtype is payload.dtype
            for start in range(0, payload.numel(), world.chunk):
                here = slice(start, start + world.chunk)
                if combine is None:
                    payload[here].copy_(theirs[here])
                else:
                    combine(payload[here], theirs[here])

    def _next(self, peer: int) -> tuple[bytes, torch.Tensor]:
        world = self._world
        queue = world.on_the_way[peer, self.rank]
        with world.arrived:
            assert world.arrived.wait_for(lambda: queue or world.broken, PATIENCE), f"{self.rank} waits for {peer}"
            if not queue:
                raise BrokenWorld("another rank has failed")
            return queue.popleft()

    def _check(self, operation: Operation, sends: Sequence[tuple], receives: Sequence[tuple]) -> None:
        for direction, messages in (("to", sends), ("from", receives)):
            peers = [message[0] for message in messages]
            assert len(set(peers)) == len(peers), f"two messages {direction} one peer in one step"
            assert self.rank not in peers
            for peer in peers:
                assert self._last.get((direction, peer)) != operation.step, "two messages have the same number"
                self._last[direction, peer] = operation.step
        for message in (*sends, *receives):
            assert message[1].dim() == 1
            assert message[1].is_contiguous()
        for sent, received in itertools.product(sends, receives):
            assert not _overlap(sent[1], received[1]), "what is being sent must stay as it is"
        for one, other in itertools.combinations(receives, 2):
            assert not _overlap(one[1], other[1]), "two messages arrive in one place"


def assert_reduced(result: torch.Tensor, tensors: Sequence[torch.Tensor], op: str) -> None:
    """Look that floating tensors have been reduced as in float64, but for rounding.

    They are rounded to their dtype once, at the end, and for each rank to the dtype in which they are added up.
    """
    stacked = torch.stack(list(tensors)).double()
    expected = {
        "sum": stacked.sum(0),
        "mean": stacked.mean(0),
        "min": stacked.min(0).values,
        "max": stacked.max(0).values,
        "product": stacked.prod(0),
    }[op]
    size, accumulate = len(tensors), reduction_for(op, result.dtype).accumulate
    rounding = torch.finfo(result.dtype).eps + size * torch.finfo(accumulate).eps
    torch.testing.assert_close(result.double(), expected, rtol=rounding, atol=rounding * size)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (a, b), (c, d) = ((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (one, other))
    return a < d and c < b and a < b and c < d
