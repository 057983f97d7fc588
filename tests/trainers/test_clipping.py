"""Gradients are clipped by the norm of all, whatever their layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers.optimizers import clippable


def clipped(limit: float, *, sparse: bool) -> list[Tensor]:
    table, head = nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2)
    parameters = [*table.parameters(), *head.parameters(), nn.Parameter(torch.zeros(2))]  # the last has no gradient
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.linspace(-1, 2, parameter.numel()).view_as(parameter))
    loss: Any = head(table(torch.tensor([1, 3, 1]))).square().sum()  # a row twice
    loss.backward()
    nn.utils.clip_grad_norm_(clippable(parameters), limit)
    return [parameter.grad.to_dense() for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_sparse_gradients_are_clipped_as_dense_ones(limit):
    for found, expected in zip(clipped(limit, sparse=True), clipped(limit, sparse=False), strict=True):
        assert torch.allclose(found, expected, rtol=1e-6)
