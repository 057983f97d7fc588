"""Sets an optimizer's learning rate to a multiple of what it was made with."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Rates"]


class Rates:
    """The rates of an optimizer's groups.

    Where an optimizer keeps velocities that have the rate in them (v ← m v + η g, form (10) of Goyal et al. 2017), a
    change of the rate from η to η' needs the correction of remark 2 there: v ← η'/η v. It says so by an attribute
    `rate_in_velocity`, and keeps them as `momentum_buffer`. torch's SGD is of form (9), u ← m u + g with a step of η u,
    and needs none: after a change its velocity is worth what it would have been at the new rate.

    Args:
        optimizer: Its groups' present rates are what is multiplied; those that it was made with, where it has gone on
            from a state. Nothing else may set them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._factor: float | None = None
        self._corrects = bool(getattr(optimizer, "rate_in_velocity", False))
        for group in optimizer.param_groups:
            # As torch's own schedules do: it is saved with the optimizer, so a checkpoint knows it.
            group.setdefault("initial_lr", float(group["lr"]))

    def apply(self, factor: float) -> None:
        """Set each group's rate to its own times a factor.

        Args:
            factor: From 0.
        """
        if factor == self._factor:  # nearly always, and to read a rate that lies on a GPU means to wait for it
            return
        self._factor = factor
        for group in self._optimizer.param_groups:
            before, after = float(group["lr"]), group["initial_lr"] * factor
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(after)
            else:
                group["lr"] = after
            if self._corrects and before > 0 and after != before:
                self._correct(group, after / before)

    def _correct(self, group: dict[str, Any], times: float) -> None:
        for parameter in group["params"]:
            velocity = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if velocity is not None:
                velocity.mul_(times)
