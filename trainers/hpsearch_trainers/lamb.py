"""Adam whose rate adapts to each layer, for very large batches (You et al. 2020, arXiv:1904.00962)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lars import Layerwise


class LAMB(Layerwise):
    """Algorithm 2 of the paper, with φ(z) = z.

        m ← β1 m + (1 - β1) g               m̂ = m / (1 - β1^t)
        v ← β2 v + (1 - β2) g²              v̂ = v / (1 - β2^t)
        u = m̂ / (√v̂ + ε) + λ w
        w ← w - η ‖w‖ / ‖u‖ u

    Args:
        params: Parameters or parameter groups. In a group with `adapt: False`, ‖w‖ / ‖u‖ is replaced by 1.
        lr: η.
        betas: β1 and β2.
        eps: ε.
        weight_decay: λ.

    Raises:
        ConfigurationError: A value can't be used.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ConfigurationError(f"{name} of LAMB must be at least 0, got {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigurationError(f"betas of LAMB must be from 0 to below 1, got {betas!r}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, defaults)

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        state["step"] += 1
        steps = float(state["step"])
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        update = (mean / (1 - first**steps)).div_((square / (1 - second**steps)).sqrt_().add_(group["eps"]))
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        weight, size = parameter.norm(), update.norm()
        parameter.sub_(update * self.rate(group, weight / size, weight, size))
