"""What a trainer must keep to, to be a lane: a pack knows what torch's own classes do, and runs nobody's hooks."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import modules_of
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.trainer import Trainer

__all__ = ["THE_LOOP", "check_contract", "has_hooks"]

_FREE = frozenset(("build", "state_dict", "load_state_dict", "inherit", "__init__"))
"""What a trainer may have of its own: it isn't called within an epoch."""
THE_LOOP = sorted(name for name, value in vars(Trainer).items() if callable(value) and name not in _FREE)

_OPTIMIZERS = frozenset((LAMB, LARS, *(one for one in vars(torch.optim).values() if isinstance(one, type))))
_WRITTEN_IN = frozenset(("torch", "hpsearch_trainers"))
"""Packages that steps of these are in, if nobody has put another one in its place."""
_HOOKS_OF_MODULES = frozenset(name for name in vars(nn.Module()) if name.endswith("_hooks"))
_HOOKS_OF_ALL_MODULES = [
    hooks for name, hooks in vars(torch_module).items() if name.startswith("_global_") and name.endswith("_hooks")
]
_HOOKS_OF_ALL_OPTIMIZERS = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)


def check_contract(trainer: Trainer, *, rounded: bool) -> None:
    """See that a trainer trains by `Trainer`'s own loop and torch's own optimizers, with nothing hooked in.

    Args:
        trainer: Any.
        rounded: It may round otherwise than alone.

    Raises:
        NotFusible: It doesn't.
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
    """Whether a module itself has hooks of any kind."""
    return any(map(vars(module).get, _HOOKS_OF_MODULES))


def _check_loop(trainer: Trainer) -> None:
    kind, own = type(trainer), vars(trainer)
    for name in THE_LOOP:
        if getattr(kind, name) is not getattr(Trainer, name) or name in own:
            raise NotFusible(f"{kind.__name__} has a {name} of its own")


def _check_device(trainer: Trainer, *, rounded: bool) -> None:
    if trainer.group is not None:
        raise NotFusible("it runs on several workers")
    on_cpu = trainer.device.type == "cpu"
    if not on_cpu and not rounded:
        raise NotFusible(f"it runs on {trainer.device}")
    if on_cpu and torch.get_num_threads() != 1:
        raise NotFusible(f"torch has {torch.get_num_threads()} threads here, and bits depend on how many")
    if not Lane(trainer).of_tensors:
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
