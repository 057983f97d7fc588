"""What training reads that another trainer's build may change is found, and named."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import read, reads_of
from tests.trainers.lanes.networks import Drawn, made

HERE = __name__
FACTOR = 1.0
TABLES: dict[str, Any] = {"all": torch.ones(3), "rows": [1.0, 2.0], "of each": {}}
LARGE = torch.ones(100_000)
TEACHER = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
MEMO: Any = None
count = 0
"""It has the name of an attribute that training reads."""


class Settings:
    """Holds what some read, and what none does."""

    made = 0

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.noise = types.SimpleNamespace(rate=0.5)
        self.unread = 0

    def twice(self) -> float:
        return 2 * self.factor


SETTINGS = Settings()


def activation(x: Tensor) -> Tensor:
    return x * FACTOR


def steep(x: Tensor) -> Tensor:
    return 2 * x


ACTIVATION: Callable[[Tensor], Tensor] = activation


class Net(nn.Module):
    slope = 1.0
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)
        self.unread = 0

    def forward(self, x: Tensor) -> Any:
        return self._scaled(ACTIVATION(self.layer(x)))

    def _scaled(self, x: Tensor) -> Tensor:
        return x * self.slope * x.count if hasattr(x, "count") else x


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.settings = nn.Linear(7, 3), SETTINGS

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) * self.settings.factor


class OfTables(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Any:
        return functional.cross_entropy(output * TABLES["all"], target) * SETTINGS.twice() * SETTINGS.noise.rate


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((7,), FACTOR * row), row % 3


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * FACTOR)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return given[0]


def rounded(output: Tensor, target: Tensor) -> Any:
    return Rounded.apply(output)  # type: ignore[no-untyped-call]


@functools.cache
def cached() -> float:
    return FACTOR


def with_teacher(output: Tensor, target: Tensor, weight: float = 1.0) -> Any:
    global MEMO
    MEMO = LARGE if MEMO is None else MEMO
    return functional.cross_entropy(output, target) * weight + TEACHER(output).sum()


def within(held: Any) -> Any:
    return lambda output, target: functional.cross_entropy(output, target) * held.factor


class Reading(Drawn):
    factor = 1.0

    def build(self, params):
        parts = super().build({"layers": []})  # type: ignore[no-untyped-call]
        model = params.get("model", nn.Linear(7, 3))
        loss = params.get("loss", functional.cross_entropy)
        data = params.get("data", parts.train)
        if loss == "bound":
            loss = self._loss
        if loss == "over itself":
            loss = lambda output, target: self._loss(output, target)  # noqa: E731
        return Parts(model, torch.optim.SGD(model.parameters(), 0.1), loss, data, metrics=params.get("metrics", {}))

    def _loss(self, output: Tensor, target: Tensor) -> Any:
        return functional.cross_entropy(output, target) * self.factor


READING: dict[str, Callable[[], dict[str, Any]]] = {
    "forward": lambda: {"model": Net()},
    "module": lambda: {"loss": OfTables()},
    "teacher": lambda: {"loss": functools.partial(with_teacher, weight=2.0)},
    "bound": lambda: {"loss": "bound"},
    "over itself": lambda: {"loss": "over itself"},
    "held": lambda: {"model": Holding()},
    "closure": lambda: {"loss": within(SETTINGS)},
    "metric": lambda: {"metrics": {"factor": rounded}},
    "cached": lambda: {"metrics": {"factor": lambda output, target: output * cached()}},
    "data": lambda: {"data": Rows()},
    "torch's": lambda: {},
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    kept, state = dict(globals()), {name: value.clone() for name, value in TEACHER.state_dict().items()}
    yield
    globals().update(kept)
    TABLES.update({"all": torch.ones(3), "rows": [1.0, 2.0], "of each": {}})
    TEACHER.load_state_dict(state)
    LARGE.fill_(1.0)
    SETTINGS.__init__()  # type: ignore[misc]
    Net.slope = Reading.factor = 1.0


def changed(reading: str, change: Callable[[], object]) -> list[str]:
    """Name what a change changes for two trainers, both of which read it."""
    all_reads = [reads_of(one) for one in made(Reading, [READING[reading](), READING[reading]()])]
    before = read(all_reads)
    change()
    found = before.changed(read(all_reads))
    assert all(any(map(read([one]).reaches, found)) == bool(found) for one in all_reads)
    return sorted({before.told(place).replace(f"{HERE}.", "") for place in found})


def setting(name: str, value: Any) -> Callable[[], object]:
    return lambda: globals().__setitem__(name, value)


@pytest.mark.parametrize(
    ("reading", "change", "names"),
    [
        ("forward", setting("FACTOR", 2.0), ["FACTOR"]),
        ("forward", setting("FACTOR", 1), ["FACTOR"]),
        ("forward", setting("FACTOR", None), ["FACTOR"]),
        ("forward", setting("ACTIVATION", torch.relu), ["ACTIVATION"]),
        ("forward", setting("ACTIVATION", steep), ["ACTIVATION"]),
        ("forward", lambda: setattr(Net, "slope", 2.0), ["Net.slope"]),
        ("forward", lambda: setattr(Net, "_scaled", lambda self, x: x), ["Net._scaled"]),
        ("module", lambda: TABLES.update(all=torch.zeros(3)), ["TABLES['all']"]),
        ("module", lambda: TABLES["all"].zero_(), ["TABLES['all']"]),
        ("module", lambda: TABLES["rows"].append(3.0), ["TABLES['rows']"]),
        ("module", lambda: TABLES.pop("all"), ["TABLES['all']"]),
        ("module", lambda: setattr(SETTINGS, "factor", 2.0), ["SETTINGS.factor"]),
        ("module", lambda: setattr(SETTINGS.noise, "rate", 0.1), ["SETTINGS.noise.rate"]),
        ("module", setting("SETTINGS", Settings(2.0)), ["SETTINGS.factor"]),
        ("teacher", lambda: TEACHER.get_parameter("0.bias").data.zero_(), ["TEACHER.0.bias"]),
        ("teacher", lambda: TEACHER.eval(), ["TEACHER.training", "TEACHER.0.training", "TEACHER.1.training"]),
        ("teacher", lambda: setting("MEMO", 1)(), ["MEMO"]),
        ("bound", lambda: setattr(Reading, "factor", 2.0), ["Reading.factor"]),
        ("over itself", lambda: setattr(Reading, "factor", 2.0), ["Reading.factor"]),
        ("held", lambda: setattr(SETTINGS, "factor", 2.0), ["Holding.settings.factor"]),
        (
            "closure",
            lambda: setattr(SETTINGS, "factor", 2.0),
            ["within.<locals>.<lambda>, in its variable held.factor"],
        ),
        ("metric", setting("FACTOR", 2.0), ["FACTOR"]),
        ("cached", setting("FACTOR", 2.0), ["FACTOR"]),
        ("data", setting("FACTOR", 2.0), ["FACTOR"]),
    ],
)
def test_what_training_reads_and_is_changed_is_named(reading, change, names):
    assert changed(reading, change) == sorted(names)


def test_a_large_tensor_that_is_written_to_is_changed():
    setting("MEMO", LARGE)()
    assert changed("teacher", lambda: LARGE.zero_()) == ["LARGE", "MEMO"]


@pytest.mark.parametrize(
    ("reading", "change"),
    [
        ("forward", setting("FACTOR", 1.0)),
        ("forward", setting("count", 5)),
        ("forward", setting("MEMO", 5)),
        ("forward", lambda: setattr(Net, "made", 5)),
        ("module", lambda: TABLES.update({"all": torch.ones(3), "rows": [1.0, 2.0]})),
        ("module", lambda: TABLES["all"].copy_(torch.ones(3))),
        ("module", lambda: TABLES["of each"].update({7: 2.0})),
        ("module", lambda: setattr(SETTINGS, "unread", 5)),
        ("module", lambda: setattr(Settings, "made", 5)),
        ("module", setting("SETTINGS", Settings(1.0))),
        ("teacher", setting("LARGE", LARGE.clone())),
        ("bound", setting("FACTOR", 2.0)),
        ("torch's", setting("FACTOR", 2.0)),
    ],
)
def test_what_training_doesnt_read_or_is_equal_is_no_change(reading, change):
    assert changed(reading, change) == []


def test_what_another_build_of_equal_code_holds_counts_for_its_own_trainer_alone():
    ours, other = Settings(), Settings()
    one, two = (reads_of(each) for each in made(Reading, [{"loss": within(ours)}, {"loss": within(other)}]))
    before = read([one, two])
    other.factor = 2.0
    (place,) = before.changed(read([one, two]))
    assert (read([one]).reaches(place), read([two]).reaches(place)) == (False, True)


def test_a_holder_that_holds_itself_and_a_class_of_a_build_are_read():
    def model() -> nn.Module:
        class Made(Net):
            def forward(self, x: Tensor) -> Any:
                return super().forward(x) * SETTINGS.noise.rate

        return Made()

    vars(SETTINGS)["noise"].rate = 0.5
    vars(SETTINGS)["rate"] = SETTINGS
    all_reads = [reads_of(one) for one in made(Reading, [{"model": model()}, {"model": model()}])]
    before = read(all_reads)
    assert before.changed(read(all_reads)) == []
    SETTINGS.noise.rate = 0.1
    assert f"{HERE}.SETTINGS.noise.rate" in map(before.told, before.changed(read(all_reads)))
    del vars(SETTINGS)["rate"]
