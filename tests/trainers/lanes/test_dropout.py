"""Dropout of lanes, beside torch's own on each by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.dropout import _drawn, _drawn_as_integers, _draws_doubles
from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, PerLane

RATES = st.one_of(st.sampled_from([0.0, 1e-17, 0.5, 1.0]), st.floats(0, 1))


def steps(tensor: Tensor) -> list[int]:
    """Return the strides, except those of dimensions of one element, for which torch may write any."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


@given(
    st.lists(RATES, min_size=1, max_size=5),
    st.tuples(*(st.integers(0, 7) for _ in range(4))),
    st.sampled_from([*itertools.permutations(range(1, 5))]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.sampled_from([functional.dropout, functional.dropout2d]),
)
def test_each_lane_has_the_noise_of_its_own_generator(rates, shape, order, dtype, function):
    stack = torch.randn(len(rates), *shape).to(dtype).permute(0, *order)
    generators = Generators([torch.Generator().manual_seed(seed) for seed, _ in enumerate(rates)])
    together = function(LaneTensor.of_stack(stack, generators), PerLane(rates), True)
    for seed, rate in enumerate(rates):
        torch.manual_seed(seed)
        alone = function(stack[seed], rate, True)
        lane = together.stack[seed]
        assert (lane.dtype, steps(lane)) == (alone.dtype, steps(alone))
        assert torch.equal(lane, alone)
        assert torch.equal(torch.signbit(lane), torch.signbit(alone))
        assert torch.equal(generators[seed].get_state(), torch.get_rng_state())


@pytest.mark.skipif(not _draws_doubles(), reason="torch draws by MKL on this processor")
@given(st.lists(RATES, min_size=1, max_size=5), st.integers(0, 300))
def test_both_ways_to_draw_give_the_same(rates, count):
    of_lanes = torch.empty(len(rates), count)
    ours, torchs = (Generators([torch.Generator().manual_seed(lane) for lane in range(len(rates))]) for _ in range(2))
    assert torch.equal(
        _drawn_as_integers(of_lanes, PerLane(rates), ours), _drawn(of_lanes, PerLane(rates), torchs).bool()
    )
    for one, other in zip(ours, torchs, strict=True):
        assert torch.equal(one.get_state(), other.get_state())
