"""A worker's end of the weights that servers send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.host_memory import to_host
from hpsearch_trainers.strategies.placement import Bucket
from hpsearch_trainers.strategies.pushes import put_weights, take_weights

__all__ = ["Fetches"]


class Fetches:
    """Receives the weights of all buckets, whose messages have tags one after another.

    Args:
        parameters: Those that servers train, by number, as the servers have them.
        buckets: Of all servers.
        group: All ranks.
        servers: Which of them serve.
        first_tag: That of the first bucket.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        buckets: Sequence[Bucket],
        group: Group,
        servers: Sequence[int],
        first_tag: int,
    ) -> None:
        self._parameters, self._buckets = parameters, buckets
        self._group, self._servers, self._first_tag = group, servers, first_tag
        self._weights = to_host([take_weights(bucket, parameters) for bucket in buckets])
        self._stepped = False
        self._pending: list[Handle[Tensor]] = []

    def expect(self) -> None:
        """Be ready for the weights."""
        self._pending = [
            self._group.recv_async(weights, self._servers[bucket.server], tag)
            for tag, (bucket, weights) in enumerate(zip(self._buckets, self._weights, strict=True), self._first_tag)
        ]
        self._stepped = False

    def load(self) -> None:
        """Wait for the weights, and let the parameters be them."""
        for bucket, weights, handle in zip(self._buckets, self._weights, self._pending, strict=True):
            handle.wait()
            put_weights(bucket, weights, self._parameters)

    def record_step(self) -> None:
        """Record the weights after this worker's own step, except tables with sparse gradients.

        To copy and compare a whole table would take longer than a step in the few rows of it that were looked up.
        """
        self._stepped = True
        for _, current, last in self._compared():
            last.copy_(current)

    def changed(self) -> list[nn.Parameter]:
        """Return the parameters that differ from what came, or was noted, last; only while no others may come."""
        return [parameter for parameter, current, last in self._compared() if not _same_values(current.cpu(), last)]

    def _compared(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Return of each piece of which that is known its parameter, its elements, and what they were."""
        for bucket, weights in zip(self._buckets, self._weights, strict=True):
            if not (bucket.sparse and self._stepped):
                parts = torch.split(weights, [piece.stop - piece.start for piece in bucket.pieces])
                for piece, last in zip(bucket.pieces, parts, strict=True):
                    parameter = self._parameters[piece.number]
                    yield parameter, parameter.detach().reshape(-1)[piece.start : piece.stop], last


def _same_values(first: Tensor, second: Tensor) -> bool:
    # Weights that are no numbers any more aren't equal to themselves.
    return torch.equal(first, second) or torch.equal(first.view(torch.uint8), second.view(torch.uint8))
