"""A flat piece of memory in which some parameters' gradients live side by side, so that one allreduce takes them all.

Layout, in elements of the gradients' dtype, each gradient aligned to a cache line:

    gradient 0 | padding | gradient 1 | ... | gradient k-1 | padding | use 0, use 1, ..., use k-1

`use i` is 1 where this rank has a gradient for parameter i and 0 where it has none. It is averaged like the rest, so
without an operation of its own a rank learns whether any rank used a parameter that it didn't use itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.group import Group

__all__ = ["Bucket"]

_ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector instruction."""


class Bucket:
    """The gradients of some parameters of one dtype and device.

    Between `fill` and `finish` the group reduces `wire`. Afterwards each `parameter.grad` is a view of `flat`, unless
    no rank had a gradient for it. Making one is a collective.

    Args:
        parameters: Whose gradients lie here.
        group: Gives the memory: shared between the ranks of a host where the parameters are on the CPU.
        wire_dtype: What travels; the parameters' own dtype, or a shorter one.
    """

    __slots__ = ("_members", "_parameters", "_uses", "_views", "_without", "flat", "missing", "sent", "wire")

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: Group, wire_dtype: torch.dtype) -> None:
        dtype, device = parameters[0].dtype, parameters[0].device
        step = max(1, _ALIGNMENT // dtype.itemsize)
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // step) * step
        length = end + len(parameters)
        shared = device.type == "cpu"
        # All zeros: padding is summed like the rest, and must be numbers.
        self.wire = group.empty(length, dtype=wire_dtype) if shared else _zeros(length, wire_dtype, device)
        self.flat = self.wire if wire_dtype is dtype else _zeros(length, dtype, device)
        self._parameters = list(parameters)
        self._views = [_view(self.flat, start, parameter) for start, parameter in zip(starts, parameters, strict=True)]
        self._members = list(zip(self._parameters, self._views, strict=True))
        self._uses = self.flat[end:]
        self._without: Sequence[int] = ()
        self.missing = len(parameters)
        """Gradients that haven't arrived in this backward pass."""
        self.sent = False
        """Whether its reduction has been called in this backward pass."""

    def expect(self) -> None:
        """Begin a backward pass."""
        self.missing = len(self._parameters)
        self.sent = False

    def fill(self, share: float) -> None:
        """Bring the parameters' gradients here, where autograd has made new ones, and weigh them.

        Args:
            share: What to multiply them by. 0 leaves them out, even where they aren't numbers.
        """
        without: list[int] = []
        places: list[torch.Tensor] = []
        arrived: list[torch.Tensor] = []
        for index, (parameter, view) in enumerate(self._members):
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                without.append(index)
                continue
            if gradient.layout is not torch.strided:
                gradient = gradient.to_dense()
            places.append(view)
            arrived.append(gradient)
            parameter.grad = view
        if share == 0.0:
            self.fill_with_nothing()
            self._without = range(len(self._parameters))
            return
        if arrived:
            torch._foreach_copy_(places, arrived)
        if without:
            torch._foreach_zero_([self._views[index] for index in without])
        if share != 1.0:
            self.flat.mul_(share)
        self._uses.fill_(1.0)
        if without:
            self._uses.index_fill_(0, torch.tensor(without, device=self._uses.device), 0.0)
        self._without = without
        if self.wire is not self.flat:
            self.wire.copy_(self.flat)

    def fill_with_nothing(self) -> None:
        """Take part in a reduction to which this rank has nothing to add."""
        self.wire.zero_()
        self._without = ()

    def finish(self) -> None:
        """Give the parameters their averaged gradients, now that the group has reduced them."""
        if self.wire is not self.flat:
            self.flat.copy_(self.wire)
        if self._without:
            uses = self._uses.tolist()
            for index in self._without:
                parameter, view = self._members[index]
                parameter.grad = view if uses[index] else None


def _zeros(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(length, dtype=dtype, device=device)


def _view(flat: torch.Tensor, start: int, parameter: torch.Tensor) -> torch.Tensor:
    """Give the part of `flat` from `start` on, in the parameter's shape and in its order in memory.

    Autograd gives a gradient its parameter's strides, channels_last for example, and optimizers are fastest when they
    are the same.
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, strides, flat.storage_offset() + start)
