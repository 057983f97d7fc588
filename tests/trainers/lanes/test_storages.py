"""What counts as held by a trainer, and what two hold together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes import storages_of
from hpsearch_trainers.parts import Data

ROWS = 8
OF_ROWS = ROWS * (3 * 4 + 8)
OF_MODEL = 4 * (3 * 2 + 2)
SHARED = torch.zeros(ROWS, 3)


@dataclass
class Trial:
    params: dict[str, Any]
    seed: int = 0


class Arrays(Dataset[Any]):
    """A data set that returns its rows one by one, out of an array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(np.array(self.values[row])), torch.tensor(0)


class Linear(Trainer):
    """A linear layer on data that `params` names."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make it."""
        model = nn.Linear(3, 2)
        return Parts(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=params.get("momentum", 0.0)),
            loss=nn.functional.cross_entropy,
            train=params["data"],
            average=params.get("average"),
        )


def held(data: Data, **params: Any) -> int:
    return sum(storages_of(Linear(Trial({"data": data, **params}))).values())


def tensors() -> tuple[Tensor, Tensor]:
    return torch.zeros(ROWS, 3), torch.zeros(ROWS, dtype=torch.int64)


@pytest.mark.parametrize("kind", [tuple, lambda pair: TensorDataset(*pair)])
def test_a_trainer_holds_its_model_and_its_data(kind):
    assert held(kind(tensors())) == OF_MODEL + OF_ROWS


def test_training_adds_gradients_and_the_optimizers_state():
    trainer = Linear(Trial({"data": tensors(), "momentum": 0.9}))
    trainer.step()
    assert sum(storages_of(trainer).values()) == 3 * OF_MODEL + OF_ROWS


def test_the_average_counts():
    assert held(tensors(), average=0.9) == 2 * OF_MODEL + OF_ROWS + 8


def test_a_part_of_a_storage_holds_all_of_it_once():
    rows = torch.zeros(100 * ROWS, 3)
    assert held((rows[:ROWS], tensors()[1])) == OF_MODEL + rows.nbytes + 8 * ROWS


def test_two_that_share_their_data_hold_them_once_together():
    pairs = [(SHARED, tensors()[1]) for _ in range(2)]
    one, other = (storages_of(Linear(Trial({"data": pair}))) for pair in pairs)
    assert one.keys() & other.keys() == {SHARED.untyped_storage().data_ptr()}
    assert sum((one | other).values()) == 2 * (OF_MODEL + OF_ROWS) - SHARED.nbytes


def test_a_data_set_holds_the_arrays_that_it_has_and_not_what_lies_in_a_file(tmp_path):
    values = np.zeros((100, 3), np.float32)
    assert held(Subset(Arrays(values), range(ROWS))) == OF_MODEL + values.nbytes
    assert held(Arrays(values[:ROWS])) == OF_MODEL + values.nbytes
    np.save(tmp_path / "values.npy", values)
    assert held(Arrays(np.load(tmp_path / "values.npy", mmap_mode="r"))) == OF_MODEL
