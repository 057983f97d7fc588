"""Sets an optimizer's learning rate to a multiple of what it was made with."""

from __future__ import annotations

import math
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
            from a state. A rate that is a tensor becomes a copy: other optimizers may have that tensor, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._factor: float | None = None
        self._corrects = bool(getattr(optimizer, "rate_in_velocity", False))
        for group in optimizer.param_groups:
            # As torch's own schedules do: it is saved with the optimizer, so a checkpoint knows it.
            group.setdefault("initial_lr", float(group["lr"]))
        _copy_tensors(optimizer)

    def of(self, optimizer: torch.optim.Optimizer) -> Rates:
        """Give those of an optimizer, which may be another one by now, or have more groups, or rates of the user's.

        A rate that somebody else has set is what it is from there on, and is multiplied as the former one was.
        """
        if optimizer is not self._optimizer:
            return Rates(optimizer)
        anew = False
        for group in optimizer.param_groups:
            present = float(group["lr"])
            if "initial_lr" not in group:
                group["initial_lr"], anew = present, True
            elif self._factor and not math.isclose(present, left := group["initial_lr"] * self._factor, rel_tol=1e-6):
                group["initial_lr"] = present / self._factor
                if self._corrects and left > 0:
                    self._correct(group, present / left)
        if anew:
            self._factor = None
        return self

    def apply(self, factor: float) -> None:
        """Set each group's rate to its own times a factor.

        Args:
            factor: From 0.
        """
        if factor == self._factor:  # nearly always, and to read a rate that lies on a GPU means to wait for it
            return
        self._factor = factor
        groups = self._optimizer.param_groups
        rates = [float(group["lr"]) for group in groups]  # of all at first: a tensor may be that of several groups
        for group, before in zip(groups, rates, strict=True):
            after = group["initial_lr"] * factor
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


def _copy_tensors(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer rates that no other one has; groups that share a tensor go on sharing one."""
    copies: dict[int, torch.Tensor] = {}
    for settings in (optimizer.defaults, *optimizer.param_groups):
        rate = settings.get("lr")
        if isinstance(rate, torch.Tensor):
            settings["lr"] = copies.setdefault(id(rate), rate.clone())
