"""What a model of all lanes gives, as a form and the tensors that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, within

__all__ = ["Form", "taken_apart"]


@dataclass(frozen=True, slots=True)
class Form:
    """A value with places where its LaneTensors were.

    Attributes:
        value: With a `TensorRange` for each LaneTensor.
        wanted: Of which tensors gradients are wanted.
        plain: Nothing is in it but LaneTensors, texts and numbers.
    """

    value: Any
    wanted: Sequence[bool]
    plain: bool

    def filled(self, tensors: Sequence[Tensor], generators: Generators) -> Any:
        """Return such a value of other tensors.

        Args:
            tensors: As many as it was made of, in their order.
            generators: A random generator of each lane.
        """
        return _Filling(tensors, generators).filled(self.value)

    def leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the same numbers, where gradients of what is computed from them end."""
        return [one.detach().requires_grad_(wanted) for one, wanted in zip(tensors, self.wanted, strict=True)]


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Of which tensors a LaneTensor is made."""

    first: int
    count: int
    stacked: bool


def taken_apart(value: Any) -> tuple[Form, list[Tensor]]:
    """Return the form of a value, and the tensors that it is made of: stacks of all lanes, or one of each."""
    taking = _TakingApart()
    form = taking.form_of(value)
    return Form(form, [one.requires_grad for one in taking.held], taking.plain), taking.held


# Both have methods, as functions that name themselves within others are circles, which would keep tensors until
# Python's collector comes by.


class _Filling:
    def __init__(self, tensors: Sequence[Tensor], generators: Generators) -> None:
        self._tensors = tensors
        self._generators = generators
        self._made: dict[TensorRange, LaneTensor] = {}

    def filled(self, one: Any) -> Any:
        if not isinstance(one, TensorRange):
            return within(self.filled, one)
        if one not in self._made:
            if one.stacked:
                made = LaneTensor.of_stack(self._tensors[one.first], self._generators)
            else:
                made = LaneTensor.of_slices(self._tensors[one.first : one.first + one.count], self._generators)
            self._made[one] = made
        return self._made[one]


class _TakingApart:
    def __init__(self) -> None:
        self.held: list[Tensor] = []
        self.plain = True
        self._places: dict[int, TensorRange] = {}

    def form_of(self, one: Any) -> Any:
        if not isinstance(one, LaneTensor):
            inner = within(self.form_of, one)
            self.plain = self.plain and (inner is not one or isinstance(one, str | int | float | None))
            return inner
        if id(one) not in self._places:
            parts = (one.stack,) if one.is_stack else one.slices
            self._places[id(one)] = TensorRange(len(self.held), len(parts), one.is_stack)
            self.held.extend(parts)
        return self._places[id(one)]
