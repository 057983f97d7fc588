"""What workers of one trainer must do alike: passes in which their layers meet, and a moving average of the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch_comm import Group
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Rows, Small, curve, data, mlp, of


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [2, *(pytest.param(rest, marks=pytest.mark.exhaustive) for rest in (3, 4))])
def test_accumulating_workers_meet_in_as_many_passes(width):
    """The last batch has three rows: of two workers one could take two passes, and the other only one."""
    options: dict[str, Any] = {"model": "cnn", "batch_norm": "sync", "accumulate": 2}
    wide, alone = curve(3, width, **options), curve(3, **options)
    assert of(wide, "loss") == pytest.approx(of(alone, "loss"), abs=0.1)  # other rows are normalized together


class Named(Rows):
    """Inputs by name."""

    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        return {"features": inputs}, target


class OfNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = mlp()

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        return self.model(inputs["features"])


@pytest.mark.parametrize("width", [1, 2])
def test_inputs_of_any_structure_are_accumulated(width, monkeypatch):
    monkeypatch.setitem(MODELS, "named", OfNamed)
    named: Dataset[Any] = Named()
    found = curve(2, width, model="named", train=named, validation=None, metrics={}, accumulate=3)
    assert of(found, "loss") == pytest.approx(of(curve(2), "loss"), abs=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_norm", [pytest.param("local", marks=pytest.mark.exhaustive), "sync"])
def test_an_average_is_the_same_on_all_workers_and_continues_to_the_bit(batch_norm):
    options = {"model": "cnn", "average": 0.9, "batch_norm": batch_norm}

    def train(group: Group, state: Any, epochs: int) -> tuple[list[float], Any]:
        trainer = Small(FakeTrial(options, group))
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        return [trainer.step()["validation_loss"] for _ in range(epochs)], trainer.state_dict()

    whole, _ = run_ranks(2, lambda group: train(group, None, 4))[0]
    (begun, state), (_, other) = run_ranks(2, lambda group: train(group, None, 2))
    assert all(torch.equal(value, other["average"][name]) for name, value in state["average"].items())
    ended, _ = run_ranks(2, lambda group: train(group, state, 2))[0]
    assert begun + ended == whole


class TakesNoEmptyBatch(nn.Module):
    """Normalizes each row, and asks for its first one, as torch's instance normalization with a weight does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(3, affine=True)
        self.model = mlp()

    def forward(self, inputs: Tensor) -> Any:
        return self.model(self.norm(inputs.view(len(inputs), 3, -1)).flatten(1))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_worker_without_rows_needs_no_model_that_takes_none(width, monkeypatch):
    """Of 13 rows in batches of 4 the last one has a single row, for the first worker."""
    monkeypatch.setitem(MODELS, "picky", TakesNoEmptyBatch)
    options: dict[str, Any] = {"model": "picky", "batch_size": 4, "train": data(13)}
    assert of(curve(3, width, **options), "loss") == pytest.approx(of(curve(3, **options), "loss"), abs=1e-5)
