"""Whether a pack has the bits of its trainers alone, and from how many lanes on it is quicker, found by trying."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import calls_are_dear, repeatable
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import DependsOnPlace, NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.passes import Recorded, keep_last
from hpsearch_trainers.lanes.snapshot import RandomState, Snapshot
from hpsearch_trainers.trainer import Trainer

__all__ = ["check_lanes", "check_pack", "check_places"]

_T = TypeVar("_T")

_ALONE = 4
"""How many are trained alone; of more lanes, several are copies of one of these."""
_AGAIN = 3
"""How many are compared after a second epoch, too, in which a pack does what it recorded in the first."""


def check_pack(
    trainers: Sequence[Trainer], most: int, recordings: dict[Hashable, Recorded | None] | None = None
) -> dict[int, float]:
    """Train copies of trainers on a few batches, fused and alone, and compare all that comes of it.

    What is found doesn't depend on their weights, rates and epochs: see `Lane.for_a_try`.

    Args:
        trainers: Of one shape key. They stay as they are.
        most: Lanes of the largest pack; smaller ones are tried, too: of 1, 2, and where two aren't quicker 3.
        recordings: Of packs of this shape key: gains what those that are tried have recorded.

    Returns:
        By the number of lanes, from two on, which share of the time of as many alone they took.

    Raises:
        NotFusible: A bit differs, or they can't be fused.
    """
    before = Snapshot(trainers)  # functions can't be copied, and may lead to the trainers
    try:
        tried = trainers[: min(_ALONE, most)]
        numbers = [number % len(tried) for number in range(most)]
        alone = [Lane(trainer).for_a_try(number) for number, trainer in enumerate(tried)]
        timed = [_timed(trainer.step) for trainer in alone]
        first = _outcomes([metrics for metrics, _ in timed], alone) * most
        second = _outcomes([trainer.step() for trainer in alone[:_AGAIN]], alone)
        seconds_alone = statistics.median(seconds for _, seconds in timed)  # the first of a process takes longer
        shares: dict[int, float] = {}
        for size in sorted({1, 2, min(3, most), most}):
            if size == 3 < most and shares[2] < 1:
                continue  # nobody asks whether it is quicker where two are
            fused = [Lane(tried[number]).for_a_try(number) for number in numbers[:size]]
            own: dict[Hashable, Recorded | None] = {}  # what others have recorded isn't what is to be tried
            pack = Pack(fused, recordings=own, trusted=True)
            _compare(fused, pack.step(), first)
            told, seconds = _timed(pack.step)
            _compare(fused, told, second)
            if recordings is not None:
                recordings |= own
                keep_last(recordings)
            if size == 1:
                continue  # of one, what comes once an epoch is the most of so few batches: see Fuser
            if seconds >= size * seconds_alone:  # perhaps it was Python's garbage collector, which takes its time
                seconds = min(seconds, _timed(pack.step)[1])
            shares[size] = seconds / (size * seconds_alone)
        return shares
    finally:
        before.restore()


def check_places(trainer: Trainer, places: int, *, at_once: bool | None = None) -> None:
    """Train copies of a trainer on a few batches, in several places and companies, and compare all that comes of it.

    What is found doesn't depend on which trainer of its shape it is, nor on its epoch: see `Lane.for_a_try`.

    Args:
        trainer: It stays as it is.
        places: Of a pack that may round.
        at_once: As in `Pack`; None: as its device asks for it.

    Raises:
        DependsOnPlace: A bit depends on the place or the company.
        NotFusible: It can't be a lane.
        Exception: What training it alone raises, though lanes may not.
    """
    at_once = calls_are_dear(trainer.device) if at_once is None else at_once
    before = Snapshot([trainer])
    try:
        with repeatable(trainer.device):
            Lane(trainer).for_a_try(0).step()
            of_all = range(places)
            first, second = _trained_twice(trainer, of_all, places, at_once)
            for company in (of_all[::-1], of_all[:1]):
                for expected, ours in zip(
                    (first, second), _trained_twice(trainer, company, places, at_once), strict=True
                ):
                    if not all(
                        _same_outcomes(one, expected[number]) for one, number in zip(ours, company, strict=True)
                    ):
                        raise DependsOnPlace("its bits depend on its place among the lanes, or on the others")
    finally:
        before.restore()


def check_lanes(trainers: Sequence[Trainer], pack: Pack, same: Callable[[Any, Any], bool] = same_bits) -> None:
    """Compare what a pack makes of some lanes' weights with what their own models do.

    A model that reads something that is neither in its tensors nor in its attributes, such as a global variable, would
    read the same for all lanes.

    Args:
        trainers: Of the pack.
        pack: One that was found to be right.
        same: Whether two outputs are the same.

    Raises:
        NotFusible: They differ.
    """
    first = Lane(pack.trainers[0])
    count = min(len(first.training[0]), first.trainer.parts.batch_size)
    rows = torch.arange(count, device=first.trainer.device)
    random = RandomState()
    try:
        given = dict(zip(pack.trainers, pack.outputs(rows), strict=False))
        for trainer in trainers:
            lane = Lane(trainer)
            with torch.no_grad(), lane.autocast():
                trainer.model.eval()
                own = trainer.model(lane.training[0].index_select(0, rows))
            if not same(own, given[trainer]):
                raise NotFusible("its model gives something else as a lane than alone, from equal weights")
    finally:
        random.restore()


def _trained_twice(trainer: Trainer, numbers: Sequence[int], places: int, at_once: bool) -> tuple[list[Any], list[Any]]:
    """Give the outcomes of copies after an epoch, and after one more, in which a pack does what it recorded."""
    copies = [Lane(trainer).for_a_try(number) for number in numbers]
    pack = Pack(copies, places, {}, at_once=at_once)
    return _outcomes(pack.step(), copies), _outcomes(pack.step(), copies)


def _timed(run: Callable[[], _T]) -> tuple[_T, float]:
    began = time.process_time()
    return run(), time.process_time() - began


def _outcomes(told: Sequence[Mapping[str, float]], trainers: Sequence[Trainer]) -> list[Any]:
    """Give the metrics of each, its state, and the gradients of its last step."""
    pairs = zip(told, trainers, strict=False)
    return [(metrics, copy.deepcopy(trainer.state_dict()), _gradients(trainer)) for metrics, trainer in pairs]


def _gradients(trainer: Trainer) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in trainer.model.parameters()]


def _same_outcomes(one: Any, other: Any) -> bool:
    (metrics, *kept), (other_metrics, *other_kept) = one, other
    told = {name: value for name, value in metrics.items() if name != "data_wait"}
    return same_bits(told, {name: other_metrics[name] for name in told}) and same_bits(kept, other_kept)


def _compare(trainers: Sequence[Trainer], told: Sequence[Mapping[str, float]], expected: Sequence[Any]) -> None:
    for trainer, metrics, (metrics_alone, state_alone, gradients_alone) in zip(trainers, told, expected, strict=False):
        for name, value in metrics_alone.items():
            if name != "data_wait" and not same_bits(metrics[name], value):
                raise NotFusible(f"{len(trainers)} lanes have another {name} than each alone: {metrics[name]}, {value}")
        if not same_bits(trainer.state_dict(), state_alone):
            raise NotFusible(f"{len(trainers)} lanes come to other weights than each alone, in the last digits")
        if not same_bits(_gradients(trainer), gradients_alone):
            raise NotFusible(f"{len(trainers)} lanes have other gradients than each alone, in the last digits")
