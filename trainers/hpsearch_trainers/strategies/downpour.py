"""Asynchronous, with servers: each worker pushes and fetches when it is ready, and waits for nobody.

Downpour SGD, algorithm 7.1 of Dean et al., "Large Scale Distributed Deep Networks" (NeurIPS 2012), with Adagrad on the
servers. On each worker, in its step t, with the next rows of the epoch that nobody has had:

    if t mod n_fetch = 0:  w ← the servers' weights
    g ← gradient at w;  a ← a + g;  w ← w - η g
    if t mod n_push = n_push - 1:  push a;  a ← 0

A server applies each push as it comes: Σ ← Σ + a², w ← w - η a / √Σ. With a bounded delay (Ho et al., "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013) a worker begins step t only when all
others have begun step t - max_delay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.adagrad import Adagrad
from hpsearch_trainers.strategies.downpour_server import Clocks, DownpourServer
from hpsearch_trainers.strategies.downpour_worker import DownpourWorker
from hpsearch_trainers.strategies.optimizer_shard import OptimizerShard, assemble
from hpsearch_trainers.strategies.options import Options
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Trained

__all__ = ["Downpour"]


_SPARSE_DECAY = "weight_decay of sparse gradients"
_HOOKS = "hooks of the optimizer's steps"


class Downpour(Served):
    """The last `parallel.servers` ranks hold the weights; the others push gradients to them, each at its own pace."""

    name: ClassVar[str] = "downpour"
    reproducible: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            **NO_FLOAT16,
            "average": "each worker has weights of its own between two fetches, and there is no step of all to average "
            "after",
            "batch_norm": "workers are at different steps, and can't normalize their rows together",
            _HOOKS: "Adagrad steps on the servers, and the trial's optimizer never does: leave them out, or take "
            "another strategy, such as parameter_server",
            _SPARSE_DECAY: "all rows of a table would decay, and not those alone that were looked up: give the table a "
            "group of parameters with weight_decay 0",
        }
    )

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._n_push, self._n_fetch = options.integer("n_push", 1), options.integer("n_fetch", 1)
        self._warm_start = options.integer("warm_start", 0, least=0)
        delay = options.values.get("max_delay")
        self._max_delay = None if delay is None else options.integer("max_delay", 0, least=0)

    def bind(self, trained: Trained) -> None:
        """See `Served.bind`."""
        super().bind(trained)
        groups = [{"params": group["params"], "lr": float(group["lr"])} for group in trained.optimizer.param_groups]
        self._adagrad = Adagrad(groups)
        # Some have a state before their first step, and can't do without.
        self._fresh = copy.deepcopy(trained.optimizer.state_dict()["state"])
        if self.is_main_rank:
            print(
                f"downpour: servers step with Adagrad at the rates of the trial's {type(trained.optimizer).__name__}, "
                "of whose other settings only weight_decay and maximize count"
            )

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Place what is trained on the servers; what the optimizer has got in addition begins without a sum."""
        sums = self._adagrad.state if trained.optimizer is self.trained.optimizer else {}
        super().start_epoch(trained, epoch)
        if self.hooked:
            self.refuse(_HOOKS)
        self._adagrad.state.update(
            {parameter: sums[parameter] for parameter in parameters_of(self._adagrad) if parameter in sums}
        )
        parameters = self.parameters
        buckets = self._buckets = self.buckets(parameters, can_be_cut=True)
        self._in_turn = epoch < self._warm_start
        self._push_every, self._fetch_every = (1, 1) if self._in_turn else (self._n_push, self._n_fetch)
        if self.trains:
            self._worker = DownpourWorker(parameters, buckets, self.ranks, self.servers)
            self._accrued: dict[int, Tensor] = {}
            self._clock = 0
            return
        own_buckets = {
            tag: bucket for tag, bucket in enumerate(buckets, 1) if self.servers[bucket.server] == self.ranks.rank
        }
        pieces = [piece for bucket in own_buckets.values() for piece in bucket.pieces]
        self._shard = OptimizerShard(self._adagrad, parameters, pieces)
        clocks = Clocks(self.parts, self._max_delay, in_turn=self._in_turn)
        first = self.ranks.rank == self.servers[0]
        self._server = DownpourServer(
            own_buckets, self._shard.piece_parameters, self._adagrad, self.ranks, clocks, first=first
        )

    def epoch_steps(self, shard: Shard, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """Return parts of the global batches, to each worker the next as soon as it is ready: a quick one gets more."""
        if self._in_turn:
            yield from super().epoch_steps(shard, epoch)
            return
        ticket = self._worker.draw(self._rates())
        for number, part in enumerate(shard.all_parts(epoch)):
            if number == ticket:
                yield part
                ticket = self._worker.draw(self._rates())

    def start_step(self, rows: int) -> None:
        """Begin a step when that may be, and with the servers' weights where it is time for them."""
        self._step_rates = self._rates()
        if self._clock % self._fetch_every == 0:
            self._worker.fetch(self._clock, self._step_rates)
        elif self._max_delay is not None:
            self._worker.ask(self._clock, self._step_rates)
        self._rows = rows
        super().start_step(rows)

    def changed(self) -> list[nn.Parameter]:
        """See `Served.changed`."""
        return self._worker.fetches.changed()

    def update(self) -> None:
        """Take a step of this worker's own, and push where it is time to."""
        if self._rows > 0:
            self._accrue()
        self._clock += 1
        if self._clock % self._push_every == 0:
            self._push()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """See `Strategy.serve`. Rates are those of the workers, which may be at different steps."""
        self._server.run()

    def end_epoch(self) -> None:
        """Drain the pushes, and let every rank have the servers' weights and sums."""
        super().end_epoch()
        states: list[Any] = []
        if self.trains:
            self._push()
            self._worker.end(self._clock, self._rates())
            del self._worker
        else:
            states = self._shard.close()
            del self._shard, self._server
        self.broadcast_weights(self._buckets, self.parameters)
        assemble(self._adagrad, self.parameters, self.ranks, self.servers, states)

    def loaded(self) -> None:
        """Drop the state of the trial's own optimizer: it takes no steps here, and would be that of other weights."""
        optimizer = self.trained.optimizer
        optimizer.load_state_dict({**optimizer.state_dict(), "state": copy.deepcopy(self._fresh)})

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of squares."""
        return {"adagrad": self._adagrad.state_dict()["state"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them up; without, they begin at zero."""
        load_exactly(self._adagrad, {**self._adagrad.state_dict(), "state": state.get("adagrad", {})})

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.trained.optimizer.param_groups]

    @torch.no_grad()
    def _accrue(self) -> None:
        """Add the gradients to those of the steps before; and step, where the servers' weights don't come next."""
        if self.trained.clip_norm is not None:
            nn.utils.clip_grad_norm_(clippable(parameters_of(self.trained.optimizer)), self.trained.clip_norm)
        numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        steps = (self._clock + 1) % self._fetch_every != 0
        for group in self.trained.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or parameter not in numbers:
                    continue
                gradient = self._with_weight_decay(parameter, group)
                number = numbers[parameter]
                before = self._accrued.get(number)
                self._accrued[number] = gradient if before is None else _sum(before, gradient)
                if steps:
                    parameter.add_(gradient, alpha=-float(group["lr"]))
        if steps:
            self._worker.fetches.record_step()

    def _with_weight_decay(self, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        if group.get("maximize"):
            gradient = -gradient
        if decay := group.get("weight_decay", 0.0):
            if gradient.is_sparse:
                self.refuse(_SPARSE_DECAY)
            gradient = gradient.add(parameter, alpha=decay)
        return gradient

    def _push(self) -> None:
        if self._accrued:
            gradients = [self._accrued.get(number) for number in range(len(self.parameters))]
            self._worker.push(self._clock, self._step_rates, gradients)
            self._accrued = {}


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second if first.is_sparse == second.is_sparse else first.to_dense() + second.to_dense()
