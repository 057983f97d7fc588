"""What a model keeps beside its parameters: one on all workers after each epoch, and whole in a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.buffers import synchronize_buffers
from hpsearch_trainers.moving_average import MovingAverage
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import CLASSES, MODELS, FakeTrial, Small, data, mlp


class Kept(nn.Module):
    """Passes on what it gets, and keeps an average and a count of it; new tensors, as users write it."""

    average: Tensor
    passes: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * inputs.detach().mean((0, 1))
            self.passes += 1
            self.seen |= True
        return inputs - self.average


def of_layer(name: str) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 4)), LAYERS[name](), nn.Flatten(), nn.Linear(12, CLASSES))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(3),
    "cumulative": lambda: nn.BatchNorm1d(3, momentum=None),
    "instance": lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    "kept": Kept,
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
}
MODELS.update({name: partial(of_layer, name) for name in LAYERS})

ROWS: dict[str, Any] = {"train": data(10), "validation": data(7, seed=2), "batch_size": 4}
"""The last batch has two rows, none for the last of three workers."""


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def trained(width: int, options: dict[str, Any], epochs: int, state: Any = None) -> tuple[list[Any], list[Any]]:
    """Train to so many epochs; return the metrics and the state after each, the same on every worker to the bit."""

    def train(group: Group | None) -> tuple[list[Any], list[Any]]:
        trainer = Small(FakeTrial(options, group))
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        metrics, states = [], []
        while trainer.epoch < epochs:
            step = trainer.step()
            metrics.append({name: value for name, value in step.items() if name != "data_wait"})
            states.append(copy.deepcopy(trainer.state_dict()))
        return metrics, states

    of_rank = [train(None)] if width == 1 else run_ranks(width, train)
    for metrics, states in of_rank[1:]:
        assert metrics == of_rank[0][0]
        assert_equal(states, of_rank[0][1])
    return of_rank[0]


def assert_equal(state: Any, other: Any) -> None:
    pairs = list(zip(tensors(state), tensors(other), strict=True))
    assert pairs
    assert all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("layer", "width"),
    [
        pytest.param(layer, width, marks=() if (place - width) % 3 == 0 else pytest.mark.exhaustive)
        for place, layer in enumerate(LAYERS)
        for width in (1, 2, 3)
    ],
)
def test_training_resumed_from_any_epoch_is_training_that_was_never_interrupted(layer, width):
    options = {"model": layer, "average": 0.9, **ROWS}
    metrics, states = trained(width, options, 4)
    assert all(torch.isfinite(tensor).all() for tensor in tensors(states))
    for epoch in range(1, 4):
        resumed, ends = trained(width, options, 4, states[epoch - 1])
        assert resumed == metrics[epoch:]
        assert_equal(ends, states[epoch:])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_counter_counts_steps_at_any_width(width):
    state = trained(width, {"model": "kept", **ROWS}, 2)[1][-1]["model"]
    assert (int(state["1.passes"]), bool(state["1.seen"])) == (6, True)


@pytest.mark.parametrize("width", [2, 3])
def test_a_floating_point_buffer_is_the_mean_of_what_the_workers_have(width):
    """One step of three rows for each: their mean is that of all rows."""
    rows = data(3 * width)
    state = trained(width, {"model": "kept", **ROWS, "train": rows, "batch_size": 3 * width}, 1)[1][-1]["model"]
    assert torch.allclose(state["1.average"], 0.1 * rows[0].view(-1, 3, 4).mean((0, 1)), atol=1e-7)


def test_cumulative_statistics_are_weighted_by_the_batches_that_each_worker_has_seen():
    def synchronized(group: Group) -> tuple[Tensor, int]:
        layer = nn.BatchNorm1d(1, momentum=None)
        for number in range(1 + 2 * group.rank):  # 1 and 3 batches
            layer(torch.tensor([[float(number)], [float(number)]]) + 10 * group.rank)
        synchronize_buffers(layer, group)
        assert layer.running_mean is not None
        assert layer.num_batches_tracked is not None
        return layer.running_mean, int(layer.num_batches_tracked)

    for mean, batches in run_ranks(2, synchronized):
        assert float(mean) == pytest.approx((0 + 10 + 11 + 12) / 4)
        assert batches == 1


@pytest.mark.parametrize("width", [2, 3])
def test_buffers_that_are_equal_on_all_workers_stay_as_they_are_to_the_bit(width):
    values = {
        "mask": torch.full((2, 2), -torch.inf).triu(1),
        "least": torch.full((3,), torch.finfo(torch.float32).min),
        "thirds": torch.arange(1, 9) / 3,
        "short": torch.tensor([0.1, 65504.0], dtype=torch.float16),
        "wide": torch.tensor(1 / 3, dtype=torch.float64),
        "turned": torch.tensor([1 + 2j, 0.3 - 0.1j]).conj(),
        "index": torch.arange(5),
        "none": torch.empty(0),
    }

    def synchronized(group: Group) -> dict[str, Tensor]:
        module = nn.Module()
        for name, value in values.items():
            module.register_buffer(name, value.clone())
        synchronize_buffers(module, group)
        return dict(module.named_buffers())

    for found in run_ranks(width, synchronized):
        assert all(torch.equal(found[name], value) for name, value in values.items())


def test_complex_buffers_are_averaged_and_other_numbers_are_rank_0s():
    def synchronized(group: Group) -> tuple[complex, int]:
        module = nn.Module()
        module.register_buffer("statistic", torch.tensor(1.0))  # one number, before the two of each complex one
        module.register_buffer("turned", torch.tensor(complex(group.rank, 2 * group.rank)))
        module.register_buffer("number", torch.tensor(5 + group.rank))
        synchronize_buffers(module, group)
        _, turned, number = module.buffers()
        return complex(turned), int(number)

    assert run_ranks(3, synchronized) == [(1 + 2j, 5)] * 3


def test_a_trainer_may_have_a_rule_of_its_own():
    class OfRankZero(Small):
        def synchronize_buffers(self, model: nn.Module, group: Group) -> None:
            for buffer in model.buffers():
                group.broadcast(buffer)

    def train(group: Group) -> dict[str, Any]:
        trainer = OfRankZero(FakeTrial({"model": "kept", **ROWS}, group))
        trainer.step()
        return trainer.model.state_dict()

    one, other = run_ranks(2, train)
    assert_equal(one, other)


def as_buffer(model: nn.Module, name: str, tensor: Tensor) -> None:
    model.register_buffer(name, tensor)


def as_untrained_parameter(model: nn.Module, name: str, tensor: Tensor) -> None:
    model.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


@pytest.mark.parametrize("register", [as_buffer, as_untrained_parameter])
def test_a_moving_average_takes_over_what_has_no_average(register):
    model = mlp()
    register(model, "index", torch.arange(100))
    register(model, "mask", torch.tensor([0.0, -torch.inf]))
    register(model, "statistic", statistic := torch.tensor(1.0))
    average = MovingAverage(model, 0.7)
    average.update_parameters(model)
    for step in range(3):
        statistic.fill_(1.0 + step)
        average.update_parameters(model)
    found = average.module.state_dict()
    assert torch.equal(found["index"], torch.arange(100))
    assert torch.equal(found["mask"], torch.tensor([0.0, -torch.inf]))
    assert float(found["statistic"]) == pytest.approx(0.7 * (0.7 * 1 + 0.3 * 2) + 0.3 * 3)
