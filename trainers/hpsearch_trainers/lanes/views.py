"""Other shapes of the same numbers: the lanes' dimension stays before all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule

__all__ = ["stacked_dim"]


def stacked_dim(x: Tensor, dim: int) -> int:
    """Return the number of one lane's dimension among those of all lanes.

    Raises:
        IndexError: There is no such dimension.
    """
    return range(x.dim())[dim] + 1


def _view(x: LaneTensor, stack: Tensor) -> LaneTensor:
    x.aliased = True
    return LaneTensor.of_stack(stack, x.generators, aliased=True)


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Return a shape that was given as one sequence or as numbers."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return sizes if all(isinstance(size, int) for size in sizes) else None


@rule(torch.flatten, Tensor.flatten)
def _flatten(_: Any, x: LaneTensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    if x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.flatten(stacked_dim(x, start_dim), stacked_dim(x, end_dim)))


@rule(torch.reshape, Tensor.reshape)
def _reshape(_: Any, x: LaneTensor, *shape: Any) -> Any:
    sizes = _sizes(shape)
    return NotImplemented if sizes is None else _view(x, x.stack.reshape(len(x.generators), *sizes))


@rule(Tensor.view)
def _of_view(_: Any, x: LaneTensor, *shape: Any) -> Any:
    sizes = _sizes(shape)
    return NotImplemented if sizes is None else _view(x, x.stack.view(len(x.generators), *sizes))


@rule(torch.permute, Tensor.permute)
def _permute(_: Any, x: LaneTensor, *dims: Any) -> Any:
    sizes = _sizes(dims)
    return NotImplemented if sizes is None else _view(x, x.stack.permute(0, *(stacked_dim(x, dim) for dim in sizes)))


@rule(torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes)
def _transpose(_: Any, x: LaneTensor, one: int, other: int) -> Any:
    if x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.transpose(stacked_dim(x, one), stacked_dim(x, other)))


@rule(torch.unsqueeze, Tensor.unsqueeze)
def _unsqueeze(_: Any, x: LaneTensor, dim: int) -> LaneTensor:
    return _view(x, x.stack.unsqueeze(range(x.dim() + 1)[dim] + 1))


@rule(torch.squeeze, Tensor.squeeze)
def _squeeze(_: Any, x: LaneTensor, *dim: Any) -> Any:
    if len(dim) != 1 or not isinstance(dim[0], int) or x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.squeeze(stacked_dim(x, dim[0])))


@rule(torch.unflatten, Tensor.unflatten)
def _unflatten(_: Any, x: LaneTensor, dim: int, sizes: Any) -> LaneTensor:
    return _view(x, x.stack.unflatten(stacked_dim(x, dim), sizes))  # type: ignore[no-untyped-call]


@rule(Tensor.__getitem__)
def _item(_: Any, x: Any, index: Any) -> Any:
    indices = index if isinstance(index, tuple) else (index,)
    plain = all(item is None or item is Ellipsis or type(item) in (int, slice) for item in indices)
    if not isinstance(x, LaneTensor) or not plain:
        return NotImplemented
    return _view(x, x.stack[(slice(None), *indices)])
