"""An optimizer with pieces of parameters steps as the whole one does, and is whole again with the same state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.strategies import optimizer_shard
from hpsearch_trainers.strategies.optimizer_shard import (
    OptimizerShard,
    assemble,
    trains_each_parameter,
    trains_elements,
)
from hpsearch_trainers.strategies.placement import Piece
from tests.comm.thread_ranks import run_ranks

MORE: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "Adam": [{"amsgrad": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
}
OF_ELEMENTS = [(name, settings) for name in optimizer_shard._OF_ELEMENTS for settings in [{}, *MORE.get(name, [])]]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 6), (5,), (3, 2, 2))]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in parameters()]


PIECES = [
    [Piece(0, 0, 7), Piece(2, 0, 12)],
    [Piece(1, 0, 5), Piece(0, 7, 24)],
]
"""Of two servers."""


def stepped(optimizer: torch.optim.Optimizer, all_of: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(all_of, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()


def in_pieces(group: Group, optimizer: Any, mine: list[nn.Parameter], steps: range) -> None:
    """Step as a server does, and make the optimizer whole."""
    shard = OptimizerShard(optimizer, mine, PIECES[group.rank])
    for step in steps:
        for piece, held in shard.piece_parameters.items():
            gradient = gradients(step)[piece.number].reshape(-1)[piece.start : piece.stop]
            held.grad = gradient.view(held.shape).clone()
        optimizer.step()
        optimizer.zero_grad()
    assemble(optimizer, mine, group, range(2), shard.close())


@pytest.mark.parametrize(("name", "settings"), OF_ELEMENTS)
def test_pieces_step_as_the_whole_and_the_state_is_complete(name, settings):
    def optimizer_of(made: list[nn.Parameter]) -> Any:
        groups = [{"params": made[:1]}, {"params": made[1:], "lr": 0.02}]
        return getattr(torch.optim, name)(groups, lr=0.1, **settings)

    whole = parameters()
    expected = optimizer_of(whole)
    stepped(expected, whole, range(4))

    def serve(group: Group) -> tuple[list[nn.Parameter], Any]:
        mine = parameters()
        made = optimizer_of(mine)
        in_pieces(group, made, mine, range(2))
        in_pieces(group, made, mine, range(2, 4))  # from the state of an epoch before
        return mine, made.state_dict()

    (first, state), (second, other) = run_ranks(2, serve)
    assert torch.equal(first[2], whole[2])
    assert torch.equal(second[1], whole[1])
    assert torch.equal(torch.cat([first[0].view(-1)[:7], second[0].view(-1)[7:]]), whole[0].view(-1))
    for found in (state, other):
        assert_equal(found, expected.state_dict())


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_equal(found[name], expected[name])
    else:
        assert found == expected


def _of_parameters() -> list[Any]:
    muon = getattr(torch.optim, "Muon", None)
    matrix = lambda made: made[:1]  # noqa: E731
    found = [(getattr(torch.optim, name), list) for name in (*optimizer_shard._OF_ELEMENTS, "Adafactor")]
    return [*found, (LAMB, list), (LARS, list), *([(muon, matrix)] if muon else [])]


@pytest.mark.parametrize(("kind", "chosen"), _of_parameters())
def test_a_step_with_each_parameter_is_one_with_all(kind, chosen):
    together, apart = parameters(), parameters()
    one, other = kind(chosen(together), lr=0.1), kind(chosen(apart), lr=0.1)
    assert trains_each_parameter(one)
    for step in range(3):
        for parameter, gradient in zip(together, gradients(step), strict=True):
            parameter.grad = gradient
        one.step()
        for parameter, gradient in zip(apart, gradients(step), strict=True):
            parameter.grad = gradient
            other.step()
            parameter.grad = None
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(chosen(together), chosen(apart), strict=True))


def test_what_is_not_known_is_not_trusted():
    class Derived(torch.optim.SGD):
        """May do anything."""

    class Declared(Derived):
        trains_each_parameter = True

    made = parameters()
    assert not trains_each_parameter(torch.optim.LBFGS(made))
    assert not trains_each_parameter(Derived(made, lr=0.1))
    assert trains_each_parameter(Declared(made, lr=0.1))
    assert not trains_elements(Declared(made, lr=0.1))
    assert not trains_elements(LAMB(made))
    assert trains_elements(torch.optim.SGD(made, lr=0.1))


def test_what_is_frozen_keeps_its_state():
    made = parameters()
    optimizer = torch.optim.Adam(made)
    stepped(optimizer, made, range(1))
    before = copy.deepcopy(optimizer.state_dict())
    made[1].requires_grad_(False)
    trained = [made[0], made[2]]
    shard = OptimizerShard(optimizer, trained, [Piece(0, 0, 24), Piece(1, 0, 12)])
    assert optimizer.param_groups[0]["params"] == trained
    with Group(0, 1) as group:
        assemble(optimizer, trained, group, range(1), shard.close())
    assert_equal(optimizer.state_dict(), before)
