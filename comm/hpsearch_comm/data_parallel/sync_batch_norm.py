"""Batch normalization over the rows of all ranks, whose numbers of rows may differ.

Forward, for each channel. A rank with n_r values (rows times positions in each) computes their mean m_r and
M_r = Σ (x - m_r)². For the union of two sets A and B,

    m = m_A + (m_B - m_A) n_B / n                 M = M_A + M_B + (m_B - m_A)² n_A n_B / n

(Chan, Golub & LeVeque 1979, equation 2.1), which for any number of sets is

    m = Σ n_r m_r / n                             M = Σ M_r + Σ n_r (m_r - m)²

No large sum of squares is ever subtracted from another. Every rank gathers all (n_r, m_r, M_r) and sums them in the
order of ranks, in float64. The variance is M / n; the running variance uses the unbiased M / (n - 1).

Backward. With x̂ = (x - m) / s, s = √(M / n + ε), y = w x̂ + b and g = ∂L/∂y (Ioffe & Szegedy 2015, section 3):

    ∂L/∂x = w / s · (g - Σ g / n - x̂ Σ g x̂ / n)          ∂L/∂w = Σ_r g x̂          ∂L/∂b = Σ_r g

The sums divided by n are over all ranks. The gradients of w and b are sums over this rank only: like all gradients of
parameters, they are averaged later. If this mean is weighted, the loss of rank r is multiplied by its share s_r. Since
g is the gradient of only this rank's loss, Σ g in ∂L/∂x on rank r' is replaced by Σ_r s_r g / s_r'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group


class Exchange:
    """The group through which a model's layers exchange statistics. Copies of a model share the same object.

    Attributes:
        group: The ranks: a `Group`, or another object with its `allgather` and `allreduce`.
        share: A function that returns the factor of this rank's gradients before they are averaged.
    """

    __slots__ = ("group", "share")

    def __init__(self, group: Any) -> None:
        self.group = group
        self.share: Callable[[], float] = lambda: 1.0

    def __deepcopy__(self, _copies: dict[int, Any]) -> Exchange:
        return self

    def __reduce__(self) -> str:
        raise UsageError(
            "a model with a SyncBatchNorm can't be pickled, since that belongs to the ranks of its group: save its "
            "state_dict(), which loads into ordinary batch normalization too"
        )


class SyncBatchNorm(_BatchNorm):
    """Normalizes each channel by the statistics of the whole batch, over all ranks.

    In training it returns the result of `torch.nn.BatchNorm1d`, `2d` or `3d` on one rank for the rows of all ranks. It
    supports CPUs and GPUs. The number of rows may differ between ranks, and may be 0. Its state has the same keys.
    Running statistics are equal on all ranks. In evaluation it is the ordinary layer and exchanges nothing.

    Each forward pass in training is a collective, and so is its backward pass if its input requires a gradient. In a
    weighted `DataParallel`, call `set_weight` before the first of the backward passes that are averaged together. A
    rank with weight 0 must have no rows.

    Args:
        num_features: Number of channels: the size of the input's dimension 1.
        group: The ranks. Nothing else may use the group during a forward or backward pass, so pass a separate one,
            `group.duplicate()`, for all layers of a model, as `convert_sync_batchnorm` does. It can also be the
            `exchange` of another layer.
        eps: Added to the variance.
        momentum: Momentum of the running statistics; None for the mean over all batches.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether the layer has running statistics.
        device: The parameters' device.
        dtype: The parameters' dtype.
    """

    def __init__(
        self,
        num_features: int,
        group: Group | Exchange,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.exchange = group if isinstance(group, Exchange) else Exchange(group)

    @property
    def group(self) -> Group:
        """The ranks."""
        return self.exchange.group  # type: ignore[no-any-return]

    @_disable_dynamo  # dynamo would trace the collective with fake tensors
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize.

        Args:
            input: Of shape (rows, channels, ...).

        Raises:
            UsageError: The shape is invalid, or all ranks together have fewer than two values for each channel.
        """
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        mean, square, count = _gather_statistics(input, self.exchange.group)
        # If this rank has at least 2 values, the count isn't read: reading it would make the host wait for the GPU.
        if _values_of(input) < 2 and count < 2:
            raise UsageError(
                f"batch normalization needs at least 2 values for each channel in training, all ranks together have "
                f"{float(count):.0f} (this rank's input has the shape {list(input.shape)}): give it a larger batch, or "
                "call eval()"
            )
        self._track(mean, square, count)
        normalized: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, square / count, self.eps, count, self.exchange
        )
        return normalized

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise UsageError(f"the input must have the shape (rows, {self.num_features}, ...), got {list(input.shape)}")

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, square: torch.Tensor, count: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        for running, batch in ((self.running_mean, mean), (self.running_var, square / (count - 1))):
            value = batch.to(running.dtype)
            if self.momentum is None:  # computed on the device, so that the host doesn't wait for it
                running.lerp_(value, (1.0 / self.num_batches_tracked.double()).to(running.dtype))
            else:
                running.lerp_(value, self.momentum)


def convert_sync_batchnorm(module: nn.Module, group: Group) -> nn.Module:
    """Convert every batch normalization layer in a module to `SyncBatchNorm`, in place; a collective.

    The layers stay the same objects, with their parameters, running statistics and hooks, so optimizers remain valid.
    All layers share a new group of the same ranks, whose operations can't mix with those of `group`.

    Args:
        module: The model, or a batch normalization layer.
        group: The ranks.

    Returns:
        The module.

    Raises:
        UsageError: A layer is lazy and has no shape yet, or overrides `forward`.
    """
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
    for name, layer in layers:
        if any(is_lazy(tensor) for tensor in layer.parameters(recurse=False)):
            raise UsageError(f"{name} is lazy and has no shape yet: run one batch through the model first")
        if type(layer).forward not in _REPLACED:
            raise UsageError(
                f"{name} is a {type(layer).__name__} with a forward() of its own, which SyncBatchNorm would replace: "
                "take torch.nn.BatchNorm1d, 2d or 3d there, and do the rest in a layer behind it"
            )
    if layers:
        exchange = Exchange(group.duplicate())
        for _, layer in layers:
            layer.__class__ = SyncBatchNorm
            layer.exchange = exchange  # type: ignore[assignment]
    return module


_REPLACED = (_BatchNorm.forward, nn.SyncBatchNorm.forward, SyncBatchNorm.forward)
"""The `forward` methods of layers that can be converted."""


def _values_of(input: torch.Tensor) -> int:
    """Return the number of values per channel on this rank."""
    return input.numel() // input.shape[1] if input.shape[1] else 0


def _gather_statistics(input: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each channel's mean and sum of squared deviations over all ranks, and the count of values, in float64."""
    channels, count = input.shape[1], _values_of(input)
    row = torch.zeros(1, 1 + 2 * channels, dtype=torch.float64, device=input.device)
    if count:
        values = input.detach()
        variance, mean = torch.var_mean(_wide(values), _other_dimensions(values), correction=0)
        row[0, 0] = count
        row[0, 1 : 1 + channels] = mean
        row[0, 1 + channels :] = variance.double() * count
    rows = group.allgather(row)
    counts, means, squares = rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
    total = counts.sum()
    mean = (counts * means).sum(0) / total.clamp(min=1.0)
    return mean, squares.sum(0) + (counts * (means - mean) ** 2).sum(0), total


class _Normalize(torch.autograd.Function):
    """Normalization with given statistics. The gradient includes their dependence on the inputs of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        eps: float,
        count: torch.Tensor,
        exchange: Exchange,
    ) -> torch.Tensor:
        exact = _wide_dtype(input.dtype)
        ctx.save_for_backward(input, weight, mean.to(exact), (variance + eps).rsqrt().to(exact))
        ctx.count, ctx.exchange = count, exchange
        if not input.numel():
            return torch.empty_like(input)
        return functional.batch_norm(
            input, mean.to(exact), variance.to(exact), _as(weight, exact), _as(bias, exact), False, 0.0, eps
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, inverse = ctx.saved_tensors
        channelwise = [1, -1] + [1] * (input.dim() - 2)
        dimensions = _other_dimensions(input)
        gradient = _wide(gradient)
        normalized = (_wide(input) - mean.view(channelwise)) * inverse.view(channelwise)
        total = gradient.sum(dimensions)
        product = (gradient * normalized).sum(dimensions)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            share = ctx.exchange.share()
            sums = torch.cat((total, product)).double()
            # With share 0, NaNs must be ignored too.
            sums = sums * share if share else torch.zeros_like(sums)
            ctx.exchange.group.allreduce(sums, op="sum")
            sums /= ctx.count * (share or 1.0)
            mean_total, mean_product = (part.to(gradient.dtype).view(channelwise) for part in sums.chunk(2))
            scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
            input_gradient = (gradient - mean_total).sub_(normalized.mul_(mean_product)).mul_(scale.view(channelwise))
            input_gradient = input_gradient.to(input.dtype)
        weight_gradient = product.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        bias_gradient = total.to(weight.dtype) if weight is not None and ctx.needs_input_grad[2] else None
        return input_gradient, weight_gradient, bias_gradient, None, None, None, None, None


def _other_dimensions(input: torch.Tensor) -> list[int]:
    return [0, *range(2, input.dim())]


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_wide_dtype(tensor.dtype))


def _as(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)
