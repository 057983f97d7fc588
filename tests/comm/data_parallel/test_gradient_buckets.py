"""Where gradients lie, when they are reduced, and in which dtype."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group, UsageError
from hpsearch_comm.data_parallel import DataParallel
from hpsearch_comm.data_parallel.buckets import should_overlap
from tests.comm.data_parallel.gradient_checks import assert_close, gradients, inputs_of, make_layers
from tests.comm.thread_ranks import run_ranks


def test_gradients_lie_in_shared_buckets_and_are_not_copied_when_they_are_zeroed_in_place():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        before = [parameter.grad for parameter in model.parameters()]
        wrapped.zero_grad(set_to_none=False)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        after = [parameter.grad for parameter in model.parameters()]
        storages = {gradient.untyped_storage().data_ptr() for gradient in after if gradient is not None}
        return all(mine is other for mine, other in zip(before, after, strict=True)) and len(storages) == 1

    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_that_were_pointed_to_other_memory_are_averaged_and_come_back(set_to_none):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for _ in range(3):
            wrapped.zero_grad(set_to_none)
            wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
            averaged = gradients(model)
            places = {p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None}
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.data = parameter.grad.clamp(-0.1, 0.1)
        return averaged, len(places)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for averaged, places in run_ranks(2, work):
        assert_close(averaged, gradients(alone))
        assert places == 1


def test_a_bucket_may_take_everything():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=math.inf)
        wrapped(torch.full((1, 4), float(group.rank))).sum().backward()
        return gradients(model)

    first, second = run_ranks(2, work)
    assert_close(first, second, rtol=0, atol=0)


def test_a_large_gradient_is_reduced_from_where_autograd_has_put_it_and_left_as_it_was_there(monkeypatch):
    def work(group):
        model: Any = nn.Linear(512, 512, bias=False)
        wrapped = DataParallel(model, group)
        arrived: list[torch.Tensor] = []
        sent: list[int] = []

        def allreduce(tensor, *arguments):
            sent.append(tensor.data_ptr())
            return Group.allreduce(group, tensor, *arguments)

        monkeypatch.setattr(group, "allreduce", allreduce, raising=False)
        model.weight.register_post_accumulate_grad_hook(lambda weight: arrived.append(weight.grad))
        for step in range(3):
            wrapped.zero_grad()
            sent.clear()
            if step == 1 and group.rank == 0:
                (model.weight[:0].sum() * 0).backward()  # a gradient of zeros
            else:
                wrapped(torch.ones(1, 512) * group.rank).sum().backward()
            assert arrived[-1].data_ptr() in sent
            assert torch.equal(arrived[-1], torch.full((512, 512), float(group.rank)))
            assert torch.equal(model.weight.grad, torch.full((512, 512), 0.5))

    run_ranks(2, work)


def test_a_large_gradient_that_is_kept_is_not_copied():
    def work(group):
        model: Any = nn.Linear(512, 512, bias=False)
        wrapped = DataParallel(model, group)
        seen = []
        for _ in range(4):
            wrapped.zero_grad(set_to_none=False)
            wrapped(torch.ones(1, 512) * group.rank).sum().backward()
            assert torch.equal(model.weight.grad, torch.full((512, 512), 0.5))
            seen.append(model.weight.grad)
        return [later is earlier for earlier, later in itertools.pairwise(seen)]

    assert run_ranks(2, work) == [[True, True, True]] * 2


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_a_large_gradient_of_other_strides_or_layout_is_averaged_too():
    def work(group):
        model: Any = nn.Embedding(512, 512)
        wrapped = DataParallel(model, group)
        seen = []
        for step in range(3):
            wrapped.zero_grad()
            with wrapped.no_sync():
                wrapped(torch.tensor([group.rank])).sum().backward()
            if group.rank == 0 and step == 1:
                model.weight.grad = model.weight.grad.t().contiguous().t()
            if group.rank == 1 and step == 2:
                model.weight.grad = model.weight.grad.to_sparse(1)
                model.sparse = True
            wrapped(torch.tensor([group.rank])).sum().backward()
            seen.append(model.weight.grad[:3, 0].tolist())
        return seen

    assert run_ranks(2, work) == [[[1.0, 1.0, 0.0]] * 3] * 2


@pytest.mark.parametrize("overlap", [False, True])
def test_buckets_are_reduced_while_the_backward_pass_runs_if_that_is_wanted(overlap, monkeypatch):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=overlap)
        events = []

        def allreduce_agreed(*arguments):
            events.append("sent")
            return Group.allreduce_agreed(group, *arguments)

        monkeypatch.setattr(group, "allreduce_agreed", allreduce_agreed, raising=False)
        model[0].weight.register_post_accumulate_grad_hook(lambda _: events.append("first layer"))
        for _ in range(2):
            events.clear()
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return events.index("first layer")

    # Three of four buckets: the last one is complete when the backward pass is over.
    assert run_ranks(2, work) == ([3, 3] if overlap else [0, 0])


def test_overlapping_needs_a_core_for_each_rank_beside_its_own():
    class OneHost:
        hosts = ((0, 1),)

    class TwoHosts:
        hosts = ((0,), (1,))

    def pays(group: Any, *ranks: Any) -> bool:
        return should_overlap(group, ranks)

    two, four = [0, 1], [0, 1, 2, 3]
    assert not pays(OneHost, (two, math.inf, 1), (two, math.inf, 1))
    assert pays(OneHost, (four, math.inf, 1), (four, math.inf, 1))
    assert pays(OneHost, ([0, 1], math.inf, 1), ([2, 3], math.inf, 1))
    assert not pays(OneHost, (four, math.inf, 2), (four, math.inf, 1))
    assert not pays(OneHost, (four, 3.5, 1), (four, 3.5, 1))
    assert pays(TwoHosts, (two, math.inf, 2), (two, math.inf, 2))


def test_compression_rounds_on_the_way_and_leaves_short_dtypes_alone():
    def work(group):
        model = nn.ModuleList([nn.Linear(1, 1, bias=False, dtype=torch.bfloat16), nn.Linear(1, 1, bias=False)])
        wrapped = DataParallel(model, group, compression="fp16")
        for _ in range(2):
            wrapped.zero_grad()
            values = torch.full((1, 1), 1 / 3 + group.rank)
            (model[0](values.bfloat16()).sum().float() + model[1](values).sum()).backward()
        return gradients(model)

    third = torch.full((1, 1), 1 / 3)
    half = torch.stack((third.half(), (third + 1).half())).float().mean(0).half().float()
    short = torch.stack((third.bfloat16(), (third + 1).bfloat16())).float().mean(0).bfloat16()
    for seen in run_ranks(2, work):
        assert_close(seen, [short, half], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bucket_mb": 0}, "bucket_mb must be a number above 0, got 0"),
        ({"bucket_mb": float("nan")}, "bucket_mb must be a number above 0, got nan"),
        ({"bucket_mb": "25"}, "bucket_mb must be a number above 0, got '25'"),
        ({"compression": "int8"}, 'compression must be None, "fp16" or "bf16", got \'int8\''),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments, message):
    with Group(0, 1) as group, pytest.raises(UsageError) as caught:
        DataParallel(make_layers(), group, **arguments)
    assert str(caught.value) == message
