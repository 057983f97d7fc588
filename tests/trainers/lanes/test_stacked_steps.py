"""Optimizers that step together, beside each by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hpsearch_trainers.lanes.bits import nearly_equal, same_bits
from hpsearch_trainers.lanes.optimizers import kind_at_once, kind_of
from hpsearch_trainers.lanes.stacked_steps import StackedSteps, stacked_steps

SHAPES = st.lists(st.lists(st.integers(0, 40), min_size=0, max_size=3), min_size=1, max_size=4)
RATES = st.floats(1e-6, 1.0)
DECAYS = st.sampled_from([0, 0.0, 1e-4, 0.3])
BELOW_ONE = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.999]), st.floats(0, 0.9999))
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "dampened": (torch.optim.SGD, {"momentum": BELOW_ONE.filter(bool), "dampening": BELOW_ONE}),
    "nesterov": (torch.optim.SGD, {"momentum": BELOW_ONE.filter(bool), "nesterov": st.just(True)}),
    "adam": (torch.optim.Adam, {"betas": st.tuples(BELOW_ONE, BELOW_ONE), "eps": st.floats(1e-12, 0.1)}),
    "adamw": (torch.optim.AdamW, {"betas": st.tuples(BELOW_ONE, BELOW_ONE)}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": st.just(True)}),
    "amsgrad w": (torch.optim.AdamW, {"amsgrad": st.just(True)}),
}


class Twice:
    """The same optimizers twice: of parameters that are parts of stacks, and of ones that aren't."""

    def __init__(
        self, kind: Any, shapes: Sequence[Sequence[int]], of_lanes: Sequence[dict[str, Any]], split: int
    ) -> None:
        generator = torch.Generator().manual_seed(len(shapes))
        self.generator = generator
        self.stacks = [torch.randn(len(of_lanes), *shape, generator=generator) for shape in shapes]
        self.ours, self.theirs = (
            [[nn.Parameter(one if shared else one.clone()) for one in lane] for lane in zip(*self.stacks, strict=True)]
            for shared in (True, False)
        )
        self.optimizers, self.alone = (
            [kind(_groups(own, split, of), **of) for own, of in zip(given, of_lanes, strict=True)]
            for given in (self.ours, self.theirs)
        )

    def gradients(self, scale: float = 1.0) -> list[Tensor]:
        return [scale * torch.randn(stack.shape, generator=self.generator) for stack in self.stacks]

    def step_alone(
        self, optimizers: Sequence[Any], parameters: Sequence[Sequence[Tensor]], gradients: Sequence[Tensor]
    ) -> None:
        for optimizer, own, coming in zip(optimizers, parameters, zip(*gradients, strict=True), strict=True):
            for parameter, gradient in zip(own, coming, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
            optimizer.zero_grad()

    def together(self) -> StackedSteps | None:
        return stacked_steps(self.optimizers, self.ours, self.stacks)

    def assert_same(self) -> None:
        assert same_bits(self.ours, self.theirs)
        for one, other in zip(self.optimizers, self.alone, strict=True):
            assert same_bits(one.state_dict(), other.state_dict())


def _groups(parameters: Sequence[Tensor], split: int, of: dict[str, Any]) -> list[dict[str, Any]]:
    """Return two groups, of which the first has another rate and decay, as for layers that are frozen at first."""
    other = {"lr": of["lr"] / 3, "weight_decay": 0.01}
    return [{"params": parameters[:split], **other}, {"params": parameters[split:]}]


@given(st.data(), st.sampled_from([*WAYS]), SHAPES, st.booleans())
@settings(deadline=None)
def test_steps_together_have_the_bits_of_each_alone(data, name, shapes, maximize):
    kind, drawn = WAYS[name]
    lane = st.fixed_dictionaries({"lr": RATES, "weight_decay": DECAYS, **drawn})
    of_lanes = [{**one, "maximize": maximize} for one in data.draw(st.lists(lane, min_size=2, max_size=5))]
    both = Twice(kind, shapes, of_lanes, data.draw(st.integers(0, len(shapes))))
    assert len({*map(kind_of, both.optimizers)}) == 1
    first = both.gradients()
    both.step_alone(both.optimizers, both.ours, first)
    both.step_alone(both.alone, both.theirs, first)
    for steps in data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        together = both.together()
        assert together is not None
        for _ in range(steps):
            for optimizers in (both.optimizers, both.alone):
                for optimizer in optimizers:
                    optimizer.param_groups[-1]["lr"] *= 0.9
            gradients = both.gradients(data.draw(st.sampled_from([1e-20, 1.0, 1e10, math.inf, math.nan])))
            together(gradients)
            both.step_alone(both.alone, both.theirs, gradients)
        together.end()
        both.assert_same()


def step_whatever_their_size(both: Twice) -> None:
    """Take three steps both ways, the first ones together, too."""
    together = stacked_steps(both.optimizers, both.ours, both.stacks, math.inf)
    assert together is not None
    for _ in range(3):
        gradients = both.gradients()
        together(gradients)
        both.step_alone(both.alone, both.theirs, gradients)
    together.end()


@given(st.data(), st.sampled_from([name for name in WAYS if name != "dampened"]), SHAPES, st.integers(1, 3))
@settings(deadline=None)
def test_where_all_that_can_is_stepped_together_the_first_steps_are_those_alone_too(data, name, shapes, count):
    kind, drawn = WAYS[name]
    lane = st.fixed_dictionaries({"lr": RATES, "weight_decay": DECAYS, **drawn})
    of_lanes = data.draw(st.lists(lane, min_size=count, max_size=count))
    both = Twice(kind, shapes, of_lanes, data.draw(st.integers(0, len(shapes))))
    kinds = {kind_at_once(*pair) for pair in zip(both.optimizers, both.ours, strict=True)}
    assert len(kinds) == 1
    assert kinds != {None}
    step_whatever_their_size(both)
    both.assert_same()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_those_that_torch_computes_in_fewer_calls_are_stepped_together_but_for_rounding(kind, how):
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    both = Twice(kind, [[300, 300], [3]], [{"lr": 0.01 * (1 + lane), how: True, **more} for lane in range(3)], 1)
    assert None not in {kind_at_once(*pair) for pair in zip(both.optimizers, both.ours, strict=True)}
    step_whatever_their_size(both)
    assert nearly_equal(both.ours, both.theirs)
    for one, other in zip(both.optimizers, both.alone, strict=True):
        assert nearly_equal(one.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),  # its first step is without it
        (torch.optim.SGD, {"lr": torch.tensor(0.1)}),
        (torch.optim.RMSprop, {"lr": 0.1}),
    ],
)
def test_what_steps_by_itself_does_where_all_that_can_is_stepped_together_too(kind, settings):
    parameters = [nn.Parameter(torch.ones(3))]
    optimizer = kind(parameters, **settings)
    assert kind_at_once(optimizer, parameters) is None
    assert not optimizer.state


def test_of_what_is_half_begun_nothing_is_stepped_together():
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters)
    parameters[0].grad = torch.ones(3)
    optimizer.step()
    assert kind_at_once(optimizer, parameters) is None


def test_what_optimizers_keep_lies_together_until_the_end_and_then_by_itself():
    both = Twice(torch.optim.Adam, [[5, 3], [3]], [{"lr": 0.1}, {"lr": 0.01}], 0)
    both.step_alone(both.optimizers, both.ours, both.gradients())
    kept = [value for optimizer in both.optimizers for state in optimizer.state.values() for value in state.values()]
    memory = [one.data_ptr() for one in kept]
    together = both.together()
    assert together is not None
    together(both.gradients())
    assert {float(state["step"]) for optimizer in both.optimizers for state in optimizer.state.values()} == {2.0}
    assert all(one.untyped_storage().nbytes() > one.nbytes for one in kept)
    together.end()
    assert [one.data_ptr() for one in kept] == memory


@pytest.mark.parametrize("name", WAYS)
def test_before_its_first_step_each_steps_by_itself(name):
    kind, _ = WAYS[name]
    settings = {"momentum": 0.9} if name in ("dampened", "nesterov") else {}
    both = Twice(kind, [[3]], [{"lr": 0.1, **settings}] * 2, 0)
    assert (both.together() is None) == (name != "sgd")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_without_decay_weights_that_are_infinite_come_to_no_gradient(kind):
    both = Twice(kind, [[3]], [{"lr": 0.1, "weight_decay": decay} for decay in (0.5, 0.0)], 0)
    for own in (*both.ours, *both.theirs):
        own[0].data[0] = math.inf
    first, second = both.gradients(), both.gradients()
    both.step_alone(both.optimizers, both.ours, first)
    together = both.together()
    assert together is not None
    together(second)
    together.end()
    for gradients in (first, second):
        both.step_alone(both.alone, both.theirs, gradients)
    both.assert_same()


def test_optimizers_that_have_trained_for_different_times_step_together():
    both = Twice(torch.optim.Adam, [[5, 3], [3]], [{"lr": 0.1}, {"lr": 0.01}], 1)
    for lanes in (slice(0, 2), slice(0, 1), slice(0, 1)):
        gradients = [one[lanes] for one in both.gradients()]
        both.step_alone(both.optimizers[lanes], both.ours[lanes], gradients)
        both.step_alone(both.alone[lanes], both.theirs[lanes], gradients)
    together, gradients = both.together(), both.gradients()
    assert together is not None
    together(gradients)
    together.end()
    both.step_alone(both.alone, both.theirs, gradients)
    both.assert_same()


def test_parameters_of_which_one_has_taken_more_steps_are_stepped_by_each_optimizer():
    both = Twice(torch.optim.Adam, [[5, 3], [3]], [{"lr": 0.1}, {"lr": 0.01}], 0)
    both.step_alone(both.optimizers, both.ours, both.gradients())
    assert both.together() is not None
    both.optimizers[1].state[both.ours[1][0]]["step"] += 1
    assert both.together() is None


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda own: torch.optim.SGD(own, 0.1, fused=True),
        lambda own: torch.optim.SGD(own, 0.1, foreach=True),
        lambda own: torch.optim.Adam(own, torch.tensor(0.1)),
        lambda own: torch.optim.Adam(own, 0.1, differentiable=True),
        lambda own: torch.optim.RMSprop(own, 0.1),
        lambda own: type("Own", (torch.optim.SGD,), {})(own, 0.1),
    ],
)
def test_optimizers_that_compute_otherwise_step_by_themselves(optimizer):
    assert kind_of(optimizer([nn.Parameter(torch.ones(2))])) is None


def test_an_optimizer_with_a_hook_steps_by_itself():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    assert kind_of(optimizer) is not None
    optimizer.register_step_pre_hook(lambda *_: None)
    assert kind_of(optimizer) is None
