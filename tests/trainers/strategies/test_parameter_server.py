"""What is special to parameter servers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError, PeerLost
from hpsearch_trainers.strategies import strategy_of
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small, curve, of


def served(width: int, servers: int, epochs: int = 3, state: Any = None, **params: Any) -> list[Any]:
    """Train on threads; return each rank's metrics and state."""

    def train(group: Group) -> tuple[list[Any], Any]:
        parallel = {"strategy": "parameter_server", "servers": servers}
        trainer = Small(FakeTrial(params, group, parallel=parallel))
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        return [trainer.step() for _ in range(epochs)], trainer.state_dict()

    return run_ranks(width, train)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("width", "servers"), [(3, 1), (4, 2), (4, 3)])
def test_losses_are_those_of_one_worker(width, servers):
    alone = curve(3)
    for metrics, _ in served(width, servers):
        assert of(metrics, "loss") == pytest.approx(of(alone, "loss"), abs=1e-5)
        assert of(metrics, "validation_loss") == pytest.approx(of(alone, "validation_loss"), abs=1e-5)
        assert of(metrics, "accuracy") == pytest.approx(of(alone, "accuracy"))


def test_weights_and_velocities_are_complete_on_every_rank():
    alone = Small(FakeTrial())
    for _ in range(3):
        alone.step()
    for _, state in served(4, 2):
        for name, value in alone.state_dict()["model"].items():
            assert torch.allclose(state["model"][name], value, atol=1e-5)
        for number, kept in alone.state_dict()["optimizer"]["state"].items():
            found = state["optimizer"]["state"][number]["momentum_buffer"]
            assert torch.allclose(found, kept["momentum_buffer"], atol=1e-5)


def test_the_rest_of_a_trial_may_have_other_servers():
    whole = of(curve(4), "loss")
    begun, state = served(3, 2, 2)[0]
    ended, _ = served(4, 1, 2, state)[0]
    assert of(begun + ended, "loss") == pytest.approx(whole, abs=1e-5)


def channels_last() -> nn.Module:
    convolution = nn.Conv2d(3, 8, 2)
    convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
    assert not convolution.weight.is_contiguous()
    return nn.Sequential(nn.Unflatten(1, (3, 2, 2)), convolution, nn.Flatten(), nn.Linear(8, 5))


@pytest.mark.exhaustive
def test_weights_in_another_order_of_memory_are_whole(monkeypatch):
    monkeypatch.setitem(MODELS, "channels", channels_last)
    found, _ = served(4, 2, model="channels")[0]
    assert of(found, "loss") == pytest.approx(of(curve(3, model="channels"), "loss"), abs=1e-5)


class HalfUsed(nn.Module):
    """The second layer's gradient is missing on every worker, the third one's where a worker has no large row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(12, 5) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.first(inputs)
        large = inputs[:, 0] > 1.5
        return output + large[:, None] * self.third(inputs) if large.any() else output


def test_weights_without_a_gradient_do_not_decay(monkeypatch):
    """As on one worker: what nobody has a gradient for stays as it is; of what some have, the others' is zero."""
    monkeypatch.setitem(MODELS, "half", HalfUsed)
    decaying = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)}
    alone = Small(FakeTrial({"model": "half", **decaying}))
    begun = alone.model.second.weight.clone()  # type: ignore[union-attr, operator]
    alone.step()
    _, state = served(4, 2, 1, model="half", **decaying)[0]
    for name, value in alone.state_dict()["model"].items():
        assert torch.allclose(state["model"][name], value, atol=1e-5), name
    assert torch.equal(state["model"]["second.weight"], begun)


def test_ranks_that_build_differently_begin_with_the_first():
    def train(group: Group) -> float:
        def optimizer(model: nn.Module) -> torch.optim.Optimizer:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * group.rank)
            return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        trial = FakeTrial({"optimizer": optimizer}, group, parallel={"strategy": "parameter_server"})
        return Small(trial).step()["loss"]

    assert run_ranks(3, train) == pytest.approx([curve(1)[0]["loss"]] * 3, abs=1e-5)


@pytest.mark.parametrize("servers", [2, 3])
def test_a_worker_must_be_left(servers):
    parallel = {"strategy": "parameter_server", "servers": servers}
    with pytest.raises(ConfigurationError, match=f"parallel.servers must leave a worker to train: got {servers} of 2"):
        run_ranks(2, lambda group: strategy_of(parallel, group))


def test_an_optimizer_that_looks_over_all_parameters_is_refused():
    def train(group: Group) -> None:
        optimizer = lambda model: torch.optim.LBFGS(model.parameters())  # noqa: E731
        Small(FakeTrial({"optimizer": optimizer}, group, parallel={"strategy": "parameter_server"}))

    with pytest.raises(
        ConfigurationError, match="can't be used with an optimizer that looks over all parameters: each"
    ):
        run_ranks(2, train)


class Failing(torch.optim.SGD):
    trains_each_parameter = True

    def step(self, closure: Any = None) -> Any:
        raise ArithmeticError("no step today")


def test_what_a_server_raises_ends_the_workers():
    def train(group: Group) -> str:
        optimizer = lambda model: Failing(model.parameters(), lr=0.1)  # noqa: E731
        trainer = Small(FakeTrial({"optimizer": optimizer}, group, parallel={"strategy": "parameter_server"}))
        try:
            trainer.step()
        except (ArithmeticError, PeerLost) as error:
            group.close(error)
            return type(error).__name__
        return "nothing"

    assert run_ranks(3, train, timeout=60.0) == ["PeerLost", "PeerLost", "ArithmeticError"]
