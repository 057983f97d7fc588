"""What one allreduce takes: gradients side by side, in memory of their own.

Gradients are copied together, in elements of their dtype, each aligned to a cache line:

    gradient 0 | padding | gradient 1 | ... | gradient k-1 | uses

On a host the memory is shared between its ranks, so that reducing it copies nothing more. From then on each
`parameter.grad` is a view of it, and where autograd adds to that, as after `zero_grad(set_to_none=False)`, nothing is
copied at all.

A new gradient that has a bucket for itself, as large ones have, isn't copied: it is reduced from where autograd has put
it into the bucket. It is never written to there. Autograd only lends it: until the backward pass has ended, its memory
may be what another node is still to read, or another parameter's gradient too.

The last bucket ends with the uses, one for each parameter of the model: 1 where this rank has a gradient for it and 0
where it has none. They are averaged like the rest, so without an operation of its own a rank learns whether any rank
used a parameter that it didn't use itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.group import Group

_SHORT = (torch.float16, torch.bfloat16)
_ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector instruction."""


class Bucket:
    """Some parameters' gradients, of one dtype and device, which are reduced together.

    Args:
        parameters: By their number in the model.
        dtype: Of the gradients.
        wire: What travels, of the same dtype or a shorter one: zeros that have room for the gradients, as `lay_out`
            places them, and for the uses at the end.

    Attributes:
        device: Where the gradients are.
        missing: Gradients that haven't arrived in this backward pass.
        sent: Whether its reduction has been called in this backward pass.
        mean: Where what `fill` gives is to be reduced to.
        uses: Of the ranks, the part that used each parameter, when `mean` has been reduced.
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
        # All zeros: padding is summed like the rest, and must be numbers.
        self._wire = self.mean = wire
        self._flat = torch.zeros_like(wire, dtype=dtype) if self._compressed else wire
        self._after = 1.0
        begin = int(self._flat.storage_offset())
        self._views = {
            index: _GradientView(self._flat, begin + start, parameter)
            for start, (index, parameter) in zip(starts, parameters.items(), strict=True)
        }

    def expect(self) -> None:
        """Begin a backward pass."""
        self.missing = len(self._parameters)
        self.sent = False

    def collect(self) -> None:
        """Bring the gradients together while they still lie in a cache. What this doesn't, `fill` does."""
        if not self._single:
            self._collect([])

    def fill(self, share: Share, unused: list[int]) -> torch.Tensor:
        """Return what is to be reduced to `mean`: this rank's gradients, weighed.

        Args:
            share: What to multiply them by. 0 leaves them out, even where they aren't numbers.
            unused: The parameters for which this rank has nothing are appended. Of the last bucket, those of all
                buckets before.
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
        """Take the only gradient from where autograd has put it, if it lies as on the other ranks."""
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
        """Weight the gradients by the share. Nothing may overflow unless the mean does."""
        if share.even:
            if self._compressed:
                self._wire.copy_(self._flat)
        elif self._compressed:
            self._wire.copy_(self._flat * (share.own / share.largest))
            self._after = share.largest
        elif self._dtype in _SHORT:
            self.mean = self._flat.float().mul_(share.own)
        else:
            self._flat.mul_(share.own)

    def finish(self) -> None:
        """Bring what has been reduced to where the gradients are."""
        if self.mean is not self._flat:
            self._flat.copy_(self.mean)
            self.mean = self._wire
        if self._after != 1.0:
            self._flat.mul_(self._after)

    def give(self, index: int, used: bool) -> None:
        """Set the gradient of a parameter that has none on this rank to that of the others; None if they have none."""
        self._parameters[index].grad = self._views[index].view() if used else None


def lay_out(parameters: Iterable[torch.nn.Parameter]) -> list[int]:
    """Return where each gradient begins in a bucket, and where the last one ends, in elements."""
    edges, end = [], 0
    for parameter in parameters:
        edges.append(_aligned(end, parameter.dtype))
        end = edges[-1] + parameter.numel()
    return [*edges, end]


def _aligned(numel: int, dtype: torch.dtype) -> int:
    """Return the number of elements up to the next cache line."""
    step = max(1, _ALIGNMENT // dtype.itemsize)
    return -(-numel // step) * step


def shared_zeros(group: Group, layouts: Sequence[tuple[int, torch.dtype, torch.device]]) -> list[torch.Tensor]:
    """Make 1-D tensors of zeros, which the ranks of a host share where they are on the CPU; a collective.

    There are few allocations: each one of shared memory costs a rank open files and mappings.

    Args:
        group: The ranks.
        layouts: Length, dtype and device of each.
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
    """Where a gradient lies among others.

    Attributes:
        parameter: Whose gradient it is.
    """

    __slots__ = ("_address", "_flat", "_offset", "_view", "parameter")

    def __init__(self, flat: torch.Tensor, offset: int, parameter: torch.nn.Parameter) -> None:
        self._flat = flat
        self._offset = offset
        self.parameter = parameter
        self._view = self._make_view()
        self._address = self._view.data_ptr()

    def view(self) -> torch.Tensor:
        """Return the tensor that becomes `parameter.grad`: the same one, as long as it shows this place.

        Whoever has it can point it to other memory by its `data`, as every conversion of a model does.
        """
        if self._view.data_ptr() != self._address:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> torch.Tensor:
        return self._flat.as_strided(self.parameter.shape, _strides(self.parameter), self._offset)


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides in which a gradient lies: the parameter's, if that fills its memory, such as channels_last.

    Autograd makes gradients so, and optimizers are fastest when they are.
    """
    return torch.empty_like(parameter, device="meta").stride()


def _lie_alike(gradient: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether the same values would be the same bytes of memory."""
    return (
        gradient.layout is torch.strided
        and gradient.dtype is view.dtype
        and gradient.stride() == view.stride()
        and not gradient.is_conj()
        and not gradient.is_neg()
    )
