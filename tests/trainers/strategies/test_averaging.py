"""Means over workers, beside the definition in Python's own numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_trainers.strategies.averaging import average_optimizer, average_tensors, average_weights
from tests.comm.thread_ranks import run_ranks

PARAMETERS = 4


def drawn(seed: int, width: int) -> tuple[list[int], list[list[dict[str, float]]]]:
    """Return the rows of each worker, and its state of each parameter; some have none."""
    draw = random.Random(seed)
    rows = [draw.choice([0, 0, 1, 3, 7]) for _ in range(width - 1)] + [2]
    states = [
        [
            {"momentum": draw.uniform(-9, 9), "step": float(draw.randint(1, 99)), "calls": draw.randint(1, 99)}
            if draw.random() < 0.6
            else {}
            for _ in range(PARAMETERS)
        ]
        for _ in range(width)
    ]
    return rows, states


def wanted(rows: list[int], of_workers: list[dict[str, float]]) -> dict[str, float]:
    """Return the expected state of one parameter after averaging."""
    having = [(row, state) for row, state in zip(rows, of_workers, strict=True) if state]
    if not having:
        return {}
    weights = [row for row, _ in having] if any(row for row, _ in having) else [1] * len(having)
    mean = sum(w * state["momentum"] for w, (_, state) in zip(weights, having, strict=True)) / sum(weights)
    return {"momentum": mean} | {name: max(state[name] for _, state in having) for name in ("step", "calls")}


@pytest.mark.parametrize("width", [2, 3])
def test_what_workers_have_in_their_optimizers_becomes_one(width):
    def work(group: Group) -> None:
        for seed in range(40):
            rows, states = drawn(seed, width)
            optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2)) for _ in range(PARAMETERS)], lr=0.1)
            optimizer.param_groups[0]["adapted"] = float(group.rank + 1)
            parameters = optimizer.param_groups[0]["params"]
            for parameter, state in zip(parameters, states[group.rank], strict=True):
                if state:
                    momentum = torch.tensor([state["momentum"], -state["momentum"]])
                    kept = momentum.to_sparse() if seed % 2 else momentum
                    optimizer.state[parameter] = state | {"momentum": kept, "step": torch.tensor(state["step"])}
            average_optimizer(optimizer, rows, group)
            assert optimizer.param_groups[0]["adapted"] == 1.0
            for place, parameter in enumerate(parameters):
                expected = wanted(rows, [of_worker[place] for of_worker in states])
                found = optimizer.state.get(parameter, {})
                assert {**found, "momentum": None} == {**expected, "momentum": None} or not (found or expected)
                if expected:
                    values = [expected["momentum"], -expected["momentum"]]
                    assert found["momentum"].tolist() == pytest.approx(values, abs=1e-5)

    run_ranks(width, work)


def test_kinds_of_tensors_are_averaged_each():
    def work(group: Group) -> None:
        made = [
            torch.full((2, 3), 1.0 + group.rank).t(),
            torch.full((2,), 1.0 + group.rank, dtype=torch.bfloat16),
            torch.full((), 1.0 + group.rank, dtype=torch.float64),
            torch.full((2, 1), 1.0 + 1j * group.rank, dtype=torch.complex64),
        ]
        average_tensors(made, [[0.25, 0.75][group.rank]] * 4, group)
        assert [one.flatten()[0].item() for one in made] == [1.75, 1.75, 1.75, 1 + 0.75j]
        assert [list(one.shape) for one in made] == [[3, 2], [2], [], [2, 1]]

    run_ranks(2, work)


@pytest.mark.parametrize("how", ["common", "weights"])
def test_what_is_equal_everywhere_stays_to_the_bit(how):
    """A third of 0.1, three times, isn't 0.1; and no infinity has a mean of differences."""

    def work(group: Group) -> Any:
        same = torch.tensor([0.1, 1 / 3, float("inf"), -float("inf"), 0.7])
        other = same.clone()
        other[4] += group.rank
        indices = torch.tensor([group.rank])
        if how == "common":
            average_tensors([same, other], [[2 / 13, 5 / 13, 6 / 13][group.rank]] * 2, group, [same.clone()] * 2)
        else:
            average_weights([same, other, indices], [2, 5, 6], group)
        assert indices.item() == group.rank
        assert torch.equal(same, torch.tensor([0.1, 1 / 3, float("inf"), -float("inf"), 0.7]))
        assert torch.equal(other[:4], same[:4])
        return other[4].item()

    assert run_ranks(3, work) == pytest.approx([0.7 + 17 / 13] * 3)
