"""Lanes leave nothing for Python's collector, which comes by late: circles would keep models and what they gave."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hpsearch_trainers.lanes import Fuser, RoundingFuser
from tests.trainers.lanes.networks import Drawn, made


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("loss", ["cross entropy", "smoothed", "margin"])
@pytest.mark.parametrize("network", [{"layers": ["relu"]}, {"layers": ["batch norm"], "image": True}])
@pytest.mark.parametrize("fuser", [Fuser(4, fewest=2), RoundingFuser(4)])
def test_epochs_of_lanes_that_come_and_go_leave_no_circle(nothing_collected, loss, network, fuser):
    lanes = [{**network, "dropout": 0.2, "loss": loss, "lr": 0.1 * (1 + lane)} for lane in range(4)]
    trainers = made(Drawn, lanes)
    for _ in range(2):  # tries may leave some
        fuser.step(trainers)
        fuser.step(trainers[:3])
    gc.collect()
    for present in (trainers, trainers, trainers[1:], trainers[:3]):
        assert {one.lanes for one in fuser.step(present)} == {len(present)}
        assert gc.collect() == 0
