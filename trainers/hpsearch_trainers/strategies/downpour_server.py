"""A server's side of Downpour SGD: each push is applied as it comes, and each worker gets the weights as they are."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping

from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.strategies.adagrad import Adagrad
from hpsearch_trainers.strategies.downpour_worker import CONTROL, Kind, control
from hpsearch_trainers.strategies.placement import Bucket, Piece
from hpsearch_trainers.strategies.server_side import ServedBucket

__all__ = ["Clocks", "DownpourServer"]

_PATIENCE = 1.0
"""Seconds after which those who wait for the others' end hear that it goes on."""


class Clocks:
    """Which workers may begin a step.

    Args:
        workers: Their number.
        max_delay: Steps by which a worker may be ahead of the slowest one (Ho et al. 2013, section 3); None for any.
        in_turn: One worker trains at a time: all begin a step in the order of their ranks, each when the one before has
            ended it.
    """

    def __init__(self, workers: int, max_delay: int | None, *, in_turn: bool) -> None:
        self._begun: dict[int, float] = dict.fromkeys(range(workers), -1.0)
        """The step that each has begun, or asks to begin; beyond all when its epoch is over."""
        self._max_delay, self._in_turn = max_delay, in_turn

    def asks(self, worker: int, step: int) -> None:
        """Note that a worker has ended all steps before this one."""
        self._begun[worker] = step

    def ends(self, worker: int) -> None:
        """Note that a worker's epoch is over."""
        self._begun[worker] = float("inf")

    @property
    def ended(self) -> bool:
        """Return whether all workers' epochs are over."""
        return min(self._begun.values()) == float("inf")

    def may_begin(self, worker: int) -> bool:
        """Return whether a worker may begin the step that it asks for."""
        step = self._begun[worker]
        if self._in_turn:
            return all(begun > step if other < worker else begun >= step for other, begun in self._begun.items())
        return self._max_delay is None or step - min(self._begun.values()) <= self._max_delay


class DownpourServer:
    """Serves an epoch.

    Args:
        buckets: This server's, by the tag of their messages.
        held: The parameter of each piece.
        adagrad: Of these parameters alone.
        group: All ranks.
        clocks: Which workers may begin a step.
        first: This is the first server, which lets the workers that have ended know that it goes on.
    """

    def __init__(
        self,
        buckets: Mapping[int, Bucket],
        held: Mapping[Piece, nn.Parameter],
        adagrad: Adagrad,
        group: Group,
        clocks: Clocks,
        *,
        first: bool,
    ) -> None:
        self._adagrad, self._group = adagrad, group
        self._served = [ServedBucket(bucket, tag, held, group, 1) for tag, bucket in buckets.items()]
        self._clocks, self._first = clocks, first
        self._asking: dict[int, Kind] = {}
        self._told = time.monotonic()
        self._answers: collections.deque[Handle[Tensor]] = collections.deque(maxlen=64)

    def run(self) -> None:
        """Serve until all workers' epochs are over."""
        rates = [0.0] * len(self._adagrad.param_groups)
        message = control(Kind.WAIT, 0, rates)
        waiting: list[int] = []
        drawn = 0
        while not self._clocks.ended:
            receiving = self._group.recv_async(message, None, CONTROL)
            kind, clock, *rates = receiving.wait().tolist()
            worker = receiving.source
            assert worker is not None
            match Kind(int(kind)):
                case Kind.DRAW:
                    self._tell([worker], Kind.GO, drawn)
                    drawn += 1
                case Kind.PUSH:
                    self._apply(worker, rates)
                case Kind.END:
                    self._clocks.ends(worker)
                    waiting.append(worker)
                case asked:
                    self._clocks.asks(worker, int(clock))
                    self._asking[worker] = asked
            self._answer()
            if self._first and time.monotonic() - self._told > _PATIENCE:
                self._told = time.monotonic()
                self._tell(waiting, Kind.WAIT)
        self._tell(waiting, Kind.GO)
        for answer in self._answers:
            answer.wait()
        for served in self._served:
            served.wait()

    def _apply(self, worker: int, rates: list[float]) -> None:
        for group, rate in zip(self._adagrad.param_groups, rates, strict=True):
            group["lr"] = rate
        for served in self._served:
            served.pushes.expect([worker])
        for served in self._served:
            served.take_mean()
        self._adagrad.step()
        for served in self._served:
            served.forget()

    def _answer(self) -> None:
        """Answer those who may begin their step."""
        for worker, kind in list(self._asking.items()):
            if self._clocks.may_begin(worker):
                del self._asking[worker]
                if kind is Kind.ASK:
                    self._tell([worker], Kind.GO)
                else:
                    for served in self._served:
                        served.send([worker])

    def _tell(self, workers: list[int], kind: Kind, clock: int = 0) -> None:
        for worker in workers:
            answer = control(kind, clock, [0.0] * len(self._adagrad.param_groups))
            self._answers.append(self._group.send_async(answer, worker, CONTROL))
