"""Multiplies an optimizer's learning rates for the steps of an epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hpsearch_comm.errors import ConfigurationError

__all__ = ["VELOCITY_RATE", "Rates"]

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
