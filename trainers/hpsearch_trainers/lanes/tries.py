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
from hpsearch_trainers.lanes.dropout import DROPOUT_MODULES
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import copied, modules_of
from hpsearch_trainers.lanes.shape_key import code_key, shape_key
from hpsearch_trainers.lanes.snapshot import RandomState
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.trainer import Trainer

__all__ = ["isolated_try", "rebuilt", "replica"]

_RATE = 0.01
_T = TypeVar("_T", bound=Trainer)


@contextlib.contextmanager
def isolated_try() -> Iterator[None]:
    """Surround a try: the process's random generators stay as they are, and what it prints is lost.

    Raises:
        NotFusible: What runs inside raised something else, unless memory ran out.
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


def rebuilt(trainer: _T, number: int, *, rounded: bool) -> _T:
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


def replica(trainer: _T) -> _T:
    """Return a trainer with a model and an optimizer of its own that are equal, and the same functions."""
    twin = copy.copy(trainer)
    # A loss that is a module may have the model as a part.
    loss = trainer.parts.loss if isinstance(trainer.parts.loss, nn.Module) else None
    members = (trainer.model, trainer.optimizer, trainer._average, loss)
    models = [member for member in members if isinstance(member, nn.Module)]
    twin.model, twin.optimizer, twin._average, loss = copied(members, models)
    twin.parts = dataclasses.replace(trainer.parts, loss=trainer.parts.loss if loss is None else loss)
    twin._strategy = copy.copy(trainer._strategy)  # or the trainer's would keep the copied model
    twin._rates = Rates(twin.optimizer)
    twin._strategy.bind(twin._trained())
    return twin


def _same_keys(first: Any, second: Any) -> bool:
    """Whether two keys are the same, but for classes and functions that each `build` makes anew."""
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
        if isinstance(module, DROPOUT_MODULES) and module.p == 1:
            module.p = 0.5
