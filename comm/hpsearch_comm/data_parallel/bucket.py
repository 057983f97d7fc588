"""A bucket: gradients in contiguous memory that are reduced by one allreduce.

Gradients are copied into a flat buffer of their dtype, each aligned to a cache line:

    gradient 0 | padding | gradient 1 | ... | gradient k-1 | uses

The ranks of a host share this memory, so the reduction needs no further copies. Each `parameter.grad` then becomes a
view of the bucket. If autograd accumulates into this view, as after `zero_grad(set_to_none=False)`, nothing is copied.

If a bucket has only one gradient, as for large gradients, a new gradient isn't copied: it is reduced from autograd's
memory into the bucket. Autograd's memory is never written: until the backward pass ends, another node may still read
it, or it may be another parameter's gradient too.

The last bucket ends with the uses, one for each parameter of the model: 1 if this rank has a gradient for it, 0
otherwise. They are averaged like the gradients. So a rank finds out, without a further operation, whether any rank used
a parameter that it didn't use itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.group import Group

SHORT = (torch.float16, torch.bfloat16)
_ALIGNMENT = 64
"""Alignment in bytes: a cache line, and sufficient for all vector instructions."""


class Bucket:
    """Gradients of some parameters, of one dtype and device, that are reduced together.

    Args:
        parameters: The parameters, by their index in the model.
        dtype: The gradients' dtype.
        wire: The tensor that is sent, of the same dtype or a 16-bit one. It is filled with zeros, and has room for the
            gradients in the layout of `lay_out`, and for the uses at the end.

    Attributes:
        device: The gradients' device.
        missing: Number of gradients that haven't arrived in this backward pass.
        sent: Whether the bucket's reduction has been called in this backward pass.
        mean: The output tensor for the reduction of the result of `fill`.
        uses: The fraction of ranks that used each parameter, after the reduction.
    """

    def __init__(self, parameters: Mapping[int, torch.nn.Parameter], dtype: torch.dtype, wire: torch.Tensor) -> None:
        self._parameters = dict(parameters)
        self._dtype = dtype
        self._compressed = wire.dtype is not dtype
        self.device = wire.device
        self.missing = len(parameters)
        self.sent = False
        *starts, self._end = lay_out(parameters.values())
        self._single = len(parameters) == 1 and wire.numel() == self._end and not self._compressed
        # Zeros, because padding is summed too and must not be NaN.
        self._wire = self.mean = wire
        self._flat = torch.zeros_like(wire, dtype=dtype) if self._compressed else wire
        self._after = 1.0
        begin = int(self._flat.storage_offset())
        self._views = {
            index: _GradientView(self._flat, begin + start, parameter)
            for start, (index, parameter) in zip(starts, parameters.items(), strict=True)
        }

    def expect(self) -> None:
        """Reset the bucket for a new backward pass."""
        self.missing = len(self._parameters)
        self.sent = False

    def collect(self) -> None:
        """Copy the gradients into the bucket while they are still in the CPU cache. `fill` copies the rest later."""
        if not self._single:
            self._collect([])

    def fill(self, share: Share, unused: list[int]) -> torch.Tensor:
        """Return the tensor to reduce into `mean`: this rank's gradients, multiplied by its share.

        Args:
            share: The share. With 0, the gradients are replaced by zeros, even if they are NaN.
            unused: A list to which parameters without a gradient on this rank are appended. For the last bucket, it
                must already have those of all other buckets.
        """
        self.mean, self._after = self._wire, 1.0
        lent = self._take_lent() if self._single and share.even else None
        if lent is not None:
            return lent
        if share.own:
            self._collect(unused)
        else:
            unused += self._parameters
            self._flat.zero_()
        self._weigh(share)
        self.uses = self.mean[self._end :]
        if self.uses.numel():
            self.uses.fill_(1.0)
            if unused:
                self.uses.index_fill_(0, torch.tensor(unused, device=self.device), 0.0)
        return self.mean

    def _take_lent(self) -> torch.Tensor | None:
        """Return the only gradient in autograd's memory, if it has the bucket's layout; None otherwise."""
        (gradient_view,) = self._views.values()
        gradient, view = gradient_view.parameter.grad, gradient_view.view()
        if gradient is None or gradient is view or not _lie_alike(gradient, view):
            return None
        gradient_view.parameter.grad = view
        return gradient.detach().as_strided((gradient.numel(),), (1,))

    def _collect(self, unused: list[int]) -> None:
        targets: list[torch.Tensor] = []
        arrived: list[torch.Tensor] = []
        empty: list[torch.Tensor] = []
        for index, gradient_view in self._views.items():
            parameter, view = gradient_view.parameter, gradient_view.view()
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                unused.append(index)
                empty.append(view)
                continue
            if gradient.layout is not torch.strided:
                gradient = gradient.to_dense()
            targets.append(view)
            arrived.append(gradient)
            parameter.grad = view
        if arrived:
            torch._foreach_copy_(targets, arrived)
        if empty:
            torch._foreach_zero_(empty)

    def _weigh(self, share: Share) -> None:
        """Multiply the gradients by the share. No intermediate value may overflow unless the mean does."""
        if share.even:
            if self._compressed:
                self._wire.copy_(self._flat)
        elif self._compressed:
            self._wire.copy_(self._flat * (share.own / share.largest))
            self._after = share.largest
        elif self._dtype in SHORT:
            self.mean = self._flat.float().mul_(share.own)
        else:
            self._flat.mul_(share.own)

    def finish(self) -> None:
        """Copy the reduced values to the gradients' memory, if it is a different tensor."""
        if self.mean is not self._flat:
            self._flat.copy_(self.mean)
            self.mean = self._wire
        if self._after != 1.0:
            self._flat.mul_(self._after)

    def give(self, index: int, used: bool) -> None:
        """Set the gradient of a parameter that this rank didn't use: the mean if another rank used it, or None."""
        self._parameters[index].grad = self._views[index].view() if used else None


def lay_out(parameters: Iterable[torch.nn.Parameter]) -> list[int]:
    """Return the offset of each gradient in a bucket, and the end of the last gradient, in elements."""
    edges, end = [], 0
    for parameter in parameters:
        edges.append(_aligned(end, parameter.dtype))
        end = edges[-1] + parameter.numel()
    return [*edges, end]


def _aligned(numel: int, dtype: torch.dtype) -> int:
    """Round a number of elements up to whole cache lines."""
    step = max(1, _ALIGNMENT // dtype.itemsize)
    return -(-numel // step) * step


def shared_zeros(group: Group, layouts: Sequence[tuple[int, torch.dtype, torch.device]]) -> list[torch.Tensor]:
    """Create 1-D tensors of zeros; a collective. CPU tensors are in memory shared by the ranks of a host.

    There is one allocation per dtype and device, because shared memory costs open files and mappings.

    Args:
        group: The ranks.
        layouts: Length, dtype and device of each tensor.
    """
    totals: dict[tuple[torch.dtype, torch.device], int] = {}
    starts = []
    for numel, dtype, device in layouts:
        starts.append(totals.get((dtype, device), 0))
        totals[dtype, device] = starts[-1] + _aligned(numel, dtype)
    memory = {
        (dtype, device): group.empty(total, dtype=dtype)
        if device.type == "cpu"
        else torch.zeros(total, dtype=dtype, device=device)
        for (dtype, device), total in totals.items()
    }
    return [
        memory[dtype, device][start : start + numel]
        for start, (numel, dtype, device) in zip(starts, layouts, strict=True)
    ]


class _GradientView:
    """A view of a parameter's gradient in a bucket.

    Attributes:
        parameter: The parameter.
    """

    __slots__ = ("_address", "_flat", "_offset", "_view", "parameter")

    def __init__(self, flat: torch.Tensor, offset: int, parameter: torch.nn.Parameter) -> None:
        self._flat = flat
        self._offset = offset
        self.parameter = parameter
        self._view = self._make_view()
        self._address = self._view.data_ptr()

    def view(self) -> torch.Tensor:
        """Return the tensor for `parameter.grad`. It is the same object as long as it points to the bucket's memory.

        Assigning to its `data` can point it to other memory, as conversions of a model (`.to()`, `.half()`) do.
        """
        if self._view.data_ptr() != self._address:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> torch.Tensor:
        return self._flat.as_strided(self.parameter.shape, _strides(self.parameter), self._offset)


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return a gradient's strides: those of the parameter if it is dense in memory, such as channels_last.

    Autograd creates gradients with these strides, and optimizers are fastest with them.
    """
    return torch.empty_like(parameter, device="meta").stride()


def _lie_alike(gradient: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether both tensors have the same memory layout, so that equal values have equal bytes."""
    return (
        gradient.layout is torch.strided
        and gradient.dtype is view.dtype
        and gradient.stride() == view.stride()
        and not gradient.is_conj()
        and not gradient.is_neg()
    )
