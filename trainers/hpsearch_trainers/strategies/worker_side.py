"""A worker's side of a parameter server: gradients leave while backward goes on, and weights come back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.strategies.fetches import Fetches
from hpsearch_trainers.strategies.placement import Bucket
from hpsearch_trainers.strategies.pushes import gradients_of, pushes_to

__all__ = ["WorkerSide"]


class WorkerSide:
    """Pushes the gradients of one epoch's steps, and fetches the weights.

    Args:
        parameters: Those that servers train, by number.
        buckets: Of all servers.
        group: All ranks.
        servers: Which of them serve.

    Attributes:
        fetches: The weights that come.
        last_pass: Whether gradients that arrive are complete.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], buckets: Sequence[Bucket], group: Group, servers: Sequence[int]
    ) -> None:
        self._parameters, self._buckets = parameters, buckets
        self._pushes = pushes_to(servers, buckets, group, first_tag=0, device=parameters[0].device)
        self.fetches = Fetches(parameters, buckets, group, servers, first_tag=0)
        self._buckets_of: dict[int, list[int]] = {}
        for index, bucket in enumerate(buckets):
            for piece in bucket.pieces:
                self._buckets_of.setdefault(piece.number, []).append(index)
        self._missing: list[int] = []
        """Of each bucket: gradients that are still to come; -1 when it has been sent."""
        self._rows = 0
        self.last_pass = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(parameters)
        ]

    def start(self, rows: int) -> None:
        """Begin a step.

        Args:
            rows: What this worker's gradients will be a mean over; 0 where they count for nothing.
        """
        self._rows = rows
        self._missing = [len(bucket.pieces) for bucket in self._buckets]
        self.fetches.expect()

    def finish(self) -> None:
        """Push what is left, and wait for the weights."""
        for index, missing in enumerate(self._missing):
            if missing >= 0:
                self._push(index)
        self.fetches.load()

    def close(self) -> None:
        """Follow backward passes no more."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, number: int, _parameter: Tensor) -> None:
        if not self.last_pass:
            return
        for index in self._buckets_of[number]:
            self._missing[index] -= 1
            if self._missing[index] == 0:
                self._push(index)

    def _push(self, index: int) -> None:
        self._missing[index] = -1
        gradients = gradients_of(self._buckets[index], [parameter.grad for parameter in self._parameters])
        self._pushes[index].send(self._rows, gradients)
