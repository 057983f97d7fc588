"""Costs are known before anything is allocated, and are those of the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hpsearch_trainers.architectures import costs, network
from hpsearch_trainers.measures import parameters
from tests.trainers.architectures.drawn import architectures, images


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(value=architectures, inputs=images)
def test_the_parameters_are_those_of_the_network(value: Any, inputs: Any) -> None:
    expected = sum(one.numel() for one in network(value, inputs, 3).parameters())
    found = costs(value, inputs, 3)
    assert found.parameters == expected
    assert found.peak_memory_bytes >= 4 * expected


def test_a_network_of_four_terabytes_is_counted() -> None:
    wide = {"dense": {"features": 10**6}}
    found = costs([wide, wide], (10,), 1)
    assert found.parameters == (10 * 10**6 + 10**6) + (10**12 + 10**6) + (10**6 + 1)
    assert found.flops == 2 * (10 * 10**6 + 10**12 + 10**6)
    assert found.peak_memory_bytes > 3 * 4 * 10**12


def test_counting_leaves_the_random_numbers_alone() -> None:
    state = torch.random.get_rng_state()
    costs(["conv", "tokens", "positions", {"attention": {"heads": 1}}, "dropout"])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("value", "inputs", "flops"),
    [
        ({"conv": {"channels": 4, "kernel": 3}}, (2, 5, 6), 2 * 4 * 2 * 9 * 30),
        ({"conv": {"channels": 4, "kernel": 3, "stride": 2, "groups": 2}}, (2, 5, 6), 2 * 4 * 1 * 9 * 9),
        ({"separable": {"channels": 4, "kernel": 5}}, (2, 5, 6), 2 * 2 * 25 * 30 + 2 * 2 * 4 * 30),
        ({"dense": {"features": 7}}, (3, 5), 2 * 3 * 5 * 7),
        ({"attention": {"heads": 2}}, (3, 8), 2 * 3 * 8 * 24 + 2 * (2 * 3 * 3 * 8) + 2 * 3 * 8 * 8),
        (["relu", "batch_norm", "pool"], (2, 5, 6), 0),
    ],
)
def test_a_multiplication_and_an_addition_are_two_operations(value: Any, inputs: Any, flops: int) -> None:
    linear = {"conv": 4, "separable": 4, "dense": 7, "attention": 8}.get(next(iter(value)), 2)
    assert costs(value, inputs, 1).flops == flops + 2 * linear


def test_it_takes_what_builds_a_module() -> None:
    def build() -> nn.Module:
        frozen = nn.Linear(5, 5)
        frozen.requires_grad_(False)
        return nn.Sequential(frozen, nn.BatchNorm1d(5), nn.Linear(5, 2))

    found = costs(build, (5,), batch=1000, optimizer_copies=2)
    assert found.parameters == parameters(build()) == 10 + 12
    assert found.flops == 2 * 25 + 2 * 10
    numbers = 30 + 22 * 3 + 10  # weights, the optimizer's, the statistics
    batch = 1000 * (5 + 5 + 5 + 2)  # what comes in, and what each module gives
    assert 1 < found.peak_memory_bytes / (4 * (numbers + batch)) < 1.6  # and gradients, while they live


def test_it_is_the_same_where_gradients_are_off() -> None:
    expected = costs("conv")
    with torch.no_grad():
        assert costs("conv") == expected
    with torch.inference_mode():
        assert costs("conv") == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, got 0"),
        ({"optimizer_copies": -1}, "optimizer_copies must be a whole number of at least 0, got -1"),
        ({"optimizer_copies": 0.5}, "optimizer_copies must be a whole number of at least 0, got 0.5"),
        ({"value": nn.Linear(3, 3)}, "value must be an architecture or a function that builds a module"),
        ({"value": lambda: nn.Linear(3, 3, device="cpu"), "inputs": (3,)}, "weight must be made on torch's default"),
        ({"value": ["global_pool", "batch_norm"], "batch": 1}, "Expected more than 1 value per channel"),
    ],
)
def test_what_cant_be_counted_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        costs(**({"value": "conv"} | given))


CELL = {
    "2": [{"from": 0, "operation": "sep_3x3"}, {"from": 1, "operation": "skip"}],
    "3": [{"from": 1, "operation": "avg_3x3"}, {"from": 1, "operation": "sep_5x5"}],
}
BLOCKS = [{"conv": {"channels": 16}}, "pool", {"separable": {"channels": 32}}, "residual_reduction"]
MEASURED: dict[str, tuple[Any, tuple[int, ...], float]] = {
    "rows": ([{"dense": {"features": 256}}] * 2, (128,), 0.01),
    "NASNet": ([{"conv": {"channels": 8}}, {"cells": {"cell": CELL, "stages": 2, "repeats": 2}}], (3, 16, 16), 0.01),
    "images": (BLOCKS, (3, 16, 16), 0.1),  # convolutions need memory of their own while they run
}
"""Architectures, inputs, and how far an estimate may be off."""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize("name", MEASURED)
def test_the_memory_is_what_torch_allocates_on_the_cpu(name: str, copies: int) -> None:
    value, inputs, error = MEASURED[name]
    made = network(value, inputs)
    optimizers: list[Any] = [
        torch.optim.SGD(made.parameters(), fused=True),
        torch.optim.SGD(made.parameters(), momentum=0.9, fused=True),
        torch.optim.Adam(made.parameters(), fused=True),
    ]
    optimizer = optimizers[copies]

    def step() -> None:
        made(torch.rand(32, *inputs)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    states = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    kept = [*made.parameters(), *made.buffers(), *states]
    measured = most + sum(one.numel() * one.element_size() for one in kept)
    found = costs(value, inputs, batch=32, optimizer_copies=copies).peak_memory_bytes
    assert found == pytest.approx(measured, rel=error)
