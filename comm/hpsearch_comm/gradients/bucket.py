"""What one allreduce takes: many small gradients side by side, or a large one where it lies.

Small gradients are copied together, in elements of their dtype, each aligned to a cache line:

    gradient 0 | padding | gradient 1 | ... | gradient k-1 | padding | uses

On a host the memory is shared between its ranks, so that reducing it copies nothing more. From then on each
`parameter.grad` is a view of it, and where autograd adds to that, as after `zero_grad(set_to_none=False)`, nothing is
copied at all.

A large gradient is reduced where it lies. Copying a new one would cost as much as reducing it, since it is too large
for any cache, and memory for it is only worth having where it is kept: then it moves to shared memory too.

The last bucket ends with the uses, one for each parameter of the model: 1 where this rank has a gradient for it and 0
where it has none. They are averaged like the rest, so without an operation of its own a rank learns whether any rank
used a parameter that it didn't use itself. One more tells whether all ranks keep large gradients.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch

from hpsearch_comm.gradients.shared_memory import SharedMemory, aligned

__all__ = ["Bucket", "LargeGradient", "SmallGradients"]


class Bucket(ABC):
    """Some parameters' gradients, which are reduced together.

    Attributes:
        device: Where they are.
        missing: Gradients that haven't arrived in this backward pass.
        sent: Whether its reduction has been called in this backward pass.
    """

    def __init__(self, parameters: Mapping[int, torch.nn.Parameter], device: torch.device) -> None:
        self._parameters = dict(parameters)
        self.device = device
        self.missing = len(parameters)
        self.sent = False

    @abstractmethod
    def wants(self) -> list[tuple[int, torch.dtype]]:
        """Give the lengths and dtypes of the shared memory that it needs."""

    @abstractmethod
    def settle_in(self, memory: SharedMemory) -> None:
        """Take what it wanted. Called once, before everything else."""

    def expect(self) -> None:
        """Begin a backward pass."""
        self.missing = len(self._parameters)
        self.sent = False

    def collect(self) -> None:
        """Bring the gradients together while they still lie in a cache. What this doesn't, `fill` does."""

    @abstractmethod
    def fill(self, share: float, unused: list[int]) -> torch.Tensor:
        """Give what is to be reduced: this rank's gradients, weighed.

        Args:
            share: What to multiply them by. 0 leaves them out, even where they aren't numbers.
            unused: The parameters for which this rank has nothing are appended.
        """

    @abstractmethod
    def finish(self) -> None:
        """Bring what has been reduced to where the gradients are."""

    @abstractmethod
    def give(self, index: int, used: bool) -> None:
        """Give a parameter for which this rank had nothing what other ranks had, or nothing if none had."""


class SmallGradients(Bucket):
    """Gradients of one dtype and device, side by side.

    Args:
        parameters: By their number in the model.
        dtype: Of the gradients.
        device: Of the gradients.
        wire_dtype: What travels; the same dtype, or a shorter one.
        uses: Number of uses at the end, of which the last one tells whether large gradients are kept.
    """

    def __init__(
        self,
        parameters: Mapping[int, torch.nn.Parameter],
        dtype: torch.dtype,
        device: torch.device,
        wire_dtype: torch.dtype,
        uses: int,
    ) -> None:
        super().__init__(parameters, device)
        self._dtype = dtype
        self._wire_dtype = wire_dtype
        self._starts, end = [], 0
        for parameter in parameters.values():
            self._starts.append(end)
            end += aligned(parameter.numel(), dtype)
        self._end = end
        self._length = end + uses

    def wants(self) -> list[tuple[int, torch.dtype]]:
        """Want what travels."""
        return [(self._length, self._wire_dtype)]

    def settle_in(self, memory: SharedMemory) -> None:
        """Lay the gradients out."""
        # All zeros: padding is summed like the rest, and must be numbers.
        self._wire = self._flat = memory.take(self._length, self._wire_dtype)
        if self._wire_dtype is not self._dtype:
            self._flat = torch.zeros(self._length, dtype=self._dtype, device=self.device)
        self.uses = self._flat[self._end :]
        begin = int(self._flat.storage_offset())
        self._places = {
            index: _Place(self._flat, begin + start, parameter)
            for start, (index, parameter) in zip(self._starts, self._parameters.items(), strict=True)
        }

    def collect(self) -> None:
        """Copy new gradients here."""
        self._collect([])

    def fill(self, share: float, unused: list[int], keeps: bool = False) -> torch.Tensor:
        """Take the gradients, and copy those that are new.

        Args:
            share: What to multiply them by.
            unused: Of the last bucket, those of all buckets before.
            keeps: Of the last bucket, whether this rank keeps large gradients.
        """
        if share:
            self._collect(unused)
            if share != 1.0:
                self._flat.mul_(share)
        else:
            unused += self._parameters
            self._flat.zero_()
        if self.uses.numel():
            self.uses.fill_(1.0)
            if not keeps:
                self.uses[-1:].zero_()
            if unused:
                self.uses.index_fill_(0, torch.tensor(unused, device=self.device), 0.0)
        if self._wire is not self._flat:
            self._wire.copy_(self._flat)
        return self._wire

    def _collect(self, unused: list[int]) -> None:
        places: list[torch.Tensor] = []
        arrived: list[torch.Tensor] = []
        empty: list[torch.Tensor] = []
        for index, place in self._places.items():
            parameter, view = place.parameter, place.view()
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                unused.append(index)
                empty.append(view)
                continue
            if gradient.layout is not torch.strided:
                gradient = gradient.to_dense()
            places.append(view)
            arrived.append(gradient)
            parameter.grad = view
        if arrived:
            torch._foreach_copy_(places, arrived)
        if empty:
            torch._foreach_zero_(empty)

    def finish(self) -> None:
        """Bring what has travelled in a shorter dtype back."""
        if self._wire is not self._flat:
            self._flat.copy_(self._wire)

    def give(self, index: int, used: bool) -> None:
        """Let the parameter's gradient be its view, or nothing."""
        self._parameters[index].grad = self._places[index].view() if used else None


class _Place:
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
        """Give the tensor that becomes `parameter.grad`: the same one, as long as it shows this place.

        Whoever has it can point it to other memory by its `data`, as every conversion of a model does.
        """
        if self._view.data_ptr() != self._address:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> torch.Tensor:
        return self._flat.as_strided(self.parameter.shape, _strides(self.parameter), self._offset)


class LargeGradient(Bucket):
    """The gradient of one parameter.

    Args:
        index: The parameter's number in the model.
        parameter: Whose gradient it is.
        wire_dtype: What travels; the parameter's own dtype, or a shorter one.
    """

    def __init__(self, index: int, parameter: torch.nn.Parameter, wire_dtype: torch.dtype) -> None:
        super().__init__({index: parameter}, parameter.device)
        self._index = index
        self._wire_dtype = wire_dtype
        self._compressed = wire_dtype is not parameter.dtype
        self._wire = self._values = torch.empty(0, device="cpu")
        self._strides = _strides(parameter)
        self._own: torch.Tensor | None = None
        self._moved = False
        self._before: Callable[[], torch.Tensor | None] = lambda: None
        self.parameter = parameter
        """Whose gradient it is."""

    def wants(self) -> list[tuple[int, torch.dtype]]:
        """Want memory for what travels, where that isn't the gradient itself."""
        return [(self.parameter.numel(), self._wire_dtype)] if self._compressed else []

    def settle_in(self, memory: SharedMemory) -> None:
        """Take it."""
        if self._compressed:
            self._wire = memory.take(self.parameter.numel(), self._wire_dtype)

    @property
    def kept(self) -> bool:
        """Whether autograd adds to a gradient that it could as well add to in shared memory."""
        if self._moved or self._compressed or self.device.type != "cpu":
            return False
        gradient = self.parameter.grad
        return gradient is not None and gradient is self._before()

    def fill(self, share: float, unused: list[int]) -> torch.Tensor:
        """Take the gradient as it lies, if it lies as on the other ranks."""
        gradient = self.parameter.grad
        if gradient is None or not share:
            unused.append(self._index)
            self._values = _flatten(self._memory().zero_())
        else:
            if gradient.layout is not torch.strided or gradient.stride() != self._strides:
                gradient = self.parameter.grad = self._memory().copy_(gradient.to_dense())
            if gradient.requires_grad:
                gradient = self.parameter.grad = gradient.detach()
            self._values = _flatten(gradient)
            if share != 1.0:
                self._values.mul_(share)
        return self._wire.copy_(self._values) if self._compressed else self._values

    def finish(self) -> None:
        """Bring what has travelled in a shorter dtype back."""
        if self._compressed:
            self._values.copy_(self._wire)
        gradient = self.parameter.grad
        if gradient is not None:
            self._before = weakref.ref(gradient)

    def give(self, index: int, used: bool) -> None:
        """Let the parameter's gradient be that of the others, or nothing."""
        self.parameter.grad = self._memory() if used else None

    def move(self, flat: torch.Tensor) -> None:
        """Move to other memory, with the gradient as it is."""
        gradient = self.parameter.grad
        self._own = flat.as_strided(self.parameter.shape, self._strides, flat.storage_offset())
        self._moved = True
        if gradient is not None:
            self.parameter.grad = self._own.copy_(gradient)

    def _memory(self) -> torch.Tensor:
        """Give memory for a gradient that autograd hasn't made, or not as it should be."""
        if self._own is None:
            self._own = torch.empty_like(self.parameter).detach()
        return self._own


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Give the strides in which a gradient lies: the parameter's, if that fills its memory, channels_last for example.

    Autograd makes gradients so, and optimizers are fastest when they are.
    """
    return torch.empty_like(parameter, device="meta").stride()


def _flatten(gradient: torch.Tensor) -> torch.Tensor:
    """Give the values in the order in which they lie in memory."""
    return gradient.as_strided((gradient.numel(),), (1,))
