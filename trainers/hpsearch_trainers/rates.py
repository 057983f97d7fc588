"""Multiply an optimizer's learning rates for the steps of an epoch, and save torch's schedulers."""

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
"""Key in an optimizer's parameter group: the learning rate of the last step, which the group's velocities contain."""


class Rates:
    """The learning rates of an optimizer's steps: the group's own rate times a factor.

    A group's own `lr` is set by the user: in `build`, in a `step`, or by a torch scheduler. `apply` multiplies it for
    the following steps, and `restore` restores it afterwards, so other code never reads or saves a multiplied rate. It
    is also restored before hooks run after a step, because a hook may step a scheduler.

    Some optimizers keep velocities that contain the rate (v ← m v + η g, equation (10) of Goyal et al. 2017). When the
    rate changes from η to η', these velocities need the correction of remark 2 there: v ← η'/η v. Such an optimizer has
    a true attribute `rate_in_velocity`, and keeps the velocities as `momentum_buffer`. torch's SGD uses equation (9),
    u ← m u + g with a step of η u. Its velocities don't contain the rate, so it needs no correction.

    Attributes:
        used: The first group's rate, as it was last applied.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.used: float | torch.Tensor = 0.0
        self._optimizer = optimizer
        self._corrects = bool(getattr(optimizer, "rate_in_velocity", False))
        self._factor = 1.0
        self._multiplied: list[tuple[dict[str, Any], Any, Any]] = []
        """(group, its own rate, the multiplied rate); empty while no rate is multiplied."""
        self._hook: RemovableHandle | None = None

    def of(self, optimizer: torch.optim.Optimizer) -> Rates:
        """Return this object if it is of the given optimizer, else a new one for that optimizer."""
        return self if optimizer is self._optimizer else Rates(optimizer)

    def apply(self, factor: float) -> None:
        """Multiply each group's own rate until the next `apply` or `restore`.

        Args:
            factor: The factor, at least 0.

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
        # Servers and packs of lanes don't call optimizer.step; without this, torch warns when a scheduler is stepped.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        first = groups[0]["lr"]
        self.used = first.clone() if isinstance(first, torch.Tensor) else first  # a scheduler may overwrite the tensor
        if self._corrects:
            for group in groups:
                self._correct(group)

    def restore(self) -> None:
        """Restore each group's own rate.

        Raises:
            ConfigurationError: Other code set a rate while it was multiplied, so the intended rate is ambiguous.
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
    """Return the states of the schedulers of a trainer's optimizers, by attribute name.

    Args:
        owner: The trainer.
        optimizer: Its optimizer.
        alone: Whether the trainer doesn't override `state_dict`, so that nothing else saves a scheduler.

    Raises:
        ConfigurationError: A scheduler isn't an attribute of the trainer, and `alone` is true.
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
    """Load the states of an optimizer's schedulers, after the optimizer's own state has been loaded.

    Args:
        owner: The trainer.
        optimizer: Its optimizer, with the state that was saved with the schedulers'.
        states: The result of `save_schedulers`.
        forked: Whether the states may be another trial's. If so, this trial's schedulers keep their own settings and
            are stepped as often as the other trial's.

    Raises:
        ConfigurationError: The states are the trial's own, but the trainer now has other schedulers.
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
    """Step a new scheduler as often as another one was stepped, so that it sets the rates of its own settings.

    A ReduceLROnPlateau starts anew, because its past metrics are not known.

    Args:
        scheduler: A newly created scheduler; its optimizer has its initial settings.
        state: The other scheduler's `state_dict()`.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        return
    scheduler.optimizer._opt_called = True  # type: ignore[attr-defined] # otherwise torch warns that no optimizer step came before
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
    """Return the schedulers inside a SequentialLR or ChainedScheduler, which steps, saves and loads them."""
    parts = getattr(scheduler, "_schedulers", ())
    return [*parts, *(inner for part in parts for inner in _parts(part))]


def _steps(state: Mapping[str, Any]) -> int:
    """Return how often a scheduler was stepped. A ChainedScheduler has no count; its first inner scheduler has one."""
    return int(state["last_epoch"]) if "last_epoch" in state else _steps(state["_schedulers"][0])
