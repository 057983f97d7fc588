"""Adagrad as servers of Downpour SGD step: a rate for each element, from the gradients that it has had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Adagrad"]


class Adagrad(torch.optim.Optimizer):
    """The rate of element i is lr / √Σ g_i², over all its gradients until now (Dean et al. 2012, section 4.1).

    Unlike torch's there is no ε: where the sum is zero nothing is applied. Of sparse gradients only the rows that they
    have are touched.

    Args:
        params: Parameters, or groups of them.
        lr: The paper's gamma.
    """

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take a step with each parameter that has a gradient; nothing is computed anew."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, float(group["lr"]))

    def _update(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["sum"] = torch.zeros_like(parameter)
        total: Tensor = state["sum"]
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            total.index_add_(0, rows, values * values)
            parameter.index_add_(0, rows, _change(values, total[rows]), alpha=-rate)
        else:
            total.addcmul_(gradient, gradient)
            parameter.sub_(_change(gradient, total), alpha=rate)


def _change(gradient: Tensor, total: Tensor) -> Tensor:
    return torch.where(total == 0, 0.0, gradient / total.sqrt())
