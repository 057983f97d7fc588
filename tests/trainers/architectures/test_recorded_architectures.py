"""What a network was made from is kept with it, and with its weights."""

from __future__ import annotations

import json
from typing import Any

import numpy
import torch
from hypothesis import given, settings
from torch import nn

from hpsearch_trainers.architectures import architecture_of, costs, network, standalone
from hpsearch_trainers.digits_network import ChainNetwork
from tests.trainers.architectures.drawn import architectures
from tests.trainers.test_trainer import FakeTrial

LAYERS = [{"conv": {"channels": 4}}, "pool"]


@settings(max_examples=10)
@given(architectures)
def test_a_network_is_built_again_from_what_it_was_made_from(value) -> None:
    made = network(value, (2, 9, 9), 3)
    kept: Any = architecture_of(made)
    assert kept == json.loads(
        json.dumps({"value": value, "inputs": [2, 9, 9], "outputs": 3, "stem": None, "head": None})
    )
    assert str(network(**kept)) == str(made)


def test_what_is_kept_is_not_what_a_caller_may_change_later() -> None:
    layers = [{"conv": {"channels": 4}}]
    kept: Any = architecture_of(network(layers))
    layers[0]["conv"]["channels"] = 8
    assert kept["value"] == [{"conv": {"channels": 4}}]


def test_a_trainers_checkpoint_says_what_its_weights_belong_to(tmp_path) -> None:
    trainer = ChainNetwork(FakeTrial({"layers": LAYERS}))
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    kept = state["architecture"]
    network(**kept).load_state_dict(state["model"])
    assert costs(**kept).parameters == sum(one.numel() for one in trainer.model.parameters())
    assert "def build" in standalone(**kept)


def test_nothing_is_known_of_other_modules_nor_of_what_json_cannot_say() -> None:
    class Own(nn.Module):
        architecture = "resnet"

    assert architecture_of(Own()) is None
    assert architecture_of(nn.Sequential(network(LAYERS))) is None
    assert architecture_of(network([{"dropout": {"p": numpy.float32(0.5)}}])) is None
