"""Synchronous, with servers: workers push gradients, servers step, workers fetch weights.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), with sequential
consistency, runs of a parameter's elements as keys, and no replication.

    worker    backward [ bucket 0 | bucket 1 | bucket 2 ]      wait, next step
                            push ↓     push ↓     push ↓       ↑ fetch 0, 1, 2
    server    ............. [ mean, step ][ mean, step ][ mean, step ]

A bucket travels as soon as backward has its gradients, and comes back as soon as its server has stepped: while backward
goes on, into memory of its own. Only where the gradient's norm is clipped must the servers have all buckets first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

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
from hpsearch_trainers.strategies.options import Options
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.server_side import ServerSide
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Trained
from hpsearch_trainers.strategies.worker_side import WorkerSide

__all__ = ["ParameterServer"]

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
        """Place what is trained on the servers."""
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
        """Compute a loss; the last one's gradients are pushed as they arrive."""
        self._worker.last_pass = last
        return super().backward(inputs, loss_of, loss_weight, last=last)

    def changed(self) -> list[nn.Parameter]:
        """See `Served.changed`."""
        return self._worker.fetches.changed()

    def update(self) -> None:
        """Push what backward didn't reach, and fetch the weights."""
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
        """Gather all weights, and the optimizer's state of all servers, on every rank."""
        super().end_epoch()
        states: list[Any] = []
        if self.trains:
            self._worker.close()
            del self._worker
        else:
            scheduled = hasattr(self.trained.optimizer.step, "_wrapped_by_lr_sched")  # as torch's schedulers do
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
