"""What becomes of a training in which a backward pass raises an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hpsearch_comm import CommError
from hpsearch_comm.data_parallel import DataParallel
from tests.comm.data_parallel.gradient_checks import assert_close, gradients, inputs_of, make_layers
from tests.comm.thread_ranks import run_ranks


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("the backward pass is broken")


break_backwards: Any = Broken.apply


def test_training_goes_on_after_a_backward_pass_that_raised_before_anything_was_sent():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for broken in (True, False, True, False):
            wrapped.zero_grad()
            hidden = model[0](inputs_of(group.rank, 3, 4))
            loss = model[2](torch.tanh(break_backwards(hidden) if broken else hidden)).square().sum()
            if broken:
                with pytest.raises(ValueError, match="the backward pass is broken"):
                    loss.backward()
            else:
                loss.backward()
        return gradients(model)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


def test_a_backward_pass_that_raised_after_sending_gradients_ends_the_training():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        with pytest.raises(ValueError, match="the backward pass is broken"):
            model[2](break_backwards(model[0](inputs_of(group.rank, 3, 4)))).sum().backward()
        with pytest.raises(CommError, match="out of step: make a new group"):
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_the_weight_of_a_backward_pass_that_raised_is_forgotten_with_it():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, weighted=True)
        wrapped.set_weight(1)
        with pytest.raises(ValueError, match="the backward pass is broken"):
            wrapped(break_backwards(inputs_of(group.rank, 3, 4).requires_grad_())).sum().backward()
        wrapped.zero_grad()
        wrapped.set_weight(group.rank)
        wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        return gradients(model)

    alone = make_layers()
    alone(inputs_of(1, 3, 4)).square().sum().backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


@pytest.mark.parametrize("outside", [False, True])
def test_training_goes_on_after_an_error_in_or_outside_of_a_reentrant_backward_pass(outside):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for broken in (True, False):
            wrapped.zero_grad()
            hidden = model[0](inputs_of(group.rank, 3, 4).requires_grad_())
            maybe = break_backwards if broken else torch.clone
            part = model[2] if outside else lambda values, maybe=maybe: model[2](maybe(values))
            outputs = checkpoint(part, maybe(hidden) if outside else hidden, use_reentrant=True)
            if broken:
                with pytest.raises(ValueError, match="the backward pass is broken"):
                    outputs.square().sum().backward()
            else:
                outputs.square().sum().backward()
        return gradients(model)

    alone = make_layers()
    sum(alone[2](alone[0](inputs_of(rank, 3, 4))).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))
