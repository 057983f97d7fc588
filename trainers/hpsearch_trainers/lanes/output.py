"""What a model of all lanes gives, as a form and the tensors that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, map_items

__all__ = ["Form", "flatten_output"]


@dataclass(frozen=True, slots=True)
class Form:
    """A value with places where its LaneTensors were.

    Attributes:
        value: With a `TensorRange` for each LaneTensor.
        requires_grad: Of which tensors gradients are wanted.
        plain: Nothing is in it but LaneTensors, texts and numbers.
    """

    value: Any
    requires_grad: Sequence[bool]
    plain: bool

    def unflatten(self, tensors: Sequence[Tensor], generators: Generators) -> Any:
        """Return such a value of other tensors.

        Args:
            tensors: As many as it was made of, in their order.
            generators: A random generator of each lane.
        """
        return _Unflattener(tensors, generators).unflatten(self.value)

    def leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the same numbers, where gradients of what is computed from them end."""
        return [
            tensor.detach().requires_grad_(requires_grad)
            for tensor, requires_grad in zip(tensors, self.requires_grad, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Of which tensors a LaneTensor is made."""

    first: int
    count: int
    stacked: bool


def flatten_output(value: Any) -> tuple[Form, list[Tensor]]:
    """Return the form of a value, and the tensors that it is made of: stacks of all lanes, or one of each."""
    flattener = _Flattener()
    form = flattener.form_of(value)
    return Form(form, [tensor.requires_grad for tensor in flattener.tensors], flattener.plain), flattener.tensors


# Both have methods, as functions that name themselves within others are circles, which would keep tensors until
# Python's collector comes by.


class _Unflattener:
    def __init__(self, tensors: Sequence[Tensor], generators: Generators) -> None:
        self._tensors = tensors
        self._generators = generators
        self._cache: dict[TensorRange, LaneTensor] = {}

    def unflatten(self, value: Any) -> Any:
        if not isinstance(value, TensorRange):
            return map_items(self.unflatten, value)
        if value not in self._cache:
            if value.stacked:
                tensor = LaneTensor.of_stack(self._tensors[value.first], self._generators)
            else:
                tensor = LaneTensor.of_slices(self._tensors[value.first : value.first + value.count], self._generators)
            self._cache[value] = tensor
        return self._cache[value]


class _Flattener:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.plain = True
        self._ranges: dict[int, TensorRange] = {}

    def form_of(self, value: Any) -> Any:
        if not isinstance(value, LaneTensor):
            inner = map_items(self.form_of, value)
            self.plain = self.plain and (inner is not value or isinstance(value, str | int | float | None))
            return inner
        if id(value) not in self._ranges:
            parts = (value.stack,) if value.is_stack else value.slices
            self._ranges[id(value)] = TensorRange(len(self.tensors), len(parts), value.is_stack)
            self.tensors.extend(parts)
        return self._ranges[id(value)]
