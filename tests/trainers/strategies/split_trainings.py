"""Models that are split over ranks, and trainings of them that are compared with those of one rank."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.lamb import LAMB
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import CLASSES, FEATURES, FakeTrial, Small


def trial(params: Mapping[str, Any], group: Group | None, strategy: str, **parallel: Any) -> FakeTrial:
    """Return a trial that is split, or one with a single rank."""
    return FakeTrial(params, group, parallel={"strategy": strategy, **parallel} if group is not None else {})


def train_here(
    params: Mapping[str, Any], group: Group | None, epochs: int, state: Any, strategy: str, **parallel: Any
) -> tuple[list[dict[str, float]], Any]:
    """Train on this rank; return the metrics and the state."""
    trainer = Small(trial(params, group, strategy, **parallel))
    if state is not None:
        trainer.load_state_dict(copy.deepcopy(state))
    return [trainer.step() for _ in range(epochs)], copy.deepcopy(trainer.state_dict())


def train(
    params: Mapping[str, Any], width: int = 1, epochs: int = 3, state: Any = None, strategy: str = "", **parallel: Any
) -> tuple[list[dict[str, float]], Any]:
    """Train; return the metrics, the same on all ranks, and rank 0's state."""

    if width == 1:
        return train_here(params, None, epochs, state, strategy)
    of_rank = run_ranks(width, lambda group: train_here(params, group, epochs, state, strategy, **parallel))
    assert all(metrics == of_rank[0][0] for metrics, _ in of_rank)
    return of_rank[0]


def assert_alike(found: Any, expected: Any, share: float = 1e-4) -> None:
    """Compare metrics and states to rounding; differences are relative."""
    for one, other in zip(found[0], expected[0], strict=True):
        for name in ("loss", "validation_loss"):
            assert one[name] == pytest.approx(other[name], rel=share)
    for part in ("model", "optimizer", "average"):
        assert (part in found[1]) == (part in expected[1])
        assert_tensors_alike(found[1].get(part), expected[1].get(part), 10 * share)


def assert_tensors_alike(found: Any, expected: Any, share: float) -> None:
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_tensors_alike(found[name], value, share)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_tensors_alike(one, other, share)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=share, atol=share / 10)
    else:
        assert found == expected


def deep() -> nn.Module:
    """Has a nested part, a layer in place, a frozen one, one without a bias, and outputs of several dimensions."""
    frozen = nn.Linear(16, 16)
    frozen.requires_grad_(False)
    return nn.Sequential(
        nn.Linear(FEATURES, 16),
        nn.Sequential(nn.ReLU(inplace=True), nn.LayerNorm(16), nn.Unflatten(1, (4, 4))),
        nn.Linear(4, 4, bias=False),
        nn.Flatten(),
        frozen,
        nn.Tanh(),
        nn.Linear(16, CLASSES),
    )


def tied() -> nn.Module:
    """Return a model whose first layers share a weight."""
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES))
    model[1].weight = model[0].weight
    return model


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, centered=True),
    "lamb": lambda model: LAMB(model.parameters(), lr=0.01),
    "groups": lambda model: torch.optim.SGD(
        [
            {"params": [value for value in model.parameters() if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in model.parameters() if value.dim() == 1], "lr": 0.2, "momentum": 0.5},
        ],
        lr=0.05,
    ),
    "some": lambda model: torch.optim.SGD(list(model.parameters())[-2:], lr=0.05),
}
