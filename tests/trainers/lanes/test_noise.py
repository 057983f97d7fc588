"""Noise that is hashed for all lanes at once: where it comes from, and how it is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, PerLane
from hpsearch_trainers.lanes.noise import Noise

SEEDS = st.integers(0, 2**63 - 1)
COUNT = 40_000
CPU = torch.device("cpu")


def begun(seeds: Sequence[int], passes: int = 1) -> Noise:
    noise = Noise(len(seeds), CPU)
    noise.begin_epoch(seeds)
    for _ in range(passes):
        noise.begin_pass()
    return noise


def unit(numbers: Tensor) -> Tensor:
    """Return numbers as if drawn from a distribution with mean 0 and variance 1."""
    return numbers.double().div(2**31).add(2**-32).mul(math.sqrt(3))


def test_a_stream_is_that_of_splitmix64():
    """The first five numbers of its reference implementation, for the seed 1234567."""
    words = begun([1234567]).numbers(0, 10).contiguous().view(torch.int64)[0]
    assert [one % 2**64 for one in words.tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(SEEDS, min_size=1, max_size=5), SEEDS, st.integers(1, 9), st.integers(0, 9), st.integers(1, 50))
def test_it_follows_from_seed_pass_call_and_element_alone(others, seed, passes, call, count):
    alone = begun([seed], passes).numbers(call, count + 7)[0, :count]
    for place in range(len(others) + 1):
        noise = begun([*others[:place], seed, *others[place:]])
        noise.numbers(3, 5)  # whatever was drawn before, or begun and given up
        noise.begin_epoch([*others[:place], seed, *others[place:]])
        for _ in range(passes):
            noise.begin_pass()
        assert torch.equal(noise.numbers(call, count)[place], alone)


def test_no_word_comes_twice():
    noise = begun([5, 6, 7, 2**62])
    drawn = [noise.numbers(call, COUNT) for call in (0, 1, 2, 63)]
    noise.begin_pass()
    drawn += [noise.numbers(call, COUNT) for call in (0, 1)]
    words = torch.cat(drawn).contiguous().view(torch.int64)
    assert len({*words.flatten().tolist()}) == words.numel()


def test_lanes_passes_calls_and_elements_are_uncorrelated():
    """So are seeds that follow each other, and the two halves of each word of 64 bits."""
    noise = begun([5, 6, 7, 2**62])
    rows = [unit(row) for row in noise.numbers(0, COUNT)]
    rows += [unit(row) for row in noise.numbers(1, COUNT)]
    noise.begin_pass()
    rows += [unit(row) for row in noise.numbers(0, COUNT)]
    first = rows[0]
    rows += [first.roll(shift) for shift in (1, 2, 3, 64, 784)]
    rows += [first.view(-1, 2).flip(1).flatten()]
    together = torch.stack(rows)
    correlations = together @ together.T / COUNT - torch.eye(len(rows))
    assert correlations[:-1, :-1].abs().max() < 4.5 / math.sqrt(COUNT), "of 136 pairs one is above it in a thousand"
    assert abs(first.view(-1, 2).prod(1).mean()) < 4.5 / math.sqrt(COUNT / 2)
    assert together.mean(1).abs().max() < 4.5 / math.sqrt(COUNT)


def test_each_bit_is_set_as_often_as_not():
    numbers = begun([11]).numbers(2, COUNT)[0]
    for bit in range(32):
        share = ((numbers >> bit) & 1).double().mean()
        assert abs(share - 0.5) < 4.5 * 0.5 / math.sqrt(COUNT), bit


def dropped(rates: Sequence[float], shape: Sequence[int], noise: Noise, function=functional.dropout) -> Tensor:
    generators = Generators([torch.Generator() for _ in rates], rounded=True, noise=noise)
    made = function(LaneTensor.of_stack(torch.ones(len(rates), *shape), generators), PerLane(rates), True)
    assert isinstance(made, LaneTensor)
    return made.stack


def test_as_many_are_dropped_as_the_rate_says_and_the_mean_stays():
    rates = [0.0, 1e-4, 0.01, 0.1, 0.25, 0.3, 0.5, 2 / 3, 0.75, 0.9, 0.999, 1.0]
    made = dropped(rates, (COUNT,), begun(range(len(rates))))
    for rate, row in zip(rates, made, strict=True):
        share = (row == 0).double().mean().item()
        assert abs(share - rate) <= 4.5 * math.sqrt(rate * (1 - rate) / COUNT)
        kept = row[row != 0]
        assert torch.equal(kept, torch.full_like(kept, 1 / (1 - rate) if rate < 1 else 0.0))


@given(st.floats(0, 1), SEEDS)
def test_every_rate_is_kept_to(rate, seed):
    count = 4000
    share = (dropped([rate], (count,), begun([seed])) == 0).double().mean().item()
    assert abs(share - rate) <= 6 * math.sqrt(rate * (1 - rate) / count) + 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_whole_channels_are_dropped_in_any_dtype(dtype):
    generators = Generators([torch.Generator() for _ in range(2)], rounded=True, noise=begun([1, 2]))
    stack = torch.ones(2, 50, 8, 3, 3, dtype=dtype)
    lanes = functional.dropout2d(LaneTensor.of_stack(stack, generators), PerLane([0.5, 0.25]), True)  # type: ignore[arg-type]
    assert isinstance(lanes, LaneTensor)
    made = lanes.stack
    assert made.dtype == dtype
    assert torch.equal(made, made[..., :1, :1].expand_as(made))
    assert [*map(len, map(torch.unique, made))] == [2, 2]


def test_the_rates_of_others_dont_change_which_number_a_lane_has():
    """A layer that nobody drops anything in is left out, but is counted."""
    layers = {}
    for first in (0.0, 0.4):
        noise = begun([3, 4])
        dropped([0.0, first], (99,), noise)
        layers[first] = dropped([0.5, 0.5], (99,), noise)
    assert torch.equal(layers[0.0], layers[0.4])
    assert not torch.equal(layers[0.0], dropped([0.5, 0.5], (99,), begun([3, 4])))
