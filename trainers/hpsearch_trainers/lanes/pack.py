"""An epoch of many trainers as lanes of one computation, with the bits of each trained alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.evaluation import Totals
from hpsearch_trainers.lanes import batched, dropout, elementwise, linear, views
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, of_each, opened
from hpsearch_trainers.lanes.losses import losses_of
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.lanes.snapshot import RandomState, Snapshot
from hpsearch_trainers.normalization import hold_statistics
from hpsearch_trainers.trainer import Trainer

__all__ = ["Pack"]

_RULES = (batched, dropout, elementwise, linear, views)
"""They are in force once they are imported."""


class Pack:
    """Trainers of one shape key, whose models' tensors lie in stacks for as long as they are lanes.

    Args:
        trainers: One or more, of which `shape_key` gives the same.

    Raises:
        NotFusible: Their model can't be that of all lanes.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._lanes = [Lane(trainer) for trainer in trainers]
        self._generators = [lane.generator for lane in self._lanes]
        self._shell = Shell([lane.model for lane in self._lanes], self._generators)
        averages = [lane.average for lane in self._lanes if lane.average is not None]
        self._average = Shell(averages, self._generators) if averages else None
        self._shells = [shell for shell in (self._shell, self._average) if shell is not None]
        self._parameters: list[nn.Parameter] = []

    @property
    def trainers(self) -> list[Trainer]:
        """Its lanes."""
        return [lane.trainer for lane in self._lanes]

    def holds(self) -> bool:
        """Whether its trainers' tensors are still those that it took: nobody has put others in their place."""
        return all(shell.holds() for shell in self._shells)

    def step(self, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> list[dict[str, float]]:
        """Train each lane for an epoch and validate; give each one's metrics, as its `step()` would.

        Where it raises, each trainer is as it was before.

        Args:
            around: Gives what surrounds the epoch.

        Raises:
            NotFusible: Something in it can't be right for all lanes.
            Exception: What a lane's loss, metrics, model or data raise, or what surrounds them.
        """
        before = Snapshot(self.trainers)
        try:
            with around():
                metrics = self._epoch(before.random)
        except BaseException:
            before.restore()
            raise
        return metrics

    def release(self, trainer: Trainer) -> None:
        """Give a trainer's tensors memory of their own; the pack is of no more use for it."""
        lane = self.trainers.index(trainer)
        for shell in self._shells:
            shell.release(lane)

    def outputs(self, rows: Tensor) -> list[Any]:
        """Give what each lane's model makes of some rows to train on, in evaluation mode and without gradients.

        Args:
            rows: Their numbers, (n,).
        """
        with torch.no_grad(), self._lanes[0].autocast():
            self._shell.module.eval()
            inputs = self._chosen([lane.training[0] for lane in self._lanes], _for_all(rows, self._lanes))
            return [*of_each(opened(self._shell(inputs)), len(self._lanes))]

    def _epoch(self, random: RandomState) -> list[dict[str, float]]:
        losses = self._train().tolist()
        # First: a loss may look at its trainer's epoch, which in validation is the next one.
        trained = [lane.end(loss) for lane, loss in zip(self._lanes, losses, strict=True)]
        totals = self._validate()
        for shell in self._shells:
            shell.check_unchanged()
        ended = zip(self._lanes, trained, totals, strict=True)
        metrics = [told | lane.told(validated) for lane, told, validated in ended]
        if not random.is_now():
            raise NotFusible("it draws from the process's random generators, of which there is one for all lanes")
        return metrics

    def _train(self) -> Tensor:
        """Give each lane's loss summed over the epoch's rows, (lanes,)."""
        first, module = self._lanes[0], self._shell.module
        for shell in self._shells:
            shell.take_settings()
        frozen = first.trainer.parts.freeze_batch_norm
        for model in (module, *self._shell.models):  # a loss may look in which mode its model is
            model.train()
            if frozen is not None and first.trainer.epoch >= frozen:
                hold_statistics(model)
        orders = torch.stack([lane.begin() for lane in self._lanes], 1)
        self._parameters = [parameter for lane in self._lanes for parameter in lane.model.parameters()]
        totals = torch.zeros(len(self._lanes), dtype=torch.float64)
        for step in range(first.steps):
            for lane in self._lanes:
                lane.set_rate(step)
            self._step(first.passes(step, orders), totals)
        return totals

    def _step(self, passes: Sequence[Tensor], totals: Tensor) -> None:
        stacks = self._shell.parameters
        for stack in stacks:
            stack.grad = None
        rows = sum(len(chosen) for chosen in passes)
        for chosen in passes:
            inputs, targets = self._batch(chosen.T)
            with self._lanes[0].autocast():
                losses = losses_of(self._lanes, self._shell(inputs), targets)
            shares = losses if len(passes) == 1 else losses * (len(chosen) / rows)
            torch.autograd.backward(shares, torch.ones_like(shares))
            totals.add_(losses.detach(), alpha=len(chosen))
        for parameter in self._parameters:
            if parameter.grad is not None:
                raise NotFusible("its loss comes to its model's parameters by itself")
        gradients = zip(*(self._unstacked(stack.grad) for stack in stacks), strict=True)
        for lane, its_own in zip(self._lanes, gradients, strict=True):
            lane.update(its_own)

    @torch.no_grad()
    def _validate(self) -> list[Totals | None]:
        first = self._lanes[0]
        if first.validation is None:
            return [None] * len(self._lanes)
        shell = self._shell if self._average is None else self._average
        for model in (shell.module, *shell.models):
            model.eval()
        totals = [lane.totals() for lane in self._lanes]
        columns = [[lane.validation[number] for lane in self._lanes] for number in range(2)]  # type: ignore[index]
        for rows in torch.split(torch.arange(len(first.validation[0])), first.trainer.parts.validation_batch_size):
            chosen = _for_all(rows, self._lanes)
            inputs, targets = (self._chosen(tensors, chosen) for tensors in columns)
            with first.autocast():
                given = opened(shell(inputs))
            of_lanes = zip(totals, of_each(given, len(totals)), targets.slices, strict=True)
            for total, output, wanted in of_lanes:
                total.add(output, wanted, len(rows), first.autocast)
        return list(totals)

    def _batch(self, rows: Tensor) -> tuple[LaneTensor, LaneTensor]:
        """Give inputs and targets of rows, (lanes, n)."""
        inputs, targets = ([lane.training[number] for lane in self._lanes] for number in range(2))
        return self._chosen(inputs, rows), self._chosen(targets, rows)

    def _chosen(self, tensors: Sequence[Tensor], rows: Tensor) -> LaneTensor:
        """Gather each lane's rows, (lanes, n), of its tensor; of one that all share, at once."""
        first = tensors[0]
        if any(one is not first and not _same(one, first) for one in tensors):
            parts = [tensor.index_select(0, chosen) for tensor, chosen in zip(tensors, rows, strict=True)]
            return LaneTensor.of_slices(parts, self._generators)
        if rows.stride(0) == 0:  # the same rows for all
            stack = first.index_select(0, rows[0]).expand(len(rows), *rows.shape[1:], *first.shape[1:])
        else:
            stack = first.index_select(0, rows.reshape(-1)).view(*rows.shape, *first.shape[1:])
        return LaneTensor.of_stack(stack, self._generators)

    def _unstacked(self, gradient: Tensor | None) -> Sequence[Tensor | None]:
        return [None] * len(self._lanes) if gradient is None else gradient.unbind()


def _for_all(rows: Tensor, lanes: Sequence[Lane]) -> Tensor:
    return rows.expand(len(lanes), -1)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one memory, read alike."""
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.shape == other.shape
