"""What packs compute for all lanes in one call where calls are dear, and lane by lane where not.

Each lane's part depends on the number of lanes alone. The gradient of what is spread over others is a sum, in another
order than alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rounded_rule

__all__: list[str] = []


@rounded_rule(
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.div, Tensor.div, Tensor.__truediv__),
    *(torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum),
)
def _spread(func: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """Compute of lanes' tensors of different shapes, such as rows and a scale of each feature."""
    if not (isinstance(x, LaneTensor) and isinstance(y, LaneTensor)) or x.generators.noise is None or kwargs:
        return NotImplemented
    if x.dtype != y.dtype or 0 in (x.dim(), y.dim()):
        return NotImplemented  # of no dimensions, dtypes follow other rules
    dims = max(x.dim(), y.dim())
    result = func(
        *(tensor.stack.view(len(x.generators), *(1,) * (dims - tensor.dim()), *tensor.shape) for tensor in (x, y))
    )
    return LaneTensor.of_stack(result, x.generators)


@rounded_rule(functional.group_norm)
def _group_norm(func: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    parameters = [parameter for parameter in (weight, bias) if parameter is not None]
    if (
        x.generators.noise is None
        or x.dim() < 2
        or not all(isinstance(parameter, LaneTensor) for parameter in (x, *parameters))
    ):
        return NotImplemented
    if any(parameter.dtype != x.dtype for parameter in parameters) or torch.is_autocast_enabled(x.device.type):
        return NotImplemented
    lanes = len(x.generators)
    result = func(x.stack.flatten(0, 1), groups, None, None, eps).view(x.stack.shape)
    for parameter, apply in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            result = apply(result, parameter.stack.view(lanes, 1, -1, *(1 for _ in x.shape[2:])))
    return LaneTensor.of_stack(result, x.generators)


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
    if not plain or not all(isinstance(tensor, LaneTensor) for tensor in (x, weight)) or x.generators.noise is None:
        return NotImplemented
    rows, count = x.stack, weight.shape[0]
    first = torch.arange(len(x.generators), device=rows.device).mul_(count).view(-1, *(1 for _ in x.shape))
    # One that isn't among a lane's own would be another lane's: torch is to refuse it, as alone.
    indices = torch.where((rows >= 0) & (rows < count), rows + first, -1)
    return LaneTensor.of_stack(func(indices, weight.stack.flatten(0, 1)), x.generators)
