"""Costs of a model, for `Parts.measures`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def parameters(model: nn.Module) -> float:
    """Return the number of trainable parameters of a model, counted by element."""
    return float(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad))


def latency(inputs: Any, *, runs: int = 30, warmup: int = 5) -> Callable[[nn.Module], float]:
    """Return a function that measures the time of a model's forward pass in milliseconds.

    The time is the median over the runs, without gradients, on the model's device. It varies between calls, and is
    larger on a worker that shares its cores.

    Args:
        inputs: Arguments of the model: a tensor, or a tuple. Tensors are copied to the model's device.
        runs: Number of measured runs.
        warmup: Number of runs before the measured ones.
    """
    if runs < 1 or warmup < 0:
        raise ValueError(f"runs must be at least 1 and warmup at least 0, got {runs} and {warmup}")
    model_inputs = inputs if isinstance(inputs, tuple) else (inputs,)

    def measure(model: nn.Module) -> float:
        device = next((one.device for one in (*model.parameters(), *model.buffers())), None)
        arguments = [one.to(device) if isinstance(one, Tensor) else one for one in model_inputs]
        on_gpu = any(isinstance(one, Tensor) and one.is_cuda for one in arguments)
        times = []
        with torch.no_grad():
            for _ in range(warmup + runs):
                began = time.perf_counter()
                model(*arguments)
                if on_gpu:
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
        return 1000 * statistics.median(times[warmup:])

    return measure
