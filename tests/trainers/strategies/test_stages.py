"""Where models are cut, and which can't be."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.stages import Stages, cut, cut_evenly


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_the_largest_stage_is_as_small_as_can_be(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))

    def largest(starts: Any) -> Any:
        return max(sum(sizes[start:end]) for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True))

    starts = cut_evenly(sizes, count)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert len(starts) == count
    assert largest(starts) == min(largest([0, *rest]) for rest in combinations(range(1, len(sizes)), count - 1))


def test_nested_layers_are_cut_and_those_without_parameters_follow():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())), nn.Linear(4, 4)
    )
    stages = cut(model, None, 3)
    assert [[type(layer).__name__ for layer in stage] for stage in stages.layers] == [
        ["Linear", "ReLU"],
        ["Linear", "Tanh"],
        ["Linear"],
    ]
    assert stages.owner == {
        "0.0.weight": 0,
        "0.0.bias": 0,
        "0.2.0.weight": 1,
        "0.2.0.bias": 1,
        "1.weight": 2,
        "1.bias": 2,
    }


def test_buffers_have_a_stage():
    stages = cut(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), None, 2)
    buffers = {"1.running_mean": 1, "1.running_var": 1, "1.num_batches_tracked": 1}
    assert stages.owner == {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1, **buffers}


class Own(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self[1](self[0](inputs)) + inputs
        return output


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Own(nn.Linear(2, 2), nn.Linear(2, 2)), hooked()])
def test_what_is_no_sequential_must_name_its_parts(model):
    message = rf"a pipeline takes an nn.Sequential without hooks, .* got {type(model).__name__}: give Parts\(pipeline="
    with pytest.raises(ConfigurationError, match=message):
        cut(model, None, 2)


def test_a_nested_layer_with_hooks_stays_whole():
    inner = hooked()
    assert cut(nn.Sequential(inner, nn.Linear(2, 2)), None, 2).layers[0] == (inner,)


def test_too_few_layers_are_refused():
    with pytest.raises(
        ConfigurationError, match=r"3 workers takes a model of 3 layers or more, got 2: lower resources"
    ):
        cut(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), None, 3)


def test_what_is_in_several_stages_is_told():
    shared = nn.Linear(2, 2)
    tied = nn.Sequential(shared, nn.Linear(2, 2), nn.Linear(2, 2))
    tied[2].weight = shared.weight
    assert cut(tied, None, 2).shared == "0.weight in stages 0 and 1"
    norm = nn.BatchNorm1d(2, affine=False)
    assert cut(nn.Sequential(norm, norm), None, 2).shared.startswith("0.running_mean in stages 0 and 1, 0.running_var")
    together = cut(nn.Sequential(shared, shared, nn.Linear(2, 2), nn.Linear(2, 2)), None, 2)
    assert (together.shared, together.owner["0.weight"]) == ("", 0)


def test_named_modules_must_have_the_parameters_of_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))

    def named(*modules: nn.Module) -> Stages:
        return cut(model, modules, 2)

    assert named(model[0], nn.Sequential(model[1], model[2])).owner["2.bias"] == 1
    with pytest.raises(ConfigurationError, match=r"all parameters of the model, got none with 2.weight, 2.bias: add"):
        named(model[0], model[1])
    with pytest.raises(ConfigurationError, match=r"parameters of the model alone, got 2 others"):
        named(*model, nn.Linear(2, 2))
