"""A worker's side of Downpour SGD: it asks servers whether and with which weights to go on, and pushes what it has."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.strategies.fetches import Fetches
from hpsearch_trainers.strategies.placement import Bucket
from hpsearch_trainers.strategies.pushes import gradients_of, pushes_to

__all__ = ["CONTROL", "DownpourWorker", "Kind", "control"]

CONTROL = 0
"""Tag of what isn't a bucket's; those have the tags from 1."""


class Kind(enum.IntEnum):
    """What a worker tells a server, and what a server answers."""

    DRAW = enum.auto()
    """Which rows are next? Asked of the first server, and answered by `GO` with the number of a part as its clock."""
    ASK = enum.auto()
    """May I begin the step? Answered by `GO`, when it may."""
    FETCH = enum.auto()
    """The same, and answered by the weights of each bucket."""
    PUSH = enum.auto()
    """Gradients of each bucket follow."""
    END = enum.auto()
    """My epoch is over. Answered by `GO`, when all workers' is; and by `WAIT`, over and over, until then."""
    GO = enum.auto()
    WAIT = enum.auto()
    """Of the first server alone."""


def control(kind: Kind, clock: int, rates: Sequence[float]) -> Tensor:
    """Make a message.

    Args:
        kind: What it says.
        clock: The worker's step, from 0.
        rates: Of each group of parameters.
    """
    return torch.tensor([float(kind), float(clock), *rates], dtype=torch.float64, device="cpu")


class DownpourWorker:
    """Talks to the servers in an epoch.

    Args:
        parameters: Those that servers train, by number.
        buckets: Of all servers.
        group: All ranks.
        servers: Which of them serve.

    Attributes:
        fetches: The weights that come.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], buckets: Sequence[Bucket], group: Group, servers: Sequence[int]
    ) -> None:
        self._buckets, self._group, self._servers = buckets, group, servers
        self._pushes = pushes_to(servers, buckets, group, first_tag=1, device=parameters[0].device)
        self.fetches = Fetches(parameters, buckets, group, servers, first_tag=1)

    def draw(self, rates: Sequence[float]) -> int:
        """Take a number: those of an epoch are given to its workers in turn, from 0."""
        self._group.send_async(control(Kind.DRAW, 0, rates), self._servers[0], CONTROL)
        return int(self._group.recv(control(Kind.WAIT, 0, rates), self._servers[0], CONTROL)[1])

    def ask(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may begin a step."""
        self._send(Kind.ASK, clock, rates)
        for server in self._servers:
            self._answer(server, rates)

    def fetch(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may begin a step, and take the weights."""
        self._send(Kind.FETCH, clock, rates)
        self.fetches.expect()
        self.fetches.load()

    def push(self, clock: int, rates: Sequence[float], gradients: Sequence[Tensor | None]) -> None:
        """Send gradients, by number; they may be changed afterwards."""
        self._send(Kind.PUSH, clock, rates)
        for bucket, push in zip(self._buckets, self._pushes, strict=True):
            push.send(1.0, gradients_of(bucket, gradients))

    def end(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until all workers' epochs are over, and their pushes are in the weights, however long that takes."""
        self._send(Kind.END, clock, rates)
        for server in self._servers:
            while self._answer(server, rates) is Kind.WAIT:
                pass

    def _send(self, kind: Kind, clock: int, rates: Sequence[float]) -> None:
        # Not to wait for a server that may be waiting for the gradients of another worker, who waits for one of ours.
        for server in self._servers:
            self._group.send_async(control(kind, clock, rates), server, CONTROL)

    def _answer(self, server: int, rates: Sequence[float]) -> Kind:
        answer = self._group.recv(control(Kind.WAIT, 0, rates), server, CONTROL)
        return Kind(int(answer[0]))
