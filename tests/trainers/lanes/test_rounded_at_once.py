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
from torch.utils._python_dispatch import TorchDispatchMode

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


class _Called(TorchDispatchMode):
    """Remembers which of torch's operators are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("size", "output", "even"),
    [
        ((4, 6), 2, True),
        ((4, 6), (2, 3), True),
        ((4, 6), (None, 3), True),
        ((5, 6), (1, 6), True),
        ((5, 5), 2, False),
        ((4, 6), (2, 4), False),
        ((2, 2), 3, False),
    ],
)
def test_adaptive_pools_whose_windows_are_alike_are_pools_that_add_up_in_one_order(size, output, even):
    with _Called() as seen:
        called(lambda x: _lanes_alone(x, output), [(2, 3, *size)], 0, False, at_once=True)
    assert ("aten::_adaptive_avg_pool2d" not in seen.names) == even


def _lanes_alone(x: Any, output: Any) -> Any:
    """Pool lanes, and each lane by itself as torch defines it: by means over its windows."""
    if type(x) is not Tensor:
        return functional.adaptive_avg_pool2d(x, output)
    wanted = [size if want is None else want for size, want in zip(x.shape[2:], _pair(output), strict=True)]
    rows, columns = (
        [slice(place * size // want, -(-(place + 1) * size // want)) for place in range(want)]
        for size, want in zip(x.shape[2:], wanted, strict=True)
    )
    return torch.stack([torch.stack([x[..., row, column].mean((2, 3)) for column in columns], 2) for row in rows], 2)


def _pair(output: Any) -> Sequence[Any]:
    return output if isinstance(output, tuple) else (output, output)
