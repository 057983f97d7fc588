"""The base class of strategies with parameter servers: the last ranks hold the weights, and the others train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import differing, untrained
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.optimizer_shard import OptimizerShard, assemble
from hpsearch_trainers.strategies.placement import Placed, assign_parameters
from hpsearch_trainers.strategies.pushes import FIRST_TAG, PushedBuckets, ServedBucket, put_weights, take_weights
from hpsearch_trainers.strategies.strategy import Options, Strategy


class Served(Strategy):
    """Divides ranks into workers and servers.

    Attributes:
        servers: The ranks of the servers.
        server_optimizer: The optimizer of all parameters with which the servers step; set by `prepare`.
        can_be_cut: Whether contiguous parameters without sparse gradients may be cut.
        pushing: Maximum number of workers that push to a server at the same time.
        parameters: The parameters that servers train in this epoch, in order.
        pushed: All buckets on a worker.
        served: A server's own buckets.
    """

    group: Group
    server_optimizer: Optimizer

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        count, size, rank = options.integer("servers", 1), self.group.size, self.group.rank
        if count >= size:
            raise ConfigurationError(
                f"parallel.servers must leave a worker to train: got {count} of {size} ranks, which count both "
                "servers and workers; lower it, or raise resources.workers_per_trial"
            )
        self.parts = size - count
        self.servers = range(self.parts, size)
        self.trains = rank < self.parts
        self.part_index = self.stream = rank if self.trains else 0
        self.workers = self.group.subgroup(range(self.parts)) if self.parts > 1 else None
        self.formed = [] if self.workers is None else [self.workers]
        self.can_be_cut, self.pushing = True, 1

    def begin_epoch(self, epoch: int) -> None:
        """Assign the trained parameters to the servers."""
        super().begin_epoch(epoch)
        parameters = self.parameters = self._trained_parameters()
        sparse = self._sparse = _sparse_parameters(self.trained.model)
        placed = [
            Placed(
                parameter.numel(),
                parameter.dtype,
                self.can_be_cut and parameter.is_contiguous() and parameter not in sparse,
                parameter in sparse,
            )
            for parameter in parameters
        ]
        self._buckets = assign_parameters(placed, len(self.servers))
        if self.trains:
            self.pushed = PushedBuckets(parameters, self._buckets, self.group, self.servers)
            return
        own = [
            (tag, bucket)
            for tag, bucket in enumerate(self._buckets, FIRST_TAG)
            if self.servers[bucket.server] == self.group.rank
        ]
        pieces = [piece for _, bucket in own for piece in bucket.pieces]
        self._shard = OptimizerShard(self.server_optimizer, parameters, pieces)
        self.served = [
            ServedBucket(bucket, tag, self._shard.piece_parameters, self.group, self.pushing) for tag, bucket in own
        ]

    def remember_weights(self, *, fetched: bool) -> None:
        """Copy the weights at the start of a step, before the model computes.

        Args:
            fetched: Whether the step has fetched them. If not, tables with sparse gradients are left out: copying a
                whole table would take longer than a step on the few rows that are looked up.
        """
        self._before = [
            (parameter, parameter.detach().clone())
            for parameter in self.parameters
            if fetched or parameter not in self._sparse
        ]

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Compute a loss and accumulate its gradient.

        Raises:
            ConfigurationError: The model or the loss has changed weights, which the servers would overwrite.
        """

        def checked(output: Any) -> Tensor:
            loss = loss_of(output)
            self._check_weights()
            return loss

        return super().backward(inputs, checked, loss_weight, last=last)

    def _check_weights(self) -> None:
        changed = {id(parameter) for parameter, before in self._before if not _same_values(parameter, before)}
        if changed:
            names = [name for name, parameter in self.trained.model.named_parameters() if id(parameter) in changed]
            raise ConfigurationError(
                f"under parallel.strategy {self.name} weights that are trained must be changed by the optimizer alone, "
                f"on the servers, got a model or a loss that changes {', '.join(names[:3])}"
                f"{' and more' if len(names) > 3 else ''} while it is computed, which the servers would undo: compute "
                "with a function of the weights, as torch.nn.utils.parametrizations does, or take another strategy"
            )

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """See `Strategy.synchronize_metrics`."""
        result: dict[str, float] = self.group.broadcast_object(metrics)
        # Send the servers what only the workers have updated, so that a server can also validate.
        model, average = self.trained.model, self.trained.average
        extra = [] if average is None else [*average.parameters(), *average.buffers()]
        extra += differing(untrained(model, self.trained.optimizer), self.group)
        broadcast_tensors([*model.buffers(), *extra], self.group)
        return result

    def end_epoch(self) -> None:
        """Gather the weights and the optimizer state of all servers on every rank.

        Raises:
            ConfigurationError: A parameter was unfrozen during the epoch, so the servers don't train it.
        """
        thawed = len(set(map(id, self._trained_parameters())) - set(map(id, self.parameters)))
        if self.trains and thawed > 0:
            raise ConfigurationError(
                f"under parallel.strategy {self.name} layers must be thawed between two epochs, got {thawed} "
                "parameters that have come to need a gradient within one, which the servers don't train: do it before "
                "super().step()"
            )
        states: list[Any] = []
        if self.trains:
            del self.pushed
        else:
            states = self._shard.close()
            del self._shard, self.served
        weights = [take_weights(bucket, self.parameters) for bucket in self._buckets]
        handles = [
            self.group.broadcast_async(elements, self.servers[bucket.server])
            for bucket, elements in zip(self._buckets, weights, strict=True)
        ]
        for bucket, elements, handle in zip(self._buckets, weights, handles, strict=True):
            handle.wait()
            put_weights(bucket, elements, self.parameters)
        assemble(self.server_optimizer, self.parameters, self.group, self.servers, states)

    def rates(self) -> list[float]:
        """Return the current learning rate of each group of the trial's optimizer."""
        return [float(group["lr"]) for group in self.trained.optimizer.param_groups]

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in parameters_of(self.trained.optimizer) if parameter.requires_grad]


def _same_values(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first, second) or bool(((first == second) | (first.isnan() & second.isnan())).all())


def _sparse_parameters(model: nn.Module) -> set[Tensor]:
    """Return the parameters with sparse gradients."""
    tables = (layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
    return {table.weight for table in tables if table.sparse}
