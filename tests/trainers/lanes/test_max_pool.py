"""Pooling of lanes' images at once, beside torch's own of each lane."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional

import hpsearch_trainers.lanes.rules  # noqa: F401 (its rule is in force once it is imported)
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor

PAIRS = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))
NUMBERS = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0, math.inf, -math.inf, math.nan])


@given(
    st.data(),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 18), st.integers(2, 8), st.integers(2, 8)),
    st.tuples(PAIRS, st.none() | PAIRS, st.integers(0, 1), st.integers(1, 2), st.booleans()),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_each_lane_has_the_pixels_and_the_gradients_that_it_has_alone(data, shape, window, dtype):
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.tensor(data.draw(st.lists(NUMBERS, min_size=1, max_size=6)))
    stack = numbers[torch.randint(len(numbers), shape, generator=generator)].to(dtype)
    try:
        expected = [functional.max_pool2d(one, *window) for one in stack]
    except RuntimeError:  # no window fits
        assume(False)
    lanes = Generators([torch.Generator() for _ in stack])
    ours, theirs = stack.clone().requires_grad_(), stack.clone().requires_grad_()
    made: Any = functional.max_pool2d(LaneTensor.of_stack(ours, lanes), *window)
    alone = torch.stack([functional.max_pool2d(one, *window) for one in theirs])
    assert same_bits(made.stack, torch.stack(expected))
    coming = torch.randn(alone.shape, generator=generator).to(dtype)
    for result, gradient in ((made.stack, coming), (alone, coming)):
        torch.autograd.backward(result, gradient)
    assert same_bits(ours.grad, theirs.grad)


def test_where_the_places_are_wanted_each_lane_is_pooled_by_itself():
    stack = torch.randn(2, 3, 5, 6, 6)
    lanes = LaneTensor.of_stack(stack, Generators([torch.Generator() for _ in stack]))
    given: Any = functional.max_pool2d(lanes, 2, return_indices=True)
    pixels, places = given
    for lane, one in enumerate(stack):
        assert same_bits((pixels.stack[lane], places.stack[lane]), functional.max_pool2d(one, 2, return_indices=True))
