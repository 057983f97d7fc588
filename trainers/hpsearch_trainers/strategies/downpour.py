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

import collections
import copy
import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.pushes import PushedBuckets, ServedBucket
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, StrategyCapabilities, Trained

_PATIENCE = 1.0
"""Interval in seconds of the messages to finished workers that the epoch is still running."""


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


class DownpourServer:
    """The server side of an epoch.

    Args:
        buckets: This server's buckets.
        adagrad: The optimizer of their parameters only.
        group: All ranks.
        clocks: Decides which workers may start a step.
        first: Whether this is the first server, which regularly tells finished workers that the epoch is still running.
    """

    def __init__(
        self,
        buckets: Sequence[ServedBucket],
        adagrad: Adagrad,
        group: Group,
        clocks: Clocks,
        *,
        first: bool,
    ) -> None:
        self._adagrad, self._group = adagrad, group
        self._buckets, self._clocks, self._first = buckets, clocks, first
        self._requests: dict[int, Kind] = {}
        self._last_wait_message = time.monotonic()
        self._answers: collections.deque[Handle[Tensor]] = collections.deque(maxlen=64)

    def run(self) -> None:
        """Serve until all workers have finished their epochs."""
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
        """Answer the workers that may start their step."""
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
"""Tag of control messages. Buckets have the tags 1, 2, ..."""


class Kind(enum.IntEnum):
    """Kinds of control messages between a worker and a server."""

    DRAW = enum.auto()
    """Request the next rows. Only the first server receives it. It answers `GO` with the index of a part as the clock.
    """
    ASK = enum.auto()
    """Request to start a step. The server answers `GO` when the worker may start."""
    FETCH = enum.auto()
    """Request to start a step with new weights. The server answers with the weights of each bucket instead of `GO`."""
    PUSH = enum.auto()
    """Announce a push. The gradients of each bucket follow."""
    END = enum.auto()
    """Report the end of the worker's epoch. Answered by `GO` when all workers have finished, and by `WAIT` before."""
    GO = enum.auto()
    WAIT = enum.auto()
    """Tell finished workers that the epoch is still running. Only the first server sends it."""


def control(kind: Kind, clock: int, rates: Sequence[float]) -> Tensor:
    """Create a control message.

    Args:
        kind: Kind of the message.
        clock: The worker's step, from 0.
        rates: Learning rate of each parameter group.
    """
    return torch.tensor([float(kind), float(clock), *rates], dtype=torch.float64, device="cpu")


class DownpourWorker:
    """The worker side of an epoch.

    Args:
        pushed: The buckets of all servers.
        group: All ranks.
        servers: The ranks of the servers.
    """

    def __init__(self, pushed: PushedBuckets, group: Group, servers: Sequence[int]) -> None:
        self._pushed, self._group, self._servers = pushed, group, servers

    def draw(self, rates: Sequence[float]) -> int:
        """Return the index of the next part of the epoch that no worker has drawn, from 0."""
        self._group.send_async(control(Kind.DRAW, 0, rates), self._servers[0], CONTROL)
        return int(self._group.recv(control(Kind.WAIT, 0, rates), self._servers[0], CONTROL)[1])

    def ask(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may start a step."""
        self._send(Kind.ASK, clock, rates)
        for server in self._servers:
            self._answer(server, rates)

    def fetch(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may start a step, and load the servers' weights."""
        self._send(Kind.FETCH, clock, rates)
        self._pushed.expect()
        self._pushed.load()

    def push(self, clock: int, rates: Sequence[float], gradients: Sequence[Tensor | None]) -> None:
        """Send gradients, by parameter index. The caller may change them afterwards."""
        self._send(Kind.PUSH, clock, rates)
        for index in range(len(self._pushed.buckets)):
            self._pushed.push(index, 1.0, gradients)

    def end(self, clock: int, rates: Sequence[float]) -> None:
        """Wait without a timeout until all workers have finished and the servers have applied their pushes."""
        self._send(Kind.END, clock, rates)
        for server in self._servers:
            while self._answer(server, rates) is Kind.WAIT:
                pass

    def _send(self, kind: Kind, clock: int, rates: Sequence[float]) -> None:
        # Asynchronous to avoid a deadlock: a server may wait for another worker's gradients, and that worker for us.
        for server in self._servers:
            self._group.send_async(control(kind, clock, rates), server, CONTROL)

    def _answer(self, server: int, rates: Sequence[float]) -> Kind:
        answer = self._group.recv(control(Kind.WAIT, 0, rates), server, CONTROL)
        return Kind(int(answer[0]))


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
        if self.trains:
            self._worker = DownpourWorker(self.pushed, self.group, self.servers)
            self._accrued: dict[int, Tensor] = {}
            self._clock = 0
            return
        clocks = Clocks(self.parts, self._max_delay, in_turn=self._in_turn)
        first = self.group.rank == self.servers[0]
        self._server = DownpourServer(self.served, self.server_optimizer, self.group, clocks, first=first)

    def epoch_steps(self, shard: Shard, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """Yield parts of the global batches. A worker draws a part when it is ready, so fast workers get more parts."""
        if self._in_turn:
            yield from super().epoch_steps(shard, epoch)
            return
        ticket = self._worker.draw(self.rates())
        for number, part in enumerate(shard.all_parts(epoch)):
            if number == ticket:
                yield part
                ticket = self._worker.draw(self.rates())

    def start_step(self, rows: int) -> None:
        """Wait until the step may start; every `n_fetch` steps, fetch the servers' weights."""
        self._step_rates = self.rates()
        if self._clock % self._fetch_every == 0:
            self._worker.fetch(self._clock, self._step_rates)
        elif self._max_delay is not None:
            self._worker.ask(self._clock, self._step_rates)
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
        self._server.run()

    def end_epoch(self) -> None:
        """Finish all pushes, and send the servers' weights and sums to every rank."""
        if self.trains:
            self._push()
            self._worker.end(self._clock, self.rates())
            del self._worker
        else:
            del self._server
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
        if steps:
            self.pushed.record_step()

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
