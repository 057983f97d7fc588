"""Whether a pack has the bits of its trainers alone, and from how many lanes on it is quicker, found by trying."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.held import held_by
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.snapshot import RandomState
from hpsearch_trainers.trainer import Trainer

__all__ = ["check_lane", "check_pack"]

_T = TypeVar("_T")


def check_pack(trainers: Sequence[Trainer], most: int) -> dict[int, float]:
    """Train copies of trainers on a few batches, fused and alone, and compare all that comes of it.

    Args:
        trainers: Of one shape key. They stay as they are.
        most: Lanes of the largest pack, 2 or more; smaller ones, of 2 and 3, are tried too.

    Returns:
        By the number of lanes, which share of the time of as many alone they took.

    Raises:
        NotFusible: A bit differs, or they can't be fused.
    """
    random = RandomState()
    held = [held_by(trainer) for trainer in trainers]  # functions can't be copied
    try:
        one_of_each = [trainers[number % len(trainers)] for number in range(most)]
        alone = [Lane(trainer).on_fewer_rows() for trainer in one_of_each]
        timed = [_timed(trainer.step) for trainer in alone]
        expected = [(metrics, trainer.state_dict()) for (metrics, _), trainer in zip(timed, alone, strict=True)]
        seconds_alone = statistics.median(seconds for _, seconds in timed)  # the first of a process takes longer
        shares = {}
        for size in sorted({2, min(3, most), most}):
            fused = [Lane(trainer).on_fewer_rows() for trainer in one_of_each[:size]]
            pack = Pack(fused)
            _compare(fused, pack.step(), expected)
            _, seconds = _timed(pack.step)  # a second time: the first one allocates
            shares[size] = seconds / (size * seconds_alone)
        return shares
    finally:
        for one in held:
            one.restore()
        random.restore()


def check_lane(trainer: Trainer, lane: int, pack: Pack) -> None:
    """Compare what a pack makes of one lane's weights with what its own model does.

    A model that reads something that is neither in its tensors nor in its attributes, such as a global variable, would
    read the same for all lanes.

    Args:
        trainer: Of the pack.
        lane: Its place there.
        pack: A pack that has the bits of its trainers alone.

    Raises:
        NotFusible: They differ.
    """
    inputs = Lane(trainer).training[0]
    rows = torch.arange(min(len(inputs), trainer.parts.batch_size))
    random = RandomState()
    try:
        with torch.no_grad(), Lane(trainer).autocast():
            trainer.model.eval()
            own = trainer.model(inputs.index_select(0, rows))
        if not same_bits(own, pack.outputs(rows)[lane]):
            raise NotFusible("its model gives something else as a lane than alone, from equal weights")
    finally:
        random.restore()


def _timed(run: Callable[[], _T]) -> tuple[_T, float]:
    began = time.process_time()
    return run(), time.process_time() - began


def _compare(trainers: Sequence[Trainer], told: Sequence[Mapping[str, float]], expected: Sequence[Any]) -> None:
    for trainer, metrics, (metrics_alone, state_alone) in zip(trainers, told, expected, strict=False):
        for name, value in metrics_alone.items():
            if name != "data_wait" and not same_bits(metrics[name], value):
                raise NotFusible(f"{len(trainers)} lanes have another {name} than each alone: {metrics[name]}, {value}")
        if not same_bits(trainer.state_dict(), state_alone):
            raise NotFusible(f"{len(trainers)} lanes come to other weights than each alone, in the last digits")
