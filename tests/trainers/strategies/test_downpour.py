"""Downpour SGD: a worker does what the paper says, waits for nobody, and is no further ahead than it may be."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies import strategy_of
from hpsearch_trainers.strategies.downpour import Clocks
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import ROWS, FakeTrial, Rows, Small, data, mlp

Weights = dict[str, Tensor]


def trained(width: int, epochs: int, parallel: Mapping[str, Any], state: Any = None, **params: Any) -> list[Any]:
    """Train on threads; return each rank's state."""

    def train(group: Group) -> Any:
        trainer = Small(FakeTrial(params, group, parallel={"strategy": "downpour", **parallel}))
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        metrics = [trainer.step() for _ in range(epochs)]
        return metrics, trainer.state_dict()

    outcomes = run_ranks(width, train, timeout=60.0)
    assert all(metrics == outcomes[0][0] for metrics, _ in outcomes)
    return [state for _, state in outcomes]


def plain_loop(
    epochs: int,
    n_push: int = 1,
    n_fetch: int = 1,
    rate: float = 0.05,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    parts: int = 1,
) -> Weights:
    """Algorithm 7.1 of the paper with one worker, whose steps have a part of each global batch."""
    inputs, targets = data()
    torch.manual_seed(3)
    model = mlp()
    weights = list(model.parameters())
    at_server = [weight.detach().clone() for weight in weights]
    sums = [torch.zeros_like(weight) for weight in weights]
    for epoch in range(epochs):
        accrued: list[Tensor] | None = None
        steps = zip(*(Shard(ROWS, 20, 7, part, parts).epoch(epoch) for part in range(parts)), strict=True)
        batches = [rows for step in steps for rows in step if len(rows)]
        for step, rows in enumerate(batches):
            if step % n_fetch == 0:
                for weight, value in zip(weights, at_server, strict=True):
                    weight.data.copy_(value)
            model.zero_grad()
            functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(weights, clip_norm)
            found = [weight.grad + weight_decay * weight.detach() for weight in weights if weight.grad is not None]
            accrued = found if accrued is None else [a + g for a, g in zip(accrued, found, strict=True)]
            for weight, gradient in zip(weights, found, strict=True):
                weight.data -= rate * gradient
            if step % n_push == n_push - 1 or step == len(batches) - 1:
                for value, total, gradient in zip(at_server, sums, accrued, strict=True):
                    total += gradient**2
                    value -= torch.where(total == 0, 0.0, rate * gradient / total.sqrt())
                accrued = None
    return {name: value for (name, _), value in zip(model.named_parameters(), at_server, strict=True)}


def assert_close(states: list[Any], expected: Weights) -> None:
    for state in states:
        for name, value in expected.items():
            assert torch.allclose(state["model"][name], value, atol=1e-5), name


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("n_push", "n_fetch", "servers"), [(1, 1, 1), (2, 3, 1), (3, 2, 2), (1, 4, 2), (4, 1, 1), (100, 1, 1), (3, 100, 3)]
)
def test_one_worker_does_as_the_paper_says(n_push, n_fetch, servers):
    """Its pushes are drained at an epoch's end, however few of them there are."""
    states = trained(1 + servers, 2, {"servers": servers, "n_push": n_push, "n_fetch": n_fetch})
    assert_close(states, plain_loop(2, n_push, n_fetch))


def test_decay_and_clipping_are_those_of_each_worker():
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1, momentum=0.9)

    states = trained(2, 2, {"n_push": 2, "n_fetch": 3}, optimizer=optimizer, clip_norm=0.1)
    assert_close(states, plain_loop(2, 2, 3, weight_decay=0.1, clip_norm=0.1))


def test_the_rate_is_that_of_the_schedule():
    states = trained(2, 1, {}, schedule=lambda epoch: 0.5)
    assert_close(states, plain_loop(1, rate=0.025))


@pytest.mark.parametrize(("width", "servers"), [(3, 1), (5, 2)])
def test_a_warm_start_is_one_worker_after_another(width, servers):
    """Each with the weights that the one before has left, as if one of them had all their rows."""
    states = trained(width, 2, {"servers": servers, "warm_start": 2, "n_push": 5, "n_fetch": 5})
    assert_close(states, plain_loop(2, parts=width - servers))


def test_what_was_saved_continues_with_its_sums():
    whole = trained(2, 4, {})
    half = trained(2, 2, {})[0]
    assert half["strategy"]["adagrad"].keys() == {0, 1, 2, 3}
    assert_close(trained(3, 2, {"servers": 2}, half), whole[0]["model"])
    without = trained(2, 2, {}, {**half, "strategy": {"name": "allreduce"}})[0]
    assert not torch.allclose(without["model"]["0.weight"], whole[0]["model"]["0.weight"], atol=1e-3)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_the_state_of_the_trials_own_optimizer_begins_anew(kind):
    """It was another strategy's; here it takes no steps, and would be that of weights long gone."""

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind(model.parameters(), lr=0.05)
        return made

    alone = Small(FakeTrial({"optimizer": optimizer}))
    begun = copy.deepcopy(alone.optimizer.state_dict()["state"])
    alone.step()
    state = trained(2, 1, {}, alone.state_dict(), optimizer=optimizer)[0]
    assert state["optimizer"]["state"].keys() == begun.keys()
    assert all(float(kept["sum"].sum()) == 0 for kept in state["optimizer"]["state"].values())
    more = Small(FakeTrial({"optimizer": optimizer}))
    more.load_state_dict(state)
    more.step()


def test_nobody_is_waited_for_and_who_is_quick_gets_more_rows():
    """A worker whose first loss waits until the other one has had all other rows."""
    last = threading.Event()
    rows = {0: 0, 1: 0}

    def train(group: Group) -> dict[str, float]:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                rows[group.rank] += len(target)
                if group.rank == 0 and rows[0] == ROWS - 10:
                    last.set()
                if group.rank == 1:
                    assert last.wait(50)
            return functional.cross_entropy(output, target)

        return Small(FakeTrial({"loss": loss}, group, parallel={"strategy": "downpour"})).step()

    assert len({str(metrics) for metrics in run_ranks(3, train, timeout=60.0)}) == 1
    assert rows == {0: ROWS - 10, 1: 10}


@pytest.mark.parametrize("n_fetch", [1, 3])
def test_an_epoch_has_each_row_once(n_fetch):
    seen: list[int] = []

    class Numbered(Rows):
        def __getitem__(self, row: int) -> Any:
            seen.append(row)
            return super().__getitem__(row)

    trained(4, 1, {"n_fetch": n_fetch}, train=Numbered(), validation=None, metrics={})
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("n_fetch", "servers", "delay"), [(1, 1, 3), (100, 1, 3), (2, 2, 0), (1, 2, 1)])
def test_nobody_is_further_ahead_than_the_delay(n_fetch, servers, delay):
    ended = {0: 0, 1: 0}
    ahead: list[int] = []

    def train(group: Group) -> None:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                ahead.append(ended[group.rank] - ended[1 - group.rank])
                if group.rank == 1:  # the slow one
                    square = torch.ones(300, 300)
                    for _ in range(20):
                        square @ square
                ended[group.rank] += 1
            return functional.cross_entropy(output, target)

        parallel = {"strategy": "downpour", "servers": servers, "n_fetch": n_fetch, "max_delay": delay}
        Small(FakeTrial({"loss": loss}, group, parallel=parallel)).step()

    run_ranks(2 + servers, train, timeout=60.0)
    assert max(ahead) <= delay + 1  # a worker counts a step here before it asks for the next


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 3))
def test_clocks_keep_the_delay(order, delay):
    """Whoever is next tries to begin its next step."""
    clocks, begun = Clocks(4, delay, in_turn=False), dict.fromkeys(range(4), -1)
    for worker in order:
        clocks.request(worker, begun[worker] + 1)
        if clocks.may_begin(worker):
            begun[worker] += 1
        # Those that ask have ended all steps before.
        assert begun[worker] - min(begun.values()) <= delay + 1


@given(st.lists(st.integers(0, 2), max_size=60))
def test_clocks_let_one_train_after_another(order):
    steps, last = dict.fromkeys(range(3), 0), 3
    clocks, running = Clocks(3, None, in_turn=True), None
    done: list[tuple[int, int]] = []
    for worker in [*order, *(worker for _ in range(20) for worker in range(3))]:
        if running == worker:
            done.append((steps[worker], worker))
            steps[worker] += 1
            running = None
        if steps[worker] == last:
            clocks.finish(worker)
            continue
        clocks.request(worker, steps[worker])
        if clocks.may_begin(worker):
            assert running is None
            running = worker
    assert done == [(step, worker) for step in range(last) for worker in range(3)]
    assert clocks.all_finished


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"n_push": 0}, "parallel.n_push must be a whole number of at least 1, got 0"),
        ({"n_fetch": 1.5}, "parallel.n_fetch must be a whole number of at least 1, got 1.5"),
        ({"max_delay": -1}, "parallel.max_delay must be a whole number of at least 0, got -1"),
        ({"warm_start": True}, "parallel.warm_start must be a whole number of at least 0, got True"),
        ({"servers": 2}, "parallel.servers must leave a worker to train: got 2 of 2 ranks"),
    ],
)
def test_options_that_can_not_be_used(parallel, words):
    with pytest.raises(ConfigurationError, match=words):
        run_ranks(2, lambda group: strategy_of({"strategy": "downpour", **parallel}, group))
