"""What `backward()` leaves in `parameter.grad`, for models and backward passes out of the ordinary."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hpsearch_comm import Group, UsageError
from hpsearch_comm.data_parallel import DataParallel
from tests.comm.data_parallel.gradient_checks import (
    assert_close,
    compare,
    gradients,
    inputs_of,
    layers,
    make_layers,
    reduce_at_once,
    seeded,
)
from tests.comm.thread_ranks import run_ranks


def test_dtypes_are_reduced_in_buckets_of_their_own():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Linear(4, 4, dtype=dtype)
                for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float32)
            )

        def forward(self, values):
            for layer in self.layers:
                values = torch.tanh(layer(values.to(layer.weight.dtype)))
            return values

    compare(Mixed, lambda model, rank: model(inputs_of(rank, 3, 4)).sum(), rtol=2e-2, atol=2e-2)


def test_complex_parameters_are_averaged():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, values):
            return (self.weight * values).abs().square().sum()

    compare(Complex, lambda model, rank: model(inputs_of(rank, 3) + 1j))


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, values):
        return values * self.scale + self.nothing.sum()


def test_a_parameter_without_elements_does_no_harm():
    compare(Empty, lambda model, _rank: model(torch.ones(2)).sum())


def test_gradients_keep_the_strides_of_channels_last():
    def make():
        layer: Any = nn.Conv2d(3, 4, 3)
        return layer.to(memory_format=torch.channels_last)

    def work(group):
        model = seeded(make)
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad(set_to_none=False)
            wrapped(inputs_of(group.rank, 2, 3, 5, 5)).square().sum().backward()
        assert model.weight.grad is not None
        return gradients(model), model.weight.grad.stride() == model.weight.stride()

    alone = seeded(make)
    sum(alone(inputs_of(rank, 2, 3, 5, 5)).square().sum() / 2 for rank in range(2)).backward()
    for seen, same_strides in run_ranks(2, work):
        assert same_strides
        assert_close(seen, gradients(alone))


def test_a_parameter_shared_between_layers_is_averaged_once():
    def make():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return nn.Sequential(first, second)

    compare(make, lambda model, rank: model(inputs_of(rank, 3, 4)).square().sum())


def test_two_forward_passes_before_one_backward_pass():
    def loss(model, rank):
        return (model(inputs_of(rank, 3, 4)) * model(inputs_of(rank + 10, 3, 4))).sum()

    compare(layers, loss)


def test_a_second_backward_pass_over_a_graph_adds_its_mean():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        loss = wrapped(inputs_of(group.rank, 3, 4)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


def test_two_losses_with_a_backward_pass_each():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad()
            model[0](inputs_of(group.rank, 3, 4)).square().sum().backward()
            model[2](inputs_of(group.rank, 3, 4)).square().sum().backward()
        return gradients(model)

    alone = make_layers()
    for layer in (0, 2):
        sum(alone[layer](inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()

        def forward(self, values):
            for _ in range(2):  # each parameter's gradient arrives twice where checkpoint is reentrant
                values = checkpoint(self.layers, values, use_reentrant=reentrant)
            return values

    compare(Checkpointed, lambda model, rank: model(inputs_of(rank, 3, 4).requires_grad_()).square().sum())


def test_nested_reentrant_checkpointing_ends_with_the_outer_backward_pass():
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()

        def inner(self, values):
            return checkpoint(self.layers[0], values, use_reentrant=True)

        def forward(self, values):
            return self.layers[2](checkpoint(self.inner, values, use_reentrant=True))

    compare(Nested, lambda model, rank: model(inputs_of(rank, 3, 4).requires_grad_()).square().sum())


def test_a_gradient_that_arrives_again_after_it_was_averaged_is_an_error():
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()
            self.again = False

        def forward(self, values):
            values = self.layers[0](values)
            for _ in range(1 + self.again):
                values = checkpoint(self.layers[2], values, use_reentrant=True)
            return values

    def work(group):
        model = Sometimes()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model.again = True
        with pytest.raises(UsageError) as caught:
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "layers.2." in text
        assert "use_reentrant=False" in text


def test_a_parameter_that_some_ranks_use_gets_the_mean_and_one_that_none_uses_nothing():
    def work(group):
        model = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))
        wrapped = DataParallel(model, group, bucket_mb=1.0)
        for step in range(4):
            wrapped.zero_grad()
            loss = model[0](torch.ones(2)).sum()
            if group.rank == 1 and step != 1:
                loss = loss + model[1](torch.full((2,), 6.0)).sum()
            loss.backward()
            if step == 1:
                assert model[1].weight.grad is None
        return gradients(model)

    for seen in run_ranks(3, work):
        assert_close(seen, [torch.ones(1, 2), torch.full((1, 2), 2.0), None])


def test_gradients_accumulate_without_being_averaged_within_no_sync():
    def work(group):
        model = nn.Linear(1, 1, bias=False)
        wrapped = DataParallel(model, group)
        with wrapped.no_sync():
            for _ in range(2):
                wrapped(torch.full((1, 1), group.rank + 1.0)).sum().backward()
            local = gradients(model)
        wrapped(torch.full((1, 1), group.rank + 1.0)).sum().backward()
        return local, gradients(model)

    for rank, (local, mean) in enumerate(run_ranks(2, work)):
        assert_close(local, [torch.full((1, 1), 2.0 * (rank + 1))])
        assert_close(mean, [torch.full((1, 1), 4.5)])


@pytest.mark.parametrize("large", [1, 1 << 20], ids=["large", "small"])
def test_a_gradient_with_a_history_is_averaged_without_it(large, monkeypatch):
    monkeypatch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)

    def work(group):
        model: Any = nn.Linear(2, 1, bias=False)
        nn.init.ones_(model.weight)
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")
                wrapped(torch.full((1, 2), group.rank + 1.0)).square().sum().backward(create_graph=True)
        return model.weight.grad

    for seen in run_ranks(2, work):
        assert not seen.requires_grad
        torch.testing.assert_close(seen, torch.full((1, 2), (4.0 + 16.0) / 2))


def enlarge(parameter: Any, factor: float) -> None:
    def hook(parameter: Any) -> None:
        parameter.grad.mul_(factor)

    parameter.register_post_accumulate_grad_hook(hook)


def replace(parameter: Any, factor: float) -> None:
    def hook(parameter: Any) -> None:
        parameter.grad = parameter.grad * factor

    parameter.register_post_accumulate_grad_hook(hook)


def enlarge_what_arrives(parameter: Any, factor: float) -> None:
    parameter.register_hook(lambda gradient: gradient * factor)


@pytest.mark.some_cases(8)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("large", [1, 1 << 20], ids=["large", "small"])
@pytest.mark.parametrize("change", [enlarge, replace, enlarge_what_arrives])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_what_hooks_make_of_gradients_is_averaged_whenever_they_were_registered(
    overlap, large, change, steps_before, monkeypatch
):
    monkeypatch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)

    def work(group):
        reduce_at_once(group)
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=overlap)
        for step in range(steps_before + 2):
            if step == steps_before:
                for number, parameter in enumerate(model.parameters()):
                    change(parameter, 2.0 + group.rank + number)
            wrapped.zero_grad()
            wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        return gradients(model)

    models = [make_layers() for _ in range(2)]
    for rank, model in enumerate(models):
        model(inputs_of(rank, 3, 4)).square().sum().backward()
    expected = [
        sum((2.0 + rank + number) * parameter.grad for rank, parameter in enumerate(of_ranks)) / 2
        for number, of_ranks in enumerate(zip(*(model.parameters() for model in models), strict=True))
    ]
    for seen in run_ranks(2, work):
        assert_close(seen, expected)


def test_the_timeline_shows_the_backward_pass(tmp_path):
    with Group(0, 1, timeline=tmp_path / "trace.json") as group:
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(0, 3, 4)).sum().backward()
        assert group.timeline.summary().get("backward_seconds") == 0  # one rank averages nothing

    def work(group):
        wrapped = DataParallel(make_layers(), group, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return group.timeline.summary()["backward_seconds"] > 0

    assert run_ranks(2, work, timeline=tmp_path / "two.json") == [True, True]


def test_gradients_that_come_through_functions_of_the_parameters_are_averaged():
    def loss(model, rank):
        parameters = dict(model.named_parameters())
        first = torch.func.functional_call(model, parameters, (inputs_of(rank, 3, 4),)).square().sum()
        slopes = torch.autograd.grad(first, list(parameters.values()), create_graph=True)
        fast = {
            name: parameter - 0.1 * slope for (name, parameter), slope in zip(parameters.items(), slopes, strict=True)
        }
        return torch.func.functional_call(model, fast, (inputs_of(rank + 10, 3, 4),)).square().sum()

    compare(layers, loss, rtol=1e-4, atol=1e-3)


def test_a_penalty_on_a_gradient_is_part_of_the_loss():
    def loss(model, rank):
        inputs = inputs_of(rank, 3, 4).requires_grad_()
        outputs = model(inputs).square().sum()
        (slopes,) = torch.autograd.grad(outputs, inputs, create_graph=True)
        return outputs + slopes.square().sum()

    compare(layers, loss, rtol=1e-4, atol=1e-4)


def test_two_models_train_against_each_other_on_one_group():
    def work(group):
        judge, maker = make_layers(), make_layers()
        wrapped_judge, wrapped_maker = DataParallel(judge, group), DataParallel(maker, group)
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (judge, maker)]
        for step in range(3):
            made = wrapped_maker(inputs_of(10 * step + group.rank, 3, 4))
            judge.zero_grad()
            (wrapped_judge(inputs_of(group.rank, 3, 4)) - wrapped_judge(made.detach())).mean().backward()
            optimizers[0].step()
            judge.requires_grad_(step % 2 == 0)  # else its gradients are averaged for nothing
            maker.zero_grad()
            wrapped_judge(made).mean().backward()
            optimizers[1].step()
            judge.requires_grad_(True)
        return [parameter.detach() for model in (judge, maker) for parameter in model.parameters()]

    first, second = run_ranks(2, work)
    assert_close(first, second, rtol=0, atol=0)


def test_weights_and_gradients_are_exchanged_whatever_torch_s_default_device_is():
    def work(group):
        model = make_layers()
        inputs = inputs_of(group.rank, 3, 4)
        wrapped = DataParallel(model, group, weighted=True)
        with torch.device("meta"):
            wrapped.set_weight(1 + group.rank)
            wrapped(inputs).sum().backward()
        return gradients(model)

    first, second = run_ranks(2, work)
    assert_close(first, second, rtol=0, atol=0)
