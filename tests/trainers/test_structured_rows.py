"""Inputs and targets that are structures of tensors: every row counts once, whatever its structure holds."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.batches import Batches
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial, curve

Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Two parts."""

    first: Any
    second: Any = None


@dataclasses.dataclass
class Slots:
    """One part, and one that `__init__` doesn't take."""

    __slots__ = ("made", "part")
    part: Any

    def __post_init__(self) -> None:
        self.made = self.part


class Items(UserDict[str, Any]):
    """A mapping that is no dict."""


def leaves(structure: Any) -> list[Tensor]:
    """Return the tensors of a structure, in order."""
    if isinstance(structure, Tensor):
        return [structure]
    if dataclasses.is_dataclass(structure):
        return leaves([getattr(structure, field.name) for field in dataclasses.fields(structure)])
    parts = structure.values() if hasattr(structure, "values") else structure
    return [leaf for part in parts if not isinstance(part, str) for leaf in leaves(part)]


def numbers(structure: Any) -> Tensor:
    """Return all numbers of each row: (rows, numbers)."""
    return torch.cat(
        [leaf.double().flatten(1) if leaf.dim() > 1 else leaf.double()[:, None] for leaf in leaves(structure)], 1
    )


LEAF = st.sampled_from(["tensor", "array", "scalar", "float", "int"])
STRUCTURE = st.recursive(
    LEAF,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3),
        st.tuples(
            st.sampled_from(["tuple", "dict", "ordered", "items", "named", "frozen", "slots", "text"]), parts, parts
        ),
    ),
    max_leaves=5,
)


def built(shape: Any, random: np.random.Generator) -> Any:
    """Return a row's input or target with such a structure."""
    if isinstance(shape, list):
        return [built(part, random) for part in shape]
    if isinstance(shape, tuple):
        kind, first, second = shape[0], built(shape[1], random), built(shape[2], random)
        return {
            "tuple": (first, second),
            "dict": {"a": first, "b": second},
            "ordered": OrderedDict(a=first, b=second),
            "items": Items(a=first, b=second),
            "named": Pair(first, second),
            "frozen": Frozen(first, second),
            "slots": Slots(first),
            "text": {"name": "x", "a": first},
        }[kind]
    return {
        "tensor": torch.from_numpy(random.normal(size=(2, 3))),
        "array": random.normal(size=2),
        "scalar": torch.tensor(random.normal()),
        "float": float(random.normal()),
        "int": int(random.integers(5)),
    }[shape]


class Structured(Dataset[Any]):
    """Rows of a structure."""

    def __init__(self, inputs: Any, targets: Any, rows: int, pair: Any = tuple) -> None:
        random = np.random.default_rng(4)
        self.rows = [pair((built(inputs, random), built(targets, random))) for _ in range(rows)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]


class Linear(nn.Module):
    """Of all the numbers of a row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))

    def forward(self, inputs: Any) -> Tensor:
        return numbers(inputs) @ self.weight


def squares(output: Tensor, targets: Any) -> Tensor:
    return (output - numbers(targets).sum(1)).square()


class Regression(Trainer):
    """Least squares."""

    def build(self, params: Any) -> Parts:
        data: Structured = params["data"]
        size = numbers(next(Batches(data, torch.device("cpu")).read([torch.tensor([0])]))[0]).shape[1]
        model = Linear(size)
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=0.01),
            lambda output, targets: squares(output, targets).mean(),
            train=data,
            validation=data,
            metrics={"far": lambda output, targets: (squares(output, targets) > 1).float()},
            batch_size=params["batch"],
            validation_batch_size=3,
            accumulate=params["accumulate"],
        )


def plain(data: Structured, batch: int, epochs: int) -> tuple[list[float], Tensor]:
    """Train in a plain loop over rows as vectors; return the losses and the weights."""
    rows = list(range(len(data)))
    inputs, targets = next(Batches(data, torch.device("cpu")).read([torch.tensor(rows)]))
    inputs, sums = numbers(inputs), numbers(targets).sum(1)
    weight, losses = torch.linspace(-1, 1, inputs.shape[1], dtype=torch.float64), []
    shard = Shard(len(rows), batch, 7)
    for epoch in range(epochs):
        total = 0.0
        for chosen in shard.epoch(epoch):
            error = inputs[chosen] @ weight - sums[chosen]
            total += float(error.square().sum())
            weight = weight - 0.01 * 2 * (error[:, None] * inputs[chosen]).mean(0)
        losses.append(total / len(rows))
    return losses, weight


@settings(max_examples=25, deadline=None)
@given(STRUCTURE, STRUCTURE, st.integers(4, 11), st.integers(3, 6), st.integers(1, 4), st.integers(1, 3))
def test_rows_of_any_structure_train_as_in_a_plain_loop(inputs, targets, rows, batch, accumulate, width):
    data = Structured(inputs, targets, rows)
    params = {"data": data, "batch": batch, "accumulate": accumulate}

    def train(group: Group | None) -> tuple[list[dict[str, float]], Tensor]:
        trainer = Regression(FakeTrial(params, group))
        return [trainer.step() for _ in range(2)], trainer.model.state_dict()["weight"]

    losses, weight = plain(data, batch, 2)
    for metrics, found in [train(None)] if width == 1 else run_ranks(width, train):
        assert [epoch["loss"] for epoch in metrics] == pytest.approx(losses, rel=1e-9)
        assert torch.allclose(found, weight, rtol=1e-9)
        given_inputs, wanted = next(Batches(data, torch.device("cpu")).read([torch.arange(rows)]))
        errors = squares(numbers(given_inputs) @ weight, wanted)
        assert metrics[-1]["validation_loss"] == pytest.approx(float(errors.mean()), rel=1e-9)
        assert metrics[-1]["far"] == pytest.approx(float((errors > 1).double().mean()))


@pytest.mark.parametrize("pair", [tuple, list, lambda parts: Pair(*parts)])
def test_a_row_is_any_pair(pair):
    data = Structured("array", "float", 5, pair)
    metrics = Regression(FakeTrial({"data": data, "batch": 3, "accumulate": 2})).step()
    assert metrics["loss"] == pytest.approx(plain(data, 3, 1)[0][0])


@pytest.mark.slow
def test_dataclasses_are_read_by_processes():
    data = Structured(("frozen", "array", ("slots", "tensor", "int")), ("named", "float", "int"), 6)
    wanted = [torch.tensor([4, 0]), torch.tensor([1]), torch.tensor([], dtype=torch.int64)]
    here, there = (list(Batches(data, torch.device("cpu"), loaders).read(wanted)) for loaders in (0, 1))
    for one, other in zip(here, there, strict=True):
        assert [leaf.tolist() for leaf in leaves(one)] == [leaf.tolist() for leaf in leaves(other)]


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ({"image": torch.ones(2), "label": 1}, "dict"),
        ((torch.ones(2), 1, 0.5), "tuple of 3"),
        (torch.ones(2, 2), "Tensor"),
        (Frozen(torch.ones(2), 1), "Frozen"),
        ("ab", "str"),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_rows_that_are_no_pair(row, got, batch_size):
    class Rows(Structured):
        def __getitem__(self, number: int) -> Any:
            return row

    with pytest.raises(ConfigurationError, match=rf"must be a pair of input and target, got {got}: put"):
        curve(1, train=Rows("int", "int", 4), validation=None, metrics={}, batch_size=batch_size)
