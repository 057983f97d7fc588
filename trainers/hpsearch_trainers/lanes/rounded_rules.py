"""Rules for packs that may round: they compute all lanes in one call, with another order of summation.

Each lane's part depends on the fixed number of lanes, but not on its position or on other lanes. Some rules apply only
if kernel launches dominate, as on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rounded_rule
from hpsearch_trainers.lanes.rules import BINARY, product

_SMALL = 2**15
"""Maximum numbers per lane and batch for a joint convolution on the CPU; larger ones are slower than lane by lane."""
_FEW_CHANNELS = 16
"""Number of channels per lane below which grouped convolutions are faster in channels-last format."""


@rounded_rule(functional.linear)
def _linear(_: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if not _are_lanes(*tensors) or weight.dim() != 2 or x.dim() < 2 or _is_mixed(*tensors):
        return NotImplemented
    return product(x, weight, bias)


@rounded_rule(functional.conv1d, functional.conv2d)
def _convolution(
    func: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if not _are_lanes(*tensors) or x.dim() != weight.dim() or _is_mixed(*tensors):
        return NotImplemented
    by_calls = x.generators.noise is not None  # kernel launches dominate
    if not by_calls and x.shape[0] * math.prod(x.shape[2:]) * max(x.shape[1], weight.shape[0]) > _SMALL:
        return NotImplemented
    images, kernels = _joined_channels(x), weight.stack.flatten(0, 1)
    if not by_calls and x.dim() == 4 and x.shape[1] < _FEW_CHANNELS:
        images, kernels = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (images, kernels))
    biases = None if bias is None else bias.stack.flatten()
    result = func(images, kernels, biases, stride, padding, dilation, len(x.generators) * groups)
    return _split_channels(result, x)


@rounded_rule(functional.batch_norm)
def _batch_norm(
    func: Any,
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    tensors = [tensor for tensor in (running_mean, running_var, weight, bias) if tensor is not None]
    if not _are_lanes(x, *tensors) or any(not tensor.owned or tensor.dim() != 1 for tensor in tensors):
        return NotImplemented
    if math.prod(x.shape[2:]) < 2:
        return NotImplemented  # torch sums several channels at once, and the last ones separately
    # Views of the stacks, so that the running statistics are updated in place.
    flat = [None if tensor is None else tensor.stack.view(-1) for tensor in (running_mean, running_var, weight, bias)]
    return _split_channels(func(_joined_channels(x), *flat, training, *args, **kwargs), x)


@rounded_rule(functional.layer_norm)
def _layer_norm(func: Any, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    parameters = [parameter for parameter in (weight, bias) if parameter is not None]
    if not _are_lanes(x, *parameters) or x.dim() < len(shape) or _is_mixed(x, *parameters):
        return NotImplemented
    return _scaled(func(x.stack, shape, None, None, eps), x, weight, bias, tuple(shape))


def _scaled(normalized: Tensor, x: LaneTensor, weight: Any, bias: Any, shape: tuple[int, ...]) -> LaneTensor:
    """Return the normalized numbers of x times the weight plus the bias, whose parts for a lane have this shape."""
    view = (len(x.generators), *(1 for _ in range(x.dim() - len(shape))), *shape)
    for parameter, apply in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            normalized = apply(normalized, parameter.stack.view(view))
    return LaneTensor.of_stack(normalized, x.generators)


@rounded_rule(functional.scaled_dot_product_attention)
def _attention(
    func: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
) -> Any:
    plain_mask = attn_mask is None or (not isinstance(attn_mask, LaneTensor) and attn_mask.dim() == 2)
    if not _are_lanes(q, k, v) or dropout_p or not plain_mask or any(tensor.dim() != 4 for tensor in (q, k, v)):
        return NotImplemented
    result: Tensor = func(*(tensor.stack.flatten(0, 1) for tensor in (q, k, v)), attn_mask, dropout_p, *args, **kwargs)
    return LaneTensor.of_stack(result.unflatten(0, q.stack.shape[:2]), q.generators)  # type: ignore[no-untyped-call]


def _are_lanes(*values: Any) -> bool:
    return all(isinstance(value, LaneTensor) for value in values)


def _is_mixed(*tensors: Tensor) -> bool:
    """Return whether tensors have several dtypes, or autocast would change them."""
    return torch.is_autocast_enabled(tensors[0].device.type) or any(
        tensor.dtype != tensors[0].dtype for tensor in tensors
    )


def _joined_channels(x: LaneTensor) -> Tensor:
    """Return the channels of all lanes as channels of one image: (rows, lanes * channels, ...)."""
    return x.stack.transpose(0, 1).flatten(1, 2)


def _split_channels(channels: Tensor, x: LaneTensor) -> LaneTensor:
    """Return the channels of each lane, with the strides of a lane alone."""
    lanes = len(x.generators)
    parts: Tensor = channels.unflatten(1, (lanes, -1))  # type: ignore[no-untyped-call]
    return LaneTensor.of_stack(parts.transpose(0, 1).contiguous(), x.generators)


@rounded_rule(*BINARY)
def _spread(func: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """Compute an elementwise function of LaneTensors that broadcast, such as rows and a scale for each feature."""
    if not _are_lanes(x, y) or x.generators.noise is None or kwargs:
        return NotImplemented
    if x.dtype != y.dtype or 0 in (x.dim(), y.dim()):
        return NotImplemented  # type promotion differs for 0-dimensional tensors
    dims = max(x.dim(), y.dim())
    result = func(
        *(tensor.stack.view(len(x.generators), *(1,) * (dims - tensor.dim()), *tensor.shape) for tensor in (x, y))
    )
    return LaneTensor.of_stack(result, x.generators)


@rounded_rule(functional.group_norm)
def _group_norm(func: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    parameters = [parameter for parameter in (weight, bias) if parameter is not None]
    if not _are_lanes(x, *parameters) or x.generators.noise is None or x.dim() < 2 or _is_mixed(x, *parameters):
        return NotImplemented
    result = func(x.stack.flatten(0, 1), groups, None, None, eps).view(x.stack.shape)
    return _scaled(result, x, weight, bias, (-1, *(1 for _ in x.shape[2:])))


@rounded_rule(functional.embedding)
def _embedding(
    func: Any,
    x: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    plain = padding_idx is None and max_norm is None and not scale_grad_by_freq and not sparse
    if not plain or not _are_lanes(x, weight) or x.generators.noise is None:
        return NotImplemented
    rows, count = x.stack, weight.shape[0]
    first = torch.arange(len(x.generators), device=rows.device).mul_(count).view(-1, *(1 for _ in x.shape))
    # An index out of range would be another lane's row: set it to -1, so that torch raises an error, as alone.
    indices = torch.where((rows >= 0) & (rows < count), rows + first, -1)
    return LaneTensor.of_stack(func(indices, weight.stack.flatten(0, 1)), x.generators)
