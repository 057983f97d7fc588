"""What a model reads that is neither in its tensors nor in its attributes counts for each pack, in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, passes
from hpsearch_trainers.lanes.bits import same_bits
from tests.trainers.lanes.networks import Drawn, assert_same, made

FACTOR = 1.0
FACTORS = {"all": 1.0}
TABLES = {"all": torch.ones(5)}
ROWS = [(torch.randn(20, 7), torch.arange(20) % 5) for _ in range(2)]


def factor() -> float:
    return FACTORS["all"] * FACTOR


class OfFactor(nn.Module):
    slope = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) * self.slope * factor() * TABLES["all"]


class OfRows(OfFactor):
    """Reads what some trainers train on."""

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) + self.layer(ROWS[0][0]).mean(0)


def by_keyword(times: float) -> nn.Module:
    def multiplied(x: Tensor, *, times: float = times) -> Tensor:
        return x * times

    return nn.Sequential(nn.Linear(7, 5), OfFunction(multiplied))


class OfFunction(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Reading(Drawn):
    def build(self, params):
        model = params["model"]()
        rows = ROWS[params.get("rows", 0)]
        parts = super().build({"layers": []})  # type: ignore[no-untyped-call]
        return Parts(model, torch.optim.SGD(model.parameters(), 0.1), parts.loss, rows, rows, batch_size=8)


def check(
    lanes: Sequence[dict[str, Any]], epochs: Sequence[Sequence[int]], between: Callable[[int], object] = int
) -> None:
    ours, theirs = made(Reading, lanes), made(Reading, lanes)
    fuser = Fuser(fewest=2)
    for epoch, present in enumerate(epochs):
        between(epoch)
        stepped = fuser.step([ours[number] for number in present])
        assert [(one.lanes, one.alone_because) for one in stepped] == [(len(present), None)] * len(present)
        assert_same([one.metrics for one in stepped], [theirs[number].step() for number in present], ours, theirs)


def test_a_pack_whose_models_read_something_else_plays_no_recording_of_another():
    check([{"model": lambda times=times: by_keyword(times)} for times in (1.0, 1.0, 2.0, 2.0)], [[0, 1], [2, 3]] * 2)
    check([{"model": OfRows, "rows": rows} for rows in (0, 0, 1, 1)], [[0, 1], [2, 3], [0, 1]])


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("what", ["global", "entry", "table", "class", "code"])
def test_what_a_model_reads_may_change_between_two_epochs(what, monkeypatch):
    def change(epoch: int) -> None:
        if what == "global":
            monkeypatch.setitem(globals(), "FACTOR", 1.0 + epoch)
        if what == "entry":
            monkeypatch.setitem(FACTORS, "all", 1.0 + epoch)
        if what == "table":
            monkeypatch.setitem(TABLES, "all", torch.full((5,), 1.0 + epoch))
        if what == "class":
            monkeypatch.setattr(OfFactor, "slope", 1.0 + epoch)
        if what == "code":
            monkeypatch.setattr(OfFactor, "forward", lambda self, x: self.layer(x) * (1.0 + epoch))

    check([{"model": OfFactor}] * 4, [[0, 1], [0, 1], [2, 3], [0, 1, 2]], change)


@pytest.mark.parametrize("numbers", [torch.arange(6)[::2], torch.arange(3.0)[:1].expand(4)])
def test_numbers_that_lie_apart_in_memory_are_compared(numbers):
    assert same_bits(numbers, numbers.clone())
    assert not same_bits(numbers, numbers + 1)


def test_only_so_many_recordings_are_kept(monkeypatch):
    monkeypatch.setattr(passes, "_MOST", 2)
    trainers = made(Reading, [{"model": lambda: nn.Linear(7, 5)}] * 4)
    fuser = Fuser(fewest=2)
    for present in ([0, 1], [0, 1, 2], [0, 1, 2, 3]):
        fuser.step([trainers[number] for number in present])
        assert [len(of_key.recorded) for of_key in fuser._recordings.values()] == [2]
