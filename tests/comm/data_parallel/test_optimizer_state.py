"""An optimizer that is given a state goes on as the one that the state is of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm.data_parallel import broadcast_optimizer_state
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.horovod.elastic import TorchState
from tests.comm.thread_ranks import run_ranks


class Precise(torch.optim.Optimizer):
    """Keeps the sum of gradients in float32, whatever they are in."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter].setdefault("sum", torch.zeros(parameter.shape))
                kept += parameter.grad.float()
                parameter.sub_(kept * group["lr"])


KINDS = [torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW, torch.optim.Adafactor, Precise]
DTYPES = [torch.bfloat16, torch.float32, torch.float64]


def made(kind: Any, weight: Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(weight.detach().clone())
    return parameter, kind([parameter], lr=0.01)


def step(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, number: int) -> None:
    gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    parameter.grad = gradient.to(parameter.dtype)
    optimizer.step()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_to_the_bit(kind, dtype):
    parameter, optimizer = made(kind, torch.linspace(-1, 1, 12).view(3, 4).to(dtype))
    for number in range(3):
        step(parameter, optimizer, number)
    other, loaded = made(kind, parameter)
    saved = copy.deepcopy(optimizer.state_dict())
    load_exactly(loaded, given := copy.deepcopy(saved))
    for number in range(3, 6):
        step(parameter, optimizer, number)
        step(other, loaded, number)
    assert torch.equal(parameter, other)
    for name, value in optimizer.state[parameter].items():
        assert value.dtype is loaded.state[other][name].dtype
        assert torch.equal(value, loaded.state[other][name])
        assert torch.equal(given["state"][0][name], saved["state"][0][name])


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_are_given_one_ranks_state_go_on_alike(kind):
    def work(group):
        parameter, optimizer = made(kind, torch.ones(3, 4, dtype=torch.bfloat16))
        if group.rank == 1:
            step(parameter, optimizer, 0)
            step(parameter, optimizer, 1)
        group.broadcast(parameter.data, root=1)
        broadcast_optimizer_state(optimizer, group, root=1)
        step(parameter, optimizer, 2)
        return parameter, optimizer.state[parameter]

    (one, kept), (other, found) = run_ranks(2, work)
    assert torch.equal(one, other)
    assert {name: value.dtype for name, value in kept.items()} == {name: value.dtype for name, value in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_put_back_to_its_last_commit_takes_the_same_step_again(kind):
    parameter, optimizer = made(kind, torch.ones(3, 4, dtype=torch.bfloat16))
    model = nn.ParameterList([parameter])
    step(parameter, optimizer, 0)
    state = TorchState(model, optimizer)
    step(parameter, optimizer, 1)
    once, kept = parameter.detach().clone(), copy.deepcopy(optimizer.state[parameter])
    state.restore()
    step(parameter, optimizer, 1)
    assert torch.equal(parameter, once)
    for name, value in optimizer.state[parameter].items():
        assert value.dtype is kept[name].dtype
        assert torch.equal(value, kept[name])
