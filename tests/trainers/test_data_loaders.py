"""A Trainer's data may be DataLoaders as users have them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes.contract import check_contract
from hpsearch_trainers.lanes.errors import NotFusible
from tests.comm.thread_ranks import run_ranks

ROWS = 50
INPUTS = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True)
DATA = TensorDataset(INPUTS, TARGETS)


@dataclass(frozen=True)
class Trial:
    params: Mapping[str, Any]
    seed: int = 5
    group: Any = None
    scaling: Mapping[str, Any] = field(default_factory=lambda: {"batch": "per_worker", "lr": "none"})


class Numbered(Dataset[Any]):
    """Rows that say which they are."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return (INPUTS[row], torch.tensor([float(row)])), TARGETS[row]


class Seeing(nn.Module):
    """Notes the rows that it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.seen: list[list[int]] = []

    def forward(self, given: Any) -> torch.Tensor:
        inputs, rows = given
        if self.training:
            self.seen.append(rows.flatten().int().tolist())
        return self.linear(inputs)  # type: ignore[no-any-return]


class Loaded(Trainer):
    def build(self, params: Any) -> Parts:
        torch.manual_seed(3)
        model = params["model"]() if "model" in params else nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        rest = {name: params[name] for name in ("batch_size", "loaders") if name in params}
        return Parts(model, optimizer, nn.functional.mse_loss, params["train"], params.get("validation"), **rest)


def trained(train: Any, validation: Any = None, epochs: int = 2, **params: Any) -> tuple[Loaded, Any]:
    trainer = Loaded(Trial({"train": train, "validation": validation, **params}))
    return trainer, [trainer.step() for _ in range(epochs)]


def without_times(curve: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "data_wait"} for row in curve]


def seen(train: Any, epochs: int = 1, **params: Any) -> list[list[int]]:
    trainer, _ = trained(train, epochs=epochs, model=Seeing, **params)
    assert isinstance(trainer.model, Seeing)
    return trainer.model.seen


@pytest.mark.parametrize("data", [DATA, Numbered()], ids=["tensors", "rows"])
def test_a_shuffling_one_is_the_same_as_its_data_set_and_batch_size(data):
    model: dict[str, Any] = {"model": Seeing} if isinstance(data, Numbered) else {}
    loader = DataLoader(data, batch_size=16, shuffle=True)
    _, plain = trained(data, data, batch_size=16, **model)
    _, loaded = trained(loader, DataLoader(data, batch_size=512), **model)
    assert without_times(loaded) == without_times(plain)


def test_its_batch_sizes_are_taken():
    parts = Loaded(Trial({"train": DataLoader(DATA, 7), "validation": DataLoader(DATA, 9)})).parts
    assert (parts.batch_size, parts.validation_batch_size) == (7, 9)
    parts = Loaded(Trial({"train": DATA, "validation": DATA})).parts
    assert (parts.batch_size, parts.validation_batch_size) == (32, 512)


def test_without_shuffle_rows_come_in_order():
    assert seen(DataLoader(Numbered(), batch_size=20), epochs=2) == 2 * [
        [*range(20)],
        [*range(20, 40)],
        [*range(40, 50)],
    ]


def test_drop_last_leaves_other_rows_out_in_each_epoch():
    batches = seen(DataLoader(Numbered(), batch_size=20, shuffle=True, drop_last=True), epochs=4)
    assert [len(rows) for rows in batches] == [20] * 8
    left_out = [set(range(ROWS)) - {*batches[at], *batches[at + 1]} for at in range(0, 8, 2)]
    assert all(len(rows) == 10 for rows in left_out)
    assert len(set().union(*left_out)) > 10


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler([1, 3, 5, 7, 9, 11]),
        SubsetRandomSampler([1, 3, 5, 7, 9, 11], generator=torch.Generator()),
        WeightedRandomSampler([0.0, 1.0] * (ROWS // 2), num_samples=12),
        RandomSampler(Numbered(), replacement=True, num_samples=12),
    ],
    ids=["subset", "generator", "weighted", "replacement"],
)
def test_a_samplers_rows_are_trained_on_and_follow_from_seed_and_epoch(sampler):
    def run() -> list[list[int]]:
        torch.manual_seed(random.randrange(1000))  # which it must not depend on
        return seen(DataLoader(Numbered(), batch_size=4, sampler=sampler), epochs=2)

    first, second = run(), run()
    assert first == second
    half = len(first) // 2
    assert first[:half] != first[half:]
    rows = [row for batch in first[:half] for row in batch]
    if isinstance(sampler, SubsetRandomSampler):
        assert sorted(rows) == [1, 3, 5, 7, 9, 11]
    if isinstance(sampler, WeightedRandomSampler):
        assert all(row % 2 for row in rows)


def test_a_sampler_goes_on_from_a_checkpoint_as_if_uninterrupted():
    train = DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler([1.0] * ROWS, 24))
    _, whole = trained(train, epochs=3)
    first, _ = trained(train, epochs=1)
    second = Loaded(Trial({"train": train}))
    second.load_state_dict(first.state_dict())
    assert without_times([second.step(), second.step()]) == without_times(whole[1:])


def test_validation_takes_the_rows_of_its_sampler():
    chosen = [2, 4, 6]
    validation = DataLoader(DATA, sampler=SubsetRandomSampler(chosen), batch_size=2)
    trainer, curve = trained(DATA, validation, epochs=1)
    with torch.no_grad():
        expected = nn.functional.mse_loss(trainer.model(INPUTS[chosen]), TARGETS[chosen])
    assert curve[0]["validation_loss"] == pytest.approx(expected.item(), rel=1e-5)


def doubled(rows: list[Any]) -> Any:
    return 2 * torch.stack([inputs for inputs, _ in rows]), torch.stack([target for _, target in rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_makes_the_batches(workers):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = DataLoader(DATA, batch_size=16, shuffle=True, collate_fn=doubled, num_workers=workers)
        trainer, loaded = trained(loader, epochs=2)
        assert trainer._train._loaders == workers
        _, plain = trained(TensorDataset(2 * INPUTS, TARGETS), batch_size=16, epochs=2)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(loaded, plain, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_several_workers_divide_its_rows():
    def sampler() -> Any:  # with a generator of its own, as these ranks are threads
        return WeightedRandomSampler([1.0] * ROWS, 30, generator=torch.Generator())

    def work(group: Any) -> list[dict[str, float]]:
        loader = DataLoader(DATA, batch_size=5, sampler=sampler())
        trainer = Loaded(Trial({"train": loader, "validation": loader}, group=group))
        return without_times([trainer.step(), trainer.step()])

    one, other = run_ranks(2, work)
    assert one == other
    _, alone = trained(DataLoader(DATA, batch_size=10, sampler=sampler()), DataLoader(DATA, sampler=sampler()))
    for together, by_itself in zip(one, alone, strict=True):
        assert together["loss"] == pytest.approx(by_itself["loss"], rel=1e-4)


class Short(Sampler[int]):
    def __len__(self) -> int:
        return 10

    def __iter__(self):
        return iter(range(4))


class Stream(IterableDataset[Any]):
    def __iter__(self):
        yield DATA[0]


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: DataLoader(Stream(), batch_size=4), "must have a map-style data set.*got an IterableDataset"),
        (lambda: DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "another sampler than DistributedSampler"),
        (lambda: DataLoader(DATA, batch_sampler=[[0, 1], [2]]), "batch_size and a sampler, got a batch_sampler"),
        (lambda: DataLoader(DATA, batch_size=None), "batch_size and a sampler, got .* batch_size=None"),
    ],
)
def test_one_that_cannot_be_divided_is_refused(loader, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(loader())


def test_another_batch_size_than_its_own_is_refused():
    with pytest.raises(ConfigurationError, match="leave batch_size out, or make it 7, got 8"):
        trained(DataLoader(DATA, 7), batch_size=8)


def test_a_sampler_that_gives_too_few_rows_is_refused():
    with pytest.raises(ConfigurationError, match=r"as many rows as its length says.*got 4 of 10 from Short"):
        trained(DataLoader(DATA, sampler=Short()))


def test_a_collate_function_that_makes_no_pair_is_refused():
    with pytest.raises(ConfigurationError, match="must return a pair of inputs and targets, got dict"):
        trained(DataLoader(DATA, collate_fn=lambda rows: {"inputs": rows}))


def test_its_generators_are_left_as_they_were():
    state, python, numbers = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state(legacy=False)["state"]["key"].copy(),
    )
    trainer = Loaded(Trial({"train": DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * ROWS, 4))}))
    torch.set_rng_state(state)
    trainer._train.order(3)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert (np.random.get_state(legacy=False)["state"]["key"] == numbers).all()


def test_it_is_no_lane():
    trainer = Loaded(Trial({"train": DataLoader(DATA)}))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(NotFusible, match="its data come from a DataLoader"):
            check_contract(trainer, rounded=False)
    finally:
        torch.set_num_threads(threads)
