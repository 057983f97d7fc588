"""The servers' Adagrad."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers.strategies.downpour import Adagrad


def gradients(steps: int) -> list[Tensor]:
    """Return gradients of six rows, of which each step has some."""
    generator = torch.Generator().manual_seed(2)
    made = torch.randn(steps, 6, 3, generator=generator)
    made[torch.rand(steps, 6, generator=generator) < 0.5] = 0.0
    return list(made)


def test_each_element_has_a_rate_of_its_own_sum():
    weights = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    parameter = nn.Parameter(weights.clone())
    optimizer = Adagrad([parameter], lr=0.3)
    total, expected = torch.zeros(6, 3), weights.clone()
    for gradient in gradients(5):
        parameter.grad = gradient
        optimizer.step()
        total += gradient**2
        for row in range(6):
            for column in range(3):
                if total[row, column] > 0:
                    expected[row, column] -= 0.3 * gradient[row, column] / total[row, column].sqrt()
    assert torch.allclose(parameter, expected, atol=1e-6)


def test_it_is_torchs_where_no_sum_is_zero():
    ours, theirs = (nn.Parameter(torch.ones(6, 3)) for _ in range(2))
    mine, other = Adagrad([ours], lr=0.3), torch.optim.Adagrad([theirs], lr=0.3)
    for gradient in gradients(5):
        ours.grad = theirs.grad = gradient + 0.1
        mine.step()
        other.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_nothing_is_applied_while_the_sum_is_zero():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([0.0, 2.0])
    Adagrad([parameter], lr=0.5).step()
    assert parameter.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("twice", [False, True])
def test_sparse_gradients_step_as_dense_ones(twice):
    dense, sparse = (nn.Parameter(torch.ones(6, 3)) for _ in range(2))
    one, other = Adagrad([dense], lr=0.3), Adagrad([sparse], lr=0.3)
    for gradient in gradients(5):
        dense.grad = gradient * (2 if twice else 1)
        rows = gradient.abs().sum(1).nonzero()[:, 0]
        indices, values = (rows.repeat(2), gradient[rows].repeat(2, 1)) if twice else (rows, gradient[rows])
        sparse.grad = torch.sparse_coo_tensor(indices[None], values, (6, 3), check_invariants=True)
        one.step()
        other.step()
    assert torch.allclose(dense, sparse, atol=1e-6)
