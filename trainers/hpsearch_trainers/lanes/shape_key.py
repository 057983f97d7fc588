"""Which trainers may be lanes of one pack: those that do the same with tensors of the same shapes."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes.attributes import describe
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import places_of
from hpsearch_trainers.trainer import Trainer

__all__ = ["THE_LOOP", "model_key", "shape_key"]

_FREE = frozenset(("build", "state_dict", "load_state_dict", "inherit", "__init__"))
"""What a trainer may have of its own: it isn't called within an epoch."""
THE_LOOP = sorted(name for name, value in vars(Trainer).items() if callable(value) and name not in _FREE)


def shape_key(trainer: Trainer, *, rounded: bool = False) -> Hashable:
    """Describe all that lanes of one pack have in common; it may change from epoch to epoch.

    Lanes may differ in what their tensors hold, in the order of rows, the optimizer and its settings, the schedule,
    rates of dropout, metrics, clipping, and settings of the loss: its code decides in which order gradients are summed.

    Args:
        trainer: One that may be a lane.
        rounded: Of a pack that may round, which a GPU computes, too.

    Raises:
        NotFusible: The trainer can only run alone.
    """
    _check_class(trainer)
    _check_place(trainer, rounded=rounded)
    lane, parts = Lane(trainer), trainer.parts
    frozen = parts.freeze_batch_norm is not None and trainer.epoch >= parts.freeze_batch_norm
    return (
        *model_key(lane.model),
        tuple((one.shape, one.dtype) for one in (*lane.training, *(lane.validation or ()))),
        (parts.batch_size, parts.validation_batch_size, parts.accumulate, parts.autocast, frozen),
        (lane.average is None, _code(parts.loss), trainer.device),
    )


def model_key(model: nn.Module) -> tuple[Hashable, Hashable]:
    """Describe a model: its modules with their attributes, and its tensors.

    Raises:
        NotFusible: It can't be that of a lane.
    """
    return describe(model), tuple(_tensors(model))


def _check_class(trainer: Trainer) -> None:
    kind, own = type(trainer), vars(trainer)
    for name in THE_LOOP:
        if getattr(kind, name) is not getattr(Trainer, name) or name in own:
            raise NotFusible(f"{type(trainer).__name__} has a {name} of its own")


def _check_place(trainer: Trainer, *, rounded: bool) -> None:
    if trainer.group is not None:
        raise NotFusible("it runs on several workers")
    on_cpu = trainer.device.type == "cpu"
    if not on_cpu and not rounded:
        raise NotFusible(f"it runs on {trainer.device}")
    if on_cpu and torch.get_num_threads() != 1:
        raise NotFusible(f"torch has {torch.get_num_threads()} threads here, and bits depend on how many")
    if not Lane(trainer).of_tensors:
        raise NotFusible("its data are read row by row")


def _code(function: Any) -> Any:
    """Give what a function runs, which it may share with others that have other settings."""
    if isinstance(function, functools.partial):
        return _code(function.func)
    function = getattr(function, "__func__", function)  # a method's
    if isinstance(function, types.FunctionType):
        return function.__code__
    return function if isinstance(function, types.BuiltinFunctionType) else type(function)


def _tensors(model: nn.Module) -> Iterator[Hashable]:
    """Describe parameters and buffers, and which of them are one and the same."""
    numbers: dict[int, int] = {}
    places: dict[int, tuple[int, int, str]] = {}
    for name, tensor in _named(model):
        number = numbers.setdefault(id(tensor), len(numbers))
        if not tensor.is_contiguous() or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise NotFusible(f"its model's {name} isn't a plain contiguous tensor")
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise NotFusible(f"its model's {name} has hooks")
        places[number] = tensor.data_ptr(), tensor.nbytes, name
        yield (number, name, tensor.shape, tensor.dtype, tensor.requires_grad, isinstance(tensor, nn.Parameter))
    for (one, size, name), (other, _, other_name) in itertools.pairwise(sorted(filter(_size, places.values()))):
        if one + size > other:
            raise NotFusible(f"its model's {name} and {other_name} are other tensors in the same memory")


def _size(place: tuple[int, int, str]) -> int:
    return place[1]


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Give the parameters in all places and their paths, and after them the buffers."""
    places = places_of(model)
    for kind in ("_parameters", "_buffers"):
        for path, module in places:
            for name, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield f"{path}.{name}" if path else name, tensor
