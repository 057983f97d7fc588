"""Wrapping a model: what is checked and sent, and what the wrapper is to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group, MismatchError, UsageError
from hpsearch_comm.data_parallel import DataParallel
from tests.comm.thread_ranks import run_ranks


def test_parameters_and_buffers_become_those_of_rank_0():
    def work(group):
        convolution: Any = nn.Conv2d(2, 2, 1)
        model: Any = nn.Sequential(convolution.to(memory_format=torch.channels_last), nn.BatchNorm2d(2))
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().fill_(group.rank + 5)
        model[0].requires_grad_(False)
        DataParallel(model, group)
        return [tensor.double().mean().item() for tensor in (*model.parameters(), *model.buffers())]

    assert run_ranks(3, work) == [[5.0] * 7] * 3


def test_nothing_is_sent_without_broadcast():
    def work(group):
        model = nn.Linear(1, 1)
        nn.init.constant_(model.weight, group.rank)
        DataParallel(model, group, broadcast=False)
        return model.weight.item()

    assert run_ranks(2, work) == [0.0, 1.0]


def refusals(size: int, build: Callable[[Group], object]) -> list[str]:
    def work(group):
        with pytest.raises(MismatchError) as caught:
            build(group)
        group.barrier()  # the group goes on
        return str(caught.value)

    return run_ranks(size, work)


def test_models_that_differ_are_refused_on_every_rank_with_the_first_difference():
    def build(group):
        DataParallel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4 if group.rank == 2 else 5)), group)

    for text in refusals(3, build):
        assert text.startswith(
            "the model must be the same on every rank; the first difference: rank 0 has parameter 1.weight float32 "
            "[5, 3], rank 2 has parameter 1.weight float32 [4, 3]."
        )


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        (lambda m: m.double(), "parameter weight float32 [2, 2]", "parameter weight float64 [2, 2]"),
        (
            lambda m: m.weight.requires_grad_(False),
            "parameter weight float32 [2, 2]",
            "parameter weight float32 [2, 2] without gradient",
        ),
        (lambda m: m.register_buffer("mask", torch.ones(1)), "nothing more", "buffer mask float32 [1]"),
    ],
    ids=["dtype", "frozen", "buffer"],
)
def test_any_difference_is_named(change, first, second):
    def build(group):
        model = nn.Linear(2, 2)
        if group.rank == 1:
            change(model)
        DataParallel(model, group)

    for text in refusals(2, build):
        assert f"rank 0 has {first}, rank 1 has {second}." in text


def test_arguments_that_differ_are_refused():
    for text in refusals(2, lambda group: DataParallel(nn.Linear(1, 1), group, bucket_mb=1.0 + group.rank)):
        assert "rank 0 has settings bucket_mb=1.0" in text
        assert "rank 1 has settings bucket_mb=2.0" in text


def test_a_model_that_was_refused_can_be_wrapped_again():
    def work(group):
        model = nn.Linear(1, 1)
        with pytest.raises(MismatchError):
            DataParallel(model, group, bucket_mb=1.0 + group.rank)
        DataParallel(model, group)(torch.ones(1, 1)).sum().backward()

    run_ranks(2, work)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.LazyLinear(2), "parameter weight is lazy and has no shape yet: run one batch"),
        (nn.Linear(1, 1).requires_grad_(False), "no parameter of the model needs a gradient"),
        (nn.ReLU(), "no parameter of the model needs a gradient"),
    ],
    ids=["lazy", "frozen", "empty"],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_models_that_can_not_be_trained_are_errors(model, message):
    with Group(0, 1) as group, pytest.raises(UsageError, match=message):
        DataParallel(model, group)


def test_its_state_is_the_inner_module_s_under_a_prefix():
    with Group(0, 1) as group:
        model = nn.BatchNorm1d(2)
        wrapped = DataParallel(model, group)
        assert list(wrapped.state_dict()) == [f"module.{key}" for key in model.state_dict()]
        assert wrapped.module is model
        wrapped.load_state_dict({key: torch.full_like(value, 3) for key, value in wrapped.state_dict().items()})
        assert model.weight.tolist() == [3.0, 3.0]


def test_it_passes_arguments_and_modes_on():
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, *args, **kwargs):
            return args, kwargs, self.training

    with Group(0, 1) as group:
        wrapped = DataParallel(Echo(), group)
        assert wrapped(1, x=2) == ((1,), {"x": 2}, True)
        assert wrapped.eval()() == ((), {}, False)


def test_it_works_under_autocast():
    def work(group):
        model = nn.Linear(2, 1, bias=False)
        wrapped = DataParallel(model, group)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = wrapped(torch.full((1, 2), group.rank + 1.0)).sum()
        loss.backward()
        assert model.weight.grad is not None
        return model.weight.grad

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.full((1, 2), 1.5))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("compiled_first", [False, True])
def test_a_compiled_model_is_averaged_as_an_ordinary_one(compiled_first):
    def work(group):
        model: Any = nn.Linear(2, 1, bias=False)
        compiled: Any = torch.compile(model if compiled_first else DataParallel(model, group), backend="eager")
        trained: Any = DataParallel(compiled, group) if compiled_first else compiled
        for _ in range(2):
            trained.train()
            model.zero_grad()
            trained(torch.full((1, 2), group.rank + 1.0)).sum().backward()
        return model.weight.grad

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.full((1, 2), 1.5))
