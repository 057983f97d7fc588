"""SGD whose rate adapts to each layer, for very large batches (You, Gitman, Ginsburg 2017, arXiv:1708.03888)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hpsearch_comm.errors import ConfigurationError


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


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling, algorithm 1 of the paper.

        λ = η ‖w‖ / (‖g‖ + β ‖w‖)
        v ← m v + lr λ (g + β w)
        w ← w - v

    The velocity v contains the learning rate, so it must be corrected when the rate changes. `Rates` does this.

    Args:
        params: Parameters or parameter groups. In a group with `adapt: False`, λ is 1.
        lr: The rate, gamma in the paper.
        momentum: m.
        weight_decay: β.
        trust: η, the trust coefficient.

    Raises:
        ConfigurationError: A value is below 0.
    """

    rate_in_velocity = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        for name, value in defaults.items():
            if not value >= 0:
                raise ConfigurationError(f"{name} of LARS must be at least 0, got {value!r}")
        super().__init__(params, defaults)

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place."""
        decay: float = group["weight_decay"]
        weight, size = parameter.norm(), gradient.norm()
        rate = self.rate(group, group["trust"] * weight / (size + decay * weight), weight, size)
        update = gradient.add(parameter, alpha=decay) if decay else gradient
        state = self.state[parameter]
        velocity = state.get("momentum_buffer")
        if velocity is None:
            velocity = state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity.mul_(group["momentum"]).add_(update * rate)
        parameter.sub_(velocity)
