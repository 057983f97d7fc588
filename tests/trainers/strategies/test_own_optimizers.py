"""Optimizers of a user's own, and hooks of their steps, that keep or do something once for all parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small, data, of


class Counting(torch.optim.Optimizer):
    """Divides its rate by the number of its steps, which it counts in its groups, and for all of them."""

    trains_each_parameter = True

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": 0})
        for group in self.param_groups:
            group["total"] = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        states: Any = self.state
        kept = states["all"]
        kept["steps"] = kept.get("steps", 0) + 1
        for group in self.param_groups:
            group["count"] += 1
            group["total"] += group["lr"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rate = group["lr"] / (1 + 0.1 * group["count"] + 0.1 * kept["steps"])
                    parameter.sub_(parameter.grad, alpha=rate)


def wide() -> nn.Module:
    """Return a model whose weights are in several buckets, because weights of 1 MiB have a bucket of their own."""
    return nn.Sequential(nn.Linear(12, 24_000), nn.ReLU(), nn.Linear(24_000, 5))


def counting(model: nn.Module) -> torch.optim.Optimizer:
    first, *rest = model.parameters()
    return Counting([{"params": [first]}, {"params": rest, "lr": 0.002}], lr=0.001)


def trained(group: Group | None, parallel: Any, optimizer: Any, state: Any = None) -> tuple[list[float], Any, Any]:
    params = {"model": "wide", "optimizer": optimizer, "train": data(100), "metrics": {}}
    trainer = Small(FakeTrial(params, group, parallel=parallel))
    if state is not None:
        trainer.load_state_dict(copy.deepcopy(state))
    losses = of([trainer.step() for _ in range(2)], "loss")
    return losses, trainer.state_dict(), trainer.optimizer


def counts(state: Any) -> list[Any]:
    groups = state["optimizer"]["param_groups"]
    found = [(group["count"], round(float(group["total"]), 4)) for group in groups]
    return [*found, state["optimizer"]["state"]["all"]["steps"]]


USES = [
    (2, {"strategy": "parameter_server"}),
    (4, {"strategy": "parameter_server", "servers": 2}),
    (2, {"strategy": "pipeline"}),
    (2, {"strategy": "allreduce"}),
]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("width", "parallel"), USES)
def test_steps_are_counted_once_and_go_on_from_a_checkpoint(width, parallel, monkeypatch):
    monkeypatch.setitem(MODELS, "wide", wide)
    losses, state, _ = trained(None, {}, counting)
    more, last, _ = trained(None, {}, counting, state)
    begun = run_ranks(width, lambda group: trained(group, parallel, counting)[:2])
    assert begun[0][0] == pytest.approx(losses, rel=1e-4)
    ended = run_ranks(width, lambda group: trained(group, parallel, counting, begun[0][1])[:2])
    assert ended[0][0] == pytest.approx(more, rel=1e-4)
    assert counts(begun[0][1]) == counts(state) == [(10, 0.01), (10, 0.02), 10]
    assert counts(ended[0][1]) == counts(last)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("strategy", ["local_sgd", "average_once", "hogwild", "locked"])
def test_each_worker_counts_its_own_steps(strategy, monkeypatch):
    monkeypatch.setitem(MODELS, "wide", wide)
    parallel = {"strategy": strategy}
    state = run_ranks(2, lambda group: trained(group, parallel, counting)[1])[0]
    assert counts(state) == [(10, 0.01), (10, 0.02), 10]
    ended = run_ranks(2, lambda group: trained(group, parallel, counting, state)[1])
    assert counts(ended[0]) == [(20, 0.02), (20, 0.04), 20]


def shrinking(model: nn.Module) -> torch.optim.Optimizer:
    """Make an optimizer after whose steps all weights become smaller, each matrix by its norm."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    @torch.no_grad()
    def shrink(stepped: torch.optim.Optimizer, *_: Any) -> None:
        for group in stepped.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - 0.01 * parameter.norm().clamp(max=2.0))

    optimizer.register_step_post_hook(shrink)
    return optimizer


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("width", "parallel"), USES)
def test_hooks_of_a_step_are_called_once_with_whole_parameters(width, parallel, monkeypatch):
    monkeypatch.setitem(MODELS, "wide", wide)
    losses, *_ = trained(None, {}, shrinking)
    assert run_ranks(width, lambda group: trained(group, parallel, shrinking)[0])[0] == pytest.approx(losses, rel=1e-4)


def test_hooks_of_steps_that_are_never_taken_are_refused(monkeypatch):
    monkeypatch.setitem(MODELS, "wide", wide)
    with pytest.raises(ConfigurationError, match="downpour can't be used with hooks of the optimizer's steps: Adagrad"):
        run_ranks(2, lambda group: trained(group, {"strategy": "downpour"}, shrinking)[0])
