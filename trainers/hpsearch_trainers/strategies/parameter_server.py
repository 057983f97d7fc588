"""Synchronous parameter server: workers push gradients, servers step, workers fetch weights.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), with sequential
consistency, ranges of a parameter's elements as keys, and no replication.

    worker    backward [ bucket 0 | bucket 1 | bucket 2 ]      wait, next step
                            push ↓     push ↓     push ↓       ↑ fetch 0, 1, 2
    server    ............. [ mean, step ][ mean, step ][ mean, step ]

A bucket is pushed as soon as backward has its gradients, and its weights are sent back as soon as the server has
stepped. They arrive in separate memory, because backward may still be running. If the gradient's norm is clipped, the
servers wait for all buckets before they step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group, SyncBatchNorm
from hpsearch_comm.data_parallel.shares import Shares
from hpsearch_trainers.strategies.common_state import broadcast_common_state
from hpsearch_trainers.strategies.optimizer_shard import (
    OptimizerShard,
    assemble,
    steps_in_parts,
    trains_each_parameter,
    trains_elements,
)
from hpsearch_trainers.strategies.placement import Bucket, Piece
from hpsearch_trainers.strategies.pushes import Fetches, ServedBucket, gradients_of, pushes_to
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, Trained


class WorkerSide:
    """Pushes the gradients of one epoch's steps, and fetches the weights.

    Args:
        parameters: The parameters that servers train, by index.
        buckets: The buckets of all servers.
        group: All ranks.
        servers: The ranks of the servers.

    Attributes:
        fetches: Receives the weights.
        last_pass: Whether the current backward pass is the last of its step, so that its gradients are complete.
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
        """Number of missing gradients of each bucket; -1 after it was sent."""
        self._rows = 0
        self.last_pass = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(parameters)
        ]

    def start(self, rows: int) -> None:
        """Start a step.

        Args:
            rows: Number of rows of this worker's mean gradient; 0 if it doesn't count.
        """
        self._rows = rows
        self._missing = [len(bucket.pieces) for bucket in self._buckets]
        self.fetches.expect()

    def finish(self) -> None:
        """Push the remaining buckets, and wait for the weights."""
        for index, missing in enumerate(self._missing):
            if missing >= 0:
                self._push(index)
        self.fetches.load()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
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


class ServerSide:
    """Takes the steps of one epoch with this server's pieces.

    Args:
        buckets: This server's buckets, by message tag.
        piece_parameters: The parameter of each piece.
        optimizer: The optimizer of these parameters only.
        group: All ranks.
        workers: Number of workers, which are the first ranks.
        clip_norm: Maximum norm of the gradient of a step over all servers.
        server_group: The servers; None for a single one.
        at_once: Whether the optimizer steps once with all buckets; otherwise it steps with each bucket on arrival.
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
        """Take a step."""
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
        """Wait until all weights have been sent."""
        for bucket in self._buckets:
            bucket.wait()

    def _step(self, ready: Sequence[ServedBucket]) -> None:
        self._optimizer.step()  # updates only parameters that have a gradient
        for bucket in ready:
            bucket.zero_grad()
            bucket.send(self._workers)


def clip(gradients: Sequence[Tensor | None], limit: float, servers: Group | None) -> None:
    """Clip gradients by their norm like `torch.nn.utils.clip_grad_norm_`; a collective of the servers.

    Args:
        gradients: This server's gradients.
        limit: The maximum norm over all servers' gradients.
        servers: The servers; None for a single one.
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
    if not factor >= 1.0:  # also true for NaN
        for value in values:
            value.mul_(factor)


_OTHER_OPTIMIZER = "an optimizer that looks over all parameters"
_STEPPED = "a scheduler that a hook of the optimizer steps"


class ParameterServer(Served):
    """The last `parallel.servers` ranks hold the weights, in shards balanced by bytes, and step your optimizer."""

    name: ClassVar[str] = "parameter_server"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            **NO_FLOAT16,
            _OTHER_OPTIMIZER: "each server has a part of them; one of your own whose step treats each parameter by "
            "itself says so by an attribute `trains_each_parameter = True`",
            _STEPPED: "the optimizer steps on the servers, and the scheduler of rank 0, which is saved, wouldn't move: "
            "step it after super().step()",
        }
    )

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._server_group = self.ranks.subgroup(self.servers) if len(self.servers) > 1 else None
        if self._server_group is not None:
            self.formed.append(self._server_group)

    def bind(self, trained: Trained) -> None:
        """See `Served.bind`."""
        if not trains_each_parameter(trained.optimizer):
            self.refuse(_OTHER_OPTIMIZER)
        super().bind(trained)
        layers = [layer for layer in trained.model.modules() if isinstance(layer, SyncBatchNorm)]
        self._shares = Shares(self.workers) if layers and self.workers is not None else None
        for layer in layers:
            layer.exchange.share = partial(_own_share, self._shares)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Assign the trained parameters to the servers."""
        super().start_epoch(trained, epoch)
        parameters = self.parameters
        optimizer = trained.optimizer
        can_be_cut = trains_elements(optimizer) and not self.hooked
        buckets = self._buckets = self.buckets(parameters, can_be_cut=can_be_cut)
        if self.trains:
            self._worker = WorkerSide(parameters, buckets, self.ranks, self.servers)
            return
        own_buckets = {
            tag: bucket for tag, bucket in enumerate(buckets) if self.servers[bucket.server] == self.ranks.rank
        }
        pieces = [piece for bucket in own_buckets.values() for piece in bucket.pieces]
        self._own_rates = _rates(optimizer)
        self._shard = OptimizerShard(optimizer, parameters, pieces)
        self._server = ServerSide(
            own_buckets,
            self._shard.piece_parameters,
            optimizer,
            self.ranks,
            self.parts,
            trained.clip_norm,
            self._server_group,
            at_once=self.hooked or not steps_in_parts(optimizer),
        )

    def start_step(self, rows: int) -> None:
        """See `Strategy.start_step`."""
        super().start_step(rows)
        if self._shares is not None:
            self._shares.announce(rows)
        self._worker.start(rows)

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Run forward and backward; in the last pass of a step, push gradients as they become ready."""
        self._worker.last_pass = last
        return super().backward(inputs, loss_of, loss_weight, last=last)

    def changed(self) -> list[nn.Parameter]:
        """See `Served.changed`."""
        return self._worker.fetches.changed()

    def update(self) -> None:
        """Push the buckets that backward didn't complete, and fetch the weights."""
        self._worker.finish()
        if self._shares is not None:
            self._shares.spend()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """See `Strategy.serve`."""
        for step in range(steps):
            set_rate(step)
            self._server.step()
        self._server.close()

    def end_epoch(self) -> None:
        """Gather the weights and the optimizer state of all servers on every rank."""
        super().end_epoch()
        states: list[Any] = []
        if self.trains:
            self._worker.close()
            del self._worker
        else:
            scheduled = hasattr(self.trained.optimizer.step, "_wrapped_by_lr_sched")  # set by torch's schedulers
            if scheduled and _rates(self.trained.optimizer) != self._own_rates:
                self.refuse(_STEPPED)
            states = self._shard.close()
            del self._shard, self._server
        self.broadcast_weights(self._buckets, self.parameters)
        assemble(self.trained.optimizer, self.parameters, self.ranks, self.servers, states)
        broadcast_common_state(self.trained.optimizer, self.ranks, self.servers[0])

    def abort(self, error: BaseException) -> None:
        """See `Strategy.abort`."""
        if hasattr(self, "_worker"):
            self._worker.close()
        super().abort(error)


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _own_share(shares: Shares | None) -> float:
    return 1.0 if shares is None else shares.share().own
