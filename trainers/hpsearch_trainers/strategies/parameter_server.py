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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hpsearch_comm import Group, SyncBatchNorm
from hpsearch_comm.data_parallel.shares import Shares
from hpsearch_trainers.strategies.common_state import broadcast_common_state
from hpsearch_trainers.strategies.optimizer_shard import steps_in_parts, trains_each_parameter, trains_elements
from hpsearch_trainers.strategies.pushes import ServedBucket
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, StrategyCapabilities, Trained


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
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(
        refuses={
            **NO_FLOAT16,
            _OTHER_OPTIMIZER: "each server has a part of them; one of your own whose step treats each parameter by "
            "itself says so by an attribute `trains_each_parameter = True`",
            _STEPPED: "the optimizer steps on the servers, and the scheduler of rank 0, which is saved, wouldn't move: "
            "step it after super().step()",
        }
    )

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self.pushing = self.parts
        self._hooks: list[RemovableHandle] = []
        self._server_group = self.group.subgroup(self.servers) if len(self.servers) > 1 else None
        if self._server_group is not None:
            self.formed.append(self._server_group)

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's weights, and weight synchronized layers by rows."""
        if not trains_each_parameter(trained.optimizer):
            self.refuse(_OTHER_OPTIMIZER)
        super().prepare(trained)
        self.server_optimizer = trained.optimizer
        layers = [layer for layer in trained.model.modules() if isinstance(layer, SyncBatchNorm)]
        self._shares = Shares(self.workers) if layers and self.workers is not None else None
        for layer in layers:
            layer.exchange.share = partial(_own_share, self._shares)

    def begin_epoch(self, epoch: int) -> None:
        """See `Served.begin_epoch`."""
        self.can_be_cut = trains_elements(self.server_optimizer) and not self.hooked
        super().begin_epoch(epoch)
        if not self.trains:
            self._own_rates = self.rates()
            return
        self._buckets_of: dict[int, list[int]] = {}
        for index, bucket in enumerate(self.pushed.buckets):
            for piece in bucket.pieces:
                self._buckets_of.setdefault(piece.number, []).append(index)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self.parameters)
        ]

    def start_step(self, rows: int) -> None:
        """See `Strategy.start_step`."""
        super().start_step(rows)
        self.remember_weights(fetched=True)
        if self._shares is not None:
            self._shares.announce(rows)
        self._missing = [len(bucket.pieces) for bucket in self.pushed.buckets]
        """Number of missing gradients of each bucket; -1 after it was sent."""
        self.pushed.expect()

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Run forward and backward; in the last pass of a step, push gradients as they become ready."""
        self._last_pass = last
        return super().backward(inputs, loss_of, loss_weight, last=last)

    def _arrived(self, number: int, _parameter: Tensor) -> None:
        if not self._last_pass:
            return
        for index in self._buckets_of[number]:
            self._missing[index] -= 1
            if self._missing[index] == 0:
                self._push(index)

    def _push(self, index: int) -> None:
        self._missing[index] = -1
        self.pushed.push(index, self.rows, [parameter.grad for parameter in self.parameters])

    def step(self) -> None:
        """Push the buckets that backward didn't complete, and fetch the weights."""
        for index, missing in enumerate(self._missing):
            if missing >= 0:
                self._push(index)
        self.pushed.load()
        if self._shares is not None:
            self._shares.spend()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """See `Strategy.serve`."""
        limit = self.trained.clip_norm
        at_once = self.hooked or limit is not None or not steps_in_parts(self.trained.optimizer)
        for step in range(steps):
            set_rate(step)
            for bucket in self.served:
                bucket.expect(range(self.parts))
            for bucket in self.served:
                bucket.set_mean_gradients()
                if not at_once:
                    self._step([bucket])
            if limit is not None:
                gradients = [parameter.grad for bucket in self.served for parameter in bucket.parameters]
                clip(gradients, limit, self._server_group)
            if at_once:
                self._step(self.served)
        for bucket in self.served:
            bucket.wait()

    def _step(self, ready: Sequence[ServedBucket]) -> None:
        """Step with these buckets, the only ones whose parameters have a gradient, and send their weights."""
        self.trained.optimizer.step()
        for bucket in ready:
            bucket.zero_grad()
            bucket.send(range(self.parts))

    def end_epoch(self) -> None:
        """See `Served.end_epoch`."""
        if self.trains:
            self._remove_hooks()
        else:
            scheduled = hasattr(self.trained.optimizer.step, "_wrapped_by_lr_sched")  # set by torch's schedulers
            if scheduled and self.rates() != self._own_rates:
                self.refuse(_STEPPED)
        super().end_epoch()
        broadcast_common_state(self.trained.optimizer, self.group, self.servers[0])

    def abort(self, error: BaseException) -> None:
        """See `Strategy.abort`."""
        self._remove_hooks()
        super().abort(error)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _own_share(shares: Shares | None) -> float:
    return 1.0 if shares is None else shares.share().own
