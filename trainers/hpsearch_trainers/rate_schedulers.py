"""The schedulers of torch that are attributes of a trainer: they are saved and loaded with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.optimizers import attributes_of, other_optimizers

__all__ = ["load_schedulers", "replay", "save_schedulers"]


def save_schedulers(owner: object, optimizer: Optimizer, *, alone: bool) -> dict[str, Any]:
    """Return the states of the schedulers of a trainer's optimizers, by the names of the attributes that they are.

    Args:
        owner: The trainer.
        optimizer: Its optimizer.
        alone: Nothing else is saved of the trainer: it has no `state_dict` of its own.

    Raises:
        ConfigurationError: There is a scheduler that is no attribute, and nobody saves it.
    """
    schedulers = _schedulers_of(owner, optimizer)
    followed = {id(scheduler.optimizer) for scheduler in schedulers.values()}
    for name, candidate in {"the optimizer": optimizer, **other_optimizers(owner, optimizer)}.items():
        if alone and id(candidate) not in followed and hasattr(candidate.step, "_wrapped_by_lr_sched"):
            raise ConfigurationError(
                f"a scheduler of {name} must be an attribute of the trainer, so that it is saved and loaded with it, "
                f"but none of this {type(owner).__name__} is: write self.scheduler = ... where it is made"
            )
    return {name: scheduler.state_dict() for name, scheduler in schedulers.items()}


def load_schedulers(owner: object, optimizer: Optimizer, states: Mapping[str, Any], *, forked: bool) -> None:
    """Load the state of an optimizer's schedulers; called after the optimizer is loaded.

    Args:
        owner: The trainer.
        optimizer: Its optimizer, with the state that was saved with the schedulers'.
        states: What `save_schedulers` gave.
        forked: They may be another trial's: the own schedulers, with their own settings, go as far as those went.

    Raises:
        ConfigurationError: They are the trial's own, and of other schedulers than it has now.
    """
    schedulers = _schedulers_of(owner, optimizer)
    if not forked and schedulers.keys() != states.keys():
        saved, present = (", ".join(sorted(names)) or "none" for names in (states, schedulers))
        raise ConfigurationError(
            f"a trainer must have the schedulers that its state was saved with, {saved}, got {present}: make them in "
            "build or in __init__, and keep the entry `schedulers` of super().state_dict()"
        )
    for name, scheduler in schedulers.items():
        if not forked:
            scheduler.load_state_dict(copy.deepcopy(states[name]))
        elif name in states:
            replay(scheduler, states[name])


def replay(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    """Step a new scheduler as often as another one was, of other settings: so it sets the rates that are its own.

    One that follows a metric begins anew, as what it did is known of the other's rate alone.

    Args:
        scheduler: As it was made, and its optimizer with the settings that it was made with.
        state: The other one's `state_dict()`.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        return
    scheduler.optimizer._opt_called = True  # type: ignore[attr-defined] # torch warns where no step came before
    for _ in range(_steps(state) - _steps(scheduler.state_dict())):
        scheduler.step()


def _schedulers_of(owner: object, optimizer: Optimizer) -> dict[str, LRScheduler]:
    optimizers = {id(optimizer), *map(id, other_optimizers(owner, optimizer).values())}
    schedulers = {
        name: value for name, value in attributes_of(owner, LRScheduler).items() if id(value.optimizer) in optimizers
    }
    parts = {id(part) for value in schedulers.values() for part in _parts(value)}
    return {name: value for name, value in schedulers.items() if id(value) not in parts}


def _parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the schedulers that one is made of: they are stepped, saved and loaded with it."""
    parts = getattr(scheduler, "_schedulers", ())
    return [*parts, *(inner for part in parts for inner in _parts(part))]


def _steps(state: Mapping[str, Any]) -> int:
    """Return how often a scheduler was stepped; one that chains others doesn't count, but each of these does."""
    return int(state["last_epoch"]) if "last_epoch" in state else _steps(state["_schedulers"][0])
