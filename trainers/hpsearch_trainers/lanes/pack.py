"""An epoch of many trainers as lanes of one computation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hpsearch_trainers.buffers import hold_statistics
from hpsearch_trainers.evaluation import Totals
from hpsearch_trainers.lanes import dropout, rounded_rules, rules
from hpsearch_trainers.lanes.dropout import DROPOUT_MODULES
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import Generators, split_lanes
from hpsearch_trainers.lanes.losses import Losses, LossSums
from hpsearch_trainers.lanes.models import copied, modules_of
from hpsearch_trainers.lanes.noise import Noise
from hpsearch_trainers.lanes.passes import EvaluationPasses, OtherGradients, Recorded, Rows, TrainingPasses
from hpsearch_trainers.lanes.shape_key import model_key
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.lanes.snapshot import RandomState, Snapshot
from hpsearch_trainers.lanes.updates import Averages, Updates
from hpsearch_trainers.trainer import Trainer


class Settled:
    """Checks that a user's losses and schedules don't change the models, except the values of their tensors.

    Args:
        lanes: The lanes with a user's loss or schedule, at the start of an epoch.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._before = [*map(_settings, lanes)]

    def check(self) -> None:
        """Check that nothing has changed.

        Raises:
            NotFusible: Something has changed, which would affect a trainer alone.
        """
        moved = [lane.trainer for lane in self._lanes if not lane.is_bound()]
        if moved:
            raise NotFusible("its loss or schedule changes layers, parameters or the optimizer within an epoch", moved)
        pairs = zip(self._lanes, self._before, strict=True)
        changed = [lane.trainer for lane, before in pairs if not _is_still(lane, before)]
        if changed:
            raise NotFusible("its loss or schedule changes settings of its model within an epoch", changed)


def _is_still(lane: Lane, before: Hashable) -> bool:
    with contextlib.suppress(NotFusible):  # for example if it now has hooks
        return _settings(lane) == before
    return False


def _settings(lane: Lane) -> Hashable:
    modules = modules_of(lane.model)
    rates = tuple(module.p for module in modules if isinstance(module, DROPOUT_MODULES))
    return tuple(module.training for module in modules), rates, model_key(lane.model)


_T = TypeVar("_T")

_RULES = (dropout, rules, rounded_rules)
"""Modules that register rules on import."""


class Pack:
    """Trainers of one shape key. While they are lanes, their models' tensors are views of stacks.

    Args:
        trainers: One or more trainers with equal `shape_key`.
        places: Fixed number of lanes of the computation, for a pack that may round. A lane's results depend on this
            number, but not on the other lanes. Results of free places are discarded. None: one place for each trainer,
            with results equal to those of each alone bit for bit.
        recordings: Recordings of packs of this shape key, with any number of lanes. This pack uses them and adds its
            own. None: there are no other packs.
        trusted: Whether its first trainer is known to compute the same as those of other trusted packs, so that their
            recordings are valid for this one. Otherwise a recording is tested before it is used.
        at_once: Whether kernel launches dominate, as on a GPU. Then a pack that may round computes as much as possible
            for all lanes in one call, and noise differs from that of a trainer alone.

    Attributes:
        verified: The trainers that are known to compute the same as the first one.

    Raises:
        NotFusible: The first trainer's model can't compute all lanes.
    """

    def __init__(
        self,
        trainers: Sequence[Trainer],
        places: int | None = None,
        recordings: dict[Hashable, Recorded | None] | None = None,
        *,
        trusted: bool = False,
        at_once: bool = False,
    ) -> None:
        self.verified: Sequence[Trainer] = ()
        self._lanes = [Lane(trainer) for trainer in trainers]
        self._free = 0 if places is None else places - len(self._lanes)
        of_lanes = [lane.generator for lane in self._lanes]
        unused = [torch.Generator() for _ in range(self._free)]
        self._device = self._lanes[0].trainer.device
        self._noise = Noise(self._places, self._device) if at_once else None
        generators = Generators([*of_lanes, *unused], rounded=places is not None, noise=self._noise)
        averages = [lane.average.module for lane in self._lanes if lane.average is not None]
        self._shells: list[Shell] = []
        try:
            self._shell = self._make_shell([lane.model for lane in self._lanes], generators)
            if averages:
                self._make_shell(averages, generators)
            self._losses = Losses(self._lanes)
            self._rows = Rows(self._padded([lane.training for lane in self._lanes]), generators)
            autocast = self._lanes[0].autocast
            self._training = TrainingPasses(self._shell, self._rows, self._losses, autocast, recordings)
            validated = [lane.validation for lane in self._lanes if lane.validation is not None]
            rows = Rows(self._padded(validated), generators)
            self._evaluation = EvaluationPasses(self._shells[-1], rows, autocast, recordings)
            self._training.tapes.trusted = self._evaluation.tapes.trusted = trusted
        except BaseException:
            for trainer in self.trainers:
                self.release(trainer)
            raise

    @property
    def trainers(self) -> list[Trainer]:
        """The trainers of the lanes."""
        return [lane.trainer for lane in self._lanes]

    @property
    def confirmed_recordings(self) -> bool:
        """Whether recordings of trusted packs were tested for training and evaluation, and all were valid."""
        return self._training.tapes.confirmed is self._evaluation.tapes.confirmed is True

    def is_intact(self) -> bool:
        """Whether its trainers still have the same models, with the same modules and tensors."""
        return not self._detached_trainers()

    def _detached_trainers(self) -> list[Trainer]:
        """Return the trainers whose models, modules or tensors were replaced."""
        models: list[list[nn.Module | None]] = [[lane.model for lane in self._lanes]]
        models.append([None if lane.average is None else lane.average.module for lane in self._lanes])
        pairs = zip(self._shells, models, strict=False)
        lanes = {lane for shell, of_lanes in pairs for lane in shell.detached_lanes(of_lanes)}
        return [self._lanes[lane].trainer for lane in sorted(lanes)]

    def step(self, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> list[dict[str, float]]:
        """Train each lane for an epoch and validate; return each lane's metrics, as its `step()` would.

        If it raises an exception, all trainers are restored.

        Args:
            around: Returns the context manager of the epoch.

        Raises:
            NotFusible: An operation can't be correct for all lanes.
            Exception: An exception of a lane's loss, metrics, model or data, or of `around`.
        """
        try:
            return self._step(around)
        except OtherGradients:
            for passes in (self._training, self._evaluation):
                passes.tapes.forget()
            return self._step(around)

    def _step(self, around: Callable[[], AbstractContextManager[object]]) -> list[dict[str, float]]:
        before = Snapshot(self.trainers, self._shells)
        try:
            with around():
                return self._epoch(before.random)
        except BaseException:
            before.restore()
            raise

    def release(self, trainer: Trainer) -> None:
        """Copy a trainer's tensors into separate memory. The pack can't train it afterwards."""
        lane = self.trainers.index(trainer)
        for shell in self._shells:
            shell.release(lane)

    @contextlib.contextmanager
    def restored(self, *, training: bool = False) -> Iterator[None]:
        """Restore the trainers at the end of the block.

        Args:
            training: Whether the models are in training mode within the block.
        """
        before = Snapshot(self.trainers, self._shells)
        try:
            if training:
                self._prepare()
            yield
        finally:
            before.restore()

    def gradients(self, rows: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss of each lane for some rows, and the gradients of the stacks. A lane's index is its seed.

        Args:
            rows: Row numbers, (n,).
        """
        self._prepare()
        for lane in self._lanes:
            lane.clear_gradients()
        if self._noise is not None:
            self._noise.begin_epoch(range(self._places))
            self._noise.begin_pass()
        return self._training.unrecorded(rows.expand(self._places, -1))

    def outputs(self, rows: Tensor) -> list[Any]:
        """Return each place's model output for some training rows, in eval mode, without gradients.

        Args:
            rows: Row numbers, (n,).
        """
        with torch.no_grad(), self._lanes[0].autocast():
            self._shell.module.eval()
            inputs, _ = self._rows(rows.expand(self._places, -1))
            return split_lanes(self._shell(inputs), self._places)

    @property
    def _places(self) -> int:
        return len(self._lanes) + self._free

    def _padded(self, of_lanes: list[_T]) -> list[_T]:
        """Return a list of all places, in which free places have the first lane's item."""
        return [*of_lanes, *of_lanes[:1] * self._free]

    def _make_shell(self, models: Sequence[nn.Module], generators: Generators) -> Shell:
        try:
            unused = [copied(models[0], models[:1]) for _ in range(self._free)]
        except MemoryError:
            raise
        except Exception as error:
            raise NotFusible(f"its model can't be copied: {error}") from error
        self._shells.append(Shell([*models, *unused], generators))
        return self._shells[-1]

    def _epoch(self, random: RandomState) -> list[dict[str, float]]:
        losses = self._train()
        # Before validation, because a loss may read its trainer's epoch, which is then already incremented.
        trained = [lane.end(loss) for lane, loss in zip(self._lanes, losses, strict=True)]
        totals = self._validate()
        for shell in self._shells:
            shell.check_unchanged()
        ended = zip(self._lanes, trained, totals, strict=True)
        metrics = [trained_metrics | lane.validation_metrics(validated) for lane, trained_metrics, validated in ended]
        if detached := self._detached_trainers():
            raise NotFusible("its parameters are put into other memory while it trains, as by `p.data = ...`", detached)
        if not random.is_now():
            raise NotFusible("it draws from the process's random generators, of which there is one for all lanes")
        return metrics

    def _train(self) -> list[float]:
        """Train an epoch; return the sum of each lane's losses over its rows."""
        first, at_once = self._lanes[0], self._noise is not None
        self._prepare()
        orders = torch.stack(self._padded([lane.begin(clips=not at_once) for lane in self._lanes]), 1).to(self._device)
        if self._noise is not None:
            self._noise.begin_epoch(self._padded([lane.generator.initial_seed() for lane in self._lanes]))
        sums = LossSums(len(self._lanes), self._device)
        steady = all(lane.is_steady for lane in self._lanes)
        settled = Settled([] if self._losses.plain and steady else self._lanes)
        averages = [Averages(self._lanes, shell.stacks, self._shell.stacks) for shell in self._shells[1:] if at_once]
        updates = Updates(self._lanes, self._shell.parameters, averages, at_once=at_once)
        for step in range(first.steps):
            begins = () if steady and step > 0 else self._lanes
            for lane in begins:
                lane.start_step(step)
            for lane in begins:
                lane.clear_gradients() if step == 0 else lane.clear_step_gradients()
            updates(self._gradients(first.passes(step, orders), sums))
        updates.end()
        settled.check()
        if self._losses.plain != self._losses.are_plain():
            raise NotFusible("its loss changes while it trains")
        return sums.totals()

    def _prepare(self) -> None:
        """Set the models to training mode, and read their current settings."""
        freezes = self._lanes[0].trainer.parts.freeze_batch_norm
        frozen = freezes is not None and self._lanes[0].trainer.epoch >= freezes
        self._shell.set_training(True)
        if frozen:
            for model in (self._shell.module, *self._shell.models):
                hold_statistics(model)
        mode = (frozen, *(shell.read_settings() for shell in self._shells))
        for passes in (self._training, self._evaluation):
            passes.tapes.mode = mode
        self._training.tapes.is_due = True
        self._losses.plain = self._losses.are_plain()

    def _gradients(self, passes: Sequence[Tensor], sums: LossSums) -> Sequence[Tensor | None]:
        """Return the gradient of each stack, summed over a step's passes; add the losses to `sums`."""
        sizes = [pass_rows.shape[0] for pass_rows in passes]
        rows = sum(sizes)
        gradients: Sequence[Tensor | None] = []
        for pass_rows, size in zip(passes, sizes, strict=True):
            losses, pass_gradients = self._training(pass_rows.T, size / rows)
            gradients = (
                [_sum(*pair) for pair in zip(gradients, pass_gradients, strict=True)] if gradients else pass_gradients
            )
            sums.add(losses, size)
        return gradients

    @torch.no_grad()
    def _validate(self) -> list[Totals | None]:
        first = self._lanes[0]
        self._shells[-1].set_training(False)
        if first.validation is None:
            return [None] * len(self._lanes)
        if self._training.tapes.forgotten and not self._evaluation.tapes.forgotten:
            self._evaluation.tapes.forget()
        totals = [lane.totals() for lane in self._lanes]
        all_rows = torch.arange(len(first.validation[0]), device=self._device)
        for rows in torch.split(all_rows, first.trainer.parts.validation_batch_size):
            output, targets = self._evaluation(rows.expand(self._places, -1))
            of_places = zip(split_lanes(output, self._places), targets.slices, strict=True)
            losses = self._losses.of_validation(output, targets)
            for total, loss, (lane_output, lane_targets) in zip(totals, losses, of_places, strict=False):
                total.add(lane_output, lane_targets, len(rows), first.autocast, loss)
        if self._losses.plain != self._losses.are_plain():
            raise NotFusible("its loss changes while it is validated")
        return list(totals)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the sum of the gradients of two passes."""
    if first is None or second is None:
        return second if first is None else first
    return first.add_(second)
