"""Bringing one rank's parameters and optimizer state to the others."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import MismatchError, RefusedError, UsageError
from hpsearch_comm.data_parallel import broadcast_optimizer_state, broadcast_parameters
from hpsearch_comm.data_parallel.agreement import check_agreement
from hpsearch_comm.data_parallel.broadcast import _describe_groups
from tests.comm.thread_ranks import run_ranks


def test_a_state_dict_becomes_the_root_s():
    def work(group):
        model = nn.BatchNorm1d(2)
        for tensor in model.state_dict().values():
            tensor.fill_(group.rank)
        broadcast_parameters(model.state_dict(), group, root=1)
        broadcast_parameters([("x", x := torch.full((2, 3), group.rank + 0.5).t())], group, root=2)
        return [*(float(tensor.double().mean()) for tensor in model.state_dict().values()), float(x.mean())]

    assert run_ranks(3, work) == [[1.0] * 5 + [2.5]] * 3


def test_tensors_that_differ_are_named():
    def work(group):
        with pytest.raises(
            MismatchError, match=r"rank 0 has tensor x float32 \[2\], rank 1 has tensor x float32 \[3\]"
        ):
            broadcast_parameters({"x": torch.ones(2 + group.rank)}, group)

    run_ranks(2, work)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "adam, rate as a tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.1)),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=0.1),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.1),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
}


def flatten(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.dtype, tuple(value.shape), *value.flatten().tolist()]
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in (key, *flatten(inner))]
    if isinstance(value, list | tuple):
        return [type(value), *(item for inner in value for item in flatten(inner))]
    return [value]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stale", [False, True], ids=["no state yet", "another state"])
def test_every_rank_gets_the_root_s_optimizer_state(name, stale):
    def work(group):
        model = nn.Linear(2, 3).bfloat16() if name == "sgd" else nn.Linear(2, 3)
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = OPTIMIZERS[name](model.parameters())

        def closure():
            optimizer.zero_grad()
            value = model(torch.full((1, 2), 1.0 + group.rank, dtype=model.weight.dtype)).square().sum()
            value.backward()
            return value.detach().item()

        for _ in range(2 if group.rank == 1 else int(stale)):
            optimizer.step(closure)
        before = flatten(copy.deepcopy(optimizer.state_dict()))
        broadcast_optimizer_state(optimizer, group, root=1)
        after = flatten(optimizer.state_dict())
        if group.rank == 1:
            assert after == before
        if name != "lbfgs":
            optimizer.step(closure)
        return after

    first, second, third = run_ranks(3, work)
    assert first == second == third


class Strange(torch.optim.SGD):
    """Keeps a value of its own in its state."""

    value: object = None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state.pop("value")
        super().load_state_dict(state)


def test_numbers_without_a_form_in_json_and_nested_values_travel():
    value = {"a": [math.inf, -math.inf, (1, 2.5, None, True)], 7: "text", "none": {}, "empty": [], "long": 2**70}

    def work(group):
        optimizer = Strange([nn.Parameter(torch.ones(1))], lr=0.1)
        optimizer.value = value if group.rank == 0 else None
        broadcast_optimizer_state(optimizer, group)
        return optimizer.value

    assert run_ranks(2, work) == [value, value]


def test_sparse_tensors_travel():
    """As SGD's velocity is, of a parameter with sparse gradients."""
    value = torch.eye(3).to_sparse() + torch.eye(3).to_sparse()

    def work(group):
        optimizer = Strange([nn.Parameter(torch.ones(1))], lr=0.1)
        optimizer.value = [value, torch.zeros(4, 2).to_sparse()] if group.rank == 0 else None
        broadcast_optimizer_state(optimizer, group)
        found: Any = optimizer.value
        assert all(tensor.layout is torch.sparse_coo and tensor.is_coalesced() for tensor in found)
        return [tensor.to_dense().tolist() for tensor in found]

    assert run_ranks(2, work) == [[(2 * torch.eye(3)).tolist(), torch.zeros(4, 2).tolist()]] * 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"seen": {1, 2}}, r"state_dict\(\)\['value'\]\['seen'\] is a set, which can't be broadcast"),
        ({(1, 2): 3}, r"the keys of state_dict\(\)\['value'\] must be strings or integers"),
        (torch.eye(2).to_mkldnn(), r"state_dict\(\)\['value'\] is a torch._mkldnn tensor"),
        (
            [torch.empty(2, dtype=torch.float8_e4m3fnuz)],
            r"state_dict\(\)\['value'\]\[0\] is a tensor of torch.float8_e4m3fnuz",
        ),
    ],
    ids=["a set", "a key", "a layout", "a dtype"],
)
def test_what_can_not_travel_is_an_error_on_every_rank(value, message):
    def work(group):
        optimizer = Strange([nn.Parameter(torch.ones(1))], lr=0.1)
        optimizer.value = value if group.rank == 0 else None
        with pytest.raises(UsageError, match=message):
            broadcast_optimizer_state(optimizer, group)
        group.barrier()

    run_ranks(2, work)


@pytest.mark.parametrize("dtype", ["float3", "Tensor", "load", "complex32", "__name__", ["float32"], None, 7])
def test_a_dtype_that_no_rank_sends_is_refused(dtype):
    message = {"state": ["dict", ["value", ["tensor", dtype, [1], "cpu"]]]}

    def work(group):
        optimizer = Strange([nn.Parameter(torch.ones(1))], lr=0.1)
        if group.rank == 0:
            check_agreement(group, "an optimizer's parameters", _describe_groups(optimizer))
            group.broadcast_object(message)
            return
        with pytest.raises(RefusedError, match=r"a tensor of one of the dtypes uint8, .*float8_e5m2, got"):
            broadcast_optimizer_state(optimizer, group)

    run_ranks(2, work)


def test_optimizers_of_other_parameters_are_refused():
    def work(group):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1 + group.rank))], lr=0.1)
        with pytest.raises(MismatchError, match="parameter group 0, number 0 float32"):
            broadcast_optimizer_state(optimizer, group)

    run_ranks(2, work)
