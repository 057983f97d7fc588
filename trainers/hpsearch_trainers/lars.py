"""SGD whose rate adapts to each layer, for very large batches (You, Gitman, Ginsburg 2017, arXiv:1708.03888)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hpsearch_comm.errors import ConfigurationError

__all__ = ["LARS"]


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling, algorithm 1 of the paper.

        λ = η ‖w‖ / (‖g‖ + β ‖w‖)
        v ← m v + lr λ (g + β w)
        w ← w - v

    The rate is inside the velocity v, so momentum must be corrected where the rate changes; `Rates` does.

    Args:
        params: Parameters, or groups of them. A group with `adapt: False` takes plain steps with λ = 1, as is usual for
            biases and the parameters of normalisations; see `decay_groups`.
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
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        decay: float = group["weight_decay"]
        gradient = parameter.grad
        assert gradient is not None
        rate = torch.as_tensor(group["lr"])
        if group["adapt"]:
            weight, size = parameter.norm(), gradient.norm()
            trusted = group["trust"] * weight / (size + decay * weight)
            # Where either is nothing there is nothing to adapt to: a layer of zeros has to get away from there.
            rate = rate * torch.where((weight > 0) & (size > 0), trusted, 1.0)
        update = gradient.add(parameter, alpha=decay) if decay else gradient
        state = self.state[parameter]
        velocity = state.get("momentum_buffer")
        if velocity is None:
            velocity = state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity.mul_(group["momentum"]).add_(update * rate)
        parameter.sub_(velocity)
