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

import collections
import copy
import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.optimizer_shard import OptimizerShard, assemble
from hpsearch_trainers.strategies.placement import Bucket, Piece
from hpsearch_trainers.strategies.pushes import Fetches, ServedBucket, gradients_of, pushes_to
from hpsearch_trainers.strategies.served import Served
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, Trained

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


class Adagrad(torch.optim.Optimizer):
    """The rate of element i is lr / √Σ g_i², over all its gradients until now (Dean et al. 2012, section 4.1).

    Unlike torch's there is no ε: where the sum is zero nothing is applied. Of sparse gradients only the rows that they
    have are touched.

    Args:
        params: Parameters, or groups of them.
        lr: The paper's gamma.
    """

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take a step with each parameter that has a gradient; nothing is computed anew."""
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
"""Tag of what isn't a bucket's; those have the tags from 1."""


class Kind(enum.IntEnum):
    """What a worker tells a server, and what a server answers."""

    DRAW = enum.auto()
    """Which rows are next? Asked of the first server, and answered by `GO` with the number of a part as its clock."""
    ASK = enum.auto()
    """May I begin the step? Answered by `GO`, when it may."""
    FETCH = enum.auto()
    """The same, and answered by the weights of each bucket."""
    PUSH = enum.auto()
    """Gradients of each bucket follow."""
    END = enum.auto()
    """My epoch is over. Answered by `GO`, when all workers' is; and by `WAIT`, over and over, until then."""
    GO = enum.auto()
    WAIT = enum.auto()
    """Of the first server alone."""


def control(kind: Kind, clock: int, rates: Sequence[float]) -> Tensor:
    """Make a message.

    Args:
        kind: What it says.
        clock: The worker's step, from 0.
        rates: Of each group of parameters.
    """
    return torch.tensor([float(kind), float(clock), *rates], dtype=torch.float64, device="cpu")


class DownpourWorker:
    """Talks to the servers in an epoch.

    Args:
        parameters: Those that servers train, by number.
        buckets: Of all servers.
        group: All ranks.
        servers: Which of them serve.

    Attributes:
        fetches: The weights that come.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], buckets: Sequence[Bucket], group: Group, servers: Sequence[int]
    ) -> None:
        self._buckets, self._group, self._servers = buckets, group, servers
        self._pushes = pushes_to(servers, buckets, group, first_tag=1, device=parameters[0].device)
        self.fetches = Fetches(parameters, buckets, group, servers, first_tag=1)

    def draw(self, rates: Sequence[float]) -> int:
        """Take a number: those of an epoch are given to its workers in turn, from 0."""
        self._group.send_async(control(Kind.DRAW, 0, rates), self._servers[0], CONTROL)
        return int(self._group.recv(control(Kind.WAIT, 0, rates), self._servers[0], CONTROL)[1])

    def ask(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may begin a step."""
        self._send(Kind.ASK, clock, rates)
        for server in self._servers:
            self._answer(server, rates)

    def fetch(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until this worker may begin a step, and take the weights."""
        self._send(Kind.FETCH, clock, rates)
        self.fetches.expect()
        self.fetches.load()

    def push(self, clock: int, rates: Sequence[float], gradients: Sequence[Tensor | None]) -> None:
        """Send gradients, by number; they may be changed afterwards."""
        self._send(Kind.PUSH, clock, rates)
        for bucket, push in zip(self._buckets, self._pushes, strict=True):
            push.send(1.0, gradients_of(bucket, gradients))

    def end(self, clock: int, rates: Sequence[float]) -> None:
        """Wait until all workers' epochs are over, and their pushes are in the weights, however long that takes."""
        self._send(Kind.END, clock, rates)
        for server in self._servers:
            while self._answer(server, rates) is Kind.WAIT:
                pass

    def _send(self, kind: Kind, clock: int, rates: Sequence[float]) -> None:
        # Not to wait for a server that may be waiting for the gradients of another worker, who waits for one of ours.
        for server in self._servers:
            self._group.send_async(control(kind, clock, rates), server, CONTROL)

    def _answer(self, server: int, rates: Sequence[float]) -> Kind:
        answer = self._group.recv(control(Kind.WAIT, 0, rates), server, CONTROL)
        return Kind(int(answer[0]))


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
