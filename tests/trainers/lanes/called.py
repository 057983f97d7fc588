"""Functions of torch called of all lanes at once, beside each lane by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor
from hpsearch_trainers.lanes.noise import Noise


def lanes_of(tensors: Sequence[Tensor], *, wanted: bool = True, at_once: bool = False) -> LaneTensor:
    """Make tensors of each lane one of all, in a pack that may round."""
    noise = Noise(len(tensors), torch.device("cpu")) if at_once else None
    generators = Generators([torch.Generator() for _ in tensors], rounded=True, noise=noise)
    stack = torch.stack(list(tensors))
    return LaneTensor.of_parameter(stack.requires_grad_(wanted), generators)


def called(
    function: Any, shapes: Sequence[tuple[int, ...]], seed: int, no_number: bool, *, at_once: bool = False
) -> None:
    """Call a function of lanes and of each; compare values and gradients, also where a lane has no numbers."""
    generator = torch.Generator().manual_seed(seed)
    lanes = 4
    drawn = [[torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(lanes)] for shape in shapes]
    if no_number:
        drawn[0][1] = drawn[0][1] * float("nan")
    ours = [lanes_of(tensors, at_once=at_once) for tensors in drawn]
    made = function(*ours)
    assert isinstance(made, LaneTensor)
    assert made.is_stack, "it was computed for all at once"
    weights = torch.randn(made.shape, generator=generator)
    stacks = [one.stack for one in ours]
    close: Any = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
    coming = torch.autograd.grad((made.stack * weights).sum(), stacks)
    for lane in range(lanes):
        alone = [tensors[lane].clone().requires_grad_() for tensors in drawn]
        expected = function(*alone)
        torch.testing.assert_close(made.stack[lane], expected, **close)
        assert made.stack[lane].is_contiguous() == expected.is_contiguous()
        given_alone = torch.autograd.grad((expected * weights).sum(), alone)
        for one, other in zip(coming, given_alone, strict=True):
            torch.testing.assert_close(one[lane], other, **close)
