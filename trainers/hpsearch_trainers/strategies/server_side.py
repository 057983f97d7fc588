"""A server's side of a synchronous parameter server: the mean of what workers push, a step with it, weights back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.host_memory import empty_on_host, wait_for
from hpsearch_trainers.strategies.placement import Bucket, Piece
from hpsearch_trainers.strategies.pushes import DensePushes, SparsePushes

__all__ = ["ServedBucket", "ServerSide"]


class ServerSide:
    """Takes the steps of one epoch with this server's pieces.

    Args:
        buckets: This server's, by the tag of their messages.
        piece_parameters: The parameter of each piece.
        optimizer: Of these parameters alone.
        group: All ranks.
        workers: How many of them, the first ones, train.
        clip_norm: Norm above which the gradient of a step, over all servers, is scaled down to it.
        server_group: The servers, where there are several.
        at_once: Whether the optimizer is to step once with all buckets, and not with each as it comes.
    """

    def __init__(
        self,
        buckets: Mapping[int, Bucket],
        piece_parameters: Mapping[Piece, nn.Parameter],
        optimizer: Optimizer,
        group: Group,
        workers: int,
        clip_norm: float | None,
        server_group: Group | None,
        *,
        at_once: bool,
    ) -> None:
        self._optimizer, self._workers = optimizer, range(workers)
        self._clip_norm, self._server_group = clip_norm, server_group
        self._at_once = at_once or clip_norm is not None
        self._buckets = [ServedBucket(bucket, tag, piece_parameters, group, workers) for tag, bucket in buckets.items()]

    def step(self) -> None:
        """Take one."""
        for bucket in self._buckets:
            bucket.pushes.expect(self._workers)
        for bucket in self._buckets:
            bucket.set_mean_gradients()
            if not self._at_once:
                self._step([bucket])
        if self._clip_norm is not None:
            clip(
                [parameter.grad for bucket in self._buckets for parameter in bucket.parameters],
                self._clip_norm,
                self._server_group,
            )
        if self._at_once:
            self._step(self._buckets)

    def close(self) -> None:
        """Wait until all has been sent."""
        for bucket in self._buckets:
            bucket.wait()

    def _step(self, ready: Sequence[ServedBucket]) -> None:
        self._optimizer.step()  # with those parameters that have a gradient
        for bucket in ready:
            bucket.zero_grad()
            bucket.send(self._workers)


class ServedBucket:
    """A bucket of a server, and its parameters.

    Args:
        bucket: Which.
        tag: Of its messages.
        piece_parameters: The parameter of each piece.
        group: All ranks.
        most: Workers that push at once.

    Attributes:
        parameters: Those of its pieces.
        pushes: Their gradients, as they come.
    """

    def __init__(
        self, bucket: Bucket, tag: int, piece_parameters: Mapping[Piece, nn.Parameter], group: Group, most: int
    ) -> None:
        self.parameters = [piece_parameters[piece] for piece in bucket.pieces]
        self.pushes: DensePushes | SparsePushes = (
            SparsePushes(bucket, group, tag, self.parameters[0].shape)
            if bucket.sparse
            else DensePushes(bucket, group, most, tag, self.parameters[0].device)
        )
        self._bucket, self._group, self._tag = bucket, group, tag
        self._weights: dict[int, Tensor] = {}
        self._sending: dict[int, list[Handle[Tensor]]] = {}

    def set_mean_gradients(self) -> None:
        """Set the gradients of the parameters to the mean of those that are expected."""
        for parameter, gradient in zip(self.parameters, self.pushes.mean(), strict=True):
            if gradient is not None:
                gradient = gradient if gradient.is_sparse else gradient.view(parameter.shape)
                parameter.grad = gradient.to(parameter.device)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def send(self, workers: Sequence[int]) -> None:
        """Send the weights as they are now.

        Args:
            workers: The ranks. Each is always sent to with the same others.
        """
        first = workers[0]
        if first not in self._weights:
            device = self.parameters[0].device
            self._weights[first] = empty_on_host([self._bucket.elements], self._bucket.dtype, device)
        for sending in self._sending.get(first, ()):
            sending.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, part in zip(self.parameters, torch.split(self._weights[first], sizes), strict=True):
            part.copy_(parameter.detach().reshape(-1), non_blocking=True)
        wait_for(self.parameters[0].device)
        self._sending[first] = [self._group.send_async(self._weights[first], rank, self._tag) for rank in workers]

    def wait(self) -> None:
        """Wait until all has been sent."""
        for sending in itertools.chain.from_iterable(self._sending.values()):
            sending.wait()


def clip(gradients: Sequence[Tensor | None], limit: float, servers: Group | None) -> None:
    """Scale gradients down to a norm, as `torch.nn.utils.clip_grad_norm_` does; a collective of the servers.

    Args:
        gradients: This server's.
        limit: The largest norm, over all servers' gradients.
        servers: They; None for one.
    """
    values = [
        gradient.coalesce().values() if gradient.is_sparse else gradient
        for gradient in gradients
        if gradient is not None
    ]
    square = torch.tensor([sum(float(value.norm()) ** 2 for value in values)], dtype=torch.float64, device="cpu")
    if servers is not None:
        servers.allreduce(square, op="sum")
    factor = limit / (math.sqrt(float(square)) + 1e-6)
    if not factor >= 1.0:  # nor where it is no number
        for value in values:
            value.mul_(factor)
