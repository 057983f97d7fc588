"""Trainers to try a shape with: built anew, so that nothing of those that are trained goes on."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import math
import random
import types
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hpsearch_trainers.batches import Batches
from hpsearch_trainers.lanes.dropout import RATED
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import copied, modules_of
from hpsearch_trainers.lanes.shape_key import code_key, shape_key
from hpsearch_trainers.lanes.snapshot import RandomState
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.trainer import Trainer

__all__ = ["built_anew", "replica", "trying"]

_RATE = 0.01
_T = TypeVar("_T", bound=Trainer)


@contextlib.contextmanager
def trying() -> Iterator[None]:
    """Surround a try: the process's random generators stay as they are, and what it prints is lost.

    Raises:
        NotFusible: What runs inside raised something else, unless memory ran out.
    """
    before = RandomState()
    lost = io.StringIO()
    try:
        with contextlib.redirect_stdout(lost), contextlib.redirect_stderr(lost):
            yield
    except NotFusible:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise NotFusible(f"to try its shape raises {type(error).__name__}: {error}") from error
    finally:
        before.restore()


def built_anew(trainer: _T, number: int, *, rounded: bool) -> _T:
    """Build a trainer once more, with few rows, and numbers that follow from its shape and `number` alone.

    What is found of it is to hold for all trainers of its shape and code, whenever it is looked at. With weights of
    zero, a rate of almost nothing, or one at which all becomes no number, hardly a bit could differ. So weights, rates
    and the order of rows are no trial's own. Of rows there are two full batches and the last short one to train on, and
    a full and the last short one to validate on: what an epoch consists of. Measures are left out.

    Args:
        trainer: It stays as it is.
        number: Gives the weights, and the seed of its epochs.
        rounded: As for `shape_key`.

    Raises:
        NotFusible: The trainer is by now another one than its `build` gives.
        Exception: What the constructor or `build` raises.
    """
    begins = trainer._beginning
    torch.manual_seed(begins.seed)
    np.random.seed(begins.seed % 2**32)
    random.seed(begins.seed)
    made = type(trainer)(begins)
    frozen = trainer.parts.freeze_batch_norm
    made.epoch = math.ceil(frozen) if frozen is not None and trainer.epoch >= frozen else 0
    made._stages = [*trainer._stages]
    keys = [(shape_key(one, rounded=rounded), code_key(one)) for one in (trainer, made)]
    if not _alike(*keys):
        raise NotFusible("its model, optimizer, loss or data are by now others than its build gives")
    _shorten(made, number)
    _renumber(made.model, number)
    for group in made.optimizer.param_groups:
        group["lr"] = torch.full_like(group["lr"], _RATE) if isinstance(group["lr"], Tensor) else _RATE
    made._rates = Rates(made.optimizer)
    return made


def replica(trainer: _T) -> _T:
    """Return a trainer with a model and an optimizer of its own that are equal, and the same functions."""
    other = copy.copy(trainer)
    # A loss that is a module may have the model as a part.
    loss = trainer.parts.loss if isinstance(trainer.parts.loss, nn.Module) else None
    own = (trainer.model, trainer.optimizer, trainer._average, loss)
    models = [one for one in own if isinstance(one, nn.Module)]
    other.model, other.optimizer, other._average, loss = copied(own, models)
    other.parts = dataclasses.replace(trainer.parts, loss=trainer.parts.loss if loss is None else loss)
    other._strategy = copy.copy(trainer._strategy)  # or the trainer's would keep the copied model
    other._rates = Rates(other.optimizer)
    other._strategy.bind(other._trained())
    return other


def _alike(one: Any, other: Any) -> bool:
    """Whether two keys are the same, but for classes and functions that each `build` makes anew."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, type) and isinstance(other, type):
        return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
    if isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType):
        return one.__code__ == other.__code__
    return bool(one == other)


def _shorten(trainer: Trainer, seed: int) -> None:
    lane, shard, parts = Lane(trainer), trainer._shard, trainer.parts
    rows = _some(shard.rows, shard.batch, 2)
    trainer._seed, trainer._shard = seed, dataclasses.replace(shard, rows=rows, seed=seed)
    trainer._train = Batches([one[:rows] for one in lane.training], trainer.device)
    if lane.validation is not None:
        rows = _some(len(lane.validation[0]), parts.validation_batch_size, 1)
        trainer._validation = Batches([one[:rows] for one in lane.validation], trainer.device)
    trainer.parts = dataclasses.replace(parts, measures={})


def _some(rows: int, batch: int, full: int) -> int:
    """Return how many rows make so many full batches and the last short one."""
    return min(rows, full * batch + rows % batch)


@torch.no_grad()
def _renumber(model: nn.Module, number: int) -> None:
    """Put other numbers into a model's parameters, of which none is special, and let nothing be dropped wholly."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.randn(parameter.shape, generator=generator)
            inputs = parameter[0].numel() if parameter.dim() > 1 and len(parameter) > 0 else 0
            parameter.copy_(drawn / inputs**0.5 if inputs > 0 else 1 + drawn / 8)
    for module in modules_of(model):
        if isinstance(module, RATED) and module.p == 1:
            module.p = 0.5
