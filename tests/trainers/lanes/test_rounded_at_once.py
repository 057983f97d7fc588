"""Functions of torch that are called once for all lanes where calls are dear, and lane by lane elsewhere."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.trainers.lanes.called import called, lanes_of

_OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, torch.maximum, torch.minimum]


@given(
    st.sampled_from(_OPERATORS),
    st.sampled_from([((3, 5), (5,)), ((5,), (3, 5)), ((3, 1, 2), (4, 1)), ((1, 4), (3, 1)), ((2, 3, 4), (1,))]),
    st.booleans(),
    st.integers(0, 99),
)
def test_tensors_of_different_shapes(function, shapes, no_number, seed):
    called(function, shapes, seed, no_number, at_once=True)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(), (3,), (2, 2)]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_group_norms(rows, groups, size, biased, no_number, seed):
    channels = 2 * groups
    shapes = [(rows, channels, *size), (channels,), (channels,)]
    if biased:
        called(lambda x, w, b: functional.group_norm(x, groups, w, b), shapes, seed, no_number, at_once=True)
    else:
        called(lambda x: functional.group_norm(x, groups), shapes[:1], seed, no_number, at_once=True)


def _looked_up(rows: Sequence[Tensor], weights: Sequence[Tensor], **given: Any) -> Any:
    return functional.embedding(lanes_of(rows, wanted=False, at_once=True), lanes_of(weights, at_once=True), **given)


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 99))
def test_embeddings(count, features, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(count, shape, generator=generator) for _ in range(3)]
    weights = [torch.randn(count, features, generator=generator) for _ in range(3)]
    made = _looked_up(rows, weights)
    assert made.is_stack
    for ours, x, weight in zip(made.stack, rows, weights, strict=True):
        assert torch.equal(ours, functional.embedding(x, weight))


@pytest.mark.parametrize("row", [-1, 3, 5, -4])
def test_a_row_that_is_not_a_lanes_own_is_refused(row):
    """There is one beside it, which is another lane's."""
    weights = [torch.ones(3, 2) for _ in range(3)]
    with pytest.raises(IndexError):
        _looked_up([torch.tensor([0]), torch.tensor([row]), torch.tensor([2])], weights)


@pytest.mark.parametrize("given", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_other_embeddings_are_computed_lane_by_lane(given):
    rows, weights = [torch.tensor([0, 1])] * 2, [torch.randn(3, 2) for _ in range(2)]
    made = _looked_up(rows, [weight.clone() for weight in weights], **given)
    assert not made.is_stack
    for ours, weight in zip(made.slices, weights, strict=True):
        assert torch.equal(ours, functional.embedding(rows[0], weight, **given))
