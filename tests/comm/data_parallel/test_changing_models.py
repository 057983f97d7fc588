"""Models that change after they were wrapped, and wrappers that come and go."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group, MismatchError, UsageError
from hpsearch_comm.data_parallel import DataParallel, DistributedOptimizer
from hpsearch_comm.data_parallel.reducer import GradientReducer
from tests.comm.data_parallel.gradient_checks import assert_close, gradients, inputs_of, make_layers, seeded
from tests.comm.thread_ranks import run_ranks


def test_a_parameter_that_is_frozen_later_is_left_alone():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model[0].requires_grad_(False)
        wrapped.zero_grad()
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return gradients(model)

    for seen in run_ranks(2, work):
        assert seen[:2] == [None, None]
        assert all(gradient is not None for gradient in seen[2:])


def test_a_parameter_that_is_unfrozen_later_is_an_error():
    def work(group):
        model = make_layers()
        model[0].requires_grad_(False)
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model[0].requires_grad_(True)
        with pytest.raises(UsageError, match=r"0\.weight needed no gradient when the model was wrapped"):
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_a_parameter_that_is_added_later_is_an_error():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model.append(nn.Linear(4, 4))
        wrapped.train()
        with pytest.raises(UsageError, match=r"3\.weight was added"):
            wrapped(inputs_of(group.rank, 3, 4))

    run_ranks(2, work)


def replace(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def assign(model: Any) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [replace, assign])
def test_a_parameter_that_is_replaced_later_is_an_error(change):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        change(model)
        with pytest.raises(UsageError, match=r"0\.weight was added to the model, or replaced"):
            wrapped(inputs_of(group.rank, 3, 4))

    run_ranks(2, work)


@pytest.mark.parametrize("inner", [False, True], ids=["the wrapper", "the model inside"])
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_may_change_its_dtype_after_it_was_wrapped(inner, set_to_none, overlap):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, overlap=overlap)
        wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        (model if inner else wrapped).double()
        for _ in range(2):
            wrapped.zero_grad(set_to_none)
            wrapped(inputs_of(group.rank, 3, 4, dtype=torch.float64)).square().sum().backward()
        return gradients(model)

    alone = make_layers().double()
    sum(alone(inputs_of(rank, 3, 4, dtype=torch.float64)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


@pytest.mark.parametrize(
    "change",
    [lambda model: model.share_memory(), lambda model: model._apply(torch.clone)],
    ids=["shared", "copied"],
)
def test_a_model_may_move_after_it_was_wrapped_with_its_gradients(change):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        change(model)
        wrapped.zero_grad(set_to_none=False)
        wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        return gradients(model)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


@pytest.mark.parametrize("large", [1, 1 << 20], ids=["large", "small"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_may_change_its_layout_after_it_was_wrapped_whoever_has_gradients_then(large, overlap, monkeypatch):
    monkeypatch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)

    def work(group):
        model: Any = seeded(lambda: nn.Conv2d(3, 4, 3))
        wrapped = DataParallel(model, group, overlap=overlap)
        wrapped(inputs_of(group.rank, 2, 3, 5, 5)).sum().backward()
        wrapped.zero_grad(set_to_none=group.rank == 0)
        model.to(memory_format=torch.channels_last)
        seen = []
        for step in range(3):
            wrapped.zero_grad(set_to_none=step != 1)
            outputs = wrapped(inputs_of(group.rank, 2, 3, 5, 5))
            (outputs.square().sum() if step != 1 or group.rank else model.bias.sum()).backward()
            seen.append(gradients(model))
        return seen, model.weight.grad.stride() == model.weight.stride()

    expected = []
    for ranks in ((0, 1), (1,), (0, 1)):
        alone: Any = seeded(lambda: nn.Conv2d(3, 4, 3))
        sum(alone(inputs_of(rank, 2, 3, 5, 5)).square().sum() / 2 for rank in ranks).backward()
        if len(ranks) == 1:
            (alone.bias.sum() / 2).backward()
        expected.append(gradients(alone))
    for seen, same_strides in run_ranks(2, work):
        for mine, theirs in zip(seen, expected, strict=True):
            assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert same_strides


def test_a_parameter_may_get_data_of_another_shape():
    def work(group):
        model: Any = nn.Linear(2, 3, bias=False)
        wrapped = DataParallel(model, group)
        for width in (2, 4, 1):
            wrapped.zero_grad()
            model.weight.data = torch.ones(3, width)
            wrapped(torch.full((1, width), 1.0 + group.rank)).sum().backward()
            assert torch.equal(model.weight.grad, torch.full((3, width), 1.5))

    run_ranks(2, work)


@pytest.mark.parametrize("wrapped_before", [False, True])
def test_a_layout_that_differs_between_ranks_is_an_error_on_every_rank(wrapped_before):
    def work(group):
        model: Any = nn.Conv2d(3, 4, 3)
        layout = torch.channels_last if group.rank else torch.contiguous_format
        if wrapped_before:
            wrapped = DataParallel(model, group)
            wrapped(inputs_of(group.rank, 2, 3, 5, 5)).sum().backward()
            model.to(dtype=torch.float64, memory_format=layout)
        else:
            wrapped = DataParallel(model.double().to(memory_format=layout), group)
        loss = wrapped(inputs_of(group.rank, 2, 3, 5, 5, dtype=torch.float64)).sum()
        with pytest.raises(MismatchError) as caught:
            loss.backward()
        return str(caught.value)

    for text in run_ranks(2, work):
        shape = "parameter weight float64 [4, 3, 3, 3]"
        assert f"rank 0 has {shape}, rank 1 has {shape} of strides [27, 1, 9, 3]." in text


def test_a_conversion_that_changes_nothing_may_happen_on_one_rank_only():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        if group.rank == 0:  # which saves a checkpoint
            wrapped.cpu().state_dict()
        wrapped.zero_grad()
        wrapped(torch.full((1, 4), float(group.rank))).sum().backward()
        return gradients(model)

    first, second = run_ranks(2, work)
    assert_close(first, second, rtol=0, atol=0)


def test_wrapping_a_model_and_its_optimizer_is_an_error():
    with Group(0, 1) as group:
        model = make_layers()
        DataParallel(model, group)

    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(UsageError, match=r"0\.weight is averaged already"):
            DistributedOptimizer(optimizer, model.named_parameters(), group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_the_model_is_an_ordinary_one_again_when_the_wrapper_is_gone():
    def work(group):
        model = nn.Linear(1, 1, bias=False)
        wrapped = DataParallel(model, group)
        wrapped(torch.ones(1, 1)).sum().backward()
        gone = weakref.ref(wrapped)
        del wrapped
        gc.collect()
        assert gone() is None
        model.zero_grad()
        model(torch.full((1, 1), float(group.rank))).sum().backward()
        return gradients(model)

    for rank, seen in enumerate(run_ranks(2, work)):
        assert_close(seen, [torch.full((1, 1), float(rank))])


def test_a_forgotten_model_is_freed_with_its_reducer():
    def work(group):
        model = make_layers()
        reducer = GradientReducer(list(model.named_parameters()), group)
        reducer.watch(model)
        model(inputs_of(group.rank, 3, 4)).sum().backward()
        reducer.close()
        return weakref.ref(model[0].weight)

    freed = run_ranks(2, work)
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_the_model_can_be_copied_and_its_wrappers_can_not(duplicate):
    def work(group):
        model, other = make_layers(), make_layers()
        wrapped = DataParallel(model, group)
        optimizer = DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters(), group)
        with pytest.raises(UsageError, match="a DataParallel can't be copied or pickled"):
            duplicate(wrapped)
        with pytest.raises(UsageError, match="a DistributedOptimizer can't be copied or pickled"):
            duplicate(optimizer)
        duplicate(wrapped.module)

    run_ranks(2, work)


def test_a_copy_of_the_model_is_an_ordinary_one():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        twins = [copy.deepcopy(wrapped.module), pickle.loads(pickle.dumps(wrapped.module))]
        if group.rank == 0:
            for twin in twins:
                twin(inputs_of(0, 3, 4)).sum().backward()
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)
