"""Tests whether a pack gives the same results as its trainers alone, and from how many lanes on it is faster."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import math
import random
import statistics
import time
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hpsearch_trainers.batches import Batches
from hpsearch_trainers.lanes.algorithms import calls_are_expensive, deterministic_algorithms
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.dropout import DROPOUT_FUNCTIONS, DROPOUT_MODULES, dropout_with
from hpsearch_trainers.lanes.errors import DependsOnPlace, NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import copied, modules_of, tensors_of
from hpsearch_trainers.lanes.noise import Noise
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.passes import Recorded, keep_last
from hpsearch_trainers.lanes.shape_key import code_key, shape_key
from hpsearch_trainers.lanes.snapshot import RandomState, Snapshot
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.trainer import Trainer

_RATE = 0.01
_TrainerT = TypeVar("_TrainerT", bound=Trainer)


@contextlib.contextmanager
def isolated_try() -> Iterator[None]:
    """Run a test in isolation: restore the process's random generators, and discard its output.

    Raises:
        NotFusible: The test raised another exception, other than out of memory.
    """
    before = RandomState()
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield
    except NotFusible:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise NotFusible(f"to try its shape raises {type(error).__name__}: {error}") from error
    finally:
        before.restore()


def rebuilt(trainer: _TrainerT, number: int, *, rounded: bool) -> _TrainerT:
    """Build a trainer again with few rows, and with weights and rates that depend only on its shape and `number`.

    The result of a test must hold for all trainers of this shape and code, at any time. With a trial's own values it
    might not: if weights are zero, or the rate is tiny or makes everything NaN, no bit could differ. So weights, rates
    and the order of rows are not the trial's. There are two full training batches and the last short one, and one full
    validation batch and the last short one, as an epoch has both kinds. Measures are left out.

    Args:
        trainer: The trainer, which isn't changed.
        number: Determines the weights and the seed of the epochs.
        rounded: See `shape_key`.

    Raises:
        NotFusible: The trainer now differs from the result of its `build`.
        Exception: An exception of the constructor or of `build`.
    """
    beginning = trainer._beginning
    torch.manual_seed(beginning.seed)
    np.random.seed(beginning.seed % 2**32)
    random.seed(beginning.seed)
    result = type(trainer)(beginning)
    frozen = trainer.parts.freeze_batch_norm
    result.epoch = math.ceil(frozen) if frozen is not None and trainer.epoch >= frozen else 0
    result._stages = [*trainer._stages]
    keys = [(shape_key(candidate, rounded=rounded), code_key(candidate)) for candidate in (trainer, result)]
    if not _same_keys(*keys):
        raise NotFusible("its model, optimizer, loss or data are by now others than its build gives")
    _shorten(result, number)
    _renumber(result.model, number)
    for group in result.optimizer.param_groups:
        group["lr"] = torch.full_like(group["lr"], _RATE) if isinstance(group["lr"], Tensor) else _RATE
    result._rates = Rates(result.optimizer)
    return result


def replica(trainer: _TrainerT) -> _TrainerT:
    """Return a copy of a trainer with copies of the model and optimizer, and the same functions."""
    twin = copy.copy(trainer)
    # A loss that is a module may contain the model.
    loss = trainer.parts.loss if isinstance(trainer.parts.loss, nn.Module) else None
    members = (trainer.model, trainer.optimizer, trainer._average, loss)
    models = [member for member in members if isinstance(member, nn.Module)]
    twin.model, twin.optimizer, twin._average, loss = copied(members, models)
    twin.parts = dataclasses.replace(trainer.parts, loss=trainer.parts.loss if loss is None else loss)
    twin._strategy = copy.copy(trainer._strategy)  # otherwise the trainer's strategy would keep the copied model
    twin._rates = Rates(twin.optimizer)
    twin._strategy.bind(twin._trained())
    return twin


def _same_keys(first: Any, second: Any) -> bool:
    """Return whether two keys are equal, except for classes and functions that each `build` creates anew."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_same_keys, first, second))
    if isinstance(first, type) and isinstance(second, type):
        return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)
    if isinstance(first, types.FunctionType) and isinstance(second, types.FunctionType):
        return first.__code__ == second.__code__
    return bool(first == second)


def _shorten(trainer: Trainer, seed: int) -> None:
    lane, shard, parts = Lane(trainer), trainer._shard, trainer.parts
    rows = _row_count(shard.rows, shard.batch, 2)
    trainer._seed, trainer._shard = seed, dataclasses.replace(shard, rows=rows, seed=seed)
    trainer._train = Batches([tensor[:rows] for tensor in lane.training], trainer.device)
    if lane.validation is not None:
        rows = _row_count(len(lane.validation[0]), parts.validation_batch_size, 1)
        trainer._validation = Batches([tensor[:rows] for tensor in lane.validation], trainer.device)
    trainer.parts = dataclasses.replace(parts, measures={})


def _row_count(rows: int, batch: int, full: int) -> int:
    """Return the number of rows in `full` full batches and the last short one."""
    return min(rows, full * batch + rows % batch)


@torch.no_grad()
def _renumber(model: nn.Module, number: int) -> None:
    """Set a model's parameters to random numbers without special values, and lower dropout rates of 1."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.randn(parameter.shape, generator=generator)
            inputs = parameter[0].numel() if parameter.dim() > 1 and len(parameter) > 0 else 0
            parameter.copy_(drawn / inputs**0.5 if inputs > 0 else 1 + drawn / 8)
    for module in modules_of(model):
        if isinstance(module, DROPOUT_MODULES) and module.p == 1:
            module.p = 0.5


_ROUNDING = 1e-2
"""Tolerance of gradients in single precision, relative to a model's largest gradient."""


def check_gradients(trainers: Sequence[Trainer], pack: Pack) -> None:
    """Compare the loss and the gradients of a batch in a pack with those of the trainers' own models and losses.

    In a pack with `at_once`, dropout noise differs from that of a trainer alone. Here, both use the pack's noise.

    Args:
        trainers: The pack's trainers, which aren't changed.
        pack: A pack with `at_once`.

    Raises:
        NotFusible: The results differ by more than rounding.
        Exception: An exception of a loss.
    """
    first = Lane(pack.trainers[0])
    rows = torch.arange(min(len(first.training[0]), first.trainer.parts.batch_size), device=first.trainer.device)
    with pack.restored():
        losses, gradients = pack.gradients(rows)
        together = {trainer: (losses[index], index) for index, trainer in enumerate(pack.trainers)}
    with pack.restored(training=True):
        for trainer in trainers:
            loss, index = together[trainer]
            ours = _flat(loss, [None if gradient is None else gradient[index] for gradient in gradients])
            if not _nearly_equal(_alone(trainer, rows, index), ours):
                raise NotFusible("its model or its loss gives other gradients as a lane than alone, from equal weights")


def _alone(trainer: Trainer, rows: Tensor, seed: int) -> Tensor:
    lane = Lane(trainer)
    trained = [tensor for tensor in tensors_of(trainer.model) if tensor.requires_grad]
    inputs, targets = (tensor.index_select(0, rows) for tensor in lane.training)
    with _SameNoise(seed, trainer.device), torch.enable_grad():
        with lane.autocast():
            loss = lane.loss(trainer.model(inputs), targets)
        gradients = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
    return _flat(loss.detach(), gradients)


class _SameNoise(TorchFunctionMode):
    """Makes dropout functions draw the noise that a pack draws for a lane in an epoch's first pass.

    Args:
        seed: Seed of the lane's epoch.
        device: Device of the lane.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()
        self._noise = Noise(1, device)
        self._noise.begin_epoch([seed])
        self._noise.begin_pass()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = dropout_with(self._noise, func) if func in DROPOUT_FUNCTIONS else func
        return call(*args, **(kwargs or {}))


def _flat(loss: Tensor, gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the loss and the gradients as one vector; missing gradients are left out."""
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in (loss, *gradients) if tensor is not None])


def _nearly_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether vectors of `_flat` are equal up to rounding. Always true if the first has NaN or infinity."""
    if not bool(first.isfinite().all()):
        return True
    if first.shape != second.shape:
        return False
    largest = first[1:].abs().max().item() if len(first) > 1 else 0.0
    near = torch.allclose(first[:1], second[:1], _ROUNDING, _ROUNDING)
    return near and torch.allclose(first[1:], second[1:], 0.0, _ROUNDING * largest)


_T = TypeVar("_T")

_BUILT = 2
"""Number of trainers that are built for a test, because a build may take long. Further lanes are replicas of these."""


def check_pack(
    trainer: Trainer, most: int, recordings: dict[Hashable, Recorded | None] | None = None
) -> dict[int, float]:
    """Train newly built trainers on a few batches, fused and alone, and compare all results.

    The outcome holds for all trainers of this shape and code: see `rebuilt`.

    Args:
        trainer: The trainer, which isn't changed.
        most: Number of lanes of the largest pack. Packs of 1 and 2 lanes are tested as well, and of 3 if 2 aren't
            faster.
        recordings: Recordings of packs of this shape key; the tested packs' recordings are added.

    Returns:
        For each tested number of lanes from 2 on, the time relative to that of as many trainers alone.

    Raises:
        NotFusible: A bit differs, or the trainers can't be fused.
    """
    with isolated_try():
        built = [rebuilt(trainer, number, rounded=False) for number in range(min(_BUILT, most))]
        before = Snapshot(built)
        alone, seconds_alone = _alone_twice(built, before)
        shares: dict[int, float] = {}
        for size in sorted({1, 2, min(3, most), most}):
            if size > most or (size == 3 < most and shares[2] < 1):
                continue  # not needed if two lanes are faster
            before = Snapshot(built)
            recorded: dict[Hashable, Recorded | None] = {}  # without other packs' recordings, to test this pack's own
            pack = Pack(_lanes_of(built, range(size)), recordings=recorded, trusted=True)
            _compare(pack.trainers, pack.step(), alone[0])
            with pack.restored():
                reports, seconds = _timed(pack.step)
                _compare(pack.trainers, reports, alone[1])
            if recordings is not None:
                recordings.update({key: recording for key, recording in recorded.items() if key not in recordings})
                keep_last(recordings)
            if size > 1:  # with one lane and few batches, overhead per epoch dominates: see Fuser
                if seconds >= size * seconds_alone:  # measure again: Python's garbage collection may have run
                    with pack.restored():
                        seconds = min(seconds, _timed(pack.step)[1])
                shares[size] = seconds / (size * seconds_alone)
            _dissolve(pack, before)
        return shares


def check_places(trainer: Trainer, places: int, *, at_once: bool | None = None) -> None:
    """Train newly built trainers on a few batches, at several positions and with other lanes, and compare the results.

    The outcome holds for all trainers of this shape and code: see `rebuilt`.

    Args:
        trainer: The trainer, which isn't changed.
        places: Number of places of a pack that may round.
        at_once: See `Pack`; None: depends on the device.

    Raises:
        DependsOnPlace: A bit depends on the position or on other lanes.
        NotFusible: The trainer can't be a lane.
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
    """Compare a pack's outputs for some lanes with those of the lanes' own models.

    This detects a model that reads something other than its tensors and attributes, such as a global variable. In a
    pack, all lanes would read the same value.

    Args:
        trainers: Trainers of the pack.
        pack: The pack.
        is_same: Returns whether two outputs are equal.

    Raises:
        NotFusible: The outputs differ.
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
                # Don't name a trainer: the first one's model computes all lanes, and may be the one that differs.
                raise NotFusible("its model gives something else as a lane than alone, from equal weights")
    finally:
        random.restore()


def _alone_twice(built: Sequence[Trainer], before: Snapshot) -> tuple[list[list[Any]], float]:
    """Train each trainer alone for two epochs, then restore it; return each epoch's results and the time of one.

    The first trainer is trained twice. If its results differ, it has state that can't be restored after a failed epoch.
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
    """Return the trainers with these indices, modulo their number; a repeated trainer is replaced by a replica."""
    lanes: list[Trainer] = []
    for number in numbers:
        trainer = built[number % len(built)]
        lanes.append(replica(trainer) if trainer in lanes else trainer)
    return lanes


def _dissolve(pack: Pack, before: Snapshot) -> None:
    """Release a pack, and restore its trainers to their state after the build."""
    for trainer in pack.trainers:
        pack.release(trainer)
    before.restore()


def _timed(run: Callable[[], _T]) -> tuple[_T, float]:
    began = time.process_time()
    return run(), time.process_time() - began


def _outcomes(reports: Sequence[Mapping[str, float]], trainers: Sequence[Trainer]) -> list[Any]:
    """Return the metrics, the state, and the gradients of the last step of each trainer."""
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
