"""Ranks with unequal numbers of rows, and with unequal numbers of batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hpsearch_comm import CommError, Group, UsageError
from hpsearch_comm.data_parallel import DataParallel, convert_sync_batchnorm
from tests.comm.data_parallel.branching_model import FEATURES, BranchingModel
from tests.comm.thread_ranks import run_ranks


def one_weight() -> Any:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def gradient(model: Any) -> float:
    assert model.weight.grad is not None
    return float(model.weight.grad)


def test_the_mean_is_weighted_by_what_each_rank_says():
    def work(group):
        model = one_weight()
        wrapped = DataParallel(model, group, weighted=True)
        seen = []
        for weights in ([1, 1, 1], [1, 2, 5], [0, 0.5, 0.5], [0, 0, 3]):
            wrapped.zero_grad()
            wrapped.set_weight(weights[group.rank])
            wrapped(torch.full((1, 1), 8.0 * 10**group.rank)).sum().backward()
            seen.append(gradient(model))
        return seen

    for seen in run_ranks(3, work):
        assert seen == pytest.approx([296.0, 521.0, 440.0, 800.0])


def test_a_rank_of_weight_zero_brings_nothing_even_if_its_gradient_is_no_number():
    def work(group):
        model = nn.ModuleList([one_weight(), one_weight()])
        wrapped = DataParallel(model, group, weighted=True)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped.set_weight(group.rank)
            loss = model[0](torch.full((1, 1), 5.0)).sum()
            if group.rank == 0:
                loss = loss * math.nan + model[1](torch.ones(1, 1)).sum()  # which only a rank without rows uses
            loss.backward()
        return gradient(model[0]), model[1].weight.grad

    assert run_ranks(2, work) == [(5.0, None)] * 2


def test_a_rank_of_weight_zero_gets_the_mean_wherever_its_gradient_was_pointed_to():
    def work(group):
        model = one_weight()
        wrapped = DataParallel(model, group, weighted=True)
        for weights in ((1, 1), (0, 1)):
            wrapped.zero_grad()
            wrapped.set_weight(weights[group.rank])
            wrapped(torch.full((1, 1), 1.0 + group.rank)).sum().backward()
            seen = gradient(model)
            model.weight.grad.data = model.weight.grad.clone()
        return seen

    assert run_ranks(2, work) == [2.0, 2.0]


SHORT = (torch.float16, torch.bfloat16)
COMPRESSIONS = {None: None, "fp16": torch.float16, "bf16": torch.bfloat16}
sizes = st.floats(-60000, 60000, width=32) | st.sampled_from([65504.0, -65504.0, 6e-8, 1e-5, 0.0])
weights_and_values = st.integers(2, 3).flatmap(
    lambda ranks: st.tuples(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.0]), min_size=ranks, max_size=ranks).filter(any),
        st.lists(st.lists(sizes, min_size=4, max_size=4), min_size=ranks, max_size=ranks),
    )
)


class Given(nn.Module):
    """Two parameters, one of them alone in its bucket where gradients of 8 bytes are large, and an embedding."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.alone = nn.Parameter(torch.zeros(4, dtype=dtype))
        self.small = nn.Parameter(torch.zeros(3, dtype=dtype))
        self.rows = nn.Embedding(4, 1, sparse=True, dtype=dtype)

    def backward(self, values: torch.Tensor) -> None:
        rows = self.rows(torch.arange(4)).flatten()
        torch.autograd.backward([self.alone * 1, self.small * 1, rows], [values, values[:3], values])


@settings(max_examples=30, deadline=None)
@given(
    given=weights_and_values,
    nothing=st.sampled_from([math.inf, math.nan, 1.0]),
    dtype=st.sampled_from([*SHORT, torch.float32, torch.float64]),
    compression=st.sampled_from(list(COMPRESSIONS)),
    large=st.sampled_from([8, 1 << 20]),
    overlap=st.booleans(),
)
def test_weighted_means_are_exact_but_for_rounding_in_every_dtype(given, nothing, dtype, compression, large, overlap):
    weights, lists = given
    gradients = [torch.tensor(values, dtype=torch.float64).to(dtype) for values in lists]

    def work(group: Group) -> list[torch.Tensor]:
        model = Given(dtype)
        wrapped = DataParallel(model, group, weighted=True, compression=compression, overlap=overlap)
        mine = gradients[group.rank] if weights[group.rank] else torch.full((4,), nothing, dtype=dtype)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped.set_weight(weights[group.rank])
            model.backward(mine)
        seen: list[Any] = [parameter.grad for parameter in wrapped.parameters()]
        return [gradient.to_dense().flatten() for gradient in seen]

    total = sum(weights)
    terms = [weight / total * gradient.double() for weight, gradient in zip(weights, gradients, strict=True)]
    expected, magnitude = sum(terms), sum(term.abs() for term in terms)
    assert isinstance(expected, torch.Tensor)
    wire = dtype if dtype in SHORT else COMPRESSIONS[compression] or torch.float32
    facts = torch.finfo(wire)
    # Compressed values are rounded twice and then enlarged, by the number of ranks at most; others are rounded once.
    bound = 2 * facts.eps * magnitude + len(weights) * facts.tiny * facts.eps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)
        for seen in run_ranks(len(weights), work):
            for result in seen:
                error = (result.double() - expected[: len(result)]).abs()
                assert (error <= bound[: len(result)]).all(), (result, expected)


@pytest.mark.parametrize("compression", [None, "fp16"])
def test_the_mean_of_float16_gradients_does_not_overflow_when_ranks_have_run_out(compression):
    def work(group):
        model = Given(torch.float32 if compression else torch.float16)
        wrapped = DataParallel(model, group, compression=compression)
        seen = []
        with wrapped.join():
            for _ in range(1 + group.rank):
                wrapped.zero_grad()
                model.backward(torch.full((4,), 60000.0, dtype=model.alone.dtype))
                averaged: list[Any] = [parameter.grad for parameter in wrapped.parameters()]
                seen += [gradient.to_dense().max().item() for gradient in averaged]
        return set(seen)

    assert run_ranks(3, work) == [{60000.0}] * 3


def test_equal_weights_give_the_bits_of_the_plain_mean():
    def work(group):
        seen = []
        for weighted in (False, True):
            model = BranchingModel()
            wrapped = DataParallel(model, group, weighted=weighted)
            if weighted:
                wrapped.set_weight(0.1)  # 0.1 + 0.1 + 0.1 isn't 3 * 0.1
            wrapped(torch.randn(3, FEATURES, generator=torch.Generator().manual_seed(group.rank))).sum().backward()
            assert model.trunk.weight.grad is not None
            seen.append(model.trunk.weight.grad.clone())
        return seen

    for plain, weighted in run_ranks(3, work):
        assert torch.equal(plain, weighted)


def test_weights_of_zero_on_all_ranks_are_an_error_on_all_and_the_group_goes_on():
    def work(group):
        model = one_weight()
        wrapped = DataParallel(model, group, weighted=True)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped.set_weight(0)
            with pytest.raises(UsageError, match=r"at least one rank must have a weight above 0"):
                wrapped(torch.ones(1, 1)).sum().backward()
            wrapped.zero_grad()
            wrapped.set_weight(1)
            wrapped(torch.ones(1, 1)).sum().backward()
        return gradient(model)

    assert run_ranks(2, work) == [1.0, 1.0]


def test_weights_may_be_as_large_as_floats_are():
    def work(group):
        model = one_weight()
        wrapped = DataParallel(model, group, weighted=True)
        wrapped.set_weight([1.7e308, 0.85e308][group.rank])
        wrapped(torch.full((1, 1), 3.0 * group.rank)).sum().backward()
        return gradient(model)

    assert run_ranks(2, work) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, None, "many"])
def test_weights_must_be_finite_and_not_negative(weight):
    with Group(0, 1) as group, pytest.raises(UsageError, match="a weight must be a finite number of 0 or more"):
        DataParallel(one_weight(), group, weighted=True).set_weight(weight)


def test_a_weight_needs_a_weighted_model():
    with Group(0, 1) as group, pytest.raises(UsageError, match="weighted=True"):
        DataParallel(one_weight(), group).set_weight(1)


def test_one_rank_may_set_weights_too():
    with Group(0, 1) as group:
        model = one_weight()
        wrapped = DataParallel(model, group, weighted=True)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped.set_weight(3)
            wrapped(torch.full((1, 1), 4.0)).sum().backward()
        assert gradient(model) == 4.0


def test_a_backward_pass_without_a_weight_and_a_second_weight_are_errors():
    def work(group):
        wrapped = DataParallel(one_weight(), group, weighted=True)
        with pytest.raises(UsageError, match=r"every rank must call set_weight\(rows\) before each backward pass"):
            wrapped(torch.ones(1, 1)).sum().backward()
        wrapped.set_weight(1)
        with pytest.raises(UsageError, match="set_weight was called twice"):
            wrapped.set_weight(1)
        with wrapped.no_sync():
            wrapped(torch.ones(1, 1)).sum().backward()
        wrapped(torch.ones(1, 1)).sum().backward()

    run_ranks(2, work)


# join ----------------------------------------------------------------------------------------------------------------


def batches_of(rank: int, counts: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(2 + rank, FEATURES, generator=generator).double() for _ in range(counts[rank])]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def train_epochs(group: Group, epochs: list[list[int]], weighted: bool, parts: int) -> list[torch.Tensor]:
    model = BranchingModel(torch.float64)
    optimizer = make_optimizer(model)
    wrapped = DataParallel(model, group, weighted=weighted)
    for counts in epochs:
        batches = batches_of(group.rank, counts)
        with wrapped.join(optimizer):
            for start in range(0, len(batches), parts):
                optimizer.zero_grad()
                with wrapped.no_sync():
                    for batch in batches[start + 1 : start + parts]:
                        (wrapped(batch).square().mean() / parts).backward()
                if weighted:
                    wrapped.set_weight(parts * len(batches[0]))
                branch = group.rank == 1
                (wrapped(batches[start], branch).square().mean() / parts).backward()
                optimizer.step()
        assert all(parameter.grad is None for parameter in model.parameters())
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_epochs_on_one_rank(epochs: list[list[int]], weighted: bool, parts: int) -> list[torch.Tensor]:
    model = BranchingModel(torch.float64)
    optimizer = make_optimizer(model)
    for counts in epochs:
        batches = [batches_of(rank, counts) for rank in range(len(counts))]
        for start in range(0, max(counts), parts):
            optimizer.zero_grad()
            there = [rank for rank, count in enumerate(counts) if start < count]
            rows = {rank: 2 + rank if weighted else 1 for rank in there}
            for rank in there:
                for part, batch in enumerate(batches[rank][start : start + parts]):
                    loss = model(batch, rank == 1 and part == 0).square().mean() / parts
                    (loss * rows[rank] / sum(rows.values())).backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


EPOCHS = {
    "one runs out first": [[2, 6]],
    "a rank without any batch": [[0, 4], [4, 0]],
    "three epochs of three ranks": [[4, 2, 6], [2, 2, 4], [6, 4, 2]],
    "all alike": [[2, 2]],
    "nothing at all": [[0, 0], [2, 4]],
}


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("name", EPOCHS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_may_run_out_of_batches(name, weighted, parts):
    epochs = EPOCHS[name]
    expected = train_epochs_on_one_rank(epochs, weighted, parts)
    results = run_ranks(len(epochs[0]), lambda group: train_epochs(group, epochs, weighted, parts))
    for result in results:
        for mine, same, theirs in zip(result, results[0], expected, strict=True):
            assert torch.equal(mine, same)
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_join_takes_part_in_sparse_gradients_too():
    def work(group):
        model = nn.Embedding(4, 1, sparse=True)
        nn.init.zeros_(model.weight)
        wrapped = DataParallel(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with wrapped.join():
            for batch in range(1 + 2 * group.rank):
                optimizer.zero_grad()
                wrapped(torch.tensor([batch + group.rank])).sum().backward()
                optimizer.step()
        return model.weight.detach().flatten()

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.tensor([-0.5, -0.5, -1.0, -1.0]))


def test_join_ends_with_the_buffers_of_the_rank_that_worked_longest():
    def work(group):
        model = nn.BatchNorm1d(1)
        wrapped = DataParallel(model, group)
        with wrapped.join():
            for _ in range(1 + group.rank):
                wrapped(torch.tensor([[1.0], [3.0]])).sum().backward()
        assert model.num_batches_tracked is not None
        return float(model.num_batches_tracked)

    assert run_ranks(2, work) == [2.0, 2.0]


def test_an_error_within_join_comes_out_at_once():
    def work(group):
        wrapped = DataParallel(one_weight(), group)
        try:
            with wrapped.join():
                wrapped(torch.ones(1, 1)).sum().backward()
                if group.rank == 1:
                    raise ValueError("no such file")
        except (ValueError, CommError) as error:
            if group.rank == 1:
                group.close(error)
            return f"{type(error).__name__}: {error}"
        return "no error"

    first, second = run_ranks(2, work)
    assert second == "ValueError: no such file"
    assert first.startswith("PeerLost: rank 1")


def test_join_within_join_and_a_weight_without_its_backward_pass_are_errors():
    def work(group):
        wrapped = DataParallel(one_weight(), group, weighted=True)
        with wrapped.join(), pytest.raises(UsageError, match=r"join\(\) was called within join\(\)"), wrapped.join():
            pass
        with pytest.raises(UsageError, match="between set_weight and its backward pass"), wrapped.join():
            wrapped.set_weight(1)

    run_ranks(2, work)


def test_join_refuses_a_model_whose_layers_exchange_statistics():
    with Group(0, 1) as group:
        model = convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(1)), group)
        wrapped = DataParallel(model, group)
        with pytest.raises(UsageError, match=r"^0 is a SyncBatchNorm, .* give it empty batches"), wrapped.join():
            pass


def test_join_costs_one_rank_nothing():
    with Group(0, 1) as group:
        model = one_weight()
        wrapped = DataParallel(model, group)
        with wrapped.join():
            wrapped(torch.ones(1, 1)).sum().backward()
            assert gradient(model) == 1.0
