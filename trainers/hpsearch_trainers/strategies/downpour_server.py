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
        self._steps: dict[int, float] = dict.fromkeys(range(workers), -1.0)
        """The step that each has begun, or asks to begin; beyond all when its epoch is over."""
        self._max_delay, self._in_turn = max_delay, in_turn

    def request(self, worker: int, step: int) -> None:
        """Note that a worker has ended all steps before this one."""
        self._steps[worker] = step

    def finish(self, worker: int) -> None:
        """Note that a worker's epoch is over."""
        self._steps[worker] = float("inf")

    @property
    def all_finished(self) -> bool:
        """Return whether all workers' epochs are over."""
        return min(self._steps.values()) == float("inf")

    def may_begin(self, worker: int) -> bool:
        """Return whether a worker may begin the step that it asks for."""
        step = self._steps[worker]
        if self._in_turn:
            return all(
                other_step > step if other_worker < worker else other_step >= step
                for other_worker, other_step in self._steps.items()
            )
        return self._max_delay is None or step - min(self._steps.values()) <= self._max_delay


class DownpourServer:
    """Serves an epoch.

    Args:
        buckets: This server's, by the tag of their messages.
        piece_parameters: The parameter of each piece.
        adagrad: Of these parameters alone.
        group: All ranks.
        clocks: Which workers may begin a step.
        first: This is the first server, which lets the workers that have ended know that it goes on.
    """

    def __init__(
        self,
        buckets: Mapping[int, Bucket],
        piece_parameters: Mapping[Piece, nn.Parameter],
        adagrad: Adagrad,
        group: Group,
        clocks: Clocks,
        *,
        first: bool,
    ) -> None:
        self._adagrad, self._group = adagrad, group
        self._buckets = [ServedBucket(bucket, tag, piece_parameters, group, 1) for tag, bucket in buckets.items()]
        self._clocks, self._first = clocks, first
        self._requests: dict[int, Kind] = {}
        self._last_wait_message = time.monotonic()
        self._answers: collections.deque[Handle[Tensor]] = collections.deque(maxlen=64)

    def run(self) -> None:
        """Serve until all workers' epochs are over."""
        rates = [0.0] * len(self._adagrad.param_groups)
        message = control(Kind.WAIT, 0, rates)
        finished: list[int] = []
        drawn = 0
        while not self._clocks.all_finished:
            receiving = self._group.recv_async(message, None, CONTROL)
            kind, clock, *rates = receiving.wait().tolist()
            worker = receiving.source
            assert worker is not None
            match Kind(int(kind)):
                case Kind.DRAW:
                    self._send([worker], Kind.GO, drawn)
                    drawn += 1
                case Kind.PUSH:
                    self._apply(worker, rates)
                case Kind.END:
                    self._clocks.finish(worker)
                    finished.append(worker)
                case request:
                    self._clocks.request(worker, int(clock))
                    self._requests[worker] = request
            self._answer()
            if self._first and time.monotonic() - self._last_wait_message > _PATIENCE:
                self._last_wait_message = time.monotonic()
                self._send(finished, Kind.WAIT)
        self._send(finished, Kind.GO)
        for answer in self._answers:
            answer.wait()
        for bucket in self._buckets:
            bucket.wait()

    def _apply(self, worker: int, rates: list[float]) -> None:
        for group, rate in zip(self._adagrad.param_groups, rates, strict=True):
            group["lr"] = rate
        for bucket in self._buckets:
            bucket.pushes.expect([worker])
        for bucket in self._buckets:
            bucket.set_mean_gradients()
        self._adagrad.step()
        for bucket in self._buckets:
            bucket.zero_grad()

    def _answer(self) -> None:
        """Answer those who may begin their step."""
        for worker, kind in list(self._requests.items()):
            if self._clocks.may_begin(worker):
                del self._requests[worker]
                if kind is Kind.ASK:
                    self._send([worker], Kind.GO)
                else:
                    for bucket in self._buckets:
                        bucket.send([worker])

    def _send(self, workers: list[int], kind: Kind, clock: int = 0) -> None:
        for worker in workers:
            answer = control(kind, clock, [0.0] * len(self._adagrad.param_groups))
            self._answers.append(self._group.send_async(answer, worker, CONTROL))
