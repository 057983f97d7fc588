"""Whether a pack has the bits of its trainers alone, and from how many lanes on it is quicker, found by trying."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import calls_are_expensive, deterministic_algorithms
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import DependsOnPlace, NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.passes import Recorded, keep_last
from hpsearch_trainers.lanes.snapshot import RandomState, Snapshot
from hpsearch_trainers.lanes.tries import isolated_try, rebuilt, replica
from hpsearch_trainers.trainer import Trainer

__all__ = ["check_lanes", "check_pack", "check_places"]

_T = TypeVar("_T")

_BUILT = 2
"""How many trainers are built anew, as a build may take long; of more lanes, all are replicas of these."""


def check_pack(
    trainer: Trainer, most: int, recordings: dict[Hashable, Recorded | None] | None = None
) -> dict[int, float]:
    """Train trainers that are built anew on a few batches, fused and alone, and compare all that comes of it.

    What is found holds for all trainers of its shape and code: see `rebuilt`.

    Args:
        trainer: It stays as it is.
        most: Lanes of the largest pack; smaller ones are tried, too: of 1, 2, and where two aren't quicker 3.
        recordings: Of packs of this shape key: gains what those that are tried have recorded.

    Returns:
        By the number of lanes, from two on, which share of the time of as many alone they took.

    Raises:
        NotFusible: A bit differs, or they can't be fused.
    """
    with isolated_try():
        built = [rebuilt(trainer, number, rounded=False) for number in range(min(_BUILT, most))]
        before = Snapshot(built)
        alone, seconds_alone = _alone_twice(built, before)
        shares: dict[int, float] = {}
        for size in sorted({1, 2, min(3, most), most}):
            if size > most or (size == 3 < most and shares[2] < 1):
                continue  # nobody asks whether it is quicker where two are
            before = Snapshot(built)
            recorded: dict[Hashable, Recorded | None] = {}  # what others have recorded isn't what is to be tried
            pack = Pack(_lanes_of(built, range(size)), recordings=recorded, trusted=True)
            _compare(pack.trainers, pack.step(), alone[0])
            with pack.restored():
                reports, seconds = _timed(pack.step)
                _compare(pack.trainers, reports, alone[1])
            if recordings is not None:
                recordings.update({key: recording for key, recording in recorded.items() if key not in recordings})
                keep_last(recordings)
            if size > 1:  # of one, what comes once an epoch is the most of so few batches: see Fuser
                if seconds >= size * seconds_alone:  # perhaps it was Python's garbage collector, which takes its time
                    with pack.restored():
                        seconds = min(seconds, _timed(pack.step)[1])
                shares[size] = seconds / (size * seconds_alone)
            _dissolve(pack, before)
        return shares


def check_places(trainer: Trainer, places: int, *, at_once: bool | None = None) -> None:
    """Train trainers that are built anew on a few batches, in several places and companies, and compare what comes.

    What is found holds for all trainers of its shape and code: see `rebuilt`.

    Args:
        trainer: It stays as it is.
        places: Of a pack that may round.
        at_once: As in `Pack`; None: as its device asks for it.

    Raises:
        DependsOnPlace: A bit depends on the place or the company.
        NotFusible: It can't be a lane.
    """
    at_once = calls_are_expensive(trainer.device) if at_once is None else at_once
    with isolated_try(), deterministic_algorithms(trainer.device):
        built = [rebuilt(trainer, number, rounded=True) for number in range(min(_BUILT, places))]
        _alone_twice(built, Snapshot(built))
        numbers = [number % len(built) for number in range(places)]
        expected: list[dict[int, Any]] = [{}, {}]
        for company in (numbers, [len(built) - 1 - number for number in numbers], numbers[:1]):
            before = Snapshot(built)
            pack = Pack(_lanes_of(built, company), places, {}, at_once=at_once)
            for epoch_outcomes in expected:
                for number, outcome in zip(company, _outcomes(pack.step(), pack.trainers), strict=True):
                    if not _same_outcomes(outcome, epoch_outcomes.setdefault(number, outcome)):
                        raise DependsOnPlace("its bits depend on its place among the lanes, or on the others")
            _dissolve(pack, before)


def check_lanes(trainers: Sequence[Trainer], pack: Pack, is_same: Callable[[Any, Any], bool] = same_bits) -> None:
    """Compare what a pack makes of some lanes' weights with what their own models do.

    A model that reads something that is neither in its tensors nor in its attributes, such as a global variable, would
    read the same for all lanes.

    Args:
        trainers: Of the pack.
        pack: One that was found to be right.
        is_same: Whether two outputs are the same.

    Raises:
        NotFusible: They differ.
    """
    first = Lane(pack.trainers[0])
    count = min(len(first.training[0]), first.trainer.parts.batch_size)
    rows = torch.arange(count, device=first.trainer.device)
    random = RandomState()
    try:
        outputs = dict(zip(pack.trainers, pack.outputs(rows), strict=False))
        for trainer in trainers:
            lane = Lane(trainer)
            with torch.no_grad(), lane.autocast():
                trainer.model.eval()
                output = trainer.model(lane.training[0].index_select(0, rows))
            if not is_same(output, outputs[trainer]):
                # Not said of whom: the first one's model computes for all, and may be the one that reads otherwise.
                raise NotFusible("its model gives something else as a lane than alone, from equal weights")
    finally:
        random.restore()


def _alone_twice(built: Sequence[Trainer], before: Snapshot) -> tuple[list[list[Any]], float]:
    """Train each for two epochs by itself, and go back; return what came of each epoch, and the seconds of one.

    The first one is trained twice: what doesn't come to the same again keeps something that an epoch that is broken off
    couldn't take back.
    """
    timed = [_timed(trainer.step) for trainer in built]
    first = _outcomes([metrics for metrics, _ in timed], built)
    before.restore()
    before = Snapshot(built)
    again = [_timed(trainer.step) for trainer in built]
    if not all(map(_same_outcomes, first, _outcomes([metrics for metrics, _ in again], built))):
        raise NotFusible(
            "an epoch of it comes to something else the next time: its functions, or what they read, keep something "
            "that is neither in its model nor in its optimizer"
        )
    second = _outcomes([trainer.step() for trainer in built], built)
    before.restore()
    return [first, second], statistics.median(seconds for _, seconds in (*timed, *again))


def _lanes_of(built: Sequence[Trainer], numbers: Sequence[int]) -> list[Trainer]:
    """Return those of these numbers, from the beginning again after the last one; replicas of those that are taken."""
    lanes: list[Trainer] = []
    for number in numbers:
        trainer = built[number % len(built)]
        lanes.append(replica(trainer) if trainer in lanes else trainer)
    return lanes


def _dissolve(pack: Pack, before: Snapshot) -> None:
    """Restore trainers as they were after they were built."""
    for trainer in pack.trainers:
        pack.release(trainer)
    before.restore()


def _timed(run: Callable[[], _T]) -> tuple[_T, float]:
    began = time.process_time()
    return run(), time.process_time() - began


def _outcomes(reports: Sequence[Mapping[str, float]], trainers: Sequence[Trainer]) -> list[Any]:
    """Return the metrics of each, its state, and the gradients of its last step."""
    pairs = zip(reports, trainers, strict=False)
    return [(metrics, copy.deepcopy(trainer.state_dict()), _gradients(trainer)) for metrics, trainer in pairs]


def _gradients(trainer: Trainer) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in trainer.model.parameters()]


def _same_outcomes(first: Any, second: Any) -> bool:
    (metrics, *state), (other_metrics, *other_state) = first, second
    reported = {name: value for name, value in metrics.items() if name != "data_wait"}
    return same_bits(reported, {name: other_metrics[name] for name in reported}) and same_bits(state, other_state)


def _compare(trainers: Sequence[Trainer], reports: Sequence[Mapping[str, float]], expected: Sequence[Any]) -> None:
    for number, (trainer, metrics) in enumerate(zip(trainers, reports, strict=True)):
        metrics_alone, state_alone, gradients_alone = expected[number % len(expected)]
        for name, value in metrics_alone.items():
            if name != "data_wait" and not same_bits(metrics[name], value):
                raise NotFusible(f"{len(trainers)} lanes have another {name} than each alone: {metrics[name]}, {value}")
        if not same_bits(trainer.state_dict(), state_alone):
            raise NotFusible(f"{len(trainers)} lanes come to other weights than each alone, in the last digits")
        if not same_bits(_gradients(trainer), gradients_alone):
            raise NotFusible(f"{len(trainers)} lanes have other gradients than each alone, in the last digits")
