"""Multiplies an optimizer's learning rates for the steps of an epoch, and saves schedulers of torch's."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.optimizers import attributes_of, other_optimizers

VELOCITY_RATE = "velocity_lr"
"""Key in a group of an optimizer with the rate in its velocities: the rate of the last step."""


class Rates:
    """The rates with which an optimizer steps: its own, times a factor.

    A group's `lr` belongs to the user: `build`, a `step` that sets it, or a scheduler of torch's. `apply` multiplies it
    for the steps that follow, and `restore` puts it back after them, so nobody else ever reads or saves a product. The
    hooks that run after a step find their own rate, too: a scheduler may be stepped there.

    Where an optimizer keeps velocities that have the rate in them (v ← m v + η g, form (10) of Goyal et al. 2017), a
    change of the rate from η to η' needs the correction of remark 2 there: v ← η'/η v. It says so by an attribute
    `rate_in_velocity`, and keeps them as `momentum_buffer`. torch's SGD is of form (9), u ← m u + g with a step of η u,
    and needs none: after a change its velocity is worth what it would have been at the new rate.

    Attributes:
        used: The first group's rate, as it was last applied.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.used: float | torch.Tensor = 0.0
        self._optimizer = optimizer
        self._corrects = bool(getattr(optimizer, "rate_in_velocity", False))
        self._factor = 1.0
        self._multiplied: list[tuple[dict[str, Any], Any, Any]] = []
        """(group, its own rate, the product), while they are multiplied."""
        self._hook: RemovableHandle | None = None

    def of(self, optimizer: torch.optim.Optimizer) -> Rates:
        """Return the rates of an optimizer, which may be another one by now."""
        return self if optimizer is self._optimizer else Rates(optimizer)

    def apply(self, factor: float) -> None:
        """Multiply each group's own rate until the next `apply` or `restore`.

        Args:
            factor: From 0.

        Raises:
            ConfigurationError: See `restore`.
        """
        self.restore()
        groups = self._optimizer.param_groups
        if factor != 1.0:
            self._factor = factor
            for group in groups:
                own_rate = group["lr"]
                group["lr"] = own_rate * factor
                self._multiplied.append((group, own_rate, group["lr"]))
            hooks = self._optimizer._optimizer_step_post_hooks
            if hooks:
                self._hook = self._optimizer.register_step_post_hook(lambda *_: self._put_back())
                hooks.move_to_end(self._hook.id, last=False)  # type: ignore[attr-defined]
        # Servers and packs of lanes take steps of their own, and torch warns of a scheduler that is stepped before one.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        first = groups[0]["lr"]
        self.used = first.clone() if isinstance(first, torch.Tensor) else first  # a scheduler may fill the tensor anew
        if self._corrects:
            for group in groups:
                self._correct(group)

    def restore(self) -> None:
        """Put each group's own rate back.

        Raises:
            ConfigurationError: Somebody has set a multiplied rate, and nobody can say which one was meant.
        """
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._put_back()

    def _put_back(self) -> None:
        multiplied, self._multiplied = self._multiplied, []
        rates = [group["lr"] for group, _, _ in multiplied]
        for group, own_rate, _ in multiplied:
            group["lr"] = own_rate
        for rate, (_, _, product) in zip(rates, multiplied, strict=True):
            if rate is not product and rate != product:
                raise ConfigurationError(
                    f"lr must be set between two epochs, or by optimizer.register_step_post_hook, got {float(rate):g} "
                    f"set within a step, for which it was multiplied by {self._factor:g} (the schedule of Parts, and "
                    f"the sweep's scaling) to {float(product):g}"
                )

    def _correct(self, group: dict[str, Any]) -> None:
        rate = float(group["lr"])
        before = group.get(VELOCITY_RATE, rate)
        if before > 0 and rate != before:
            for parameter in group["params"]:
                velocity = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
                if velocity is not None:
                    velocity.mul_(rate / before)
        group[VELOCITY_RATE] = rate


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
