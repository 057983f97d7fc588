"""Asynchronous SGD with parameter servers: each worker pushes and fetches independently of the other workers.

Downpour SGD, algorithm 7.1 of Dean et al., "Large Scale Distributed Deep Networks" (NeurIPS 2012), with Adagrad on the
servers. Each worker, in its step t, with the next rows of the epoch that no worker has processed:

    if t mod n_fetch = 0:  w ← the servers' weights
    g ← gradient at w;  a ← a + g;  w ← w - η g
    if t mod n_push = n_push - 1:  push a;  a ← 0

A server applies each push when it arrives: Σ ← Σ + a², w ← w - η a / √Σ. With a bounded delay (Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013), a worker starts step t only
after all others have started step t - max_delay.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, StrategyCapabilities, Trained


class Clocks:
    """Decides which workers may start a step.

    Args:
        workers: Number of workers.
        max_delay: Maximum number of steps that a worker may be ahead of the slowest one (Ho et al. 2013, section 3);
            None for no limit.
        in_turn: Whether only one worker trains at a time. In each step, the workers then run in the order of their
            ranks.
    """

    def __init__(self, workers: int, max_delay: int | None, *, in_turn: bool) -> None:
        self._steps: dict[int, float] = dict.fromkeys(range(workers), -1.0)
        """The step that each worker has started or requests to start; infinity after its epoch."""
        self._max_delay, self._in_turn = max_delay, in_turn

    def request(self, worker: int, step: int) -> None:
        """Record that a worker has finished all earlier steps and requests this one."""
        self._steps[worker] = step

    def finish(self, worker: int) -> None:
        """Record that a worker has finished its epoch."""
        self._steps[worker] = float("inf")

    @property
    def all_finished(self) -> bool:
        """Whether all workers have finished their epochs."""
        return min(self._steps.values()) == float("inf")

    def may_begin(self, worker: int) -> bool:
        """Return whether a worker may start the step that it has requested."""
        step = self._steps[worker]
        if self._in_turn:
            return all(
                other_step > step if other_worker < worker else other_step >= step
                for other_worker, other_step in self._steps.items()
            )
        return self._max_delay is None or step - min(self._steps.values()) <= self._max_delay


class Adagrad(Optimizer):
    """Adagrad: the rate of element i is lr / √Σ g_i² over all its past gradients (Dean et al. 2012, section 4.1).

    Unlike torch's Adagrad, it has no ε: an element whose sum is zero isn't changed. A sparse gradient changes only its
    own rows.

    Args:
        params: Parameters or parameter groups.
        lr: The learning rate, gamma in the paper.
    """

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient. `closure` is ignored."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, float(group["lr"]))

    def _update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["sum"] = torch.zeros_like(parameter)
        total: Tensor = state["sum"]
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            total.index_add_(0, rows, values * values)
            parameter.index_add_(0, rows, _change(values, total[rows]), alpha=-rate)
        else:
            total.addcmul_(gradient, gradient)
            parameter.sub_(_change(gradient, total), alpha=rate)


def _change(gradient: Tensor, total: Tensor) -> Tensor:
    return torch.where(total == 0, 0.0, gradient / total.sqrt())


CONTROL = 0
"""Tag of control messages, and of the answers to them. Buckets have the tags 1, 2, ..."""


class Kind(enum.IntEnum):
    """Kinds of control messages from a worker to a server."""

    DRAW = enum.auto()
    """Request the next rows. Only the first server receives it. It answers with the index of a part."""
    ASK = enum.auto()
    """Request to start a step. The server answers when the worker may start."""
    FETCH = enum.auto()
    """Request to start a step with new weights. The server answers with the weights of each bucket."""
    PUSH = enum.auto()
    """Announce a push. The gradients of each bucket follow."""
    END = enum.auto()
    """Report the end of the worker's epoch."""


_SPARSE_DECAY = "weight_decay of sparse gradients"
_HOOKS = "hooks of the optimizer's steps"


class Downpour(Served):
    """The last `parallel.servers` ranks hold the weights. The workers push gradients to them asynchronously."""

    name: ClassVar[str] = "downpour"
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(
        reproducible=False,
        exact=False,
        refuses={
            **NO_FLOAT16,
            "average": "each worker has weights of its own between two fetches, and there is no step of all to average "
            "after",
            "batch_norm": "workers are at different steps, and can't normalize their rows together",
            _HOOKS: "Adagrad steps on the servers, and the trial's optimizer never does: leave them out, or take "
            "another strategy, such as parameter_server",
            _SPARSE_DECAY: "all rows of a table would decay, and not those alone that were looked up: give the table a "
            "group of parameters with weight_decay 0",
        },
    )

    server_optimizer: Adagrad

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._n_push, self._n_fetch = options.integer("n_push", 1), options.integer("n_fetch", 1)
        self._warm_start = options.integer("warm_start", 0, least=0)
        delay = options.values.get("max_delay")
        self._max_delay = None if delay is None else options.integer("max_delay", 0, least=0)

    def prepare(self, trained: Trained) -> None:
        """Create Adagrad. Parameters that are new in the trial's optimizer, or all of a new one, start without sums."""
        super().prepare(trained)
        is_same = hasattr(self, "trained") and self.trained.optimizer is trained.optimizer
        sums: Mapping[Any, Any] = self.server_optimizer.state if is_same else {}
        groups = [{"params": group["params"], "lr": float(group["lr"])} for group in trained.optimizer.param_groups]
        self.server_optimizer = Adagrad(groups)
        self.server_optimizer.state.update(
            {parameter: sums[parameter] for parameter in parameters_of(self.server_optimizer) if parameter in sums}
        )
        # Some optimizers have a state before their first step, and need it.
        self._fresh = copy.deepcopy(trained.optimizer.state_dict()["state"])
        if self.is_main_rank:
            print(
                f"downpour: servers step with Adagrad at the rates of the trial's {type(trained.optimizer).__name__}, "
                "of whose other settings only weight_decay and maximize count"
            )

    def begin_epoch(self, epoch: int) -> None:
        """See `Served.begin_epoch`."""
        if self.hooked:
            self.refuse(_HOOKS)
        super().begin_epoch(epoch)
        self._in_turn = epoch < self._warm_start
        self._push_every, self._fetch_every = (1, 1) if self._in_turn else (self._n_push, self._n_fetch)
        self._accrued: dict[int, Tensor] = {}
        self._clock = 0
        self._step_rates = self.rates()

    def epoch_steps(self, shard: Shard, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """Yield parts of the global batches. A worker draws a part when it is ready, so fast workers get more parts."""
        if self._in_turn:
            yield from super().epoch_steps(shard, epoch)
            return
        ticket = self._draw()
        for number, part in enumerate(shard.all_parts(epoch)):
            if number == ticket:
                yield part
                ticket = self._draw()

    def _draw(self) -> int:
        """Return the index of the next part of the epoch that no worker has drawn, from 0."""
        self._tell(Kind.DRAW, self.servers[:1])
        return self._answer(self.servers[0])

    def _tell(self, kind: Kind, servers: Iterable[int]) -> None:
        message = torch.tensor([float(kind), self._clock, *self._step_rates], dtype=torch.float64, device="cpu")
        # Asynchronous to avoid a deadlock: a server may wait for another worker's gradients, and that worker for us.
        for server in servers:
            self.group.send_async(message, server, CONTROL)

    def _answer(self, server: int) -> int:
        return int(self.group.recv(torch.zeros(1, dtype=torch.int64, device="cpu"), server, CONTROL))

    def start_step(self, rows: int) -> None:
        """Wait until the step may start; every `n_fetch` steps, fetch the servers' weights."""
        self._step_rates = self.rates()
        fetches = self._clock % self._fetch_every == 0
        if fetches:
            self._tell(Kind.FETCH, self.servers)
            self.pushed.expect()
            self.pushed.load()
        elif self._max_delay is not None:
            self._tell(Kind.ASK, self.servers)
            for server in self.servers:
                self._answer(server)
        self.remember_weights(fetched=fetches)
        super().start_step(rows)

    def step(self) -> None:
        """Accumulate gradients and step locally; every `n_push` steps, push."""
        if self.rows > 0:
            self._accrue()
        self._clock += 1
        if self._clock % self._push_every == 0:
            self._push()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """See `Strategy.serve`. The workers send their rates, because they may be at different steps."""
        clocks = Clocks(self.parts, self._max_delay, in_turn=self._in_turn)
        requests: dict[int, Kind] = {}
        message = torch.zeros(2 + len(self._step_rates), dtype=torch.float64, device="cpu")
        drawn = 0
        while not clocks.all_finished:
            receiving = self.group.recv_async(message, None, CONTROL)
            kind, clock, *rates = receiving.wait().tolist()
            worker = receiving.source
            assert worker is not None
            match Kind(int(kind)):
                case Kind.DRAW:
                    self._reply(worker, drawn)
                    drawn += 1
                case Kind.PUSH:
                    self._apply(worker, rates)
                case Kind.END:
                    clocks.finish(worker)
                case request:
                    clocks.request(worker, int(clock))
                    requests[worker] = request
            for waiting in list(filter(clocks.may_begin, requests)):
                if requests.pop(waiting) is Kind.ASK:
                    self._reply(waiting)
                else:
                    for bucket in self.served:
                        bucket.send([waiting])
        for bucket in self.served:
            bucket.wait()

    def _reply(self, worker: int, part: int = 0) -> None:
        self.group.send_async(torch.tensor([part], device="cpu"), worker, CONTROL)

    def _apply(self, worker: int, rates: list[float]) -> None:
        """Step with a worker's gradients."""
        for group, rate in zip(self.server_optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for bucket in self.served:
            bucket.expect([worker])
        for bucket in self.served:
            bucket.set_mean_gradients()
        self.server_optimizer.step()
        for bucket in self.served:
            bucket.zero_grad()

    def end_epoch(self) -> None:
        """Finish all pushes, and send the servers' weights and sums to every rank."""
        if self.trains:
            self._push()
            self._tell(Kind.END, self.servers)
        super().end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return Adagrad's sums of squares."""
        return {"adagrad": self.server_optimizer.state_dict()["state"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load Adagrad's sums of squares; missing sums start at zero.

        The trial's own optimizer doesn't step here, so its state can't match the weights, and is reset.
        """
        optimizer = self.trained.optimizer
        optimizer.load_state_dict({**optimizer.state_dict(), "state": copy.deepcopy(self._fresh)})
        load_exactly(self.server_optimizer, {**self.server_optimizer.state_dict(), "state": state.get("adagrad", {})})

    @torch.no_grad()
    def _accrue(self) -> None:
        """Accumulate the gradients. Also take a local step, unless the next step fetches the servers' weights."""
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
            self._tell(Kind.PUSH, self.servers)
            for index in range(len(self.pushed.buckets)):
                self.pushed.push(index, 1.0, gradients)
            self._accrued = {}


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second if first.is_sparse == second.is_sparse else first.to_dense() + second.to_dense()
