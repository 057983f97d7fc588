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
        value: With a `Place` for each LaneTensor.
        wanted: Of which tensors gradients are wanted.
        plain: Nothing is in it but LaneTensors, texts and numbers.
    """

    value: Any
    wanted: Sequence[bool]
    plain: bool

    def filled(self, tensors: Sequence[Tensor], generators: Generators) -> Any:
        """Give such a value of other tensors.

        Args:
            tensors: As many as it was made of, in their order.
            generators: A random generator of each lane.
        """
        made: dict[Place, LaneTensor] = {}

        def fill(one: Any) -> Any:
            if not isinstance(one, Place):
                return within(fill, one)
            if one not in made:
                if one.stacked:
                    made[one] = LaneTensor.of_stack(tensors[one.first], generators)
                else:
                    made[one] = LaneTensor.of_slices(tensors[one.first : one.first + one.count], generators)
            return made[one]

        return fill(self.value)

    def leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Give the same numbers, where gradients of what is computed from them end."""
        return [one.detach().requires_grad_(wanted) for one, wanted in zip(tensors, self.wanted, strict=True)]


@dataclass(frozen=True, slots=True)
class Place:
    """Of which tensors a LaneTensor is made."""

    first: int
    count: int
    stacked: bool


def taken_apart(value: Any) -> tuple[Form, list[Tensor]]:
    """Give the form of a value, and the tensors that it is made of: stacks of all lanes, or one of each."""
    held: list[Tensor] = []
    places: dict[int, Place] = {}
    plain = True

    def place(one: Any) -> Any:
        nonlocal plain
        if not isinstance(one, LaneTensor):
            inner = within(place, one)
            plain = plain and (inner is not one or isinstance(one, str | int | float | None))
            return inner
        if id(one) not in places:
            parts = (one.stack,) if one.is_stack else one.slices
            places[id(one)] = Place(len(held), len(parts), one.is_stack)
            held.extend(parts)
        return places[id(one)]

    form = place(value)
    return Form(form, [one.requires_grad for one in held], plain), held
