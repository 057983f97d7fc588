"""What optimizers have in common whose rate adapts to each layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch


class Layerwise(torch.optim.Optimizer, ABC):
    """Takes a step with each parameter that has a gradient.

    A group with `adapt: False` takes plain steps, as is usual for biases and the parameters of normalisations; see
    `decay_groups`.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: Computes the loss and its gradients anew; it is given back.
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
        """Take a step with one parameter, in place."""

    @staticmethod
    def rate(group: dict[str, Any], ratio: torch.Tensor, *norms: torch.Tensor) -> torch.Tensor:
        """Return the rate of a layer: the group's, times the ratio if it adapts.

        Args:
            group: The parameter's.
            ratio: Of norms.
            norms: Those that it is made of. Where one is 0 there is nothing to adapt to: a layer of zeros has to get
                away from there.
        """
        rate = torch.as_tensor(group["lr"])
        if not group["adapt"]:
            return rate
        return rate * torch.where(torch.stack(norms).min() > 0, ratio, 1.0)
