"""Gradients that autograd only lends: their memory is another node's too, or another parameter's, or nobody's alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel import DataParallel
from tests.comm.data_parallel.gradient_checks import Gradients, assert_close, gradients, inputs_of, reduce_at_once
from tests.comm.thread_ranks import run_ranks


class PassOn(torch.autograd.Function):
    """A sum, whose backward gives one and the same tensor for both."""

    @staticmethod
    def forward(_ctx, first, second):
        return first + second

    @staticmethod
    def backward(_ctx, gradient):
        return gradient, gradient


pass_on: Any = PassOn.apply

STEPS: dict[str, Any] = {
    "add": lambda values, flat: values + flat,
    "pass on": pass_on,
    "subtract": lambda values, flat: values - flat,
    "multiply": lambda values, flat: values * (1 + flat / 4),
    "stretch": lambda values, flat: values + flat[:1].expand(6),
    "total": lambda values, flat: values + flat.sum(),
    "join": lambda values, flat: torch.cat((values[:2], flat[2:])),
    "double": lambda values, _flat: values + values,
    "reshape": lambda values, _flat: values.view(2, 3).t().reshape(6),
}
SHAPES = ((1, 6), (6,), (6, 1), (2, 3), (1, 1, 6))


class Graph(nn.Module):
    """Adds up views of its parameters, step by step; what each rank does with the sum differs."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES
        )
        self.turned = nn.Parameter(torch.randn(3, 2, generator=generator, dtype=torch.float64).t())
        self.steps = steps
        self.between: list[torch.Tensor] = []
        self.held: list[torch.Tensor] = []

    def forward(self, rank: int) -> torch.Tensor:
        self.between, self.held = [], []
        values = inputs_of(rank, 6, dtype=torch.float64)
        for number, (name, index) in enumerate(self.steps):
            weight = self.turned if index == len(SHAPES) else self.weights[index]
            values = STEPS[name](values, weight.view(6) if weight.is_contiguous() else weight.t().view(6))
            if number % 3 == 0:
                values = values * inputs_of(10 * number + rank, 6, dtype=torch.float64)
            if values.requires_grad:
                torch.Tensor.retain_grad(values)
                values.register_hook(self.held.append)
                self.between.append(values)
        return values

    def local(self) -> Gradients:
        """Return the gradients that belong to this rank alone."""
        return [values.grad for values in self.between] + list(self.held)


def backward(graph: nn.Module, rank: int, squared: bool) -> None:
    values = graph(rank)
    (values.square() if squared else values).sum().backward()


def alone(steps: list[tuple[str, int]], rank: int, squared: bool) -> tuple[Gradients, Gradients]:
    graph = Graph(steps)
    backward(graph, rank, squared)
    return gradients(graph), [None if tensor is None else tensor.clone() for tensor in graph.local()]


def mean(ranks: list[Gradients]) -> Gradients:
    means: Gradients = []
    for of_one in zip(*ranks, strict=True):
        there = [gradient for gradient in of_one if gradient is not None]
        means.append(torch.stack(there).sum(0) / len(ranks) if there else None)
    return means


parts = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, len(SHAPES)))


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(parts, max_size=8).map(lambda steps: [*steps, ("add", 0)]),
    squared=st.booleans(),
    overlap=st.booleans(),
    large=st.sampled_from([1, 1 << 20]),
    set_to_none=st.booleans(),
)
def test_random_graphs_give_the_mean_of_what_each_rank_has_alone(steps, squared, overlap, large, set_to_none):
    def work(group: Group) -> tuple[list[Gradients], Gradients]:
        reduce_at_once(group)
        graph = Graph(steps)
        wrapped = DataParallel(graph, group, overlap=overlap, bucket_mb=1e-4)
        seen = []
        for _ in range(3):
            wrapped.zero_grad(set_to_none)
            backward(wrapped, group.rank, squared)
            seen.append(gradients(graph))
        return seen, graph.local()

    by_rank = [alone(steps, rank, squared) for rank in range(2)]
    expected = mean([of_parameters for of_parameters, _ in by_rank])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)
        for (seen, local), (_, of_rank) in zip(run_ranks(2, work), by_rank, strict=True):
            for step in seen:
                assert_close(step, expected)
            assert_close(local, of_rank)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_large_gradient_that_is_lent_leaves_its_other_readers_what_they_read(overlap):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lent = nn.Parameter(torch.zeros(1, 512, 512))
            self.neighbour = nn.Parameter(torch.zeros(512 * 512))

        def forward(self, factor):
            return self.neighbour * factor + self.lent.view(-1)  # the last one's backward is the first

    def work(group):
        reduce_at_once(group)
        model = Sum()
        wrapped = DataParallel(model, group, overlap=overlap)
        factor = torch.full((512 * 512,), 1.0 + 2 * group.rank)
        for _ in range(3):
            wrapped.zero_grad()
            # Gradients of 1 and 3 for what is lent: 1 * 1 and 3 * 3 for its neighbour.
            (wrapped(factor) * factor).sum().backward()
        seen: list[Any] = [parameter.grad for parameter in model.parameters()]
        return [gradient.unique().tolist() for gradient in seen]

    assert run_ranks(2, work) == [[[2.0], [5.0]]] * 2
