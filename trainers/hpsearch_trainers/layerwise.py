"""The base class of optimizers with a layer-wise adaptive learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch


class Layerwise(torch.optim.Optimizer, ABC):
    """Base class of LARS and LAMB.

    The rate doesn't adapt in a group with `adapt: False`, as is usual for biases and the parameters of normalizations;
    see `decay_groups`.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: Recomputes the gradients and returns the loss.

        Returns:
            The loss of `closure`, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)
        return loss

    @abstractmethod
    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place."""

    @staticmethod
    def rate(group: dict[str, Any], ratio: torch.Tensor, *norms: torch.Tensor) -> torch.Tensor:
        """Return the learning rate of a layer: the group's rate, times `ratio` if the group adapts.

        Args:
            group: The parameter's group.
            ratio: The ratio of norms.
            norms: The norms in the ratio. If one is 0, the ratio counts as 1, so a layer of zeros still moves.
        """
        rate = torch.as_tensor(group["lr"])
        if not group["adapt"]:
            return rate
        return rate * torch.where(torch.stack(norms).min() > 0, ratio, 1.0)
