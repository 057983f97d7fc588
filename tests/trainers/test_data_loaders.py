"""A Trainer's data may be DataLoaders as users have them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
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
    get_worker_info,
)

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.batches import Batches
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.shape_key import check_contract
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import building

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
        with building:  # ranks are threads here, which share torch's generator
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


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on one core
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


@pytest.mark.parametrize("ahead", [None, 5])
def test_its_processes_read_ahead_as_far_as_it_says(ahead, monkeypatch):
    read_ahead = []

    class Noting(DataLoader[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            read_ahead.append(options["prefetch_factor"])
            super().__init__(*arguments, **options)

    loader = DataLoader(Numbered(), batch_size=20, num_workers=1, prefetch_factor=ahead)
    batches = Batches(loader, torch.device("cpu"))
    monkeypatch.setattr("hpsearch_trainers.batches.DataLoader", Noting)
    assert len(list(batches.read([torch.arange(20), torch.arange(20, ROWS)]))) == 2
    assert read_ahead == [ahead or 2]


class Graph:
    """A batch of its own kind."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graph:
        return Graph(self.nodes.to(device))


def test_what_a_collate_function_makes_goes_to_the_device_in_its_own_way():
    def collated(rows: list[Any]) -> Any:
        inputs = {"graph": Graph(torch.ones(2)), "packed": pack_sequence([torch.ones(3), torch.ones(2)]), "name": "a"}
        return inputs, torch.stack([target for _, target in rows])

    device = torch.device("meta")
    ((inputs, targets),) = Batches(DataLoader(DATA, collate_fn=collated), device).read([torch.arange(2)])
    assert inputs["graph"].nodes.device == inputs["packed"].data.device == targets.device == device
    assert inputs["packed"].batch_sizes.device.type == "cpu"
    assert inputs["name"] == "a"


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


class Drawing(Sampler[int]):
    """Draws from a generator of its own."""

    def __init__(self, generator: Any, draw: Any) -> None:
        self.drawn_from, self.draw = generator, draw

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        return iter([self.draw(self.drawn_from) for _ in range(8)])


class Around(Sampler[int]):
    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)


GENERATORS: dict[str, Any] = {
    "torch": lambda: Drawing(
        torch.Generator(), lambda generator: torch.randint(ROWS, (1,), generator=generator).item()
    ),
    "numpy": lambda: Drawing(np.random.default_rng(3), lambda generator: generator.integers(ROWS)),
    "older numpy": lambda: Drawing(np.random.RandomState(3), lambda generator: generator.randint(ROWS)),
    "python": lambda: Drawing(random.Random(3), lambda generator: generator.randrange(ROWS)),
    "inner": lambda: Around(GENERATORS["numpy"]()),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_sampler_with_a_generator_of_its_own_goes_on_as_if_uninterrupted(make):
    whole = seen(DataLoader(Numbered(), batch_size=4, sampler=make()), epochs=2)
    assert whole[:2] != whole[2:]
    first, _ = trained(DataLoader(Numbered(), batch_size=4, sampler=make()), epochs=1, model=Seeing)
    second = Loaded(Trial({"train": DataLoader(Numbered(), batch_size=4, sampler=make()), "model": Seeing}))
    second.load_state_dict(first.state_dict())
    second.step()
    assert isinstance(second.model, Seeing)
    assert second.model.seen == whole[2:]


class Counted(Sampler[int]):
    """An endless sampler with other rows in each epoch, whose number it must receive."""

    epoch = 0

    def __len__(self) -> int:
        return 4

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 10 * self.epoch


def test_a_sampler_is_told_the_epoch():
    assert seen(DataLoader(Numbered(), batch_size=4, sampler=Counted()), epochs=3) == [4 * [0], 4 * [10], 4 * [20]]


class Noise(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> Any:
        return torch.full((3,), float([10, 20, 30][row])), torch.randn(1)


def test_a_row_that_comes_again_draws_something_else():
    loader = DataLoader(Noise(), batch_size=7, sampler=[1, 0, 1, -1, 1, -1, 0])
    batches = Loaded(Trial({"train": loader}))._train
    rows = batches.order(3)
    assert rows is not None
    ((inputs, drawn),) = batches.read([rows], 9)
    assert inputs[:, 0].tolist() == [20, 10, 20, 30, 20, 30, 10]
    assert len(set(drawn.flatten().tolist())) == 7
    ((_, plain),) = batches.read([torch.tensor([1, 0, -1])], 9)
    assert torch.equal(drawn[[0, 1, 3]], plain)  # as where none comes again


class Changed(TensorDataset):
    def __getitem__(self, row: int) -> Any:
        return tuple(-tensor[row] for tensor in self.tensors)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_subclass_of_tensor_dataset_makes_of_its_rows_is_trained_on(wrapped):
    data = Changed(INPUTS, TARGETS)
    _, changed = trained(DataLoader(data, batch_size=16, shuffle=True) if wrapped else data, batch_size=16)
    _, plain = trained(TensorDataset(-INPUTS, -TARGETS), batch_size=16)
    for one, other in zip(changed, plain, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_list_of_rows_is_a_data_set():
    rows: Any = [DATA[row] for row in range(ROWS)]
    _, listed = trained(DataLoader(rows, batch_size=16, shuffle=True))
    _, plain = trained(DataLoader(DATA, batch_size=16, shuffle=True))
    for one, other in zip(listed, plain, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


class Opened(Dataset[Any]):
    """Of use in a process that has been begun."""

    generator: torch.Generator | None = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        return torch.rand(3, generator=self.generator), torch.ones(1)


def opening(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.generator = torch.Generator().manual_seed(info.seed)


@pytest.mark.parametrize("method", [None, pytest.param("spawn", marks=pytest.mark.exhaustive)])
def test_the_function_that_begins_a_process_finds_the_data_set_and_a_seed_of_the_epoch(method):
    loader = DataLoader(
        Opened(), batch_size=4, num_workers=1, worker_init_fn=opening, multiprocessing_context=method, timeout=600
    )
    batches = Loaded(Trial({"train": loader}))._train
    drawn = [next(batches.read([torch.arange(4)], seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


class Short(Sampler[int]):
    def __len__(self) -> int:
        return 10

    def __iter__(self):
        return iter(range(4))


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from iter(int, 1)


class Scaling(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((inputs / 255, targets) for inputs, targets in super().__iter__())


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
        (lambda: Scaling(DATA), "torch's own way through its batches, got Scaling with an __iter__ of its own"),
        (lambda: DataLoader(DATA, sampler=Endless()), "a sampler must know its length.*got Endless without __len__"),
        (lambda: DataLoader(DATA, sampler=["a", "b"]), "a sampler must give the numbers of rows, got 'a' from list"),
        (
            lambda: DataLoader(cast(Any, (INPUTS, TARGETS))),
            "a row of a data set must be a pair of input and target, got Tensor",
        ),
    ],
)
def test_one_that_cannot_be_divided_is_refused(loader, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(loader())


@pytest.mark.parametrize("held_back", [False, True])
def test_one_that_drops_all_its_rows_is_refused(held_back):
    loader = DataLoader(DATA, batch_size=60, drop_last=True)
    with pytest.raises(ConfigurationError, match="at least one batch of all workers, which are 60, got 50: take a"):
        trained(DATA if held_back else loader, loader if held_back else None)


def test_one_that_drops_all_its_rows_on_several_workers_is_refused():
    def work(group: Any) -> None:
        loader = DataLoader(DATA, batch_size=30, drop_last=True)
        with pytest.raises(ConfigurationError, match="at least one batch of all workers, which are 60, got 30: take"):
            Loaded(Trial({"train": loader}, group=group))

    run_ranks(2, work)


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
