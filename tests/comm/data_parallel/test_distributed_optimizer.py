from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group, MismatchError, UsageError
from hpsearch_comm.data_parallel import DistributedOptimizer
from tests.comm.thread_ranks import run_ranks


def one_weight(value: float = 1.0) -> Any:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def loss(model: nn.Module, value: float) -> Any:
    result: torch.Tensor = model(torch.full((1, 1), value)).sum()
    return result


def test_gradients_are_averaged_after_so_many_backward_passes():
    def work(group):
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), group, backward_passes_per_step=2)
        seen = []
        for value in (1.0, 2.0):
            loss(model, value * 10**group.rank).backward()
            assert model.weight.grad is not None
            seen.append(model.weight.grad.item())
        optimizer.step()
        return [*seen, model.weight.item()]

    assert run_ranks(2, work) == [[1.0, 16.5, -15.5], [10.0, 16.5, -15.5]]


def test_a_step_before_the_passes_are_complete_averages_what_there_is():
    def work(group):
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), group, backward_passes_per_step=3)
        seen = []
        for passes in (1, 2, 3, 1):
            optimizer.zero_grad()
            for _ in range(passes):
                loss(model, 2.0 * group.rank).backward()
            optimizer.step()
            seen.append(model.weight.item())
        return seen

    assert run_ranks(2, work) == [[0.0, -2.0, -5.0, -6.0]] * 2


def test_zero_grad_begins_the_count_of_passes_again():
    def work(group):
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), group, backward_passes_per_step=2)
        loss(model, 7.0).backward()
        optimizer.zero_grad()
        loss(model, 1.0 + group.rank).backward()
        assert model.weight.grad is not None
        return model.weight.grad.item()  # not yet averaged

    assert run_ranks(2, work) == [1.0, 2.0]


def test_parameters_and_the_optimizer_s_state_become_those_of_rank_0():
    def work(group):
        model = one_weight(5.0 + group.rank)
        adam = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + group.rank))
        if group.rank == 0:  # which has resumed from a checkpoint
            loss(model, 3.0).backward()
            adam.step()
        optimizer = DistributedOptimizer(adam, model.named_parameters(), group)
        state = adam.state[model.weight]
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
        return model.weight.item(), state["exp_avg"].item(), optimizer.param_groups[0]["lr"]

    first, second = run_ranks(2, work)
    assert first == second
    assert first[1:] == (pytest.approx(0.3), 0.1)


def test_schedulers_take_it_for_the_optimizer():
    def work(group):
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), group)
        assert isinstance(optimizer, torch.optim.Optimizer)
        schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
            torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        ]
        rates = []
        for _ in range(2):
            optimizer.zero_grad()
            loss(model, 1.0).backward()
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
            rates.append(sgd.param_groups[0]["lr"])
        assert rates[0] != rates[1]
        return rates

    first, second = run_ranks(2, work)
    assert first == second


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_skips_a_step_on_all_ranks_when_one_overflows(fused):
    def work(group):
        model = one_weight()
        adam = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
        optimizer = DistributedOptimizer(adam, model.named_parameters(), group)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        seen = []
        for value in (1.0, float("inf") if group.rank == 1 else 1.0, 2.0 * group.rank):
            optimizer.zero_grad()
            scaler.scale(loss(model, value)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            seen.append(model.weight.item())
        return seen

    assert run_ranks(2, work) == [[0.0, 0.0, -1.0]] * 2


def test_a_closure_s_gradients_are_averaged():
    def work(group):
        model = one_weight()
        lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
        optimizer = DistributedOptimizer(lbfgs, model.named_parameters(), group)

        def closure():
            optimizer.zero_grad()
            value = (model(torch.ones(1, 1)) - 4.0 * group.rank).square().sum()
            value.backward()
            # Such an optimizer decides by the loss, so it must be every rank's.
            return group.allreduce(value.detach()).item()

        for _ in range(10):
            optimizer.step(closure)
        return model.weight.item()

    first, second = run_ranks(2, work)
    assert first == second == pytest.approx(2.0, abs=1e-3)


def test_its_state_hooks_and_text_are_the_wrapped_optimizer_s():
    with Group(0, 1) as group:
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
        optimizer = DistributedOptimizer(sgd, model.named_parameters(), group)
        called = []
        optimizer.register_step_pre_hook(lambda *_: called.append("before"))
        loss(model, 1.0).backward()
        optimizer.step()
        assert called == ["before"]
        assert optimizer.state is sgd.state
        assert optimizer.defaults["lr"] == 0.25
        state = optimizer.state_dict()
        state["param_groups"][0]["lr"] = 0.5
        optimizer.load_state_dict(state)
        assert sgd.param_groups[0]["lr"] == 0.5
        assert repr(optimizer).startswith("DistributedOptimizer(SGD (")
        with pytest.raises(UsageError, match="a group of parameters can't be added"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        with pytest.raises(AttributeError, match="lucky"):
            _ = optimizer.lucky


def test_two_optimizers_share_a_model():
    def work(group):
        model = nn.ModuleList([one_weight(), one_weight()])
        optimizers = [
            DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=1.0), model.named_parameters(), group)
            for part in model
        ]
        for part, optimizer in zip(model, optimizers, strict=True):
            loss(part, 2.0 * group.rank).backward()
            optimizer.step()
        return [part.get_parameter("weight").item() for part in model]

    assert run_ranks(2, work) == [[0.0, 0.0]] * 2


def test_a_parameter_without_a_name_is_an_error():
    with Group(0, 1) as group:
        first, second = one_weight(), one_weight()
        sgd = torch.optim.SGD([{"params": first.parameters()}, {"params": second.parameters()}], lr=1.0)
        with pytest.raises(UsageError, match=r"parameter 0 of the optimizer's group 1, of shape \[1, 1\], isn't among"):
            DistributedOptimizer(sgd, first.named_parameters(), group)


@pytest.mark.parametrize("passes", [0, 1.5, True])
def test_the_number_of_passes_must_be_a_positive_integer(passes):
    with Group(0, 1) as group:
        model = one_weight()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(UsageError, match="backward_passes_per_step must be an integer of 1 or more"):
            DistributedOptimizer(sgd, model.named_parameters(), group, backward_passes_per_step=passes)


def test_optimizers_that_differ_are_refused_on_every_rank():
    def work(group):
        model = one_weight()
        kind = torch.optim.Adam if group.rank else torch.optim.SGD
        with pytest.raises(MismatchError) as caught:
            DistributedOptimizer(kind(model.parameters(), lr=1.0), model.named_parameters(), group)
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "rank 0 has optimizer SGD, rank 1 has optimizer Adam" in text
