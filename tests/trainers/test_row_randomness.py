"""What is random in a row: the same whoever reads it, and no draw from what the training draws from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hpsearch_trainers.batches import Batches

CPU = torch.device("cpu")
ROWS = 12


class Augmented(Dataset[Any]):
    """Rows that are drawn from all three generators."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.tensor([random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64), row


def read(parts: list[list[int]], seed: int, loaders: int = 0) -> dict[int, list[float]]:
    """Return each row that was read, whatever the batches."""
    batches = Batches(Augmented(), CPU, loaders).read([torch.tensor(part) for part in parts], seed)
    return {int(row): values.tolist() for drawn, rows in batches for values, row in zip(drawn, rows, strict=True)}


def state() -> tuple[Any, ...]:
    return random.random(), np.random.random(), torch.rand(()).item()


def test_a_row_draws_the_same_in_any_batch_and_order():
    whole = read([list(range(ROWS))], 1)
    assert read([[7, 3], [11], [0, 1, 2]], 1) == {row: whole[row] for row in (7, 3, 11, 0, 1, 2)}
    assert len({value for values in whole.values() for value in values}) == 3 * ROWS


@pytest.mark.slow
def test_a_row_draws_the_same_in_loader_processes():
    assert read([[4, 5], [6, 7]], 1, loaders=1) == read([[4, 5, 6, 7]], 1)


def test_another_seed_draws_otherwise():
    one, other = read([[0]], 1), read([[0]], 2)
    assert set(one[0]).isdisjoint(other[0])


@pytest.mark.parametrize("loaders", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_generators_of_the_training_stay_where_they_stood(loaders):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = state()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    read([[0, 1], [2, 3]], 1, loaders)
    assert state() == expected
