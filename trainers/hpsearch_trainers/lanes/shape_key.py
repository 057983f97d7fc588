"""Keys of trainers: equal shape keys can share a pack; equal code keys as well give the same result in a probe.

A lane must fulfil a contract, because a pack relies on the behaviour of torch's own classes and doesn't run hooks.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lanes.dropout import DROPOUT_MODULES
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import modules_of, tensors_of
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.trainer import Trainer

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of every torch module."""
_HOOKS = frozenset(name for name in _MODULE_ATTRIBUTES if name.endswith("_hooks"))
_PLAIN = frozenset((bool, int, str, type(None)))
"""The most common types of attributes."""
_COMPARED_BY_VALUE = (
    *(str, bytes, type(None), bool, int, complex, torch.dtype, torch.device, torch.memory_format, torch.Size),
    *(type, enum.Enum, types.BuiltinFunctionType, types.MethodDescriptorType, range),
    *(type(Ellipsis), slice),
)
"""Types that are compared by value; classes are compared by identity."""


def is_per_lane(module: nn.Module, name: str) -> bool:
    """Return whether a module's attribute may differ between lanes."""
    return name == "p" and type(module) in DROPOUT_MODULES


def describe(model: nn.Module) -> Hashable:
    """Describe the classes and attributes of a model's modules, and which modules and tensors are shared.

    Two models with equal descriptions compute the same from equal tensors.

    Raises:
        NotFusible: A module has hooks, or an attribute that can't be compared.
    """
    try:
        return tuple(_module(path, module) for path, module in model.named_modules(remove_duplicate=False))
    except RecursionError:
        raise NotFusible("its model has an attribute that holds itself, which can't be compared") from None


def described_value(value: Any, location: str) -> Hashable:
    """Describe a plain value, so that 1, 1.0 and True differ.

    Args:
        value: A number, string, function, class, or a container of these.
        location: Location of the value, for the error message.

    Raises:
        NotFusible: The value is something else.
    """
    if type(value) in _PLAIN:
        return (type(value), value)
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, _COMPARED_BY_VALUE):
        return (type(value), str(value) if isinstance(value, slice) else value)
    if type(value) in (list, tuple):
        return (type(value), tuple(described_value(item, location) for item in value))
    if type(value) in (set, frozenset):
        return (type(value), frozenset(described_value(item, location) for item in value))
    if type(value) is dict:
        items = value.items()
        return (dict, tuple((described_value(key, location), described_value(item, location)) for key, item in items))
    if isinstance(value, types.FunctionType):
        cells = tuple(described_value(item, location) for item in _contents(value))
        return (value.__code__, id(value.__globals__), described_value(value.__defaults__, location), cells)
    if type(value) is functools.partial:
        parts = (value.func, value.args, value.keywords)
        return (functools.partial, *(described_value(item, location) for item in parts))
    raise NotFusible(f"{location} is a {type(value).__name__}, which can't be compared from lane to lane")


def _contents(function: types.FunctionType) -> list[Any]:
    """Return the values in a function's closure."""
    contents = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell is empty
            contents.append(cell.cell_contents)
    return contents


def _module(path: str, module: nn.Module) -> Hashable:
    members = vars(module)
    location = f"its model{'.' if path else ''}{path}"
    if parametrize.is_parametrized(module):
        raise NotFusible(f"{location} is parametrized")
    if has_hooks(module):
        raise NotFusible(f"{location} has hooks")
    attributes = tuple(
        (name, None if is_per_lane(module, name) else described_value(value, f"{location}.{name}"))
        for name, value in members.items()
        if name not in _MODULE_ATTRIBUTES
    )
    return (path, type(module), type(module).forward, attributes)


_FREE = frozenset(("build", "state_dict", "load_state_dict", "inherit", "__init__"))
"""Methods that a trainer may override, because they aren't called within an epoch."""
THE_LOOP = sorted(name for name, value in vars(Trainer).items() if callable(value) and name not in _FREE)

_OPTIMIZERS = frozenset((LAMB, LARS, *(one for one in vars(torch.optim).values() if isinstance(one, type))))
_WRITTEN_IN = frozenset(("torch", "hpsearch_trainers"))
"""Packages of supported `step` methods; a replaced one is in another package."""
_HOOKS_OF_ALL_MODULES = [
    hooks for name, hooks in vars(torch_module).items() if name.startswith("_global_") and name.endswith("_hooks")
]
_HOOKS_OF_ALL_OPTIMIZERS = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)


def check_contract(trainer: Trainer, *, rounded: bool) -> None:
    """Check that a trainer uses `Trainer`'s own loop and torch's own optimizers, without hooks.

    Args:
        trainer: A trainer.
        rounded: Whether the pack may round.

    Raises:
        NotFusible: The trainer uses something else.
    """
    _check_loop(trainer)
    _check_device(trainer, rounded=rounded)
    _check_optimizer(trainer.optimizer)
    if any(_HOOKS_OF_ALL_MODULES):
        raise NotFusible("there are hooks of all modules (torch.nn.modules.module.register_module_...)")
    if isinstance(trainer.parts.loss, nn.Module) and any(map(has_hooks, modules_of(trainer.parts.loss))):
        raise NotFusible("its loss has hooks")
    if trainer.parts.compile:
        raise NotFusible("its model is compiled")
    if isinstance(trainer.parts.train, DataLoader) or isinstance(trainer.parts.validation, DataLoader):
        raise NotFusible("its data come from a DataLoader")
    if trainer.parts.autocast is torch.float16:
        raise NotFusible("it scales its loss, as float16 needs")


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module itself has hooks of any kind."""
    return any(map(vars(module).get, _HOOKS))


def _check_loop(trainer: Trainer) -> None:
    kind, attributes = type(trainer), vars(trainer)
    for name in THE_LOOP:
        if getattr(kind, name) is not getattr(Trainer, name) or name in attributes:
            raise NotFusible(f"{kind.__name__} has a {name} of its own")


def _check_device(trainer: Trainer, *, rounded: bool) -> None:
    if trainer.group is not None:
        raise NotFusible("it runs on several workers")
    on_cpu = trainer.device.type == "cpu"
    if not on_cpu and not rounded:
        raise NotFusible(f"it runs on {trainer.device}")
    if on_cpu and torch.get_num_threads() != 1:
        raise NotFusible(f"torch has {torch.get_num_threads()} threads here, and bits depend on how many")
    if not Lane(trainer).has_tensor_data:
        raise NotFusible("its data are read row by row")


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if kind not in _OPTIMIZERS:
        raise NotFusible(f"its optimizer, {kind.__name__}, isn't one of torch.optim's own classes, LARS or LAMB")
    if "step" in vars(optimizer) or inspect.unwrap(kind.step).__module__.partition(".")[0] not in _WRITTEN_IN:
        raise NotFusible("its optimizer's step is replaced, as by a scheduler of torch's")
    hooks = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
    if any(hooks) or any(_HOOKS_OF_ALL_OPTIMIZERS):
        raise NotFusible("its optimizer has hooks")


def shape_key(trainer: Trainer, *, rounded: bool = False) -> Hashable:
    """Describe everything that lanes of a pack must have in common; it may change between epochs.

    Lanes may differ in the values of tensors, the order of rows, the optimizer and its settings, the schedule, dropout
    rates, metrics, clipping, and settings of the loss, but not in the loss's code, which determines the order in which
    gradients are summed.

    Args:
        trainer: A trainer.
        rounded: Whether the pack may round. Such packs also run on a GPU.

    Raises:
        NotFusible: The trainer can only run alone.
    """
    check_contract(trainer, rounded=rounded)
    lane, parts = Lane(trainer), trainer.parts
    frozen = parts.freeze_batch_norm is not None and trainer.epoch >= parts.freeze_batch_norm
    return (
        *model_key(lane.model),
        tuple((tensor.shape, tensor.dtype) for tensor in (*lane.training, *(lane.validation or ()))),
        (parts.batch_size, parts.validation_batch_size, parts.accumulate, parts.autocast, frozen),
        (lane.average is None, _code(parts.loss), trainer.device),
    )


def code_key(trainer: Trainer) -> Hashable:
    """Describe the code that runs in a trainer's epochs. With the shape key, it determines the result of a probe.

    For numbers, such as the optimizer's settings, it only contains whether they are 0, because torch's code differs
    then.
    """
    parts, kind = trainer.parts, type(trainer)
    classes = kind.__mro__[: kind.__mro__.index(Trainer)]
    methods = tuple(_code(value) for cls in classes for value in vars(cls).values() if callable(value))
    called = {"schedule": parts.schedule, **parts.metrics, **parts.measures}
    numbers = {id(tensor): number for number, tensor in enumerate(tensors_of(trainer.model))}
    groups = tuple(
        (tuple(numbers.get(id(parameter)) for parameter in group["params"]), _setting_kinds(group))
        for group in trainer.optimizer.param_groups
    )
    return (
        (kind, methods, type(trainer.optimizer), groups),
        tuple((name, _code(function)) for name, function in called.items()),
        (parts.clip_norm is None, trainer._rate_is_steady),
    )


def model_key(model: nn.Module) -> tuple[Hashable, Hashable]:
    """Describe a model: its modules with their attributes, and its tensors.

    Raises:
        NotFusible: The model can't be a lane's.
    """
    return describe(model), tuple(_tensors(model))


def _code(function: Any) -> Hashable:
    """Return the code of a function; functions with different settings may share it."""
    if isinstance(function, functools.partial):
        arguments = (*function.args, *function.keywords.values())
        return ("partial", _code(function.func), *(_code(argument) for argument in arguments if callable(argument)))
    function = getattr(function, "__func__", function)  # a method's
    if isinstance(function, types.FunctionType):
        inner = vars(function).get("__wrapped__")
        return (function.__code__, function.__module__, None if inner is None else _code(inner))
    if function is None or isinstance(function, types.BuiltinFunctionType | type):
        return function
    kind = type(function)
    called = kind.forward if isinstance(function, nn.Module) else kind.__call__
    return (kind, getattr(called, "__code__", None))


def _setting_kinds(group: Mapping[str, Any]) -> Hashable:
    # Leave out learning rates: a probe has its own, and some keys with rates appear only after the first step.
    return tuple(
        (name, _setting_kind(group[name])) for name in sorted(group) if name != "params" and not name.endswith("lr")
    )


def _setting_kind(value: Any) -> Hashable:
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return (type(value), value != 0)
    parts = map(_setting_kind, value) if isinstance(value, tuple | list) else ()
    return (type(value), *parts)


def _tensors(model: nn.Module) -> Iterator[Hashable]:
    """Describe parameters and buffers, and which of them are shared."""
    numbers: dict[int, int] = {}
    ranges: dict[int, tuple[int, int, str]] = {}
    for name, tensor in _named(model):
        number = numbers.setdefault(id(tensor), len(numbers))
        if not tensor.is_contiguous() or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise NotFusible(f"its model's {name} isn't a plain contiguous tensor")
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise NotFusible(f"its model's {name} has hooks")
        ranges[number] = tensor.data_ptr(), tensor.nbytes, name
        yield (number, name, tensor.shape, tensor.dtype, tensor.requires_grad, isinstance(tensor, nn.Parameter))
    for (start, size, name), (next_start, _, other_name) in itertools.pairwise(
        sorted(filter(operator.itemgetter(1), ranges.values()))
    ):
        if start + size > next_start:
            raise NotFusible(f"its model's {name} and {other_name} are other tensors in the same memory")


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and then all buffers with their paths; shared ones occur at each path."""
    modules = [*model.named_modules(remove_duplicate=False)]
    for kind in ("_parameters", "_buffers"):
        for path, module in modules:
            for name, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield f"{path}.{name}" if path else name, tensor
