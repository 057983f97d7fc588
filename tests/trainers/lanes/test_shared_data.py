"""Copies of the same data on a device, of which one is enough."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from hpsearch_trainers.batches import Batches
from hpsearch_trainers.lanes.rounding_fuser import SharedData
from hpsearch_trainers.trainer import Trainer
from tests.trainers.lanes.networks import Drawn, made
from tests.trainers.lanes.ways import ALL_WAYS


def as_if_copied(trainers: list[Trainer]) -> list[Trainer]:
    """Let each have copies of its data, as it has of a device that isn't where they lie."""
    for trainer in trainers:
        for data in (trainer._train, trainer._validation):
            assert data is not None
            assert data.tensors is not None
            data.tensors, data._copied = [one.clone() for one in data.tensors], [True, True]
    return trainers


def addresses(trainers: list[Trainer]) -> list[list[int]]:
    return [[one.data_ptr() for one in trainer._train.tensors or ()] for trainer in trainers]


def test_trainers_that_have_copied_the_same_have_one_copy_and_others_their_own():
    lanes: list[dict[str, Any]] = [
        {"layers": []},
        {"layers": []},
        {"layers": [], "own data": 3},
        {"layers": [], "own data": 3},
    ]
    trainers = as_if_copied(made(Drawn, lanes))
    shared = SharedData()
    for trainer in trainers * 2:
        shared.share(trainer)
    first, second, third, fourth = addresses(trainers)
    assert first == second
    assert third == fourth
    assert first[0] != third[0]


def test_what_was_given_on_the_device_stays_each_trainers_own():
    data = Batches([torch.zeros(3, 2), torch.zeros(3)], torch.device("cpu"))
    assert data.tensors is not None
    before = [one.data_ptr() for one in data.tensors]
    data.replace(lambda tensor: tensor.clone())
    assert [one.data_ptr() for one in data.tensors] == before


def test_what_differs_in_a_bit_is_not_shared():
    trainers = as_if_copied(made(Drawn, [{"layers": []}] * 3))
    for trainer, number in zip(trainers, (0.0, -0.0, 0.0), strict=True):
        assert trainer._train.tensors is not None
        trainer._train.tensors[0][5, 2] = number
    shared = SharedData()
    for trainer in trainers:
        shared.share(trainer)
    first, second, third = (of[0] for of in addresses(trainers))
    assert first == third
    assert first != second


def test_nothing_is_held_for_trainers_that_are_gone():
    trainers = as_if_copied(made(Drawn, [{"layers": []}] * 2))
    shared = SharedData()
    for trainer in trainers:
        shared.share(trainer)
    assert trainers[0]._train.tensors is not None
    kept = weakref.ref(trainers[0]._train.tensors[0])
    del trainers, trainer
    gc.collect()
    assert kept() is None


@ALL_WAYS
def test_lanes_that_have_copied_the_same_read_from_one_memory_where_calls_are_dear(way):
    trainers = as_if_copied(made(Drawn, [{"layers": []}] * 4))
    fuser = way(4)
    fuser.step(trainers)
    one_memory = len({*map(tuple, addresses(trainers))}) == 1
    assert one_memory == fuser._at_once(trainers[0].device)
