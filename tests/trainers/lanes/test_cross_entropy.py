"""Cross entropies of lanes at once, beside torch's own of each."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes import losses
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.losses import LossSums, cross_entropies, log_likelihoods, mean_losses

SCALES = st.sampled_from([1e-20, 1.0, 30.0, 1e10])


def together(scores: Tensor, classes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    likelihoods, gradients = cross_entropies(scores, classes, share)
    assert same_bits(likelihoods, log_likelihoods(scores, classes))
    return mean_losses(likelihoods), gradients


def alone(scores: Tensor, classes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    losses, gradients = [], []
    for own, wanted in zip(scores, classes, strict=True):
        leaf = own.clone().requires_grad_()
        loss = functional.cross_entropy(leaf, wanted)
        torch.autograd.backward(loss * share if share != 1 else loss)
        losses.append(loss.detach())
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    return torch.stack(losses), torch.stack(gradients)


@given(st.integers(1, 5), st.integers(1, 90), st.integers(1, 40), SCALES, st.sampled_from([1, 1 / 3, 0.5]))
def test_each_lane_has_the_loss_and_the_gradient_that_it_has_alone(lanes, rows, kinds, scale, share):
    generator = torch.Generator().manual_seed(rows)
    scores = scale * torch.randn(lanes, rows, kinds, generator=generator)
    classes = torch.randint(kinds, (lanes, rows), generator=generator)
    assert same_bits(together(scores, classes, share), alone(scores, classes, share))


@given(st.integers(2, 4), st.integers(1, 70), st.integers(2, 15), st.sampled_from(["inf", "-inf", "nan"]))
def test_numbers_that_are_none_stay_in_their_rows(lanes, rows, kinds, number):
    scores = torch.randn(lanes, rows, kinds, generator=torch.Generator().manual_seed(rows))
    scores[0, rows // 2, kinds // 2] = float(number)
    scores[-1, 0] = float(number)
    classes = torch.zeros(lanes, rows, dtype=torch.int64)
    assert same_bits(together(scores, classes, 1), alone(scores, classes, 1))


@pytest.mark.parametrize("kinds", [3, 40])
def test_a_class_that_there_isnt_is_refused(kinds):
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        cross_entropies(torch.zeros(2, 4, kinds), torch.full((2, 4), kinds), 1)


def test_where_the_two_ways_differ_the_slower_one_is_taken(monkeypatch):
    monkeypatch.setattr(losses, "_columns_agree", lambda kinds: False)
    monkeypatch.setattr(losses, "_sums_agree", lambda rows: False)
    monkeypatch.setattr(losses, "_columns", None)
    scores, classes = torch.randn(3, 8, 5), torch.randint(5, (3, 8))
    assert same_bits(together(scores, classes, 1), alone(scores, classes, 1))


@given(st.integers(1, 70), st.integers(1, 1100), SCALES)
def test_means_are_summed_as_torch_sums_them(count, rows, scale):
    likelihoods = -scale * torch.rand(count, rows, generator=torch.Generator().manual_seed(rows))
    assert same_bits(mean_losses(likelihoods), by_torch(likelihoods))


@pytest.mark.parametrize("rows", [2**12, 2**15, 2**16 + 5])
def test_means_of_many_rows_are_summed_as_torch_sums_them(rows):
    likelihoods = -torch.rand(3, rows, generator=torch.Generator().manual_seed(rows))
    assert same_bits(mean_losses(likelihoods), by_torch(likelihoods))


@pytest.mark.parametrize("number", [0.0, -0.0, float("-inf"), float("nan")])
def test_means_of_what_is_no_usual_number(number):
    likelihoods = torch.full((2, 40), -1.0)
    likelihoods[1] = number
    assert same_bits(mean_losses(likelihoods), by_torch(likelihoods))


def by_torch(likelihoods: Tensor) -> Tensor:
    first = torch.zeros(likelihoods.shape[1], dtype=torch.int64)
    return torch.stack([functional.nll_loss(one.unsqueeze(1), first) for one in likelihoods])


@pytest.mark.parametrize("most", [0, 100, 2**20])
def test_losses_of_an_epoch_are_added_in_the_order_of_its_passes(monkeypatch, most):
    monkeypatch.setattr(losses, "_MOST_NUMBERS", most)
    generator = torch.Generator().manual_seed(0)
    sums, expected = LossSums(2, torch.device("cpu")), torch.zeros(2, dtype=torch.float64)
    for rows in (8, 8, 3, 8, 5, 5):
        likelihoods = -torch.rand(3, rows, generator=generator)  # the last one is nobody's
        means = by_torch(likelihoods)
        sums.add(means if rows == 3 else likelihoods, rows)
        expected.add_(means[:2], alpha=rows)
    assert same_bits(sums.totals(), expected.tolist())
